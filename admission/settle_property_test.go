package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBudgetsHoldWithWrongEstimates: whatever calls cost in the end, over any
// window of length T what was admitted cost at most burst + rate*T + the sum of
// the underestimates of leases that were out together, from their grants on: one that
// was granted ahead can't know what an earlier one will turn out to have cost. At
// least 20 are.
func TestBudgetsHoldWithWrongEstimates(t *testing.T) {
	runs := 20
	if testing.Short() {
		runs = 5
	}
	most, ratio := 0, 0.0
	for range runs {
		seed := rand.Uint64()
		inFlight, used, err := settleAtRandom(seed)
		require.NoError(t, err, "seed %d", seed)
		most, ratio = max(most, inFlight), max(ratio, used)
	}
	require.GreaterOrEqual(t, most, 20, "leases out together")
	require.Greater(t, ratio, 0.8, "the bound is nearly reached, so it means something")
}

type settledCall struct {
	number             uint64
	lease              uint64
	granted            Instant
	start, end         Instant
	estimate, used     int64
	returned, admitted bool
}

// settleAtRandom makes 400 calls whose cost is known afterwards only, and says how
// many were out together and how much of the bound was used.
func settleAtRandom(seed uint64) (inFlight int, used float64, err error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	rate := Rate{Limit: pick[int64](rng, 100, 300, 1000), Per: time.Second, Burst: pick[int64](rng, 1000, 3000)}
	s, err := New(testEpoch, Limits{MaxInFlight: 40, Budgets: []Budget{{Unit: "tokens", Rate: rate}}, LookAhead: pick(rng, -1, time.Second)}, Options{Unbounded: true})
	if err != nil {
		return 0, 0, err
	}
	bias := pick(rng, 0.3, 1, 2) // calls that cost less, as much, more than estimated
	calls := map[uint64]*settledCall{}
	var order []*settledCall
	now := testEpoch
	for len(order) < 400 {
		now = now.Add(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
		h, err := s.Register(now, "h", 1) // it is there
		if err != nil {
			return 0, 0, err
		}
		for range rng.IntN(4) {
			c := &settledCall{number: uint64(len(calls) + 1), estimate: 1 + rng.Int64N(60)}
			c.used = int64(float64(c.estimate) * bias * 2 * rng.Float64())
			calls[c.number] = c
			r := request(c.number)
			r.Cost = []UnitCost{{Unit: "tokens", N: c.estimate}}
			if err := s.Acquire(now, h, r); err != nil {
				return 0, 0, err
			}
		}
		s.Advance(now)
		for _, n := range s.Notices(h) {
			if c := calls[n.Ticket]; n.Kind == NoticeGrant && !c.admitted {
				c.admitted, c.lease, c.granted, c.start = true, n.Lease, now, n.StartAt
				c.end = c.start.Add(time.Duration(rng.Int64N(int64(3 * time.Second))))
				order = append(order, c)
			}
			s.Confirm(h, n.N)
		}
		for _, c := range order {
			if !c.returned && c.end <= now {
				c.returned, c.end = true, now
				s.Release(now, h, c.lease, 0, Feedback{Asked: -1, Actual: []UnitCost{{Unit: "tokens", N: c.used}}})
			}
		}
	}
	slices.SortStableFunc(order, func(a, b *settledCall) int { return int(a.start - b.start) })
	var under int64
	for _, c := range order {
		together, sum := 0, int64(0)
		for _, o := range order {
			if o.granted <= c.granted && (o.end > c.granted || !o.returned) {
				together++
				sum += max(o.used-o.estimate, 0)
			}
		}
		inFlight, under = max(inFlight, together), max(under, sum)
	}
	for i := range order {
		cost := int64(0)
		for j := i; j < len(order); j++ {
			cost += order[j].used
			window := order[j].start.Sub(order[i].start)
			bound := float64(rate.Burst) + float64(rate.Limit)*window.Seconds() + float64(under)
			if float64(cost) > bound+1 { // a nanosecond rounded up
				return 0, 0, fmt.Errorf("%d tokens in %v; bound %.0f, of which %d underestimates", cost, window, bound, under)
			}
			used = max(used, float64(cost)/bound)
		}
	}
	return inFlight, used, nil
}
