package activities

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"

	"sluice/policy"
)

// attempt is what Sluice keeps for one attempt of an activity.
type attempt struct {
	mu        sync.Mutex
	began     time.Time
	acquires  map[string]int // by gate
	inUse     map[acquireUse]bool
	kept      map[acquireUse]keeper
	gates     []Gate // of which it had a lease
	places    []ownPlace
	details   []any // the last heartbeat details that the user recorded in this attempt
	recorded  bool
	told      bool // the heartbeat details say what a wait was for, in this attempt or the one before
	cancelled bool // a wait ended because the activity was cancelled
}

// attemptFrom returns the context's attempt; nil outside an activity that the
// interceptor runs.
func attemptFrom(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey).(*attempt)
	return a
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
	p := g.Policy()
	var use acquireUse
	if a != nil {
		use = a.begins(p.ID(), p.Hold)
		r.TicketID = ticketID(info, use)
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.Leave = deadline.Add(-waitMargin(deadline.Sub(info.StartedTime)) - p.MinCallTime)
	}
	r.LeaveOn = activity.GetWorkerStopChannel(ctx)
	if info.IsLocalActivity {
		return g.Acquire(ctx, r)
	}
	stop := a.heartbeat(ctx, info, g, cost)
	defer stop()
	l, err := g.Acquire(ctx, r)
	switch {
	case err == nil:
		a.uses(g, l, cost)
		if k, ok := l.(keeper); ok && a != nil && p.Hold == policy.HoldCall {
			l = &callLease{keeper: k, attempt: a, use: use}
		}
	case a != nil:
		a.ends(use)
	}
	if err != nil && a != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		a.mu.Lock()
		a.cancelled = true
		a.mu.Unlock()
	}
	return l, a.explain(err, g, cost)
}

// waitMargin is how long before an attempt's deadline a wait ends: a second, or
// a tenth of a shorter attempt.
func waitMargin(total time.Duration) time.Duration { return min(time.Second, max(total/10, 0)) }

// ticketID names an acquire of a gate in an activity, whatever attempt or worker
// makes it.
func ticketID(info activity.Info, u acquireUse) string {
	if info.WorkflowExecution.ID == "" {
		return fmt.Sprintf("%s/%s/%s/%s/%d", info.Namespace, info.ActivityID, info.ActivityRunID, u.gate, u.n)
	}
	return fmt.Sprintf("%s/%s/%s/%s/%s/%d", info.Namespace, info.WorkflowExecution.ID, info.WorkflowExecution.RunID, info.ActivityID, u.gate, u.n)
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
// recorded last, in this attempt or the one before, are recorded again. Where there
// are none, they say what it waits for.
func (a *attempt) heartbeat(ctx context.Context, info activity.Info, g Gate, cost Cost) (stop func()) {
	every := unsetBeat
	if info.HeartbeatTimeout > 0 {
		every = info.HeartbeatTimeout / 3
	}
	since := time.Now()
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(min(every, firstBeat))
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
				a.beat(ctx, g, cost, since)
				timer.Reset(every)
			case <-ctx.Done():
				return
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		if a != nil {
			a.takeBack(ctx)
		}
	}
}

// beat records a heartbeat without changing the user's details.
func (a *attempt) beat(ctx context.Context, g Gate, cost Cost, since time.Time) {
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
	switch {
	case a.recorded:
	case activity.HasHeartbeatDetails(ctx):
		details = previousDetails(ctx)
	default:
		details = waitInfoOf(g, since, a.blocksItselfLocked(g, cost))
		a.told = a.told || details != nil
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
