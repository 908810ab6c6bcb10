package bench

import (
	"context"
	"errors"
	"time"

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
	o.Report("%d callers over %d holders, %v", idleCallers, idleHolders, idleAfter)
	c, err := runCallers(ctx, b.gates(), idleCallers, idleAfter)
	if err != nil {
		return r, err
	}
	r.Leases = c.leases
	if err := pause(ctx, idleAfter); err != nil { // the last releases are told
		return r, err
	}
	before, err := b.traffic(ctx)
	if err != nil {
		return r, err
	}
	o.Report("nothing, %v", lasts)
	if err := pause(ctx, lasts); err != nil {
		return r, err
	}
	after, err := b.traffic(ctx)
	r.Events = after.events - before.events
	return r, err
}
