package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/activities"
	"sluice/policy"
)

const (
	wakeHolders = 10
	wakeHold    = 30 * time.Millisecond
)

// WakeResult is what Wake measured.
type WakeResult struct {
	Holders    int     `json:"holders"`
	HoldMS     float64 `json:"hold_ms"`
	LeasesPerS float64 `json:"leases_per_s"`
	// P50MS and P99MS are of the time from a release to the next holder's start.
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	// ExchangesPerLease and WaitsPerLease are read from the gate's histories.
	ExchangesPerLease float64 `json:"exchanges_per_lease"`
	WaitsPerLease     float64 `json:"waits_per_lease"`
	// OwnTurns are the starts of the holder that released: not counted above.
	OwnTurns int `json:"own_turns"`
}

// Wake measures how soon a holder starts after another one has released the only
// place: ten holders, each with a caller that holds it for 30 ms.
func Wake(ctx context.Context, o Options, lasts time.Duration) (r WakeResult, err error) {
	r = WakeResult{Holders: wakeHolders, HoldMS: milliseconds(wakeHold)}
	b, err := newBed(ctx, o, policy.Gate{Provider: "bench", Endpoint: "http://wake.test/v1", MaxInFlight: 1})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.hold(ctx, wakeHolders, o); err != nil {
		return r, err
	}
	before, err := b.traffic(ctx)
	if err != nil {
		return r, err
	}
	o.Report("cap 1, %d holders, %v each, %v", wakeHolders, wakeHold, lasts)
	var (
		mu       sync.Mutex
		released time.Time // the last release
		by       int       // whose
		waits    []time.Duration
		leases   int // of them within the time
		taken    int
	)
	begin := time.Now().Add(callersPause)
	end := begin.Add(lasts)
	failed := make([]error, wakeHolders)
	var all sync.WaitGroup
	for i, h := range b.holders {
		all.Go(func() {
			for time.Now().Before(end) {
				l, err := h.gate.Acquire(ctx, activities.Request{})
				if err != nil {
					failed[i] = err
					return
				}
				started := time.Now()
				mu.Lock()
				taken++
				if started.After(begin) && started.Before(end) {
					leases++
					if by == i {
						r.OwnTurns++
					} else if !released.IsZero() {
						waits = append(waits, started.Sub(released))
					}
				}
				mu.Unlock()
				time.Sleep(time.Until(started.Add(wakeHold)))
				mu.Lock()
				released, by = time.Now(), i
				mu.Unlock()
				l.Release()
			}
		})
	}
	all.Wait()
	after, err := b.traffic(ctx)
	if err != nil {
		return r, err
	}
	turns := max(float64(taken), 1)
	r.ExchangesPerLease = round(float64(after.exchanges-before.exchanges) / turns)
	r.WaitsPerLease = round(float64(after.waits-before.waits) / turns)
	list := sorted(waits)
	r.LeasesPerS = round(float64(leases) / lasts.Seconds())
	r.P50MS, r.P99MS = percentile(list, 50), percentile(list, 99)
	return r, errors.Join(failed...)
}
