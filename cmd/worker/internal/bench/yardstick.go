package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// Yardstick is how a plain semaphore workflow fares.
type Yardstick struct {
	Callers    int     `json:"callers"`
	LeasesPerS float64 `json:"leases_per_s"`
	P50MS      float64 `json:"p50_ms"`
	P99MS      float64 `json:"p99_ms"`
}

const (
	yardstickCallers = 16
	semaphoreType    = "bench.Semaphore"
	semaphorePlaces  = 1000 // more than there are callers: its limit doesn't bind, either
	// pollEvery is the pause between two looks at whether a place was given.
	pollEvery = 5 * time.Millisecond
)

// BareUpdate is how an update fares that does nothing: no exchange can be faster.
type BareUpdate struct {
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
}

const (
	bareType  = "bench.Bare"
	bareName  = "echo"
	bareBytes = 200 // about an exchange with one ticket
	bareLasts = 2 * time.Second
)

// bare is a workflow whose update does nothing.
func bare(ctx workflow.Context) error {
	err := workflow.SetUpdateHandler(ctx, bareName, func(_ workflow.Context, b []byte) ([]byte, error) { return b, nil })
	if err != nil {
		return err
	}
	return workflow.Await(ctx, func() bool { return false })
}

// measureBareUpdate makes one update after the other, for two seconds at most.
func (s *server) measureBareUpdate(ctx context.Context, lasts time.Duration) (u BareUpdate, err error) {
	c, err := s.dialAsPlugin(ctx)
	if err != nil {
		return u, err
	}
	defer c.Close()
	run, w, err := host(ctx, c, bareType, bare)
	if err != nil {
		return u, err
	}
	defer w.Stop()
	r, err := loop(ctx, 1, min(lasts, bareLasts), func(ctx context.Context, _ int) func(int, func()) error {
		return func(_ int, got func()) error {
			h, err := c.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
				WorkflowID: run.GetID(), UpdateName: bareName, Args: []any{make([]byte, bareBytes)}, WaitForStage: client.WorkflowUpdateStageCompleted,
			})
			if err == nil {
				err = h.Get(ctx, nil)
			}
			got()
			return err
		}
	})
	if err != nil {
		return u, err
	}
	u.P50MS, u.P99MS = percentile(r.waits, 50), percentile(r.waits, 99)
	return u, nil
}

// host starts a workflow of a type, and a worker for it alone, as a worker of
// Temporal's SDK is by default. The type names the task queue and the workflow, too.
func host(ctx context.Context, c client.Client, name string, definition any, args ...any) (client.WorkflowRun, sdkworker.Worker, error) {
	w := sdkworker.New(c, name, sdkworker.Options{})
	w.RegisterWorkflowWithOptions(definition, workflow.RegisterOptions{Name: name})
	if err := w.Start(); err != nil {
		return nil, nil, err
	}
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: name, TaskQueue: name}, name, args...)
	if err != nil {
		w.Stop()
		return nil, nil, err
	}
	return run, w, nil
}

// semaphoreState is what a semaphore hands over to its next run.
type semaphoreState struct {
	Holding map[string]bool
	Waiting []string
}

// semaphore is the workflow that one writes first: a signal to acquire, a query
// to see whether the place was given, a signal to release.
func semaphore(ctx workflow.Context, s semaphoreState) error {
	if s.Holding == nil {
		s.Holding = map[string]bool{}
	}
	if err := workflow.SetQueryHandler(ctx, "holds", func(id string) (bool, error) { return s.Holding[id], nil }); err != nil {
		return err
	}
	acquire, release := workflow.GetSignalChannel(ctx, "acquire"), workflow.GetSignalChannel(ctx, "release")
	give := func() {
		for len(s.Waiting) > 0 && len(s.Holding) < semaphorePlaces {
			s.Holding[s.Waiting[0]] = true
			s.Waiting = s.Waiting[1:]
		}
	}
	for {
		selector := workflow.NewSelector(ctx)
		selector.AddReceive(acquire, func(c workflow.ReceiveChannel, _ bool) {
			var id string
			c.Receive(ctx, &id)
			s.Waiting = append(s.Waiting, id)
		})
		selector.AddReceive(release, func(c workflow.ReceiveChannel, _ bool) {
			var id string
			c.Receive(ctx, &id)
			delete(s.Holding, id)
		})
		selector.Select(ctx)
		give()
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() && acquire.Len()+release.Len() == 0 {
			return workflow.NewContinueAsNewError(ctx, semaphoreType, s)
		}
	}
}

// measureYardstick runs the semaphore on a server with Temporal's own dynamic
// configuration, as a worker and a client of Temporal's SDK do by default.
func measureYardstick(ctx context.Context, o Options, lasts time.Duration) (y Yardstick, err error) {
	y.Callers = yardstickCallers
	s, err := startServer(ctx, o, true)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	c, err := s.dial(ctx)
	if err != nil {
		return y, err
	}
	defer c.Close()
	run, w, err := host(ctx, c, semaphoreType, semaphore, semaphoreState{})
	if err != nil {
		return y, err
	}
	defer w.Stop()
	r, err := loop(ctx, yardstickCallers, lasts, func(ctx context.Context, i int) func(int, func()) error {
		return func(k int, got func()) error {
			return passSemaphore(ctx, c, run.GetID(), fmt.Sprintf("summarise-orders-2026-11-%05d/%d/%d", i, i, k), got)
		}
	})
	if err != nil {
		return y, err
	}
	y.LeasesPerS, y.P50MS, y.P99MS = r.perSecond(), percentile(r.waits, 50), percentile(r.waits, 99)
	return y, nil
}

// passSemaphore takes a place, calls got, and gives it back.
func passSemaphore(ctx context.Context, c client.Client, semaphore, id string, got func()) error {
	if err := c.SignalWorkflow(ctx, semaphore, "", "acquire", id); err != nil {
		return err
	}
	for {
		holds := false
		v, err := c.QueryWorkflow(ctx, semaphore, "", "holds", id)
		if err == nil {
			err = v.Get(&holds)
		}
		if err != nil && ctx.Err() != nil {
			return err // else the server is busy, and the next look may be luckier
		}
		if holds {
			break
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	got()
	return c.SignalWorkflow(ctx, semaphore, "", "release", id)
}
