package admission

import (
	"math"
	"math/bits"
	"time"
)

// cooldown is what overloads made of the gate's time.
type cooldown struct {
	until    Instant
	cause    Cause
	streak   int32 // overloads without a hint in a row
	zeroHint bool  // the last overload's hint was "now"
	ramp     int64 // admissions since until, while that matters
}

// Cause says what a cooldown came from, for people.
type Cause struct {
	Status  int32
	Source  string // of the hint; empty: fallback
	Asked   time.Duration
	Applied time.Duration
	At      Instant
}

// learn takes in what an attempt was told. started is when it began.
func (s *Scheduler) learn(now Instant, f *Feedback, started Instant) {
	news := started >= s.cool.until // it says something about the time after the last cooldown
	switch f.Outcome {
	case OutcomeSuccess:
		if news {
			s.cool.streak, s.cool.zeroHint = 0, false
		}
		if f.Asked > 0 && s.since(2) { // the limit is exhausted, though this one still passed
			s.Cooldown(now, f.Asked, Cause{Status: f.Status, Source: f.Source})
		}
		return
	case OutcomeOverload:
	default:
		return
	}
	s.Counters.Overloads++
	if s.limits.MaxCooldown <= 0 {
		return
	}
	asked, source := f.Asked, f.Source
	if asked == 0 && !s.cool.zeroHint {
		s.cool.zeroHint = true // "now" is believed once
		return
	}
	if asked <= 0 {
		// Fifty answers to one burst count once.
		if news && s.limits.FallbackCooldown > 0 && s.cool.streak < math.MaxInt32 {
			s.cool.streak++
		}
		asked, source = s.fallback(), ""
	} else {
		s.cool.zeroHint = false
	}
	s.Cooldown(now, asked, Cause{Status: f.Status, Source: source})
}

// fallback is the cooldown of an overload without a hint at the present streak.
func (s *Scheduler) fallback() time.Duration {
	d := s.limits.FallbackCooldown
	if d <= 0 {
		return 0
	}
	shift := max(s.cool.streak-1, 0)
	if int(shift) >= bits.LeadingZeros64(uint64(d))-1 {
		return s.limits.MaxCooldown
	}
	return min(d<<shift, s.limits.MaxCooldown)
}

// Cooldown admits nothing for the time asked, at most MaxCooldown, from now. It
// extends what is there and never shortens it.
func (s *Scheduler) Cooldown(now Instant, asked time.Duration, cause Cause) {
	now = s.observe(now)
	applied := min(asked, s.limits.MaxCooldown)
	if applied <= 0 {
		return
	}
	until := now.Add(applied)
	if until <= s.cool.until {
		return
	}
	s.accountHead(now)
	s.Counters.Cooldowns++
	cause.Source = cut(cause.Source)
	cause.Asked, cause.Applied, cause.At = asked, applied, now
	s.cool.until, s.cool.cause, s.cool.ramp = until, cause, 0
	s.wakeAll()
}

// The ramp after a cooldown: one admission, then two, four, … per step.
const (
	rampStep  = 125 * time.Millisecond
	rampSteps = 8
)

// rampUntil is when the ramp lets the next ticket pass; 0 without a ramp. A
// gate with spacing needs none.
func (s *Scheduler) rampUntil() Instant {
	if s.cool.until == 0 || s.limits.Pacing.Spaced() {
		return 0
	}
	step := bits.Len64(uint64(s.cool.ramp)+1) - 1
	return s.cool.until.Add(time.Duration(min(step, rampSteps)) * rampStep)
}

// ramped counts an admission at t.
func (c *cooldown) ramped(t Instant) {
	if c.until != 0 && t >= c.until && c.ramp < 1<<rampSteps {
		c.ramp++
	}
}
