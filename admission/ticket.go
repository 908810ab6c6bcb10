package admission

import "time"

// Hold says what happens to a lease between the attempts of one activity.
type Hold uint8

const (
	HoldAttempt Hold = iota // each attempt has its own lease
	HoldCall                // one lease over all attempts
)

// UnitCost is what an attempt costs of one budget.
type UnitCost struct {
	Unit string
	N    int64 // at least 1 in a request; at least 0 as an actual cost
}

// Request asks for admission.
type Request struct {
	Key      Key
	Number   uint64 // the holder's own small integer, unique within its generation
	Label    string // what a person reads; cut at MaxLabel bytes
	Attempt  int32  // the highest attempt owns a ticket
	Weight   int64  // 0 means 1
	Cost     []UnitCost
	Deadline Instant // of the queue; 0: none
	Hold     Hold
}

// Acquire puts a ticket into the queue, or continues the one with the same key:
// a queued ticket keeps its place; a leased one gets a new ticket beside it or,
// with HoldCall, hands its lease on. A refusal becomes a notice to the holder.
// The error tells of misuse; the state has not changed then.
func (s *Scheduler) Acquire(now Instant, h HolderRef, r Request) error {
	return s.acquire(s.observe(now), h, &r)
}

// acquireAll is Acquire for what an exchange brings. Misuse is counted, and the
// rest goes on.
func (s *Scheduler) acquireAll(now Instant, h HolderRef, all []Request) {
	s.names.keys.expect(all)
	for i := range all {
		_ = s.acquire(now, h, &all[i])
	}
}

func (s *Scheduler) acquire(now Instant, h HolderRef, r *Request) error {
	if err := s.check(h); err != nil {
		return err
	}
	if r.Number == 0 || s.byNumber(h, r.Number) != none {
		s.Counters.StaleAcquires++
		return ErrNumberTaken
	}
	if len(s.holders[h].outbox) >= maxOutbox {
		s.Counters.StaleAcquires++
		return ErrUnconfirmed
	}
	owner := s.byKey(&r.Key)
	if owner != none {
		e := &s.q.entries[owner]
		switch {
		case e.attempt > r.Attempt || e.attempt == r.Attempt && e.holder != none && e.holder != int32(h):
			s.Counters.StaleAcquires++
			s.refuse(now, h, r.Number, Refusal{Kind: RefusedSuperseded})
			return nil
		case e.state == entryQueued:
			s.resume(now, owner, h, r)
			return nil
		case e.hold == HoldCall && r.Hold == HoldCall:
			s.move(now, owner, h, r)
			return nil
		}
		// The lease goes on beside the new ticket.
	}
	weight := r.Weight
	if weight == 0 {
		weight = 1
	}
	var cost costs
	if refusal := s.refusal(now, r, weight, &cost); refusal != nil {
		s.refuse(now, h, r.Number, *refusal)
		return nil
	}
	i := s.q.alloc()
	s.arrivals++
	// Set in place: a whole entry copied from one just put together would wait
	// for that to be written.
	e := &s.q.entries[i]
	*e = entry{}
	e.key, e.number, e.holder, e.attempt, e.hold = r.Key, r.Number, int32(h), r.Attempt, r.Hold
	e.weight, e.arrival, e.arrivedAt, e.accounted, e.deadline = int32(weight), s.arrivals, now, now, r.Deadline
	e.due, e.next, e.prev, e.waits, e.place = none, none, none, none, none
	s.q.labels[i] = cut(r.Label)
	s.q.setCost(i, &cost)
	s.q.enqueue(i)
	s.arrives(i, now, s.queued-s.parked+1, s.queued+1)
	if owner != none {
		s.disinherit(owner)
	}
	s.own(i)
	s.names.numbers.put(e.number, e.holder, i)
	s.queued++
	s.labels += int64(len(s.q.labels[i]))
	s.holders[h].queued.add(&cost, len(s.limits.Budgets))
	if e.deadline != 0 {
		s.schedule(i)
	}
	return nil
}

// arrives notes how a ticket's attempt found the queue.
func (s *Scheduler) arrives(i int32, now Instant, position, depth int) {
	a := arrival{}
	if s.since(2) {
		a = arrival{now, int32(position), int32(depth)}
	}
	s.q.arrived[i] = a
}

// refusal says why a new ticket can't be taken, if so, else nil, and works out its cost.
func (s *Scheduler) refusal(now Instant, r *Request, weight int64, cost *costs) *Refusal {
	if refusal := s.costs(r, weight, cost); refusal != nil {
		return refusal
	}
	if refusal := s.neverAdmissible(weight, cost); refusal != nil {
		return refusal
	}
	if s.full(len(r.Label)) {
		return &Refusal{Kind: RefusedQueueFull, Value: int64(s.queued), Bound: int64(s.limits.MaxQueue), ComeAgain: now.Add(s.drainTime())}
	}
	if r.Deadline != 0 {
		if at := s.lowerBound(now, cost); at >= r.Deadline {
			return &Refusal{Kind: RefusedTooLate, ComeAgain: at}
		}
	}
	return nil
}

// costs puts a request's costs into the order of the budgets. Units that the
// policy has no budget for cost nothing.
func (s *Scheduler) costs(r *Request, weight int64, cost *costs) *Refusal {
	if weight < 1 {
		return &Refusal{Kind: RefusedInvalid, Field: "weight", Value: weight, Bound: 1}
	}
	for _, c := range r.Cost {
		if c.N < 1 {
			return &Refusal{Kind: RefusedInvalid, Field: cut(c.Unit), Value: c.N, Bound: 1}
		}
		if b := s.unit(c.Unit); b >= 0 {
			cost[b] = saturatingAdd(cost[b], c.N)
		}
	}
	return nil
}

func (s *Scheduler) unit(name string) int {
	for b := range s.limits.Budgets {
		if s.limits.Budgets[b].Unit == name {
			return b
		}
	}
	return -1
}

// neverAdmissible refuses what the limits can never give, with both numbers.
func (s *Scheduler) neverAdmissible(weight int64, cost *costs) *Refusal {
	most := s.limits.MaxInFlight
	if most == 0 {
		most = MaxInFlightBound
	}
	if weight > most {
		return &Refusal{Kind: RefusedNeverAdmissible, Field: "weight", Value: weight, Bound: most}
	}
	for b := range s.limits.Budgets {
		if budget := &s.limits.Budgets[b]; cost[b] > budget.Rate.Burst {
			return &Refusal{Kind: RefusedNeverAdmissible, Field: budget.Unit, Value: cost[b], Bound: budget.Rate.Burst}
		}
	}
	return nil
}

// What a snapshot takes, estimated: stateBudget keeps it well below Temporal's
// 2 MiB limit on a payload even if it doesn't compress.
const (
	stateBudget    = 1_500_000
	bytesPerEntry  = 80
	bytesPerCost   = 5
	bytesPerNotice = 70
	bytesPerHolder = 100
)

// full reports whether one more ticket would exceed the queue's or the state's bound.
func (s *Scheduler) full(label int) bool {
	if s.queued >= s.limits.MaxQueue {
		return true
	}
	entries := int64(s.queued + s.leased() + 1)
	size := s.labels + int64(min(label, MaxLabel)) + entries*int64(bytesPerEntry+bytesPerCost*len(s.limits.Budgets)) +
		int64(s.notices)*bytesPerNotice + int64(len(s.holderByID))*bytesPerHolder
	return !s.unbounded && size > stateBudget
}

// drainTime guesses when a full queue has a place again.
func (s *Scheduler) drainTime() time.Duration {
	return min(max(s.limits.Pacing.Spacing(), s.releaseGap, 100*time.Millisecond), 30*time.Second)
}

// lowerBound is the first instant at which a ticket that arrived now could be
// admitted if every place in the cap were free: cooldown, spacing and budgets
// alone, with all present tickets before it.
func (s *Scheduler) lowerBound(now Instant, cost *costs) Instant {
	at := max(now, s.cool.until, s.lastStart)
	var ahead tally // parked tickets and those of absent holders hold nobody up
	for i := range s.holders {
		if h := &s.holders[i]; h.queued.tickets > 0 && s.present(int32(i), now) {
			ahead.merge(&h.queued)
		}
	}
	start := exact{ns: int64(at)}
	// after is when a bucket has given the units of all before, and cost more.
	after := func(p *pacer, before, cost int64, r Rate) {
		base := start
		if base.before(p.full) {
			base = p.full
		}
		// base + (before + cost - burst) units
		if before += cost; before >= r.Burst {
			base = base.plus(scale(before-r.Burst, r), r.Limit)
		} else {
			base = base.minus(scale(r.Burst-before, r), r.Limit)
		}
		at = max(at, Instant(base.ceil()))
	}
	if r := s.limits.Pacing; !r.IsZero() {
		after(&s.pacing, ahead.tickets, 1, r)
	}
	for b := range s.limits.Budgets {
		if cost[b] > 0 {
			after(&s.budgets[b].pacer, ahead.cost[b], cost[b], s.limits.Budgets[b].Rate)
		}
	}
	return at
}

// resume gives a queued ticket, parked or not, to the attempt that presents it
// again: it stands where it stood.
func (s *Scheduler) resume(now Instant, i int32, h HolderRef, r *Request) {
	s.account(i, now)
	e := &s.q.entries[i]
	if e.holder != none {
		// Whoever waits under the old number hears that it is over for them.
		s.refuseQueued(now, i, Refusal{Kind: RefusedSuperseded})
	}
	if s.since(2) {
		s.q.forgetWaits(i)
	}
	s.disown(i)
	if e.parkedAt != 0 {
		e.parkedAt = 0
		s.parked--
	}
	ahead := e.arrival - s.q.entries[s.q.head].arrival
	s.arrives(i, now, int(min(ahead+1, uint64(s.queued-s.parked))), s.queued)
	e.holder, e.number, e.attempt, e.hold = int32(h), r.Number, r.Attempt, r.Hold
	if e.deadline == 0 {
		e.deadline = r.Deadline
	}
	s.holders[h].queued.add(s.q.cost(i), len(s.limits.Budgets))
	s.names.numbers.put(e.number, e.holder, i)
	s.schedule(i)
}

// disown takes the entry from its holder and leaves its key.
func (s *Scheduler) disown(i int32) {
	e := &s.q.entries[i]
	if e.holder == none {
		return
	}
	s.names.numbers.remove(e.number, e.holder)
	h := &s.holders[e.holder]
	if e.state == entryLeased {
		h.leased--
	} else {
		h.queued.remove(s.q.cost(i), len(s.limits.Budgets))
	}
	e.holder, e.number = none, 0
}

// Cancel ends a queued ticket. One that was admitted meanwhile gives its lease
// back; one that is unknown or owned by a higher attempt is a counted no-op.
func (s *Scheduler) Cancel(now Instant, h HolderRef, number uint64, attempt int32) {
	now = s.observe(now)
	switch i := s.leaving(h, number, attempt); {
	case i == none:
	case s.q.entries[i].state == entryLeased:
		s.endUnused(i, now)
	default:
		s.drop(i)
	}
}

// Park sets a queued ticket aside: its caller is away for now, it keeps its
// place and holds nobody up. A lease that it got meanwhile is handed back.
func (s *Scheduler) Park(now Instant, h HolderRef, number uint64, attempt int32) {
	now = s.observe(now)
	i := s.leaving(h, number, attempt)
	if i != none && (s.q.entries[i].state == entryQueued || s.requeue(i, now)) {
		s.park(i, now)
	}
}

// leaving finds the ticket that an attempt leaves, or none: a later attempt's
// is not its to leave.
func (s *Scheduler) leaving(h HolderRef, number uint64, attempt int32) int32 {
	i := s.byNumber(h, number)
	if i == none || s.q.entries[i].attempt > attempt {
		s.Counters.StaleCancels++
		return none
	}
	return i
}

func (s *Scheduler) park(i int32, now Instant) {
	s.account(i, now)
	if s.head == i {
		s.head = none
	}
	s.disown(i)
	s.q.entries[i].parkedAt = now
	s.parked++
	s.Counters.Parked++
	s.schedule(i)
}

// drop removes a queued ticket without a word.
func (s *Scheduler) drop(i int32) {
	s.q.dequeue(i)
	s.forget(i)
}

// supersede removes a queued ticket whose call has another ticket or lease.
func (s *Scheduler) supersede(now Instant, i int32) {
	if s.q.entries[i].holder != none {
		s.refuseQueued(now, i, Refusal{Kind: RefusedSuperseded})
	}
	s.drop(i)
}

// forget takes an entry that is no longer in the queue out of all indexes.
func (s *Scheduler) forget(i int32) {
	s.unschedule(i)
	e := &s.q.entries[i]
	if s.head == i {
		s.head = none
	}
	if e.parkedAt != 0 && e.state == entryQueued {
		s.parked--
	}
	s.labels -= int64(len(s.q.labels[i]))
	s.disown(i)
	s.disinherit(i)
	if e.state == entryQueued {
		s.queued--
	} else {
		s.freePlace(e)
	}
	s.q.release(i)
}
