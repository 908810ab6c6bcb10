package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"sluice/activities"
	"sluice/admission"
	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/workflows"
)

const (
	queueRate      = 50 // per second
	queueRunEvents = 200
	queuePoll      = 500 * time.Millisecond
)

// QueueResult is what Queue measured.
type QueueResult struct {
	Tickets int `json:"tickets"` // that waited all the time
	// Runs began while they waited. InputBytes is the largest input of one: the state
	// that it was handed, encoded and compressed.
	Runs       int `json:"runs"`
	InputBytes int `json:"input_bytes"`
	// Steps are the gate's workflow tasks while all waited, each from its start to its
	// completion as the server dates them: on top of the gate's own work that is the way
	// to the host and back.
	Steps     int     `json:"steps"`
	StepP50MS float64 `json:"step_p50_ms"`
	StepP99MS float64 `json:"step_p99_ms"`
	StepMaxMS float64 `json:"step_max_ms"`
}

// Queue measures a gate with a long queue that moves at 50 per second: how long its
// steps take, and how large the state is that a run hands to the next. Runs are kept
// short, so that there are many.
func Queue(ctx context.Context, o Options, tickets int, lasts time.Duration) (r QueueResult, err error) {
	r.Tickets = tickets
	b, err := newBed(ctx, o, policy.Gate{
		Provider: "bench", Endpoint: "http://queue.test/v1", MaxQueue: 2 * tickets,
		Requests: admission.Rate{Limit: queueRate, Per: time.Second, Burst: 1},
	})
	if err != nil {
		return r, err
	}
	b.runEvents = queueRunEvents
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.hold(ctx, 1, o); err != nil {
		return r, err
	}
	// Some more, for those that are admitted ahead.
	failed, leave := b.queueUp(ctx, tickets+2*queueRate)
	defer leave()
	o.Report("%d tickets queue up", tickets)
	runs := 0
	if err := b.awaitStatus(ctx, failed, func(st *workflows.Status) bool {
		runs = st.Runs
		return st.Queued >= tickets
	}); err != nil {
		return r, err
	}
	from := time.Now()
	o.Report("they move at %d per second, %v, and until a run has ended", queueRate, lasts)
	if err := b.awaitStatus(ctx, failed, func(st *workflows.Status) bool {
		return time.Since(from) >= lasts && st.Runs > runs
	}); err != nil {
		return r, err
	}
	until := time.Now()
	o.Report("they leave")
	leave()
	histories, err := gateclient.Histories(ctx, b.client, b.gate.WorkflowID())
	if err != nil {
		return r, err
	}
	var steps []time.Duration
	for _, h := range histories {
		if began := h.Events[0].EventTime.AsTime(); began.After(from) && began.Before(until) {
			r.Runs++
			r.InputBytes = max(r.InputBytes, h.Events[0].GetWorkflowExecutionStartedEventAttributes().GetInput().Size())
		}
		steps = append(steps, stepsOf(h, from, until)...)
	}
	steps = sorted(steps)
	r.Steps, r.StepP50MS, r.StepP99MS, r.StepMaxMS = len(steps), percentile(steps, 50), percentile(steps, 99), percentile(steps, 100)
	return r, nil
}

// awaitStatus looks at the gate's status until it is as wanted.
func (b *bed) awaitStatus(ctx context.Context, failed <-chan error, is func(*workflows.Status) bool) error {
	for {
		st, err := b.status(ctx)
		if err != nil || is(&st) {
			return err
		}
		select {
		case <-time.After(queuePoll):
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stepsOf are the times that a run's workflow tasks took which started within from
// and until.
func stepsOf(h *historypb.History, from, until time.Time) (steps []time.Duration) {
	var started time.Time
	for _, e := range h.Events {
		switch at := e.EventTime.AsTime(); e.EventType {
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED:
			started = at
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
			if started.After(from) && started.Before(until) {
				steps = append(steps, at.Sub(started))
			}
		}
	}
	return steps
}

// queueUp has n callers take leases of the first holder and give them back at once, until
// leave is called, which returns when they are gone. failed gets the first error of one
// that had not left.
func (b *bed) queueUp(ctx context.Context, n int) (failed <-chan error, leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	gate := b.holders[0].gate
	first := make(chan error, 1)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				l, err := gate.Acquire(ctx, activities.Request{Label: fmt.Sprintf("CallProvider summarise-orders-2026-11-%05d/%d", i, i)})
				switch {
				case err == nil:
					l.Release()
				case ctx.Err() == nil:
					select {
					case first <- err:
					default:
					}
					return
				}
			}
		})
	}
	return first, sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
}
