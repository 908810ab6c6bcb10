package activities

import (
	"context"
	"errors"
	"time"

	"sluice/policy"
)

// Do runs fn under a lease of the gate with the given name or ID, and gives the
// lease back when fn returns, panics or exits its goroutine. Requests that fn
// sends to the same gate through [Transport] go under this lease, and what they
// learn is the lease's feedback; so is what the error says that fn returns, where
// a client library's error with the provider's answer is in its chain. Without
// gates in the context (no plugin, no policy) fn just runs. Where the real cost is
// known only afterwards, fn says it with [ReportUsage].
//
// The error is fn's own, an [Error], the context's cause, or wraps
// policy.ErrUnknownGate.
func Do(ctx context.Context, gate string, cost Cost, fn func(context.Context) error) error {
	gates := GatesFrom(ctx)
	if gates == nil {
		return fn(ctx)
	}
	g, err := gates.Gate(gate)
	if err != nil {
		return err
	}
	return under(ctx, gates, g, cost, fn)
}

// under runs fn under a lease of g.
func under(ctx context.Context, gates *Gates, g Gate, cost Cost, fn func(context.Context) error) error {
	if heldFrom(ctx, g) != nil {
		return fn(ctx)
	}
	l, err := acquire(ctx, g, cost, 0)
	if err != nil {
		return err
	}
	ctx, h := hold(ctx, gates, g, l, cost)
	defer h.finish(Failed) // a panic, or runtime.Goexit
	ctx, done := whileHeld(ctx, g, l)
	defer done()
	if err = fn(ctx); err != nil {
		h.heed(err)
		if lost := leaseLost(ctx); lost != nil {
			err = lost
		}
		h.finish(Failed)
		return err
	}
	h.finish(Success)
	return nil
}

// whileHeld ends the context when the lease is lost, where the policy says so.
func whileHeld(ctx context.Context, g Gate, l Lease) (context.Context, func()) {
	fl, ok := l.(FeedbackLease)
	if !ok || g.Policy().OnLeaseLost != policy.LeaseLostCancel {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		select {
		case <-fl.Lost():
			cancel(&Error{Kind: KindLeaseLost, Gate: g.Policy().ID(), Detail: "the lease was lost while the attempt ran"})
		case <-done:
		}
	}()
	return ctx, func() { close(done); cancel(nil) }
}

// leaseLost returns the error of a context that ended with its lease.
func leaseLost(ctx context.Context) error {
	if e := (*Error)(nil); errors.As(context.Cause(ctx), &e) && e.Kind == KindLeaseLost {
		return e
	}
	return nil
}

// tryWindow is how long TryAcquire lets the gate take: a round trip, and no wait.
const tryWindow = 50 * time.Millisecond

// TryAcquire takes a lease of the gate with the given name or ID if it is to be
// had at once (within 50 ms, for the way to the gate and back). ok is false,
// without an error, if it isn't. Release the lease when done. Without gates in
// the context the lease is one of nothing.
func TryAcquire(ctx context.Context, gate string, cost Cost) (l Lease, ok bool, err error) {
	gates := GatesFrom(ctx)
	if gates == nil {
		return ungated{}, true, nil
	}
	g, err := gates.Gate(gate)
	if err != nil {
		return nil, false, err
	}
	l, err = g.Acquire(ctx, Request{Cost: cost, QueueTimeout: tryWindow})
	if errors.Is(err, ErrQueueTimeout) || errors.Is(err, ErrTooLate) || errors.Is(err, ErrQueueFull) {
		return nil, false, nil
	}
	return l, err == nil, err
}

// ungated is the lease of a call that no gate admits.
type ungated struct{}

func (ungated) Release() {}
