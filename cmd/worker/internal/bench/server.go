package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/activities"
	"sluice/cmd/worker/internal/devserver"
	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/worker"
	"sluice/worker/telemetry"
	"sluice/workflows"
)

const (
	namespace    = "default"
	queryTimeout = 10 * time.Second
)

// Options of every benchmark.
type Options struct {
	IP        string // loopback address to listen on
	Transport activities.ExchangeTransport
	// Program starts a worker process, which must call Work: a path and arguments.
	Program []string
	// Telemetry makes the providers of the holders in this process.
	Telemetry *telemetry.Telemetry
	Stderr    io.Writer // of the processes
	Log       io.Writer // gets the server's warnings; nil: nothing does
	// Report is told in a few words what is done now. Never nil.
	Report func(text string, args ...any)
}

// server is a Temporal server on a temporary file.
type server struct {
	*devserver.Server
	dir string
}

func startServer(ctx context.Context, o Options, defaults bool) (*server, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, fmt.Errorf("temporary database: %w", err)
	}
	s, err := devserver.Start(ctx, devserver.Options{IP: o.IP, DBFile: filepath.Join(dir, "bench.db"), Log: o.Log, DefaultDynamicConfig: defaults})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &server{s, dir}, nil
}

func (s *server) close() error {
	err := s.Stop()
	return errors.Join(err, os.RemoveAll(s.dir))
}

// dial opens a connection of its own, as the SDK does by default.
func (s *server) dial(ctx context.Context, plugins ...client.Plugin) (client.Client, error) {
	return client.DialContext(ctx, client.Options{HostPort: s.HostPort(), Namespace: namespace, Logger: log.NewStructuredLogger(quiet), Plugins: plugins})
}

// dialAsPlugin opens a connection as the plugin does for its gates.
func (s *server) dialAsPlugin(ctx context.Context) (client.Client, error) {
	return client.DialContext(ctx, client.Options{
		HostPort: s.HostPort(), Namespace: namespace, Logger: log.NewStructuredLogger(quiet),
		ConnectionOptions: client.ConnectionOptions{GrpcCompression: &client.GrpcCompressionNone{}},
	})
}

var quiet = slog.New(slog.DiscardHandler)

func warnings(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// bed is a server with a gate, its host and some holders.
type bed struct {
	*server
	gate      *policy.Gate
	client    client.Client // of the host
	worker    sdkworker.Worker
	holders   []*holder
	runEvents int // of the gate's runs; 0: the default
}

// holder is one holder of the bed's gate, on a connection of its own.
type holder struct {
	client client.Client
	gates  *activities.Gates
	gate   activities.Gate
}

// newBed starts a server, and hosts a gate there as the plugin does.
func newBed(ctx context.Context, o Options, g policy.Gate) (b *bed, err error) {
	p, err := policy.New(g)
	if err != nil {
		return nil, err
	}
	b = &bed{gate: p.Gates()[0]}
	if b.server, err = startServer(ctx, o, false); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = b.close(ctx) // err says more
		}
	}()
	plugin, err := worker.NewPlugin(worker.Options{Policy: p})
	if err != nil {
		return nil, err
	}
	if b.client, err = b.dial(ctx, plugin); err != nil {
		return nil, err
	}
	w := sdkworker.New(b.client, "bench", sdkworker.Options{DisableWorkflowWorker: true, LocalActivityWorkerOnly: true})
	if err := w.Start(); err != nil {
		return nil, err
	}
	b.worker = w
	return b, nil
}

// hold adds n holders to the bed, and has each take a lease, so that all that
// comes only once (a workflow's start, a holder's registration) is done.
func (b *bed) hold(ctx context.Context, n int, o Options) error {
	p, err := policy.New(*b.gate)
	if err != nil {
		return err
	}
	failed := make([]error, n)
	added := make([]*holder, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			c, err := b.dialAsPlugin(ctx)
			if err != nil {
				failed[i] = err
				return
			}
			h := &holder{client: c}
			added[i] = h
			h.gates = activities.NewDurableGates(p, activities.DurableOptions{Service: c.WorkflowService(), Namespace: namespace, Transport: o.Transport, RunEvents: b.runEvents}, activities.GatesOptions{
				Logger: quiet, TracerProvider: o.Telemetry.TracerProvider, MeterProvider: o.Telemetry.MeterProvider,
			})
			if h.gate, failed[i] = h.gates.Gate(b.gate.ID()); failed[i] != nil {
				return
			}
			l, err := h.gate.Acquire(ctx, activities.Request{})
			if failed[i] = err; err == nil {
				l.Release()
			}
		})
	}
	all.Wait()
	for _, h := range added {
		if h != nil {
			b.holders = append(b.holders, h)
		}
	}
	return errors.Join(failed...)
}

// part closes the bed's holders: what they hold goes back.
func (b *bed) part(ctx context.Context) error {
	failed := make([]error, len(b.holders))
	var all sync.WaitGroup
	for i, h := range b.holders {
		all.Go(func() {
			failed[i] = h.gates.Close(ctx)
			h.client.Close()
		})
	}
	all.Wait()
	b.holders = nil
	return errors.Join(failed...)
}

// status asks the gate how it is.
func (b *bed) status(ctx context.Context) (workflows.Status, error) {
	return gateclient.New(b.client, namespace, queryTimeout).Status(ctx, b.gate.ID())
}

// traffic reads what the gate's histories show so far.
func (b *bed) traffic(ctx context.Context) (traffic, error) {
	return trafficOf(ctx, b.client, b.gate.WorkflowID())
}

// gates are the gate as each of the holders has it.
func (b *bed) gates() (all []activities.Gate) {
	for _, h := range b.holders {
		all = append(all, h.gate)
	}
	return all
}

func (b *bed) close(ctx context.Context) error {
	err := b.part(ctx)
	if b.worker != nil {
		b.worker.Stop()
	}
	if b.client != nil {
		b.client.Close()
	}
	return errors.Join(err, b.server.close())
}
