package bench

import (
	"context"
	"errors"
	"time"

	"sluice/policy"
)

// ThroughputResult is what Throughput measured.
type ThroughputResult struct {
	Callers   int    `json:"callers"`
	Transport string `json:"transport"`
	// LeasesPerS are acquired and released again.
	LeasesPerS float64 `json:"leases_per_s"`
	// P50MS and P99MS are of the time from the call of Acquire to its return.
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	// ExchangesPerS, EventsPerLease and LeasesPerExchange are read from the gate's
	// histories, first second and farewell included.
	ExchangesPerS     float64 `json:"exchanges_per_s"`
	LeasesPerExchange float64 `json:"leases_per_exchange"`
	EventsPerLease    float64 `json:"events_per_lease"`
	// BareUpdate was measured on the same server, right before.
	BareUpdate BareUpdate `json:"bare_update"`
	Yardstick  Yardstick  `json:"yardstick"`
	// Ratio of the leases per second to the yardstick's.
	Ratio float64 `json:"ratio"`
}

// Throughput measures a gate whose limits don't bind: so many callers in a loop of
// acquire and release. Before that an update that does nothing, and afterwards, for as
// long, the yardstick.
func Throughput(ctx context.Context, o Options, n int, lasts time.Duration) (r ThroughputResult, err error) {
	r = ThroughputResult{Callers: n, Transport: string(o.Transport)}
	if err := r.measure(ctx, o, n, lasts); err != nil {
		return r, err
	}
	o.Report("the yardstick: a semaphore workflow, %d callers, %v", yardstickCallers, lasts)
	if r.Yardstick, err = measureYardstick(ctx, o, lasts); err != nil {
		return r, err
	}
	if r.Yardstick.LeasesPerS > 0 {
		r.Ratio = round(r.LeasesPerS / r.Yardstick.LeasesPerS)
	}
	return r, nil
}

func (r *ThroughputResult) measure(ctx context.Context, o Options, n int, lasts time.Duration) (err error) {
	b, err := newBed(ctx, o, policy.Gate{Provider: "bench", Endpoint: "http://throughput.test/v1"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	o.Report("an update that does nothing")
	if r.BareUpdate, err = b.measureBareUpdate(ctx, lasts); err != nil {
		return err
	}
	o.Report("%d callers, %v", n, lasts)
	if err := b.hold(ctx, 1, o); err != nil {
		return err
	}
	before, err := b.traffic(ctx)
	if err != nil {
		return err
	}
	c, err := runCallers(ctx, b.gates(), n, lasts)
	if err != nil {
		return err
	}
	if err := b.part(ctx); err != nil {
		return err
	}
	st, err := b.status(ctx)
	if err != nil {
		return err
	}
	after, err := b.traffic(ctx)
	if err != nil {
		return err
	}
	events, exchanges := after.events-before.events, after.exchanges-before.exchanges
	admitted := float64(st.Counters.Admissions)
	r.LeasesPerS, r.P50MS, r.P99MS = c.perSecond(), percentile(c.waits, 50), percentile(c.waits, 99)
	r.ExchangesPerS = round(float64(exchanges) / (lasts + callersPause).Seconds())
	r.LeasesPerExchange = round(admitted / float64(max(exchanges, 1)))
	r.EventsPerLease = round(float64(events) / max(admitted, 1))
	return nil
}
