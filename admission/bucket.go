package admission

import (
	"cmp"
	"slices"
)

// A pacer is a token bucket in the form of the generic cell rate algorithm:
// full is the instant at which the bucket is full again. A bucket with burst 1
// and cost 1 is pure pacing, and full is then the `next` of the specification.
type pacer struct {
	full exact
}

// admissible returns the first instant at which cost units are there: the
// bucket then lacks no more than burst-cost units.
func (p *pacer) admissible(cost int64, r Rate) exact {
	if cost >= r.Burst {
		return p.full
	}
	return p.full.minus(scale(r.Burst-cost, r), r.Limit)
}

// take uses cost units at instant t, which must not be before admissible.
// Where t is the whole nanosecond in which an exact instant falls, that exact
// instant counts, so rounding never adds up.
func (p *pacer) take(t Instant, cost int64, r Rate) {
	base := exact{ns: int64(t)}
	if p.full.ceil() >= base.ns && (cost >= r.Burst || base.before(p.full)) {
		base = p.full
	}
	p.full = base.plus(scale(cost, r), r.Limit)
}

// lack is how long the bucket takes to be full, seen at an instant.
func (p *pacer) lack(at Instant, r Rate) exact {
	if lack := p.full.minus(exact{ns: int64(at)}, r.Limit); lack.ns >= 0 {
		return lack
	}
	return exact{}
}

// A budget is a bucket whose units can be settled afterwards: a lease reserves
// what it may use, and gives back what it did not. The bucket is then as if the
// lease had reserved only what it used. That is not simply the units more: a
// bucket that was full in between has had them already, and giving them twice
// would overdraw it. The difference is the least that the bucket lacked at any
// instant since, if that is less.
type budget struct {
	pacer
	// lows are the least lacks since each lease: the first low of a lease at
	// least as new is its own. Both fields ascend.
	lows []low
}

type low struct {
	lease uint64
	lack  exact
}

// maxLows bounds what is remembered. Beyond it two lows count as the lesser,
// which gives back less, never more.
const maxLows = 128

// saw notes what the bucket lacks, which is least before it grows. lease is the
// newest that saw it.
func (b *budget) saw(lease uint64, lack exact) {
	n := len(b.lows)
	for n > 0 && !b.lows[n-1].lack.before(lack) {
		n--
	}
	if n >= maxLows {
		for i := range n / 2 {
			b.lows[i] = low{b.lows[2*i+1].lease, b.lows[2*i].lack}
		}
		n /= 2
	}
	b.lows = append(b.lows[:n], low{lease, lack})
}

// take reserves cost units for a lease that starts at t.
func (b *budget) take(t Instant, lease uint64, cost int64, r Rate) {
	b.saw(lease-1, b.lack(t, r))
	b.pacer.take(t, cost, r)
}

// give returns units that a lease reserved but did not use. last is the newest
// lease.
func (b *budget) give(now Instant, lease, last uint64, units int64, r Rate) {
	b.saw(last, b.lack(now, r))
	own, _ := slices.BinarySearchFunc(b.lows, lease, func(l low, lease uint64) int { return cmp.Compare(l.lease, lease) })
	back := scale(units, r)
	if most := b.lows[own].lack; most.before(back) {
		back = most
	}
	b.full = b.full.minus(back, r.Limit)
	if at := (exact{ns: int64(now)}); b.full.before(at) {
		b.full = at
	}
	for i := own; i < len(b.lows); i++ {
		b.lows[i].lack = b.lows[i].lack.minus(back, r.Limit)
	}
	older := own
	for older > 0 && !b.lows[older-1].lack.before(b.lows[own].lack) {
		older--
	}
	b.lows = slices.Delete(b.lows, older, own)
}

// owe takes units that were used beyond what was reserved: a debt that later
// admissions wait for.
func (b *budget) owe(now Instant, last uint64, units int64, r Rate) {
	b.saw(last, b.lack(now, r))
	base := exact{ns: int64(now)}
	if base.before(b.full) {
		base = b.full
	}
	b.full = base.plus(scale(units, r), r.Limit)
	b.full.ns = min(b.full.ns, int64(now.Add(MaxRefill)))
}

// changeRate carries the bucket over to another rate: the units that it lacks
// it still lacks, now refilled at the new rate. What leases reserved under the
// old one they can't give back. last is the newest lease.
func (b *budget) changeRate(now Instant, last uint64, from, to Rate) {
	if from == to {
		return
	}
	b.full = exact{ns: int64(now)}.plus(convert(b.lack(now, from), from, to), to.Limit)
	b.lows = append(b.lows[:0], low{lease: last})
}

// changeRate carries the pacing over. With spacing, the next start is one new
// spacing after the last one, whose instant is last.
func (p *pacer) changeRate(now, last Instant, from, to Rate) {
	switch {
	case from == to:
	case to.IsZero():
		p.full = exact{}
	case to.Spaced() && from.Spaced():
		p.full = reframe(p.full.minus(scale(1, from), from.Limit), from, to).plus(scale(1, to), to.Limit)
	case to.Spaced():
		p.full = exact{}
		if last != 0 {
			p.full = exact{ns: int64(last)}.plus(scale(1, to), to.Limit)
		}
	case from.IsZero():
		p.full = exact{}
	default:
		p.full = exact{ns: int64(now)}.plus(convert(p.lack(now, from), from, to), to.Limit)
	}
}
