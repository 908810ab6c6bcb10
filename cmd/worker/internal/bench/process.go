package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/cmd/worker/internal/child"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
)

// Role is the hidden command that calls Work.
const Role = "bench-process"

const (
	runName     = "bench"
	queueName   = "bench-rate"
	batchType   = "bench.Batch"
	callType    = "bench.Call"
	stopTimeout = 5 * time.Second
)

// order is what a process reads first from its standard input. Exactly one of
// Provider, Gate, Rate and Every is set.
type order struct {
	IP       string          `json:"ip,omitempty"`
	Provider *providerOrder  `json:"provider,omitempty"` // be the provider
	Gate     json.RawMessage `json:"gate,omitempty"`     // be a worker whose callers this gate admits
	Rate     float64         `json:"rate,omitempty"`     // be a worker of a task queue with this rate
	Every    time.Duration   `json:"every,omitempty"`    // make a call so often, from First on, under no gate
	First    time.Time       `json:"first,omitzero"`
	Address  string          `json:"address,omitempty"`
	Callers  int             `json:"callers,omitempty"`
	URL      string          `json:"url,omitempty"` // of the calls
}

// providerOrder says what the provider does.
type providerOrder struct {
	ServeTime time.Duration `json:"serve_time,omitempty"`
	// Overloads are the numbers of the attempts that it answers 429 with RetryAfter.
	Overloads  []int  `json:"overloads,omitempty"`
	RetryAfter string `json:"retry_after,omitempty"`
}

// providerReady is what it says when it listens.
type providerReady struct {
	loopback.Remote
	Epoch time.Time `json:"epoch"` // what its instants are measured from
}

// Work is a process of a benchmark. It reads an order, says on stdout when it is
// ready, and drains when stdin ends. A Ctrl-C is its parent's to see.
func Work(stdin io.Reader, stdout, stderr io.Writer) error {
	var o order
	if err := json.NewDecoder(stdin).Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // until the starting process closes it or dies
		time.AfterFunc(child.DrainTimeout, func() { os.Exit(1) })
		stop()
	}()
	switch {
	case o.Provider != nil:
		return o.Provider.serve(ctx, o.IP, stdout)
	case len(o.Gate) > 0:
		return o.call(ctx, stdout, stderr)
	case o.Every > 0:
		return o.callByClock(ctx, stdout, stderr)
	default:
		return o.workAtRate(ctx, stdout, stderr)
	}
}

func (o *providerOrder) serve(ctx context.Context, ip string, stdout io.Writer) error {
	p := loopback.New(loopback.Quota{})
	overloads := map[int]bool{}
	for _, n := range o.Overloads {
		overloads[n] = true
	}
	if err := p.SetScript(runName, func(attempt int) loopback.Turn {
		if overloads[attempt] {
			return loopback.Turn{Status: http.StatusTooManyRequests, RetryAfter: o.RetryAfter}
		}
		return loopback.Turn{ServeTime: o.ServeTime}
	}); err != nil {
		return err
	}
	if err := p.Start(ctx, net.JoinHostPort(ip, "0")); err != nil {
		return err
	}
	defer func() { _ = p.Close() }() // nobody is left to be told
	if err := json.NewEncoder(stdout).Encode(providerReady{loopback.Remote{URL: p.URL()}, p.Epoch()}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// wire is what calls go over: all to one provider.
func wire() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = t.MaxIdleConns
	return t
}

// call makes calls, one after the other for each caller, each under a lease.
func (o *order) call(ctx context.Context, stdout, stderr io.Writer) error {
	g, err := policy.DecodeGate(o.Gate)
	if err != nil {
		return err
	}
	p, err := policy.New(g)
	if err != nil {
		return err
	}
	plugin, err := worker.NewPlugin(worker.Options{Policy: p, StopTimeout: stopTimeout})
	if err != nil {
		return err
	}
	c, err := client.Dial(client.Options{HostPort: o.Address, Namespace: namespace, Logger: log.NewStructuredLogger(warnings(stderr)), Plugins: []client.Plugin{plugin}})
	if err != nil {
		return err
	}
	defer c.Close()
	w := sdkworker.New(c, queueName, sdkworker.Options{DisableWorkflowWorker: true, LocalActivityWorkerOnly: true})
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return err
	}
	hc := &http.Client{Transport: &activities.Transport{Gates: plugin.Gates(), Base: wire(), LeaseHeader: loopback.HeaderLease}}
	var all sync.WaitGroup
	for range o.Callers {
		all.Go(func() {
			for ctx.Err() == nil {
				o.post(ctx, hc, stderr)
			}
		})
	}
	all.Wait()
	return nil
}

// callByClock makes calls on the dot, as far as the machine lets it.
func (o *order) callByClock(ctx context.Context, stdout, stderr io.Writer) error {
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return err
	}
	hc := &http.Client{Transport: wire()}
	var all sync.WaitGroup
	defer all.Wait()
	for next := o.First; ; next = next.Add(o.Every) {
		if pause(ctx, time.Until(next)) != nil {
			return nil
		}
		all.Go(func() { o.post(ctx, hc, stderr) })
	}
}

// post makes a call. Of one that fails the provider's record has nothing.
func (o *order) post(ctx context.Context, c *http.Client, stderr io.Writer) {
	if err := loopback.Post(ctx, c, o.URL, ""); err != nil && ctx.Err() == nil {
		fmt.Fprintln(stderr, err)
	}
}

// batch is the argument of a workflow of activities that a task queue paces.
type batch struct {
	URL   string `json:"url"`
	Calls int    `json:"calls"`
}

// makeBatch schedules all of a batch's activities at once.
func makeBatch(ctx workflow.Context, b batch) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	calls := make([]workflow.Future, b.Calls)
	for i := range calls {
		calls[i] = workflow.ExecuteActivity(ctx, callType, b.URL)
	}
	for _, f := range calls {
		if err := f.Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// workAtRate is a worker whose activities Temporal's own rate of a task queue paces.
func (o *order) workAtRate(ctx context.Context, stdout, stderr io.Writer) error {
	c, err := client.Dial(client.Options{HostPort: o.Address, Namespace: namespace, Logger: log.NewStructuredLogger(warnings(stderr))})
	if err != nil {
		return err
	}
	defer c.Close()
	w := sdkworker.New(c, queueName, sdkworker.Options{TaskQueueActivitiesPerSecond: o.Rate, WorkerStopTimeout: stopTimeout})
	w.RegisterWorkflowWithOptions(makeBatch, workflow.RegisterOptions{Name: batchType})
	hc := &http.Client{Transport: wire()}
	w.RegisterActivityWithOptions(func(ctx context.Context, url string) error { return loopback.Post(ctx, hc, url, "") }, activity.RegisterOptions{Name: callType})
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// start starts a process and returns what it says when it is ready.
func start(ctx context.Context, o Options, order order) (p *child.Process, ready string, err error) {
	if p, err = child.Start(o.Program, order, o.Stderr); err != nil {
		return nil, "", err
	}
	if ready, err = p.Line(ctx); err != nil {
		p.Kill()
		return nil, "", fmt.Errorf("process of the benchmark: %w", err)
	}
	return p, ready, nil
}

// startProvider starts the provider in a process of its own: whatever else the
// machine does, an arrival is taken down when it arrives.
func startProvider(ctx context.Context, o Options, does providerOrder) (*child.Process, providerReady, error) {
	var ready providerReady
	p, line, err := start(ctx, o, order{IP: o.IP, Provider: &does})
	if err == nil {
		err = json.Unmarshal([]byte(line), &ready)
	}
	return p, ready, err
}

// stop ends processes, all at once.
func stop(processes ...*child.Process) {
	for _, p := range processes {
		p.AskToStop()
	}
	for _, p := range processes {
		p.Wait()
	}
}
