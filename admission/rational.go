package admission

import (
	"math"
	"math/big"
	"math/bits"
	"time"
)

// Instant is a point of the gate's time: nanoseconds since the Unix epoch.
// The zero Instant means "none".
type Instant int64

// Never is later than every other Instant.
const Never Instant = math.MaxInt64

// InstantOf converts a time; the zero time gives the zero Instant.
func InstantOf(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	return Instant(t.UnixNano())
}

// Time converts back, in UTC; the zero Instant gives the zero time.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}

// Add returns i+d and saturates instead of wrapping around.
func (i Instant) Add(d time.Duration) Instant { return Instant(saturatingAdd(int64(i), int64(d))) }

// Sub returns i-j and saturates instead of wrapping around.
func (i Instant) Sub(j Instant) time.Duration {
	return time.Duration(saturatingSub(int64(i), int64(j)))
}

// saturatingAdd adds without wrapping around.
func saturatingAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	if b < 0 && a < math.MinInt64-b {
		return math.MinInt64
	}
	return a + b
}

// saturatingSub subtracts without wrapping around.
func saturatingSub(a, b int64) int64 {
	if b < 0 && a > math.MaxInt64+b {
		return math.MaxInt64
	}
	if b > 0 && a < math.MinInt64+b {
		return math.MinInt64
	}
	return a - b
}

// exact is a rational number of nanoseconds, ns + frac/limit, where limit is
// that of the rate it belongs to and 0 <= frac < limit. It is what keeps 7/s
// from drifting: 1s/7 has no whole number of nanoseconds.
type exact struct {
	ns   int64
	frac int64
}

func (e exact) before(o exact) bool { return e.ns < o.ns || e.ns == o.ns && e.frac < o.frac }

func (e exact) ceil() int64 {
	if e.frac > 0 {
		return saturatingAdd(e.ns, 1)
	}
	return e.ns
}

func (e exact) plus(o exact, limit int64) exact {
	sum := exact{ns: saturatingAdd(e.ns, o.ns), frac: e.frac + o.frac}
	if sum.frac >= limit {
		sum.frac -= limit
		sum.ns = saturatingAdd(sum.ns, 1)
	}
	return sum
}

func (e exact) minus(o exact, limit int64) exact {
	diff := exact{ns: saturatingSub(e.ns, o.ns), frac: e.frac - o.frac}
	if diff.frac < 0 {
		diff.frac += limit
		diff.ns = saturatingSub(diff.ns, 1)
	}
	return diff
}

// scale returns the exact time in which rate r yields n units: n*Per/Limit.
// It saturates at MaxRefill, far beyond any instant that matters.
func scale(n int64, r Rate) exact {
	hi, lo := bits.Mul64(uint64(n), uint64(r.Per))
	if hi >= uint64(r.Limit) {
		return exact{ns: int64(MaxRefill)}
	}
	q, rem := bits.Div64(hi, lo, uint64(r.Limit))
	if q >= uint64(MaxRefill) {
		return exact{ns: int64(MaxRefill)}
	}
	return exact{ns: int64(q), frac: int64(rem)}
}

// reframe expresses an instant in the fractions of another rate, rounded up.
func reframe(e exact, from, to Rate) exact {
	hi, lo := bits.Mul64(uint64(e.frac), uint64(to.Limit))
	q, rem := bits.Div64(hi, lo, uint64(from.Limit)) // frac < from.Limit, so hi is too
	if rem > 0 {
		q++
	}
	return exact{ns: e.ns}.plus(exact{ns: int64(q) / to.Limit, frac: int64(q) % to.Limit}, to.Limit)
}

// convert returns the time in which rate to yields the units that rate from
// yields in the time e, rounded up to the fractions of to. It saturates at
// MaxRefill.
func convert(e exact, from, to Rate) exact {
	product := func(factors ...int64) *big.Int {
		p := big.NewInt(1)
		for _, f := range factors {
			p.Mul(p, big.NewInt(f))
		}
		return p
	}
	// In fractions of to: (ns*from.Limit + frac) * to.Per / from.Per.
	n := product(e.ns, from.Limit)
	n.Add(n, big.NewInt(e.frac))
	n.Mul(n, big.NewInt(int64(to.Per)))
	rem := new(big.Int)
	n.QuoRem(n, big.NewInt(int64(from.Per)), rem)
	if rem.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	ns, frac := n.QuoRem(n, big.NewInt(to.Limit), rem)
	if !ns.IsInt64() || ns.Int64() >= int64(MaxRefill) {
		return exact{ns: int64(MaxRefill)}
	}
	return exact{ns: ns.Int64(), frac: frac.Int64()}
}
