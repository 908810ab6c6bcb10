package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/cmd/worker/internal/child"
	"sluice/cmd/worker/internal/tracing"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
	"sluice/worker/telemetry"
)

const (
	// warmConnections are open to the provider before the first call: the first
	// calls then take the same way as all others.
	warmConnections = 8
	idleConnections = 64
	// warmLeases are taken from the gate before the first call. Each answer tells
	// this process the gate's time more exactly; the very first one, which had to
	// start the gate, hardly does.
	warmLeases  = 12
	stopTimeout = 5 * time.Second // for the calls under way
)

// order is what a worker process reads first from its standard input.
type order struct {
	Address   string          `json:"address"`
	Namespace string          `json:"namespace"`
	TaskQueue string          `json:"task_queue"`
	Gate      json.RawMessage `json:"gate,omitempty"` // canonical JSON; none: no admission
	Provider  string          `json:"provider"`       // URL
	Verbose   bool            `json:"verbose,omitempty"`
	Telemetry telemetryOrder  `json:"telemetry"`
}

// Work is a worker process of the demonstration. It reads an order, says on stdout
// when it takes work, and drains when ctx or stdin ends. If it hasn't drained after
// 10 s it ends the process.
func Work(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	var o order
	in := json.NewDecoder(stdin)
	if err := in.Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // until the starting process closes it or dies
		stop()
	}()
	context.AfterFunc(ctx, func() {
		time.AfterFunc(child.DrainTimeout, func() { os.Exit(1) }) // nobody may be left to kill it
	})

	teller, err := o.Telemetry.open(ctx, stdout, stderr)
	if err != nil {
		return err
	}
	defer teller.close()
	plugin, err := o.plugin(teller.telemetry)
	if err != nil {
		return err
	}
	dial := client.Options{HostPort: o.Address, Namespace: o.Namespace, Logger: o.logger(stderr), Plugins: []client.Plugin{plugin}}
	if err := tracing.Add(&dial, teller.telemetry); err != nil {
		return err
	}
	c, err := client.DialContext(ctx, dial)
	if err != nil {
		return err
	}
	defer c.Close()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = idleConnections, idleConnections
	defer transport.CloseIdleConnections()
	warm(ctx, transport, o.Provider)

	w := sdkworker.New(c, o.TaskQueue, sdkworker.Options{WorkerStopTimeout: stopTimeout})
	w.RegisterWorkflowWithOptions(makeCalls, workflow.RegisterOptions{Name: workflowType})
	w.RegisterActivity((&activities.Caller{Base: transport, LeaseHeader: loopback.HeaderLease}).CallProvider)
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	if err := warmGates(ctx, plugin.Gates()); err != nil {
		return err
	}
	if err := teller.say("ready"); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (o *order) plugin(t *telemetry.Telemetry) (*worker.Plugin, error) {
	if len(o.Gate) == 0 {
		return worker.NewPlugin(worker.Options{}) // gates nothing
	}
	g, err := policy.DecodeGate(o.Gate)
	if err != nil {
		return nil, err
	}
	p, err := policy.New(g)
	if err != nil {
		return nil, err
	}
	return worker.NewPlugin(worker.Options{Policy: p, StopTimeout: stopTimeout, TracerProvider: t.TracerProvider, MeterProvider: t.MeterProvider})
}

// logger leaves the failing of activities out: it is what the demonstration is
// about, and the rows count it.
func (o *order) logger(w io.Writer) log.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelWarn}
	if o.Verbose {
		options.Level = slog.LevelDebug
		return log.NewStructuredLogger(slog.New(slog.NewTextHandler(w, options)))
	}
	return log.NewStructuredLogger(slog.New(withoutActivityErrors{slog.NewTextHandler(w, options)}))
}

// withoutActivityErrors drops what the SDK says about each failed attempt.
type withoutActivityErrors struct{ slog.Handler }

func (h withoutActivityErrors) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "Activity error." {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h withoutActivityErrors) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withoutActivityErrors{h.Handler.WithAttrs(attrs)}
}

func (h withoutActivityErrors) WithGroup(name string) slog.Handler {
	return withoutActivityErrors{h.Handler.WithGroup(name)}
}

// warm opens connections by asking for statistics, which is no call of any run.
// What fails here will say so when it is called.
func warm(ctx context.Context, base http.RoundTripper, provider string) {
	var all sync.WaitGroup
	for range warmConnections {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider+"/stats/warm", nil)
			if err != nil {
				return
			}
			response, err := base.RoundTrip(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		})
	}
	all.Wait()
}

// warmGates takes leases that come at once and gives them back.
func warmGates(ctx context.Context, gates *activities.Gates) error {
	ctx = activities.WithGates(ctx, gates)
	for _, g := range gates.Policy().Gates() {
		for range warmLeases {
			lease, ok, err := activities.TryAcquire(ctx, g.ID(), activities.Cost{})
			if err != nil {
				return err
			}
			if fl, isOne := lease.(activities.FeedbackLease); ok && isOne {
				fl.ReleaseWith(activities.Feedback{Outcome: activities.Abandoned, Asked: -1}) // no call was made
			}
		}
	}
	return nil
}
