package admission

import (
	"math"
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
	if j == math.MinInt64 {
		return math.MaxInt64
	}
	return time.Duration(saturatingAdd(int64(i), -int64(j)))
}

// exact is a rational number of nanoseconds, ns + frac/limit, where limit is
// that of the rate it belongs to and 0 <= frac < limit. It is what keeps 7/s
// from drifting: 1s/7 has no whole number of nanoseconds.
type exact struct {
	ns   int64
	frac int64
}

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
	diff := exact{ns: saturatingAdd(e.ns, -o.ns), frac: e.frac - o.frac}
	if diff.frac < 0 {
		diff.frac += limit
		diff.ns = saturatingAdd(diff.ns, -1)
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
	if q > uint64(MaxRefill) {
		return exact{ns: int64(MaxRefill)}
	}
	return exact{ns: int64(q), frac: int64(rem)}
}

// A pacer is a token bucket in the form of the generic cell rate algorithm:
// tat is the instant at which the bucket is full again. A bucket with burst 1
// and cost 1 is pure pacing, and tat is then the `next` of the specification.
type pacer struct {
	tat exact
}

// admissible returns the first instant at which cost units are there: the
// bucket then lacks no more than burst-cost units.
func (p *pacer) admissible(cost int64, r Rate) exact {
	if cost >= r.Burst {
		return p.tat
	}
	return p.tat.minus(scale(r.Burst-cost, r), r.Limit)
}

// take uses cost units at instant t, which must not be before admissible.
// Where t is the whole nanosecond in which an exact instant falls, that exact
// instant counts, so rounding never adds up.
func (p *pacer) take(t Instant, cost int64, r Rate) {
	base := exact{ns: int64(t)}
	if at := p.admissible(cost, r); at.ceil() == int64(t) && cost >= r.Burst {
		base = at
	}
	if p.tat.ns > base.ns || p.tat.ns == base.ns && p.tat.frac > base.frac {
		base = p.tat
	}
	p.tat = base.plus(scale(cost, r), r.Limit)
}

// give returns units that were taken but not used. Giving back more than is
// missing fills the bucket and no more, since a tat in the past means full.
func (p *pacer) give(units int64, r Rate) { p.tat = p.tat.minus(scale(units, r), r.Limit) }

// owe takes units that were used beyond what was taken: a debt that later
// admissions wait for. now matters where the bucket was full.
func (p *pacer) owe(now Instant, units int64, r Rate) {
	if p.tat.ns < int64(now) {
		p.tat = exact{ns: int64(now)}
	}
	p.tat = p.tat.plus(scale(units, r), r.Limit)
	p.tat.ns = min(p.tat.ns, int64(now.Add(MaxRefill)))
}

// rescale carries the pacer over to another rate: what is missing from the
// bucket stays missing in units, now refilled at the new rate.
func (p *pacer) rescale(now Instant, from, to Rate) {
	if to.IsZero() || from.IsZero() {
		p.tat = exact{}
		return
	}
	if from == to {
		return
	}
	missing := p.tat.ns - int64(now)
	if missing <= 0 {
		p.tat = exact{}
		return
	}
	// units missing, rounded up, so a change never admits early
	hi, lo := bits.Mul64(uint64(missing), uint64(from.Limit))
	var units int64 = math.MaxInt64
	if hi < uint64(from.Per) {
		q, rem := bits.Div64(hi, lo, uint64(from.Per))
		if q < math.MaxInt64 {
			units = int64(q)
			if rem > 0 || p.tat.frac > 0 {
				units++
			}
		}
	}
	p.tat = exact{ns: int64(now)}.plus(scale(units, to), to.Limit)
}
