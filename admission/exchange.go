package admission

import "time"

// Exchange is one batched message from a holder. Apply takes it in as a whole:
// feedback and releases first, then cancels, parkings and hand-backs, then
// acquires.
type Exchange struct {
	Holder     string
	Generation uint64 // of the holder: its process start
	Seq        uint64 // from 1; each is applied once
	Confirmed  uint64 // number of the last notice seen

	// Resync: Present lists all that the holder has in use and in the queue.
	// What it doesn't list has ended. Seq starts anew from this one.
	Resync        bool
	Present       []Present
	CooldownUntil Instant // that the holder knows of from an earlier run
	LastStart     Instant // of its last lease

	Acquire  []Request
	Cancel   []Cancel
	HandBack []HandBack
	Release  []Release

	RefusedBefore uint32        // tries of the last exchange that the server refused
	RoundTrip     time.Duration // of the last exchange
	Ask           []uint64      // tickets whose positions are wanted; at most MaxPositions
}

// MaxPositions bounds the positions that one answer tells.
const MaxPositions = 16

// Cancel ends a queued ticket, or parks it.
type Cancel struct {
	Ticket  uint64
	Attempt int32
	Park    bool
}

// HandBack returns a lease that has not started.
type HandBack struct {
	Lease uint64
	Late  bool // the start window was missed
}

// Release ends a lease.
type Release struct {
	Lease      uint64
	Generation uint32 // 0: whatever it is
	Feedback   Feedback
}

// Present is a ticket or, where Lease is set, a lease that a holder has.
type Present struct {
	Request
	Lease      uint64
	Generation uint32
	StartAt    Instant
}

// Answer is what a holder gets to know.
type Answer struct {
	Now     Instant
	Counter uint64
	Rules   Rules
	Seq     uint64 // the last one applied

	Resync     bool // nothing was applied: present everything again
	Superseded bool // a newer generation of this holder is known

	Notices   []Notice // all unconfirmed; valid until the next transition
	Positions []int    // of Exchange.Ask, 1 is the head; 0: not queued

	CooldownUntil Instant
	Cause         Cause
	Paused        bool
	InFlight, Cap int64
	Depth         int

	NotBefore Instant // the next slot
	ComeAgain Instant // be back by then; 0: no need
	MayWait   bool
}

// Apply takes in an exchange and answers it. A repeated one changes nothing and
// is answered from the present state. It ends with Advance.
func (s *Scheduler) Apply(now Instant, x *Exchange) Answer {
	now = s.observe(now)
	h, ok := s.admitExchange(now, x)
	if ok {
		s.applyBody(now, h, x)
	} else if h < 0 {
		a := s.Snap()
		a.Resync, a.Superseded = h == refNeedsResync, h == refSuperseded
		a.Now, a.NotBefore = now, now
		return a
	}
	s.Advance(now)
	s.holders[h].comeAgain = 0
	slot := s.slot(now)
	s.holders[h].comeAgain = s.promise(int32(h), now, slot)
	a := s.AnswerFor(h)
	a.NotBefore = slot
	for _, number := range x.Ask[:min(len(x.Ask), MaxPositions)] {
		a.Positions = append(a.Positions, s.position(h, number))
	}
	return a
}

// Results of admitExchange that are not holders.
const (
	refNeedsResync HolderRef = -1
	refSuperseded  HolderRef = -2
)

// admitExchange finds the holder and decides from the sequence number whether
// the exchange is to be applied.
func (s *Scheduler) admitExchange(now Instant, x *Exchange) (HolderRef, bool) {
	i, known := s.holderByID[x.Holder]
	if known && x.Generation < s.holders[i].generation {
		s.Counters.Conflict++
		return refSuperseded, false
	}
	if !known || x.Generation > s.holders[i].generation {
		if x.Seq != 1 && !x.Resync {
			s.Counters.Gaps++
			return refNeedsResync, false
		}
	}
	h, err := s.Register(now, x.Holder, x.Generation)
	if err != nil {
		return refSuperseded, false
	}
	holder := &s.holders[h]
	s.Confirm(h, x.Confirmed)
	switch {
	case x.Seq <= holder.seq:
		s.Counters.Duplicates++
		return h, false
	case x.Resync:
		s.Counters.Resyncs++
	case x.Seq != holder.seq+1:
		s.Counters.Gaps++
		return refNeedsResync, false
	}
	holder.seq = x.Seq
	s.counter++
	return h, true
}

func (s *Scheduler) applyBody(now Instant, h HolderRef, x *Exchange) {
	s.report(now, x.RefusedBefore, x.RoundTrip)
	if x.RoundTrip > 0 {
		s.holders[h].delivery = min(x.RoundTrip, MaxDelivery)
	}
	if x.Resync {
		s.resync(now, h, x)
	}
	for i := range x.Release {
		r := &x.Release[i]
		s.Release(now, h, r.Lease, r.Generation, r.Feedback)
	}
	for _, c := range x.Cancel {
		if c.Park {
			s.Park(now, h, c.Ticket, c.Attempt)
		} else {
			s.Cancel(now, h, c.Ticket, c.Attempt)
		}
	}
	for _, b := range x.HandBack {
		s.HandBack(now, h, b.Lease, b.Late)
	}
	for i := range x.Acquire {
		// Misuse is counted, and the rest of the batch goes on.
		_ = s.Acquire(now, h, x.Acquire[i])
	}
}

// resync makes the gate's picture of a holder what the holder says it is.
func (s *Scheduler) resync(now Instant, h HolderRef, x *Exchange) {
	if until := min(x.CooldownUntil, now.Add(s.limits.MaxCooldown)); until > now {
		s.Cooldown(now, until.Sub(now), Cause{Source: "presented"})
	}
	if r := s.limits.Pacing; r.Spaced() && x.LastStart > s.lastStart {
		s.lastStart = min(x.LastStart, now.Add(max(s.limits.LookAhead, 0)))
		if next := (exact{ns: int64(s.lastStart)}).plus(scale(1, r), r.Limit); next.ns > s.pacing.tat.ns {
			s.pacing.tat = next
		}
	}
	listed := make(map[uint64]bool, len(x.Present))
	for i := range x.Present {
		listed[x.Present[i].Number] = true
	}
	for i := range s.q.entries { // in the order of the slab, which is the same everywhere
		e := &s.q.entries[i]
		if e.state == entryFree || e.holder != int32(h) || listed[e.number] {
			continue
		}
		if e.state == entryLeased {
			s.endLease(int32(i), now, nil)
		} else {
			s.drop(int32(i))
		}
	}
	for i := range x.Present {
		s.present1(now, h, &x.Present[i])
	}
}

// present1 takes one presented ticket or lease.
func (s *Scheduler) present1(now Instant, h HolderRef, p *Present) {
	i, known := s.byNumber[numberKey{p.Number, int32(h)}]
	if p.Lease == 0 {
		if !known {
			_ = s.Acquire(now, h, p.Request)
		}
		return
	}
	if known && s.q.entries[i].lease == p.Lease {
		return
	}
	if known {
		// The gate has it queued, or under another lease whose grant the
		// holder hasn't seen; what the holder uses is what counts.
		if s.q.entries[i].state == entryLeased {
			s.endLease(i, now, nil)
		} else {
			s.drop(i)
		}
	}
	_, taken := s.byLease[p.Lease]
	// An ID from the future would use up the IDs that are still to come.
	plausible := p.Lease <= uint64(max(now, 0)/1000)+MaxInFlightBound
	if taken || !plausible || p.Weight < 0 || p.Weight > MaxInFlightBound || p.StartAt.Add(s.limits.MaxHold) <= now || p.Number == 0 {
		s.Counters.StaleAcquires++
		return
	}
	if owner, queued := s.byKey[p.Key]; queued && s.q.entries[owner].state == entryQueued && s.q.entries[owner].attempt <= p.Attempt {
		s.drop(owner)
	}
	cost, _ := s.costs(p.Request)
	at := s.q.alloc()
	s.arrivals++
	e := &s.q.entries[at]
	*e = entry{
		key: p.Key, label: cut(p.Label), number: p.Number, arrival: s.arrivals, weight: max(p.Weight, 1),
		cost: cost, arrivedAt: now, accounted: now, attempt: p.Attempt, hold: p.Hold, holder: int32(h),
		state: entryLeased, lease: p.Lease, generation: max(p.Generation, 1), startAt: min(p.StartAt, now.Add(max(s.limits.LookAhead, 0))),
		due: none, next: none, prev: none,
	}
	e.expires = e.startAt.Add(s.limits.MaxHold)
	s.leases = max(s.leases, p.Lease)
	s.labels += int64(len(e.label))
	s.inUse += e.weight
	s.byLease[e.lease] = at
	s.byNumber[numberKey{e.number, e.holder}] = at
	if _, owned := s.byKey[e.key]; !owned {
		s.byKey[e.key] = at
	}
	s.holders[h].leased++
	s.schedule(at)
}

// AnswerFor returns what a holder gets to know now, without changing anything.
func (s *Scheduler) AnswerFor(h HolderRef) Answer {
	a := s.Snap()
	if s.check(h) != nil {
		a.Resync = true
		return a
	}
	holder := &s.holders[h]
	a.Seq = holder.seq
	a.Notices = holder.outbox
	a.NotBefore = s.now
	a.ComeAgain = holder.comeAgain
	a.MayWait = s.mayWait(int32(h), s.now)
	return a
}

// Snap returns the part of an answer that concerns the whole gate.
func (s *Scheduler) Snap() Answer {
	return Answer{
		Now: s.now, Counter: s.counter, Rules: s.rules,
		CooldownUntil: s.cool.until, Cause: s.cool.cause, Paused: s.paused,
		InFlight: s.inUse, Cap: s.limits.MaxInFlight, Depth: s.queued,
	}
}

// position counts from the head, 1; parked tickets are not in line. 0: not queued.
func (s *Scheduler) position(h HolderRef, number uint64) int {
	want, ok := s.byNumber[numberKey{number, int32(h)}]
	if !ok || s.q.entries[want].state != entryQueued {
		return 0
	}
	at := 0
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		if s.q.entries[i].holder != none {
			at++
		}
		if i == want {
			return at
		}
	}
	return 0
}
