package admission

import (
	"cmp"
	"slices"
	"time"
)

// Exchange is one batched message from a holder. Apply takes it in as a whole:
// feedback and releases first, then hand-backs, what is present, cancels and
// parkings, then acquires.
type Exchange struct {
	Holder     string
	Generation uint64 // of the holder: its process start
	Seq        uint64 // from 1; each is applied once
	Rules      Rules  // the newest that the holder's process can host; 0: unknown
	Confirmed  uint64 // number of the last notice seen

	// Resync: Present lists all that the holder has in use and in the queue.
	// What it doesn't list has ended. Seq goes on from this one, wherever the
	// gate was.
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
	// LeftAt is when the caller left, in the gate's time: the holder wants to be
	// told what the ticket waited for until then, see NoticeLeft. 0: it doesn't.
	LeftAt Instant
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
	Keep       bool   // with HoldCall: the attempt is over, the call is not
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

	Notices []Notice // all unconfirmed; valid until the next transition
	// HandBackTo: limits became tighter after the notice with this number was
	// given. Leases granted by it or an earlier one that have not started are
	// handed back. 0: none.
	HandBackTo uint64
	Positions  []int // of Exchange.Ask, 1 is the head; 0: not queued

	CooldownUntil Instant
	Cause         Cause
	Paused        bool
	InFlight, Cap int64
	Depth         int
	Holders       int // that the gate knows; 0 under rules 1
	// Parked of Depth; and what the gate has counted over all runs. 0 under rules 1.
	Parked               int
	LostHolders, Expired uint64

	NotBefore Instant // the next slot
	ComeAgain Instant // be back by then; 0: no need
	MayWait   bool
}

// Apply takes in an exchange and answers it. A repeated one changes nothing and
// is answered from the present state. It ends with Advance.
func (s *Scheduler) Apply(now Instant, x *Exchange) Answer {
	now = s.observe(now)
	if s.since(2) {
		s.traffic.came(now, s.exchangesAimedAt(now), x.RefusedBefore > 0)
	}
	h, verdict := s.admitExchange(now, x)
	if verdict == applied {
		s.applyBody(now, h, x)
	}
	s.Advance(now)
	if verdict == needsResync || verdict == superseded {
		a := s.Snap()
		a.Resync, a.Superseded = verdict == needsResync, verdict == superseded
		a.NotBefore = s.slot(now)
		return a
	}
	s.holders[h].invited = 0
	a := s.visit(now, h)
	if a.MayWait {
		s.Invite(h)
	}
	for _, number := range x.Ask[:min(len(x.Ask), MaxPositions)] {
		a.Positions = append(a.Positions, s.position(h, number))
	}
	return a
}

// verdict is what becomes of an exchange.
type verdict uint8

const (
	applied verdict = iota
	duplicate
	needsResync
	superseded
)

// admitExchange finds the holder and decides from the sequence number whether
// the exchange is to be applied.
func (s *Scheduler) admitExchange(now Instant, x *Exchange) (HolderRef, verdict) {
	i, known := s.holderByID[x.Holder]
	fresh := !known || x.Generation > s.holders[i].generation
	switch {
	case known && x.Generation < s.holders[i].generation:
		s.Counters.Conflict++
		return 0, superseded
	case fresh && x.Seq != 1 && !x.Resync:
		s.Counters.Gaps++
		return 0, needsResync
	}
	h, err := s.Register(now, x.Holder, x.Generation)
	if err != nil {
		s.Counters.Malformed++
		return 0, needsResync
	}
	holder := &s.holders[h]
	holder.comeAgain = 0 // it is here
	s.Confirm(h, x.Confirmed)
	switch {
	case x.Seq <= holder.seq:
		s.Counters.Duplicates++
		return h, duplicate
	case x.Resync:
		s.Counters.Resyncs++
	case x.Seq != holder.seq+1:
		s.Counters.Gaps++
		return h, needsResync
	}
	holder.seq, holder.rules = x.Seq, x.Rules
	s.counter++
	return h, applied
}

func (s *Scheduler) applyBody(now Instant, h HolderRef, x *Exchange) {
	if !s.since(2) {
		s.traffic.report(x.RefusedBefore, x.RoundTrip)
	}
	if x.RoundTrip > 0 {
		s.holders[h].delivery = min(x.RoundTrip, MaxDelivery)
	}
	for i := range x.Release {
		r := &x.Release[i]
		s.endUsed(now, h, r.Lease, r.Generation, r.Keep, &r.Feedback)
	}
	for _, b := range x.HandBack {
		s.HandBack(now, h, b.Lease, b.Late)
	}
	if x.Resync {
		s.resync(now, h, x) // what is left by now is what the holder lists
	}
	for i := range x.Cancel {
		c := &x.Cancel[i]
		s.tellLeft(now, h, c)
		if c.Park {
			s.Park(now, h, c.Ticket, c.Attempt)
		} else {
			s.Cancel(now, h, c.Ticket, c.Attempt)
		}
	}
	s.acquireAll(now, h, x.Acquire)
}

// resync makes the gate's picture of a holder what the holder says it is.
func (s *Scheduler) resync(now Instant, h HolderRef, x *Exchange) {
	s.renumber(&s.holders[h], x.Confirmed)
	s.leases = max(s.leases, freshLeases(now)) // beyond those of the run that was lost
	s.Cooldown(now, x.CooldownUntil.Sub(now), Cause{Source: "presented"})
	if r := s.limits.Pacing; r.Spaced() && x.LastStart > s.lastStart {
		s.accountHead(now)
		s.lastStart = min(x.LastStart, now.Add(s.ahead()))
		if next := (exact{ns: int64(s.lastStart)}).plus(scale(1, r), r.Limit); s.pacing.full.before(next) {
			s.pacing.full = next
		}
	}
	listed := make(map[uint64]bool, len(x.Present))
	for i := range x.Present {
		listed[x.Present[i].Number] = true
	}
	var ended []int32
	for i := range s.q.entries {
		if e := &s.q.entries[i]; e.state != entryFree && e.holder == int32(h) && !listed[e.number] {
			ended = append(ended, int32(i))
		}
	}
	slices.SortFunc(ended, func(a, b int32) int { return cmp.Compare(s.q.entries[a].arrival, s.q.entries[b].arrival) })
	for _, i := range ended {
		s.vanished(i, now)
	}
	for i := range x.Present {
		if p := &x.Present[i]; p.Lease == 0 {
			s.presentTicket(now, h, p)
		} else {
			s.presentLease(now, h, p)
		}
	}
	s.dropDeadGrants(h)
}

// vanished ends a ticket or lease that its holder no longer has. What a lease
// that had started has used is unknown, and so stays taken.
func (s *Scheduler) vanished(i int32, now Instant) {
	switch e := &s.q.entries[i]; {
	case e.state == entryQueued:
		s.drop(i)
	case e.startAt > now:
		s.endUnused(i, now)
	default:
		s.noteRelease(now)
		s.forget(i)
	}
}

// presentTicket takes a ticket that its holder believes to be in the queue.
func (s *Scheduler) presentTicket(now Instant, h HolderRef, p *Present) {
	i := s.byNumber(h, p.Number)
	if i == none {
		_ = s.acquire(now, h, &p.Request) // misuse is counted
		return
	}
	e := &s.q.entries[i]
	told := slices.ContainsFunc(s.holders[h].outbox, func(n Notice) bool { return n.Kind == NoticeGrant && n.Lease == e.lease })
	if e.state == entryLeased && !told {
		s.grantNotice(i) // it confirmed another run's notice in place of this one
	}
}

// presentLease takes a lease that its holder has in use. Its cost is charged,
// and nothing of that is given back: what else was used since is unknown.
func (s *Scheduler) presentLease(now Instant, h HolderRef, p *Present) {
	known := s.byNumber(h, p.Number)
	if known != none && s.q.entries[known].lease == p.Lease {
		return
	}
	// An ID from the future would use up the IDs that are still to come.
	plausible := p.Lease <= freshLeases(now)+MaxInFlightBound
	revoked := slices.ContainsFunc(s.holders[h].outbox, func(n Notice) bool { return n.Revoked == RevokedOperator && n.Lease == p.Lease })
	if s.byLease(p.Lease) != none || revoked || !plausible || p.Weight < 0 || p.Weight > MaxInFlightBound || p.StartAt.Add(s.limits.MaxHold) <= now || p.Number == 0 {
		s.Counters.StaleAcquires++
		return
	}
	if known != none {
		// The gate has it queued, or under another lease whose grant the
		// holder hasn't seen; what the holder uses is what counts.
		s.vanished(known, now)
	}
	if owner := s.byKey(&p.Key); owner != none && s.q.entries[owner].state == entryQueued && s.q.entries[owner].attempt <= p.Attempt {
		s.supersede(now, owner)
	}
	var cost costs
	if s.costs(&p.Request, 1, &cost) != nil {
		cost = costs{}
	}
	i := s.q.alloc()
	s.arrivals++
	s.leases = max(s.leases, p.Lease)
	e := &s.q.entries[i]
	*e = entry{
		key: p.Key, number: p.Number, arrival: s.arrivals, weight: int32(max(p.Weight, 1)),
		arrivedAt: now, accounted: now, attempt: p.Attempt, hold: p.Hold, holder: int32(h),
		state: entryLeased, lease: p.Lease, generation: max(p.Generation, 1), spent: true, startAt: min(p.StartAt, now.Add(s.ahead())),
		due: none, next: none, prev: none, waits: none, place: none,
	}
	e.expires = e.startAt.Add(s.limits.MaxHold)
	for b := range s.limits.Budgets {
		if rate := s.limits.Budgets[b].Rate; cost[b] > 0 {
			cost[b] = min(cost[b], rate.Burst)
			s.budgets[b].take(e.startAt, s.leases+1, cost[b], rate) // all leases see it
		}
	}
	s.q.labels[i] = cut(p.Label)
	s.q.setCost(i, &cost)
	s.arrives(i, now, 0, 0)
	s.labels += int64(len(s.q.labels[i]))
	s.inUse += int64(e.weight)
	s.names.leases.put(e.lease, 0, i)
	s.names.numbers.put(e.number, e.holder, i)
	if s.byKey(&e.key) == none {
		s.own(i)
	}
	s.holders[h].leased++
	s.schedule(i)
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
	a.HandBackTo = holder.loose
	a.NotBefore = s.now
	a.ComeAgain = holder.comeAgain
	a.MayWait = s.MayWait(h)
	return a
}

// Snap returns the part of an answer that concerns the whole gate.
func (s *Scheduler) Snap() Answer {
	a := Answer{
		Now: s.now, Counter: s.counter, Rules: s.rules,
		CooldownUntil: s.cool.until, Cause: s.cool.cause, Paused: s.paused,
		InFlight: s.inUse, Cap: s.limits.MaxInFlight, Depth: s.queued,
	}
	if s.since(2) {
		a.Holders, a.Parked = len(s.holderByID), s.parked
		a.LostHolders, a.Expired = s.Counters.LostHolders, s.Counters.Expired
	}
	return a
}

// position counts from the head, 1; parked tickets are not in line. 0: not queued.
func (s *Scheduler) position(h HolderRef, number uint64) int {
	want := s.byNumber(h, number)
	if want == none || s.q.entries[want].state != entryQueued {
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
