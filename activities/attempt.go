package activities

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
)

// attempt is what Sluice keeps for one attempt of an activity.
type attempt struct {
	mu        sync.Mutex
	acquires  map[string]int // by gate
	details   []any          // the last heartbeat details that the user recorded in this attempt
	recorded  bool
	cancelled bool // a wait ended because the activity was cancelled
}

// attemptFrom returns the context's attempt; nil outside an activity that the
// interceptor runs.
func attemptFrom(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey).(*attempt)
	return a
}

// held is a lease that the code under a context runs on: further sends to the
// same gate go under it, so no call waits for itself.
type held struct {
	gate   Gate
	lease  Lease
	parent *held

	mu       sync.Mutex
	feedback Feedback
	learned  bool
	once     sync.Once
}

func hold(ctx context.Context, g Gate, l Lease) (context.Context, *held) {
	parent, _ := ctx.Value(heldKey).(*held)
	h := &held{gate: g, lease: l, parent: parent}
	return context.WithValue(ctx, heldKey, h), h
}

// heldFrom returns the lease of a gate that the context runs on; nil if none.
func heldFrom(ctx context.Context, g Gate) *held {
	h, _ := ctx.Value(heldKey).(*held)
	for ; h != nil; h = h.parent {
		if h.gate == g {
			return h
		}
	}
	return nil
}

// learn keeps what a send under the lease was told: an overload outlives
// anything else, the longest delay asked for wins.
func (h *held) learn(f Feedback) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.learned, f.Outcome == Overload && h.feedback.Outcome != Overload:
		h.feedback = f
	case f.Outcome == Overload && f.Asked > h.feedback.Asked:
		h.feedback = f
	case h.feedback.Outcome != Overload && f.Outcome == Failed:
		h.feedback = f
	}
	h.learned = true
}

// finish gives the lease back with what was learned.
func (h *held) finish(outcome Outcome, actual map[string]int64) {
	h.once.Do(func() {
		h.mu.Lock()
		f := h.feedback
		if !h.learned {
			f = Feedback{Outcome: outcome, Asked: -1}
		} else if f.Outcome == Success {
			f.Outcome = outcome
		}
		h.mu.Unlock()
		f.Actual = actual
		release(h.lease, f)
	})
}

// release gives a lease back with feedback where its gate wants it.
func release(l Lease, f Feedback) {
	if fl, ok := l.(FeedbackLease); ok {
		fl.ReleaseWith(f)
		return
	}
	l.Release()
}

// acquire takes a lease of the gate for the code under ctx. In an activity the
// ticket is named for it, cancellation reaches the wait by heartbeats, and the
// wait ends in time for the attempt to say that it is still queued.
func acquire(ctx context.Context, g Gate, cost Cost, queueTimeout time.Duration) (Lease, error) {
	r := Request{Cost: cost, QueueTimeout: queueTimeout}
	a := attemptFrom(ctx)
	if !activity.IsActivity(ctx) {
		return g.Acquire(ctx, r)
	}
	info := activity.GetInfo(ctx)
	r.Attempt = info.Attempt
	r.Label = label(info)
	if a != nil {
		r.TicketID = a.ticketID(info, g.Policy().ID())
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.Leave = deadline.Add(-waitMargin(deadline.Sub(info.StartedTime)) - g.Policy().MinCallTime)
	}
	r.LeaveOn = activity.GetWorkerStopChannel(ctx)
	if info.IsLocalActivity {
		return g.Acquire(ctx, r)
	}
	stop := a.heartbeat(ctx, info)
	defer stop()
	l, err := g.Acquire(ctx, r)
	if err != nil && a != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		a.mu.Lock()
		a.cancelled = true
		a.mu.Unlock()
	}
	return l, err
}

// waitMargin is how long before an attempt's deadline a wait ends: a second, or
// a tenth of a shorter attempt.
func waitMargin(total time.Duration) time.Duration { return min(time.Second, max(total/10, 0)) }

// ticketID names the n-th acquire of a gate in an activity, whatever attempt
// or worker makes it.
func (a *attempt) ticketID(info activity.Info, gate string) string {
	a.mu.Lock()
	a.acquires[gate]++
	n := a.acquires[gate]
	a.mu.Unlock()
	if info.WorkflowExecution.ID == "" {
		return fmt.Sprintf("%s/%s/%s/%s/%d", info.Namespace, info.ActivityID, info.ActivityRunID, gate, n)
	}
	return fmt.Sprintf("%s/%s/%s/%s/%s/%d", info.Namespace, info.WorkflowExecution.ID, info.WorkflowExecution.RunID, info.ActivityID, gate, n)
}

// label is what a person reads in the queue.
func label(info activity.Info) string {
	if info.WorkflowExecution.ID == "" {
		return info.ActivityType.Name + " " + info.ActivityID
	}
	return info.ActivityType.Name + " " + info.WorkflowExecution.ID + "/" + info.ActivityID
}

const (
	// firstBeat is how long a wait lasts before it heartbeats at all: most
	// leases come sooner, and a heartbeat is a call.
	firstBeat = time.Second
	// unsetBeat is the pace where no heartbeat timeout is set; the SDK lets
	// one through every 30 s.
	unsetBeat = 10 * time.Second
	// maxDetails bounds the heartbeat details that are kept alive.
	maxDetails = 16
)

// heartbeat keeps the activity's heartbeat going while it waits, so that a
// cancellation reaches it. The user's progress stays what it was: the details
// recorded last, in this attempt or the one before, are recorded again.
func (a *attempt) heartbeat(ctx context.Context, info activity.Info) (stop func()) {
	every := unsetBeat
	if info.HeartbeatTimeout > 0 {
		every = info.HeartbeatTimeout / 3
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(min(every, firstBeat))
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
				a.beat(ctx)
				timer.Reset(every)
			case <-ctx.Done():
				return
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// beat records a heartbeat without changing the details.
func (a *attempt) beat(ctx context.Context) {
	if a == nil { // no interceptor: nobody can know what the user recorded
		if !activity.HasHeartbeatDetails(ctx) {
			activity.RecordHeartbeat(ctx)
			return
		}
		activity.RecordHeartbeat(ctx, previousDetails(ctx)...)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	details := a.details
	if !a.recorded && activity.HasHeartbeatDetails(ctx) {
		details = previousDetails(ctx)
	}
	activity.RecordHeartbeat(context.WithValue(ctx, beatKey{}, true), details...)
}

// beatKey marks Sluice's own heartbeats for the interceptor.
type beatKey struct{}

// previousDetails are the details of the attempt before, raw.
func previousDetails(ctx context.Context) []any {
	raws := make([]converter.RawValue, maxDetails)
	pointers := make([]any, maxDetails)
	for i := range raws {
		pointers[i] = &raws[i]
	}
	if activity.GetHeartbeatDetails(ctx, pointers...) != nil {
		return nil
	}
	var details []any
	for _, raw := range raws {
		if raw.Payload() != nil {
			details = append(details, raw)
		}
	}
	return details
}
