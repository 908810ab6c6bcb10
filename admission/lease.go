package admission

import "time"

// Outcome is how an attempt ended.
type Outcome uint8

const (
	OutcomeSuccess   Outcome = iota
	OutcomeError             // failed, but not for overload
	OutcomeOverload          // the provider said "slow down"
	OutcomeAbandoned         // never called, or nobody knows
)

// Feedback is what an attempt learned.
type Feedback struct {
	Outcome Outcome
	Status  int32 // HTTP status, for people
	// Asked is the delay that the provider asked for; negative: no hint.
	Asked     time.Duration
	Source    string     // where the hint stood, for people
	Actual    []UnitCost // units not named cost what was reserved
	StartedAt Instant    // gate time; 0: start_at
}

// Release ends a lease. Its feedback is applied first. An unknown lease, one of
// another holder or an older generation of it (0: any) is a counted no-op.
func (s *Scheduler) Release(now Instant, h HolderRef, lease uint64, generation uint32, f Feedback) {
	s.endUsed(s.observe(now), h, lease, generation, false, &f)
}

// Keep is Release for an attempt whose call goes on: under HoldCall the lease
// waits for the call's next attempt, as long as a parked ticket's place would,
// and gives back nothing of what it reserved but what Actual says. Otherwise it
// ends.
func (s *Scheduler) Keep(now Instant, h HolderRef, lease uint64, generation uint32, f Feedback) {
	s.endUsed(s.observe(now), h, lease, generation, true, &f)
}

func (s *Scheduler) endUsed(now Instant, h HolderRef, lease uint64, generation uint32, keep bool, f *Feedback) {
	i := s.byLease(lease)
	if i == none || s.q.entries[i].holder != int32(h) || generation != 0 && generation != s.q.entries[i].generation {
		s.Counters.StaleReleases++
		if f.Outcome == OutcomeOverload {
			// The place is gone, but what the provider said is still worth knowing.
			s.learn(now, f, min(f.StartedAt, now))
		}
		return
	}
	// A lease starts no earlier than its start_at and no later than now.
	s.learn(now, f, min(max(f.StartedAt, s.q.entries[i].startAt), now))
	if len(f.Actual) > 0 {
		s.settle(i, now, f.Actual)
	}
	if keep && s.since(2) && s.q.entries[i].hold == HoldCall {
		s.keep(i, now)
		return
	}
	s.noteRelease(now)
	s.forget(i)
}

// endUnused ends a lease whose attempt was never made: it costs nothing but its
// spacing.
func (s *Scheduler) endUnused(i int32, now Instant) {
	s.refund(i, now)
	s.noteRelease(now)
	s.forget(i)
}

func (s *Scheduler) noteRelease(now Instant) {
	s.Counters.Releases++
	if s.lastRelease != 0 {
		s.releaseGap += (min(now.Sub(s.lastRelease), time.Minute) - s.releaseGap) / 8
	}
	s.lastRelease = now
}

// maxOverrun bounds what one attempt may owe, in bursts: more is absurd.
const maxOverrun = 10

// settle replaces what was reserved by what was used.
func (s *Scheduler) settle(i int32, now Instant, actual []UnitCost) {
	e := &s.q.entries[i]
	var used costs
	var named [MaxBudgets]bool
	for _, a := range actual {
		if b := s.unit(a.Unit); b >= 0 && a.N >= 0 {
			used[b], named[b] = saturatingAdd(used[b], a.N), true
		}
	}
	for b := range s.limits.Budgets {
		if !named[b] {
			continue
		}
		rate := s.limits.Budgets[b].Rate
		switch reserved := s.q.costs[i][b]; {
		case used[b] < reserved && !e.spent:
			s.budgets[b].give(now, e.lease, s.leases, reserved-used[b], rate)
		case used[b] > reserved:
			s.budgets[b].owe(now, s.leases, min(used[b]-reserved, maxOverrun*rate.Burst), rate)
		}
	}
}

// refund gives back all that a lease reserved.
func (s *Scheduler) refund(i int32, now Instant) {
	e := &s.q.entries[i]
	if e.spent {
		return
	}
	for b := range s.limits.Budgets {
		if cost := s.q.costs[i][b]; cost > 0 {
			s.budgets[b].give(now, e.lease, s.leases, cost, s.limits.Budgets[b].Rate)
		}
	}
}

// HandBack returns a lease that was not started. Its ticket stands where it
// stood. late says that the start window was missed: the second such hand-back
// doubles the ticket's window, the third lifts it.
func (s *Scheduler) HandBack(now Instant, h HolderRef, lease uint64, late bool) {
	now = s.observe(now)
	i := s.byLease(lease)
	if i == none || s.q.entries[i].holder != int32(h) {
		s.Counters.StaleReleases++
		return
	}
	if late {
		e := &s.q.entries[i]
		e.handBacks = min(e.handBacks+1, 3)
	}
	s.requeue(i, now)
}

// requeue puts a lease's ticket back into the queue. It reports false where it
// can't stand there: a later attempt does for the same call, or the limits have
// changed such that it can never be admitted again.
func (s *Scheduler) requeue(i int32, now Instant) bool {
	s.refund(i, now)
	s.Counters.HandBacks++
	e := &s.q.entries[i]
	s.freePlace(e)
	h := &s.holders[e.holder]
	h.leased--
	s.unschedule(i) // out of the line of ends, before it is in the queue's
	e.lease, e.startAt, e.expires, e.parkedAt, e.spent = 0, 0, 0, 0, false
	e.accounted = max(now, e.accounted)
	s.q.enqueue(i)
	s.queued++
	h.queued.add(s.q.cost(i), len(s.limits.Budgets))
	s.schedule(i)
	owner := s.byKey(&e.key)
	if owner != none && owner != i {
		s.supersede(now, i)
		return false
	}
	if refusal := s.neverAdmissible(int64(e.weight), s.q.cost(i)); refusal != nil {
		s.refuseQueued(now, i, *refusal)
		s.drop(i)
		return false
	}
	if owner == none {
		s.own(i)
	}
	return true
}

// freePlace gives a lease's place to others.
func (s *Scheduler) freePlace(e *entry) {
	s.names.leases.remove(e.lease, 0)
	s.inUse -= int64(e.weight)
	if s.leased() == 0 {
		for b := range s.limits.Budgets {
			s.budgets[b].lows = s.budgets[b].lows[:0] // nobody is left to settle
		}
	}
}

// keep holds a lease between two attempts of its call, for as long as a parked
// ticket's place is kept. What the attempt reserved is spent.
func (s *Scheduler) keep(i int32, now Instant) {
	e := &s.q.entries[i]
	e.parkedAt, e.spent = now, true
	s.schedule(i)
}

// move hands a lease on to the next attempt of the same call, and fences the
// attempt that had it. The place is the call's, but each attempt is one more
// request to the provider: it waits for its time as if it stood before all
// others, and costs what it costs.
func (s *Scheduler) move(now Instant, i int32, h HolderRef, r *Request) {
	s.revoke(i, RevokedMoved)
	s.disown(i)
	e := &s.q.entries[i]
	e.holder, e.number, e.attempt = int32(h), r.Number, r.Attempt
	e.generation++
	s.holders[h].leased++
	s.names.numbers.put(e.number, e.holder, i)
	if s.since(2) {
		e.parkedAt, e.spent = 0, true
		s.q.forgetWaits(i)
		s.arrives(i, now, 1, s.queued+1)
		e.startAt = s.earliest(i, now)
		if s.limits.Pacing.Spaced() {
			e.startAt = max(e.startAt, now.Add(s.holders[h].delivery))
		}
		s.accountHead(now) // it waits for the order from now on
		e.accounted = e.startAt
		s.explain(i, now, e.startAt)
		s.charge(i, e.startAt, s.leases+1) // all leases see it
		s.schedule(i)
	}
	s.grantNotice(i)
}
