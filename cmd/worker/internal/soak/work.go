package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
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
	taskQueue    = "soak"
	workflowType = "soak.Batch"
	seriesType   = "MakeSeries"
	namespace    = "default"
	// slots of each process: 12 processes have more than there are activities.
	slots = 10
	// tries of a call before it ends with its own error
	tries = 30
	// Between the tries of a call: from the first to the longest pause.
	firstPause, longestPause = 50 * time.Millisecond, time.Second
	// beat is the activities' heartbeat timeout: so long after its worker died
	// another one goes on with an activity.
	beat        = 6 * time.Second
	stopTimeout = 5 * time.Second
)

// workOrder is what a worker process reads first from its standard input.
type workOrder struct {
	Address     string                       `json:"address"`
	Holder      string                       `json:"holder"`
	Transport   activities.ExchangeTransport `json:"transport"`
	Gate        json.RawMessage              `json:"gate"` // canonical JSON
	NoTelemetry bool                         `json:"no_telemetry,omitempty"`
}

// Work is a worker process of the soak. It reads an order, says on stdout when it
// takes work, and drains when stdin ends. A Ctrl-C is its parent's to see.
func Work(stdin io.Reader, stdout, stderr io.Writer) error {
	var o workOrder
	in := json.NewDecoder(stdin)
	if err := in.Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // until the starting process closes it or dies
		time.AfterFunc(child.DrainTimeout, func() { os.Exit(1) })
		close(ended)
	}()
	g, err := policy.DecodeGate(o.Gate)
	if err != nil {
		return err
	}
	p, err := policy.New(g)
	if err != nil {
		return err
	}
	told, err := tracing.ForChild(context.Background(), o.NoTelemetry, telemetry.Options{Output: stderr})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		_ = told.Shutdown(ctx) // a collector that is gone is no failure of the calls
	}()
	plugin, err := worker.NewPlugin(worker.Options{
		Policy: p, HolderID: o.Holder, Transport: o.Transport, StopTimeout: stopTimeout,
		TracerProvider: told.TracerProvider, MeterProvider: told.MeterProvider,
	})
	if err != nil {
		return err
	}
	logger := log.NewStructuredLogger(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	dial := client.Options{HostPort: o.Address, Namespace: namespace, Logger: logger, Plugins: []client.Plugin{plugin}}
	if err := tracing.Add(&dial, told); err != nil {
		return err
	}
	c, err := client.Dial(dial)
	if err != nil {
		return err
	}
	defer c.Close()
	w := sdkworker.New(c, taskQueue, sdkworker.Options{MaxConcurrentActivityExecutionSize: slots, WorkerStopTimeout: stopTimeout})
	w.RegisterWorkflowWithOptions(makeBatch, workflow.RegisterOptions{Name: workflowType})
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = base.MaxIdleConns
	base.ResponseHeaderTimeout = callTimeout
	w.RegisterActivity((&activities.Caller{Base: base, LeaseHeader: loopback.HeaderLease}).CallProvider)
	w.RegisterActivityWithOptions((&series{base: base}).make, activity.RegisterOptions{Name: seriesType})
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return err
	}
	<-ended
	return nil
}

// Outcome is a batch's result: the calls that didn't complete, each with its own
// error.
type Outcome struct {
	Ended []Ended `json:"ended,omitempty"`
}

// Ended is a call that ended with its own error.
type Ended struct {
	Call  string `json:"call"`
	Error string `json:"error"`
}

// makeBatch makes a batch's calls: single ones are activities that know nothing of
// admission, the rest is made by activities that make many.
func makeBatch(ctx workflow.Context, b Batch) (Outcome, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 20 * time.Minute, // the time in the gate's queue counts
		HeartbeatTimeout:    beat, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: firstPause, BackoffCoefficient: 2, MaximumInterval: longestPause, MaximumAttempts: tries},
	})
	var out Outcome
	singles := make([]workflow.Future, b.Single)
	for i := range singles {
		own := ctx
		if after, cancels := b.Cancel[i]; cancels {
			var cancel workflow.CancelFunc
			own, cancel = workflow.WithCancel(ctx)
			workflow.Go(ctx, func(ctx workflow.Context) {
				if workflow.Sleep(ctx, after) == nil {
					cancel()
				}
			})
		}
		singles[i] = workflow.ExecuteActivity(own, "CallProvider", activities.CallRequest{
			Method: "POST", URL: b.URL, Header: map[string]string{loopback.HeaderCallID: b.singleID(i)},
		})
	}
	many := make([]workflow.Future, b.Series)
	for s := range many {
		many[s] = workflow.ExecuteActivity(ctx, seriesType, b, s)
	}
	for i, call := range singles {
		if err := call.Get(ctx, nil); err != nil {
			out.Ended = append(out.Ended, Ended{b.singleID(i), err.Error()})
		}
	}
	for _, one := range many {
		var done progress
		if err := one.Get(ctx, &done); err != nil {
			return out, err // of its calls nobody knows: they are lost
		}
		out.Ended = append(out.Ended, done.Ended...)
	}
	return out, nil
}

// series is the activity that makes many calls, one after the other, each with a
// ticket of its own.
type series struct{ base http.RoundTripper }

// progress is how far a series is; it is its heartbeat and its result.
type progress struct {
	Next  int     `json:"next"`
	Ended []Ended `json:"ended,omitempty"`
}

func (s *series) make(ctx context.Context, b Batch, n int) (progress, error) {
	var p progress
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &p); err != nil {
			return p, err
		}
	}
	c := &http.Client{Transport: &activities.Transport{Base: s.base, LeaseHeader: loopback.HeaderLease}}
	for ; p.Next < b.Calls; p.Next++ {
		activity.RecordHeartbeat(ctx, p)
		id := b.seriesID(n, p.Next)
		err := callUntilServed(ctx, c, b.URL, id)
		if ctx.Err() != nil || errors.Is(err, activities.ErrStillQueued) || errors.Is(err, activities.ErrStopped) {
			return p, errors.Join(err, context.Cause(ctx))
		}
		if err != nil {
			p.Ended = append(p.Ended, Ended{id, err.Error()})
		}
	}
	return p, nil
}

// callUntilServed makes a call until the provider serves it.
func callUntilServed(ctx context.Context, c *http.Client, url, id string) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := loopback.Post(ctx, c, url, id)
		if err == nil || ctx.Err() != nil || try == tries || errors.Is(err, activities.ErrStillQueued) || errors.Is(err, activities.ErrStopped) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, longestPause)
	}
}
