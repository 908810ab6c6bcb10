package bench

import (
	"context"
	"errors"
	"time"

	"sluice/activities"
	"sluice/policy"
)

const (
	idleHolders = 2
	idleCallers = 64
	// idleAfter is within a holder's TTL: they stay, with nothing to say.
	idleAfter = time.Second
)

// IdleResult is what Idle measured.
type IdleResult struct {
	Leases  int     `json:"leases"` // that were taken before
	Seconds float64 `json:"seconds"`
	Events  int     `json:"events"` // in the gate's histories since
}

// Idle counts what a gate writes that nobody uses any more, while the processes that
// used it are still there.
func Idle(ctx context.Context, o Options, lasts time.Duration) (r IdleResult, err error) {
	r.Seconds = lasts.Seconds()
	b, err := newBed(ctx, o, policy.Gate{Provider: "bench", Endpoint: "http://idle.test/v1", MaxInFlight: idleCallers / 2})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.hold(ctx, idleHolders, o); err != nil {
		return r, err
	}
	var gates []activities.Gate
	for _, h := range b.holders {
		gates = append(gates, h.gate)
	}
	o.Report("%d callers over %d holders, %v", idleCallers, idleHolders, idleAfter)
	c, err := runCallers(ctx, gates, idleCallers, idleAfter)
	if err != nil {
		return r, err
	}
	r.Leases = c.leases
	pause := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	pause(idleAfter) // the last releases are told
	before, err := trafficOf(ctx, b.client, b.gate.WorkflowID())
	if err != nil {
		return r, err
	}
	o.Report("nothing, %v", lasts)
	pause(lasts)
	if err := ctx.Err(); err != nil {
		return r, context.Cause(ctx)
	}
	after, err := trafficOf(ctx, b.client, b.gate.WorkflowID())
	r.Events = after.events - before.events
	return r, err
}
