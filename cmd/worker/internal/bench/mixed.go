package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/workflows"
)

const (
	mixedRate      = 200 // per second
	mixedCap       = 50
	mixedCallers   = 500
	mixedHolders   = 2
	mixedServe     = 50 * time.Millisecond
	mixedCooldown  = 2 * time.Second
	mixedCooldowns = 5
	mixedFirst     = 300 // number of the attempt that is told of the first cooldown
	mixedEvery     = 400 // and of the following ones
	mixedCancelled = 20  // calls of a hundred
	mixedTries     = 50
	// mixedLeave is within what a call waits: cancelled ones are mostly queued then.
	mixedLeave = time.Second
	watchEvery = 50 * time.Millisecond
)

// MixedResult is what Mixed measured.
type MixedResult struct {
	Calls     int `json:"calls"` // that were not cancelled
	Cancelled int `json:"cancelled"`
	Cooldowns int `json:"cooldowns"`
	// Lost are calls that the provider never served, and what the gate's books
	// show as neither released nor handed back, or as still there.
	Lost int `json:"lost"`
	// ResumeGapMS is the median of the times from a cooldown's end to the first start.
	ResumeGapMS  float64   `json:"resume_gap_ms"`
	ResumeGapsMS []float64 `json:"resume_gaps_ms"`
	SpacingMS    float64   `json:"spacing_ms"`
	// WaitingExchangesPerS are the exchanges per second while all wait for a
	// cooldown to end.
	WaitingExchangesPerS float64 `json:"waiting_exchanges_per_s"`
}

// Mixed measures a gate of 200 per second and 50 in flight with 500 callers on two
// holders, five cooldowns of 2 s, and a fifth of the calls cancelled in the queue.
func Mixed(ctx context.Context, o Options) (r MixedResult, err error) {
	does := providerOrder{ServeTime: mixedServe, RetryAfter: fmt.Sprint(int(mixedCooldown.Seconds()))}
	for i := range mixedCooldowns {
		does.Overloads = append(does.Overloads, mixedFirst+i*mixedEvery)
	}
	process, provider, err := startProvider(ctx, o, does)
	if err != nil {
		return r, err
	}
	defer stop(process)
	b, err := newBed(ctx, o, policy.Gate{
		Provider: "bench", Endpoint: provider.URL, MaxInFlight: mixedCap,
		Requests: admission.Rate{Limit: mixedRate, Per: time.Second, Burst: 1},
	})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.hold(ctx, mixedHolders, o); err != nil {
		return r, err
	}
	o.Report("%d per second, %d in flight, %d callers, %d cooldowns of %v", mixedRate, mixedCap, mixedCallers, mixedCooldowns, mixedCooldown)

	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	ends := make(chan []workflows.Cooldown, 1)
	go func() { ends <- b.watchCooldowns(watching) }()
	served, cancelled, err := b.mixedLoad(ctx, provider.CallURL(runName))
	if err != nil {
		return r, err
	}
	unwatch()
	cooldowns := <-ends

	if err := b.part(ctx); err != nil {
		return r, err
	}
	attempts, err := provider.Attempts(ctx, runName)
	if err != nil {
		return r, err
	}
	st, err := b.status(ctx)
	if err != nil {
		return r, err
	}
	t, err := b.traffic(ctx)
	if err != nil {
		return r, err
	}
	r.Calls, r.Cancelled, r.Cooldowns = len(served), cancelled, len(cooldowns)
	r.Lost = lostOf(served, attempts, &st)
	r.SpacingMS = milliseconds(time.Second / mixedRate)
	var waited time.Duration
	exchanges := 0
	for _, c := range cooldowns {
		end := c.At.Add(time.Duration(c.Applied))
		// Hand-backs and releases of the calls under way are over soon.
		from, to := c.At.Add(mixedCooldown/4), end.Add(-mixedCooldown/4)
		exchanges += t.between(from, to)
		waited += to.Sub(from)
		i := slices.IndexFunc(attempts, func(a loopback.Attempt) bool { return provider.Epoch.Add(a.Arrived).After(end) })
		if i >= 0 {
			r.ResumeGapsMS = append(r.ResumeGapsMS, milliseconds(provider.Epoch.Add(attempts[i].Arrived).Sub(end)))
		}
	}
	if n := len(r.ResumeGapsMS); n > 0 {
		gaps := slices.Sorted(slices.Values(r.ResumeGapsMS))
		r.ResumeGapMS = gaps[n/2]
		r.WaitingExchangesPerS = round(float64(exchanges) / waited.Seconds())
	}
	return r, nil
}

// lostOf counts what was lost: calls that were never served, and leases and tickets
// that the gate's books don't account for.
func lostOf(calls []string, attempts []loopback.Attempt, st *workflows.Status) int {
	served := map[string]bool{}
	for _, a := range attempts {
		if a.Status == http.StatusOK {
			served[a.CallID] = true
		}
	}
	lost := 0
	for _, id := range calls {
		if !served[id] {
			lost++
		}
	}
	c := &st.Counters
	unaccounted := int64(c.Admissions) - int64(c.Releases) - int64(c.HandBacks)
	return lost + int(max(unaccounted, -unaccounted)) + st.Queued + int(st.InFlight) + int(c.Expired)
}

// watchCooldowns lists the cooldowns that the gate's status shows until ctx ends.
func (b *bed) watchCooldowns(ctx context.Context) (all []workflows.Cooldown) {
	for {
		st, err := b.status(ctx)
		if err == nil && st.Cooldown != nil && (len(all) == 0 || all[len(all)-1].At != st.Cooldown.At) {
			all = append(all, *st.Cooldown)
		}
		if pause(ctx, watchEvery) != nil {
			return all
		}
	}
}

// mixedLoad makes calls until the last cooldown is well over. It returns those that
// were to be served, and how many others were cancelled.
func (b *bed) mixedLoad(ctx context.Context, url string) (calls []string, cancelled int, err error) {
	const total = mixedFirst + mixedCooldowns*mixedEvery
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex
	base := &started{wire()}
	var all sync.WaitGroup
	for i := range mixedCallers {
		c := &http.Client{Transport: &activities.Transport{Gates: b.holders[i%len(b.holders)].gates, Base: base, LeaseHeader: loopback.HeaderLease}}
		all.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				id := fmt.Sprintf("call-%d-%d", i, k)
				leaves := rand.IntN(100) < mixedCancelled
				mu.Lock()
				if len(calls) >= total {
					mu.Unlock()
					return
				}
				if !leaves {
					calls = append(calls, id)
				}
				mu.Unlock()
				if leaves {
					if callAndLeave(ctx, c, url, id) {
						mu.Lock()
						cancelled++
						mu.Unlock()
					}
					continue
				}
				if err := callUntilServed(ctx, c, url, id); err != nil {
					stop(err)
				}
			}
		})
	}
	all.Wait()
	return calls, cancelled, context.Cause(ctx)
}

func callUntilServed(ctx context.Context, c *http.Client, url, id string) (err error) {
	for range mixedTries {
		if err = loopback.Post(ctx, c, url, id); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// callAndLeave makes a call and cancels it if it still waits after a while; true
// if so.
func callAndLeave(ctx context.Context, c *http.Client, url, id string) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	leave := time.AfterFunc(rand.N(mixedLeave), cancel)
	defer leave.Stop()
	_ = loopback.Post(context.WithValue(ctx, leaveKey{}, leave), c, url, id) // served, refused, or left
	return ctx.Err() != nil
}

// started is a transport at which a call has its lease: it no longer leaves.
type started struct{ http.RoundTripper }

type leaveKey struct{}

func (s *started) RoundTrip(r *http.Request) (*http.Response, error) {
	if leave, leaves := r.Context().Value(leaveKey{}).(*time.Timer); leaves {
		leave.Stop()
	}
	return s.RoundTripper.RoundTrip(r)
}
