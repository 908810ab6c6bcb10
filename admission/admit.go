package admission

import (
	"math"
	"math/bits"
	"time"
)

// Advance brings the scheduler to now: what is due ends, and every ticket that
// becomes admissible within the look-ahead is admitted.
func (s *Scheduler) Advance(now Instant) {
	now = s.observe(now)
	for len(s.q.heap) > 0 {
		i := s.q.heap[0]
		if s.dueAt(&s.q.entries[i]) > now {
			break
		}
		s.end(i, now)
	}
	s.expireHolders(now)
	for s.admitHead(now) {
	}
	s.capBlocked = false
	if i := s.first(); i != none {
		s.capBlocked = s.limits.MaxInFlight > 0 && s.inUse+s.q.entries[i].weight > s.limits.MaxInFlight
	}
}

// end does what is due for an entry: a lease outlived max_hold, a deadline
// passed, a parked ticket's time is over.
func (s *Scheduler) end(i int32, now Instant) {
	e := &s.q.entries[i]
	switch {
	case e.state == entryLeased:
		s.Counters.Expired++
		s.revoke(i, RevokedMaxHold)
		s.forget(i)
		return
	case e.holder != none:
		s.account(i, now)
		s.refuse(HolderRef(e.holder), e.number, Refusal{Kind: RefusedQueueTimeout})
	}
	s.drop(i)
}

// present head of the queue, or none.
func (s *Scheduler) first() int32 {
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		if e := &s.q.entries[i]; e.holder != none && s.present(e.holder, s.now) {
			return i
		}
	}
	return none
}

// admitHead admits the first present ticket if it may start within the
// look-ahead.
func (s *Scheduler) admitHead(now Instant) bool {
	i := s.first()
	if i == none {
		return false
	}
	e := &s.q.entries[i]
	t := s.earliest(e, now)
	if t > now.Add(s.limits.LookAhead) && t > now || e.deadline != 0 && t >= e.deadline {
		return false
	}
	s.admit(i, t)
	return true
}

// earliest is the first instant, from now on, at which the head may be
// admitted as things stand; Never while only an event can make it so.
func (s *Scheduler) earliest(e *entry, now Instant) Instant {
	if s.paused || s.learnUntil > now || s.limits.MaxInFlight > 0 && s.inUse+e.weight > s.limits.MaxInFlight {
		return Never
	}
	t := max(now, s.cool.until, s.rampUntil())
	if r := s.limits.Pacing; !r.IsZero() {
		if r.Spaced() {
			t = max(t, now.Add(s.holders[e.holder].delivery))
		}
		t = max(t, Instant(s.pacing.admissible(1, r).ceil()))
	}
	for b := range s.limits.Budgets {
		if e.cost[b] > 0 {
			t = max(t, Instant(s.budgets[b].admissible(e.cost[b], s.limits.Budgets[b].Rate).ceil()))
		}
	}
	return t
}

// admit turns the ticket into a lease that starts at t.
func (s *Scheduler) admit(i int32, t Instant) {
	s.account(i, t)
	e := &s.q.entries[i]
	h := &s.holders[e.holder]
	s.q.dequeue(i)
	s.queued--
	h.queued.remove(e)
	h.leased++
	if r := s.limits.Pacing; !r.IsZero() {
		s.pacing.take(t, 1, r)
	}
	for b := range s.limits.Budgets {
		if e.cost[b] > 0 {
			s.budgets[b].take(t, e.cost[b], s.limits.Budgets[b].Rate)
		}
	}
	s.cool.ramped(t)
	s.leases++
	e.state, e.lease, e.startAt, e.expires = entryLeased, s.leases, t, t.Add(s.limits.MaxHold)
	e.generation++
	s.byLease[e.lease] = i
	s.inUse += e.weight
	s.lastStart, s.headGone = max(s.lastStart, t), max(s.headGone, t)
	s.Counters.Admissions++
	s.schedule(i)
	s.grantNotice(i)
}

// account attributes the time since the ticket was last accounted to what it
// waited for. Only the first present ticket waits for anything but order.
func (s *Scheduler) account(i int32, to Instant) {
	e := &s.q.entries[i]
	from := e.accounted
	if to <= from {
		return
	}
	e.accounted = to
	if e.holder == none || i != s.first() {
		if e.parkedAt == 0 {
			e.waits[WaitOrder] += to.Sub(from)
		}
		return
	}
	// It became the head when the last one before it went.
	if head := min(s.headGone, to); head > from {
		e.waits[WaitOrder] += head.Sub(from)
		from = head
	}
	until := func(w Wait, t Instant) {
		if t = min(t, to); t > from {
			e.waits[w] += t.Sub(from)
			from = t
		}
	}
	if s.paused {
		until(WaitPaused, to)
	}
	until(WaitLearning, s.learnUntil)
	until(WaitCooldown, max(s.cool.until, s.rampUntil()))
	if r := s.limits.Pacing; !r.IsZero() {
		until(WaitPacing, Instant(s.pacing.admissible(1, r).ceil()))
	}
	for b := range s.limits.Budgets {
		if e.cost[b] > 0 {
			until(WaitBudget+Wait(b), Instant(s.budgets[b].admissible(e.cost[b], s.limits.Budgets[b].Rate).ceil()))
		}
	}
	if s.capBlocked {
		until(WaitCap, s.now)
	}
}

// accountHead closes the head's account before a change of what it waits for.
func (s *Scheduler) accountHead(now Instant) {
	if i := s.first(); i != none {
		s.account(i, now)
	}
}

// nextWake is when the earliest thing happens by itself.
func (s *Scheduler) nextWake() Instant {
	wake := Never
	if len(s.q.heap) > 0 {
		wake = s.dueAt(&s.q.entries[s.q.heap[0]])
	}
	for i := range s.holders {
		if h := &s.holders[i]; h.id != "" && (h.leased > 0 || h.queued.tickets > 0) {
			wake = min(wake, s.expiry(h))
		}
	}
	i := s.first()
	if i == none {
		return wake
	}
	e := &s.q.entries[i]
	if h := &s.holders[e.holder]; h.comeAgain != 0 {
		wake = min(wake, h.comeAgain.Add(PresenceGrace))
	}
	if s.learnUntil > s.now {
		wake = min(wake, s.learnUntil)
	}
	if t := s.earliest(e, s.now); t != Never && (e.deadline == 0 || t < e.deadline) {
		// Half a look-ahead of lead: each wake-up then admits half a
		// look-ahead's worth, rather than one ticket at a time.
		wake = min(wake, max(s.now, t.Add(-max(s.limits.LookAhead, 0)/2)))
	}
	return wake
}

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
	switch f.Outcome {
	case OutcomeSuccess:
		if started >= s.cool.until {
			s.cool.streak, s.cool.zeroHint = 0, false
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
	asked := f.Asked
	if asked == 0 { // "now": believed once
		if !s.cool.zeroHint {
			s.cool.zeroHint = true
			return
		}
		asked = -1
	} else {
		s.cool.zeroHint = false
	}
	source := f.Source
	if asked < 0 {
		// Only an attempt that began after the last cooldown's end is news:
		// fifty answers to one burst count once.
		if started >= s.cool.until && s.cool.streak < math.MaxInt32 {
			s.cool.streak++
		}
		asked, source = s.fallback(), ""
	}
	if asked > 0 {
		s.Cooldown(now, asked, Cause{Status: f.Status, Source: source})
	}
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
	step := bits.Len64(uint64(s.cool.ramp+1)) - 1
	if step >= rampSteps {
		return 0
	}
	return s.cool.until.Add(time.Duration(step) * rampStep)
}

// ramped counts an admission at t.
func (c *cooldown) ramped(t Instant) {
	if c.until == 0 || t < c.until {
		return
	}
	if t >= c.until.Add(rampSteps*rampStep) {
		c.ramp = 1 << rampSteps
		return
	}
	c.ramp++
}
