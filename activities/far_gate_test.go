package activities

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// farLink is a local gate that is further away: its answers take long, and at
// times it can't be reached at all.
type farLink struct {
	*localLink
	mu    sync.Mutex
	way   time.Duration // back
	down  bool
	calls int
}

func (l *farLink) set(way time.Duration, down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.way, l.down = way, down
}

func (l *farLink) now() (way time.Duration, down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	return l.way, l.down
}

func (l *farLink) exchange(ctx context.Context, x *contract.Exchange) (*contract.Answer, error) {
	way, down := l.now()
	if down {
		return nil, errors.New("no route to the gate")
	}
	a, err := l.localLink.exchange(ctx, x)
	time.Sleep(way)
	return a, err
}

func (l *farLink) wait(ctx context.Context, _ *contract.Wait) (*contract.Answer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// far is a holder of a gate that is far away.
func far(t *testing.T, g policy.Gate) (*holder, *farLink) {
	t.Helper()
	g.Provider, g.Endpoint = "test", "http://far.test"
	g, err := g.Normalize()
	require.NoError(t, err)
	local, err := newLocalLink(g)
	require.NoError(t, err)
	link := &farLink{localLink: local}
	gates := NewLocalGates(nil, GatesOptions{})
	h, err := newHolder(g, "far", link, gates.options.Logger)
	require.NoError(t, err)
	return h, link
}

// startsOf makes n calls and returns when each started, in order.
func startsOf(t *testing.T, h *holder, n int) []time.Duration {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var at []time.Duration
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			l, err := h.Acquire(t.Context(), Request{})
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			at = append(at, time.Since(began))
			mu.Unlock()
			l.Release()
		})
	}
	wg.Wait()
	slices.Sort(at)
	return at
}

// TestALateAnswerMakesNoBurst: an answer with ten paced grants takes three
// seconds. What it grants has come and gone; none of that is made up for, be the
// late leases handed back or, where the policy allows it, started.
func TestALateAnswerMakesNoBurst(t *testing.T) {
	for name, window := range map[string]time.Duration{"handed back": 0, "started late": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const spacing = 100 * time.Millisecond
				h, link := far(t, policy.Gate{Requests: admission.Rate{Limit: 10, Per: time.Second, Burst: 1}, LookAhead: 5 * time.Second, StartWindow: window})
				link.set(3*time.Second, false)
				time.AfterFunc(3500*time.Millisecond, func() { link.set(time.Millisecond, false) })
				at := startsOf(t, h, 20)
				for i := 1; i < len(at); i++ {
					assert.GreaterOrEqual(t, at[i]-at[i-1], spacing-spacingSlack(spacing), "start %d", i)
				}
				require.NoError(t, h.close(t.Context()))
			})
		})
	}
}

// TestALongWay: where every answer takes 400 ms, paced leases start all the same.
func TestALongWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, link := far(t, policy.Gate{Requests: admission.Rate{Limit: 1, Per: time.Second, Burst: 1}})
		link.set(400*time.Millisecond, false)
		at := startsOf(t, h, 5)
		assert.Less(t, at[4], 30*time.Second)
		require.NoError(t, h.close(t.Context()))
	})
}

// TestShareOf: limits divided among processes, rounded down; nothing is no share.
func TestShareOf(t *testing.T) {
	second := func(limit, burst int64) admission.Rate {
		return admission.Rate{Limit: limit, Per: time.Second, Burst: burst}
	}
	for _, c := range []struct {
		name    string
		gate    policy.Gate
		holders int
		want    policy.Gate
		none    bool
	}{
		{"alone", policy.Gate{MaxInFlight: 8}, 1, policy.Gate{MaxInFlight: 8}, false},
		{"nobody was known", policy.Gate{MaxInFlight: 8}, 0, policy.Gate{MaxInFlight: 8}, false},
		{"rounded down", policy.Gate{MaxInFlight: 8}, 3, policy.Gate{MaxInFlight: 2}, false},
		{"nothing", policy.Gate{MaxInFlight: 2}, 3, policy.Gate{}, true},
		{"no cap", policy.Gate{}, 3, policy.Gate{}, false},
		{"spacing", policy.Gate{Requests: second(10, 1)}, 3, policy.Gate{Requests: admission.Rate{Limit: 10, Per: 3 * time.Second, Burst: 1}}, false},
		{"a burst", policy.Gate{Requests: second(10, 10)}, 3, policy.Gate{Requests: admission.Rate{Limit: 10, Per: 3 * time.Second, Burst: 3}}, false},
		{"a budget", policy.Gate{Budgets: []admission.Budget{{Unit: "tokens", Rate: second(90, 90)}}}, 4,
			policy.Gate{Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 90, Per: 4 * time.Second, Burst: 22}}}}, false},
		{"a budget of less than there are", policy.Gate{Budgets: []admission.Budget{{Unit: "images", Rate: second(2, 2)}}}, 3, policy.Gate{}, true},
		{"a rate that can't be divided", policy.Gate{Requests: admission.Rate{Limit: 1, Per: admission.MaxPer, Burst: 1}}, 2, policy.Gate{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := shareOf(c.gate, c.holders)
			require.Equal(t, !c.none, ok)
			if ok {
				assert.Equal(t, c.want.MaxInFlight, got.MaxInFlight)
				assert.Equal(t, c.want.Requests, got.Requests)
				assert.ElementsMatch(t, c.want.Budgets, got.Budgets)
			}
		})
	}
}

// TestOnUnavailable: what callers do while the gate can't be reached, and that
// they are back in its queue when it can.
func TestOnUnavailable(t *testing.T) {
	acquire := func(t *testing.T, h *holder, patience time.Duration) (Lease, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return h.Acquire(ctx, Request{})
	}
	for _, c := range []struct {
		on    policy.OnUnavailable
		cap   int64
		err   error
		local bool
	}{
		{policy.UnavailableWait, 1, context.DeadlineExceeded, false},
		{policy.UnavailableFail, 1, ErrUnavailable, false},
		{policy.UnavailableLocal, 1, nil, true},
		{"", 1, context.DeadlineExceeded, false},
	} {
		t.Run(string(c.on), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, link := far(t, policy.Gate{MaxInFlight: c.cap, OnUnavailable: c.on})
				l, err := acquire(t, h, time.Minute)
				require.NoError(t, err)
				assert.False(t, l.(FeedbackLease).Info().Local)
				l.Release()
				synctest.Wait()
				link.set(0, true)
				l, err = acquire(t, h, 20*time.Second)
				if c.err != nil {
					require.ErrorIs(t, err, c.err)
				} else {
					require.NoError(t, err)
					assert.Equal(t, c.local, l.(FeedbackLease).Info().Local)
					_, err = acquire(t, h, 20*time.Second)
					require.ErrorIs(t, err, context.DeadlineExceeded, "the share has one place")
					l.Release()
				}
				link.set(0, false)
				time.Sleep(2 * lastPause) // until the holder has tried again
				l, err = acquire(t, h, time.Minute)
				require.NoError(t, err, "the gate is back")
				assert.False(t, l.(FeedbackLease).Info().Local)
				l.Release()
				require.NoError(t, h.close(context.Background()))
				synctest.Wait()
				link.gate.mu.Lock()
				defer link.gate.mu.Unlock()
				st := link.gate.s.Status(10)
				assert.Zero(t, st.InUse, "no lease is left at the gate")
				assert.Equal(t, st.Parked, st.Queued, "and no ticket but of one who comes back")
			})
		})
	}
}

// TestAWaitsEndGivesNoSlot: what a gate answers to a wait names no slot, so it
// doesn't free the holder from the one that it was given.
func TestAWaitsEndGivesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := far(t, policy.Gate{MaxInFlight: 1})
		now := time.Now()
		gate := admission.InstantOf(now)
		answer := func(notBefore admission.Instant) *contract.Answer {
			return &contract.Answer{Now: int64(gate), StateCounter: 1, FirstRun: "1", NotBefore: int64(notBefore)}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.takeLocked(answer(gate.Add(time.Second)), now, now, false)
		h.takeLocked(answer(gate), now, now, true)
		assert.Equal(t, time.Second, h.notBefore.Sub(now).Round(time.Millisecond))
	})
}

// askedLink is a far gate whose waits ask, as those by update do.
type askedLink struct {
	*farLink
	asked int // guarded by mu
}

func (l *askedLink) asks() bool { return true }

func (l *askedLink) wait(_ context.Context, w *contract.Wait) (*contract.Answer, error) {
	l.mu.Lock()
	down := l.down
	l.asked++
	l.mu.Unlock()
	if down {
		return nil, errors.New("no route to the gate")
	}
	g := l.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	h, _ := g.s.HolderByID(w.Holder.Id)
	answer, limits := g.s.Ask(g.now(), h), g.s.Limits()
	a := workflows.AnswerOf(&answer, &limits, nil)
	a.FirstRun = "local"
	return a, nil
}

// TestAsking: a holder with nothing to say asks for a wait, which shows the gate that it
// is there, and sends an exchange only as a keep-alive, or where an ask failed.
func TestAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, far := far(t, policy.Gate{MaxInFlight: 1, HolderTTL: 6 * time.Second})
		link := &askedLink{farLink: far}
		h.link = link
		// So many stand before it that it may not wait.
		others := func(seq uint64) {
			link.gate.mu.Lock()
			defer link.gate.mu.Unlock()
			for n := range 6 {
				x := &admission.Exchange{Holder: string(rune('a' + n)), Generation: 1, Seq: seq}
				if seq == 1 {
					x.Acquire = []admission.Request{{Key: admission.Key{byte(n)}, Number: 1, Attempt: 1}}
				}
				link.gate.s.Apply(link.gate.now(), x)
			}
		}
		others(1)
		ctx, leave := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, err := h.Acquire(ctx, Request{})
			assert.ErrorIs(t, err, context.Canceled)
		})
		told := func() (exchanges, asked int) {
			link.mu.Lock()
			defer link.mu.Unlock()
			return link.calls, link.asked
		}
		time.Sleep(1900 * time.Millisecond)
		exchanges, asked := told()
		assert.Equal(t, 1, exchanges, "its ticket")
		assert.Greater(t, asked, 5)
		link.gate.mu.Lock()
		ref, _ := link.gate.s.HolderByID(h.name.Id)
		assert.Greater(t, link.gate.s.AnswerFor(ref).ComeAgain, link.gate.now().Add(-time.Second), "it counts as present")
		link.gate.mu.Unlock()

		others(2)
		time.Sleep(200 * time.Millisecond)
		exchanges, _ = told()
		assert.Equal(t, 2, exchanges, "after a third of its TTL")

		link.set(0, true)
		_, asked = told()
		time.Sleep(500 * time.Millisecond)
		exchanges, again := told()
		assert.Equal(t, asked+1, again, "one ask that fails")
		assert.Greater(t, exchanges, 2, "is followed by an exchange")

		link.set(0, false)
		leave()
		waiting.Wait()
		require.NoError(t, h.close(t.Context()))
	})
}

// TestAnOpenWaitIsBeingThere: with a wait open the holder doesn't come by as soon
// as it was asked to before it had one. If the gate never hears of the wait, that
// is over after a second.
func TestAnOpenWaitIsBeingThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, link := far(t, policy.Gate{MaxInFlight: 1})
		l, err := h.Acquire(t.Context(), Request{})
		require.NoError(t, err)
		var waiting sync.WaitGroup
		waiting.Go(func() {
			second, err := h.Acquire(t.Context(), Request{})
			if assert.NoError(t, err) {
				second.Release()
			}
		})
		calls := func() int {
			link.mu.Lock()
			defer link.mu.Unlock()
			return link.calls
		}
		time.Sleep(waitReturn - time.Millisecond)
		assert.Equal(t, 2, calls(), "one for each ticket")
		time.Sleep(100 * time.Millisecond)
		assert.Greater(t, calls(), 2)
		l.Release()
		waiting.Wait()
		require.NoError(t, h.close(t.Context()))
	})
}
