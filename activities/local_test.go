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
	"sluice/workflows/contract"
)

// local opens local gates of one policy; each call is another holder.
func local(t *testing.T, g policy.Gate) *Gates {
	t.Helper()
	g.Provider, g.Name = "test", "one"
	if g.Endpoint == "" {
		g.Endpoint = "http://" + t.Name()[4:] + ".test"
	}
	p, err := policy.New(g)
	require.NoError(t, err)
	return NewLocalGates(p, GatesOptions{})
}

func closeAll(t *testing.T, all ...*Gates) {
	t.Helper()
	for _, g := range all {
		require.NoError(t, g.Close(context.Background()))
	}
}

func gateOf(t *testing.T, g *Gates) Gate {
	t.Helper()
	gate, err := g.Gate("one")
	require.NoError(t, err)
	return gate
}

// starts makes n calls at once and returns when they started, in order.
func starts(t *testing.T, n int, hold time.Duration, gates ...Gate) []time.Duration {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var at []time.Duration
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			l, err := gates[i%len(gates)].Acquire(t.Context(), Request{})
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			at = append(at, time.Since(began))
			mu.Unlock()
			time.Sleep(hold) // the call, in a bubble's time
			l.Release()
		})
	}
	wg.Wait()
	slices.Sort(at)
	return at
}

func TestPacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := local(t, policy.Gate{Requests: admission.Rate{Limit: 8, Per: time.Second, Burst: 1}}), local(t, policy.Gate{Requests: admission.Rate{Limit: 8, Per: time.Second, Burst: 1}})
		at := starts(t, 40, 150*time.Millisecond, gateOf(t, a), gateOf(t, b))
		for i := 1; i < len(at); i++ {
			assert.GreaterOrEqual(t, at[i]-at[i-1], 125*time.Millisecond-spacingSlack(125*time.Millisecond), "start %d", i)
		}
		assert.Less(t, at[39], 39*125*time.Millisecond+100*time.Millisecond, "no slot is wasted")
		closeAll(t, a, b)
	})
}

// slowLink delays the answers of another link.
type slowLink struct {
	link
	delay func() time.Duration
}

func (l slowLink) exchange(ctx context.Context, x *contract.Exchange) (*contract.Answer, error) {
	a, err := l.link.exchange(ctx, x)
	time.Sleep(l.delay())
	return a, err
}

func (l slowLink) wait(ctx context.Context, _ *contract.Wait) (*contract.Answer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestAnAnswerDelayed by three seconds makes no burst: leases that are late are
// handed back and admitted in fresh slots.
func TestAnAnswerDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{Requests: admission.Rate{Limit: 10, Per: time.Second, Burst: 1}})
		connect := gates.connect
		answers := 0
		gates.connect = func(g policy.Gate) (link, error) {
			l, err := connect(g)
			return slowLink{l, func() time.Duration {
				if answers++; answers == 2 {
					return 3 * time.Second
				}
				return time.Millisecond
			}}, err
		}
		at := starts(t, 12, 0, gateOf(t, gates))
		for i := 1; i < len(at); i++ {
			assert.GreaterOrEqual(t, at[i]-at[i-1], 100*time.Millisecond-spacingSlack(100*time.Millisecond), "start %d", i)
		}
		l := gates.open[gates.policy.Gates()[0]].link.(slowLink)
		l.link.(*localLink).close()
		closeAll(t, gates)
	})
}

// TestACooldownIsShared: what one process is told, both follow; leases that were
// granted ahead start no earlier than the cooldown's end.
func TestACooldownIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := policy.Gate{Requests: admission.Rate{Limit: 20, Per: time.Second, Burst: 1}}
		a, b := local(t, g), local(t, g)
		first, err := gateOf(t, a).Acquire(t.Context(), Request{})
		require.NoError(t, err)
		var told time.Time
		time.AfterFunc(500*time.Millisecond, func() {
			told = time.Now()
			first.(FeedbackLease).ReleaseWith(Feedback{Outcome: Overload, Status: 429, Asked: 2 * time.Second, Source: "retry-after"})
		})
		began := time.Now()
		at := starts(t, 60, 10*time.Millisecond, gateOf(t, a), gateOf(t, b))
		quietFrom, quietTo := told.Sub(began)+250*time.Millisecond, told.Sub(began)+2*time.Second
		for i, d := range at {
			assert.False(t, d > quietFrom && d < quietTo-time.Millisecond, "start %d at %v, in the cooldown of %v to %v", i, d, quietFrom, quietTo)
			if i > 0 {
				assert.GreaterOrEqual(t, d-at[i-1], 50*time.Millisecond-spacingSlack(50*time.Millisecond), "start %d", i)
			}
		}
		closeAll(t, a, b)
	})
}

func TestErrorsOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1, MaxQueue: 1, Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 100, Per: time.Second, Burst: 100}}}})
		g := gateOf(t, gates)
		_, err := g.Acquire(t.Context(), Request{Cost: Cost{Weight: 2}})
		require.ErrorIs(t, err, ErrNeverAdmissible)
		assert.ErrorContains(t, err, "weight 2 can never be admitted; the policy gives at most 1")
		_, err = g.Acquire(t.Context(), Request{Cost: Cost{Units: map[string]int64{"tokens": 101}}})
		require.ErrorIs(t, err, ErrNeverAdmissible)
		assert.ErrorContains(t, err, "tokens 101 can never be admitted; the policy gives at most 100")
		_, err = g.Acquire(t.Context(), Request{Cost: Cost{Units: map[string]int64{"tokens": 0}}})
		assert.ErrorContains(t, err, "tokens is 0; allowed: at least 1")

		held, err := g.Acquire(t.Context(), Request{})
		require.NoError(t, err)
		_, err = g.Acquire(t.Context(), Request{QueueTimeout: time.Second})
		require.ErrorIs(t, err, ErrQueueTimeout)
		_, err = g.Acquire(t.Context(), Request{TicketID: "mine", Leave: time.Now().Add(time.Second)})
		require.ErrorIs(t, err, ErrStillQueued)
		_, err = g.Acquire(t.Context(), Request{})
		require.ErrorIs(t, err, ErrQueueFull, "a parked ticket counts")
		held.Release()
		held.Release() // a further one does nothing
		l, err := g.Acquire(t.Context(), Request{TicketID: "mine", Attempt: 2})
		require.NoError(t, err)

		stopped := make(chan error)
		go func() {
			_, err := g.Acquire(t.Context(), Request{})
			stopped <- err
		}()
		synctest.Wait()
		l.Release()
		closeAll(t, gates)
		if err := <-stopped; err != nil { // it may have been next in line
			require.ErrorIs(t, err, ErrStopped)
		}
		_, err = g.Acquire(t.Context(), Request{})
		require.ErrorIs(t, err, ErrStopped)
	})
}

// TestOneTicketTwoCallers: of two callers that present one ticket at once the
// later one has it, and the earlier one is told instead of waiting for ever.
func TestOneTicketTwoCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1})
		g := gateOf(t, gates)
		held, err := g.Acquire(t.Context(), Request{})
		require.NoError(t, err)
		earlier := make(chan error)
		go func() {
			_, err := g.Acquire(t.Context(), Request{TicketID: "same"})
			earlier <- err
		}()
		synctest.Wait()
		later := make(chan Lease)
		go func() {
			l, err := g.Acquire(t.Context(), Request{TicketID: "same"})
			assert.NoError(t, err)
			later <- l
		}()
		require.ErrorIs(t, <-earlier, ErrLeaseLost)
		held.Release()
		(<-later).Release()
		closeAll(t, gates)
	})
}

func TestTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1})
		ctx := WithGates(t.Context(), gates)
		l, ok, err := TryAcquire(ctx, "one", Cost{})
		require.NoError(t, err)
		require.True(t, ok)
		_, ok, err = TryAcquire(ctx, "one", Cost{})
		require.NoError(t, err)
		require.False(t, ok)
		_, _, err = TryAcquire(ctx, "two", Cost{})
		require.ErrorIs(t, err, policy.ErrUnknownGate)
		l.Release()
		closeAll(t, gates)
	})
}

// TestNoCallWaitsForItself: at cap 1, what runs under a lease sends under it.
func TestNoCallWaitsForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1})
		ran := false
		err := Do(WithGates(t.Context(), gates), "one", Cost{}, func(ctx context.Context) error {
			return Do(ctx, "one", Cost{}, func(context.Context) error { ran = true; return nil })
		})
		require.NoError(t, err)
		require.True(t, ran)
		closeAll(t, gates)
	})
}

func TestPoliciesAreNotMixedInAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := local(t, policy.Gate{MaxInFlight: 1})
		b := local(t, policy.Gate{MaxInFlight: 2})
		c := local(t, policy.Gate{MaxInFlight: 2, Revision: 2})
		l, err := gateOf(t, a).Acquire(t.Context(), Request{})
		require.NoError(t, err)
		_, err = gateOf(t, b).Acquire(t.Context(), Request{})
		require.ErrorIs(t, err, ErrPolicyConflict)
		require.ErrorContains(t, err, "max_in_flight")
		second, err := gateOf(t, c).Acquire(t.Context(), Request{})
		require.NoError(t, err, "a higher revision takes over")
		second.Release()
		l.Release()
		closeAll(t, a, b, c)
		time.Sleep(2 * conflictRetry) // lets the conflict be forgotten, in the bubble's time
	})
}

// TestLeaseLostCancels: where the policy says so, an attempt ends with its lease.
func TestLeaseLostCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1, MaxHold: time.Second, OnLeaseLost: policy.LeaseLostCancel})
		began := time.Now()
		err := Do(WithGates(t.Context(), gates), "one", Cost{}, func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("the call's own words")
		})
		require.ErrorIs(t, err, ErrLeaseLost)
		assert.Less(t, time.Since(began), 15*time.Second)
		closeAll(t, gates)
	})
}
