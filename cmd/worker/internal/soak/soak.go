package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/cmd/worker/internal/gateclient"
	"sluice/workflows"
)

// Roles of this program's processes: the hidden commands that call ServeProvider,
// Serve and Work.
const (
	RoleServer   = "soak-server"
	RoleProvider = "soak-provider"
	RoleWorker   = "soak-worker"
)

const (
	countEvery   = 20 * time.Millisecond
	measureEvery = 500 * time.Millisecond
	reportEvery  = 500 * time.Millisecond
	// stalledAfter is how long no attempt may arrive before the run counts as stuck.
	stalledAfter = time.Minute
	startTimeout = time.Minute // of any process
	// drainTimeout bounds the wait for the gate to be empty: the places of those
	// who never come back are kept for parkTTL, from when their holder was lost.
	drainTimeout = parkTTL + 2*holderTTL + 10*time.Second
	queryTimeout = 10 * time.Second
)

// Options of a soak. All fields but Report are required.
type Options struct {
	Attempts    int // that the provider serves, at least
	Processes   int // worker processes
	KillWorkers int
	KillServer  int
	StopWorkers int
	Seed        uint64
	Transport   activities.ExchangeTransport
	NoTelemetry bool // in worker processes, whatever the environment says
	IP          string
	// Database is the server's SQLite file. Beside it, in Database + ".logs", is what
	// the processes write to standard error.
	Database string
	// Program is the path of this program.
	Program string
	// Report is told how it goes, a few times per second, from one goroutine. nil:
	// nobody is.
	Report func(Progress)
}

// Progress is how a soak goes.
type Progress struct {
	Phase     string // what it does now
	Attempts  int
	Completed int
	Overloads int
	Faults    int // struck so far
	Planned   int
	Elapsed   time.Duration
}

// Logs is the directory of what the processes write to standard error.
func (o *Options) Logs() string { return o.Database + ".logs" }

// Run runs a soak and judges it. An error says that it could not be run or judged;
// broken bounds are in the result. All processes are gone when it returns.
func Run(ctx context.Context, o Options) (r Result, err error) {
	began := time.Now()
	r = Result{Processes: o.Processes, Transport: string(o.Transport), Seed: o.Seed}
	if o.StopWorkers > 0 && !canSuspend {
		return r, errors.New("processes can't be stopped on this system; use --stop-workers 0")
	}
	if o.Report == nil {
		o.Report = func(Progress) {}
	}
	if err := os.MkdirAll(o.Logs(), 0o700); err != nil {
		return r, fmt.Errorf("logs of the processes: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &fleet{program: o.Program, logs: o.Logs(), ip: o.IP, db: o.Database, seed: o.Seed, transport: o.Transport, noTelemetry: o.NoTelemetry, died: make(chan error, 1)}
	defer f.close()
	go func() {
		select {
		case err := <-f.died:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	s := &soak{o: o, fleet: f, began: began}
	e, err := s.run(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return r, err
	}
	s.phase("judging")
	judge(e, &r)
	r.Events, r.LoadS = s.events, e.loadEnd.Sub(began).Seconds()
	r.ElapsedS = time.Since(began).Seconds()
	return r, nil
}

// soak is one run.
type soak struct {
	o      Options
	fleet  *fleet
	load   *load
	gateID string
	began  time.Time
	events int // in the gate's histories

	progress Progress
}

func (s *soak) phase(name string) {
	s.progress.Phase, s.progress.Elapsed = name, time.Since(s.began)
	s.o.Report(s.progress)
}

func (s *soak) run(ctx context.Context) (*evidence, error) {
	s.phase("starting")
	c, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	e := &evidence{epoch: s.fleet.provider.Epoch}
	if err := s.underFire(ctx); err != nil {
		return nil, err
	}
	e.loadEnd = time.Now()
	s.phase("draining")
	if e.drained, err = s.drain(ctx, c); err != nil {
		return nil, err
	}
	s.fleet.stopWorkers()

	s.phase("reading histories")
	host := sdkworker.New(c, workflows.TaskQueue, sdkworker.Options{LocalActivityWorkerOnly: true, DisableRegistrationAliasing: true})
	host.RegisterWorkflowWithOptions(workflows.AdmissionWorkflow, workflow.RegisterOptions{Name: workflows.WorkflowType})
	if err := host.Start(); err != nil {
		return nil, err
	}
	defer host.Stop()
	if e.after, err = gateclient.New(c, namespace, queryTimeout).Status(ctx, s.gateID); err != nil {
		return nil, err
	}
	if e.attempts, err = s.fleet.provider.Attempts(ctx, runName); err != nil {
		return nil, err
	}
	if e.log, s.events, err = gateLog(ctx, c, workflows.WorkflowIDPrefix+s.gateID); err != nil {
		return nil, err
	}
	e.struck = s.fleet.struck()
	e.calls, e.ended = s.load.calls, s.load.ended
	return e, nil
}

// start starts everything and returns a client.
func (s *soak) start(ctx context.Context) (client.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the processes didn't start within %v", startTimeout))
	defer cancel()
	if err := s.fleet.startProvider(ctx); err != nil {
		return nil, err
	}
	g := theGate(s.fleet.provider.URL)
	body, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	s.gateID, s.fleet.gate = g.ID(), body
	if err := s.fleet.startServer(ctx); err != nil {
		return nil, err
	}
	c, err := client.DialContext(ctx, client.Options{HostPort: s.fleet.server.address, Namespace: namespace, Logger: silent{}})
	if err != nil {
		return nil, err
	}
	if err := s.fleet.startWorkers(ctx, s.o.Processes); err != nil {
		c.Close()
		return nil, err
	}
	s.load = newLoad(c, s.o.Seed, s.fleet.provider.CallURL(runName), s.o.Attempts)
	return c, nil
}

// underFire drives the load and strikes the faults, and returns when all calls have
// come to an end, or no attempt comes any more.
func (s *soak) underFire(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- s.load.run(ctx) }()
	struck := make(chan int)
	go s.strikeAll(ctx, cancel, struck)
	go func() {
		for tick := time.NewTicker(measureEvery); ; {
			select {
			case <-tick.C:
				s.fleet.measure(ctx)
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()

	s.progress.Planned = s.o.KillWorkers + s.o.KillServer + s.o.StopWorkers
	count, report := time.NewTicker(countEvery), time.NewTicker(reportEvery)
	defer count.Stop()
	defer report.Stop()
	moved := time.Now()
	for {
		select {
		case err := <-done:
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStalled) {
				return cause
			} else if cause != nil {
				return nil // judged as lost
			}
			return err
		case s.progress.Faults = <-struck:
			moved = time.Now()
		case <-report.C:
			s.phase("under fire")
		case <-count.C:
			c, err := s.fleet.provider.Count(ctx, runName)
			if err != nil {
				continue // the provider's death is told elsewhere
			}
			if c.WireAttempts != s.progress.Attempts {
				moved = time.Now()
			} else if time.Since(moved) > stalledAfter {
				cancel(errStalled)
				continue
			}
			s.progress.Attempts, s.progress.Completed, s.progress.Overloads = c.WireAttempts, c.Completed, c.Overloads
			s.load.note(c)
		}
	}
}

var errStalled = fmt.Errorf("no attempt within %v", stalledAfter)

// strikeAll strikes the faults, each when so many attempts have been served.
func (s *soak) strikeAll(ctx context.Context, cancel context.CancelCauseFunc, struck chan<- int) {
	for i, b := range faults(s.o) {
		for {
			s.load.mu.Lock()
			served, changed := s.load.count.WireAttempts, s.load.changed
			s.load.mu.Unlock()
			if served >= b.at {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
		starting, done := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%s: the next one didn't start within %v", b.kind, startTimeout))
		err := s.fleet.strike(starting, b)
		done()
		if err != nil {
			cancel(err)
			return
		}
		select {
		case struck <- i + 1:
		case <-ctx.Done():
			return
		}
	}
}

// drain waits until the gate is empty and returns its status then, or at the end
// of its time.
func (s *soak) drain(ctx context.Context, c client.Client) (st workflows.Status, err error) {
	s.fleet.resumes.Wait()
	limit := time.Now().Add(drainTimeout)
	for {
		next, err := gateclient.New(c, namespace, queryTimeout).Status(ctx, s.gateID)
		if err == nil {
			st = next
			if st.Queued+st.Reserved+st.Started == 0 {
				return st, nil
			}
		}
		if time.Now().After(limit) {
			return st, err
		}
		select {
		case <-time.After(countEvery * 10):
		case <-ctx.Done():
			return st, context.Cause(ctx)
		}
	}
}

// portOf is the port of an address, 0 if it has none.
func portOf(address string) int {
	_, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	return n
}

// WriteDetails says what was found.
func (r *Result) WriteDetails(w io.Writer) {
	for _, text := range r.Details {
		fmt.Fprintln(w, text)
	}
}

// TemporaryDatabase is the name of the database in a directory of its own.
func TemporaryDatabase(dir string) string { return filepath.Join(dir, "soak.db") }
