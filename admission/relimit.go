package admission

import "math/bits"

// SetLimits changes what is enforced, from the next admission on. Leases that
// have started stay as they are; where the new limits are tighter, those that
// have not are to be handed back, see [Answer.HandBackTo]. Tickets that can
// never be admitted now are refused. On an error nothing has changed.
func (s *Scheduler) SetLimits(now Instant, limits Limits) error {
	limits = limits.WithDefaults()
	if err := limits.Validate(); err != nil {
		return err
	}
	now = s.observe(now)
	s.accountHead(now)
	old := s.limits
	s.enforce(limits)
	s.pacing.changeRate(now, s.lastStart, old.Pacing, limits.Pacing)
	s.rebase(now, &old)
	s.rebuildDue() // park_ttl may have changed
	if s.since(2) && limits.tighterThan(&old) {
		for i := range s.holders {
			s.holders[i].loose = s.holders[i].noticed
		}
	}
	for i := s.q.head; i != none; {
		e := &s.q.entries[i]
		next := e.next
		if refusal := s.neverAdmissible(int64(e.weight), s.q.cost(i)); refusal != nil {
			if e.holder != none {
				s.refuseQueued(now, i, *refusal)
			}
			s.drop(i)
		}
		i = next
	}
	s.wakeAll()
	return nil
}

// rebase puts budgets, and what tickets cost and waited for, into the order of
// the new limits.
func (s *Scheduler) rebase(now Instant, old *Limits) {
	var to [MaxBudgets]int // from the old order to the new; -1: gone
	var budgets [MaxBudgets]budget
	for o := range old.Budgets {
		to[o] = s.unit(old.Budgets[o].Unit)
		if b := to[o]; b >= 0 {
			budgets[b] = s.budgets[o]
			budgets[b].changeRate(now, s.leases, old.Budgets[o].Rate, s.limits.Budgets[b].Rate)
		}
	}
	s.budgets = budgets
	was := s.q.costs
	s.q.costs = nil
	if s.q.costly {
		s.q.costs = make([]costs, len(s.q.entries))
	}
	for i := range s.holders {
		s.holders[i].queued = tally{}
	}
	for i := range s.q.entries {
		e := &s.q.entries[i]
		if e.state == entryFree {
			continue
		}
		for o := range old.Budgets {
			if b := to[o]; b >= 0 {
				s.q.costs[i][b] = was[i][o]
			}
		}
		if e.state == entryQueued && e.holder != none {
			s.holders[e.holder].queued.add(s.q.cost(int32(i)), len(s.limits.Budgets))
		}
	}
	for i := range s.q.waits {
		waits := &s.q.waits[i]
		was := *waits
		clear(waits[WaitBudget:])
		for o := range old.Budgets {
			wait := WaitPacing // of a budget that is gone
			if b := to[o]; b >= 0 {
				wait = WaitBudget + Wait(b)
			}
			waits[wait] += was[int(WaitBudget)+o]
		}
	}
}

// tighterThan reports whether l admits less than o in any respect: a lower cap,
// a slower or smaller bucket, a limit where there was none.
func (l *Limits) tighterThan(o *Limits) bool {
	if l.MaxInFlight > 0 && (o.MaxInFlight == 0 || l.MaxInFlight < o.MaxInFlight) || l.Pacing.tighterThan(o.Pacing) {
		return true
	}
	for _, b := range l.Budgets {
		var was Rate
		for _, old := range o.Budgets {
			if old.Unit == b.Unit {
				was = old.Rate
			}
		}
		if b.Rate.tighterThan(was) {
			return true
		}
	}
	return false
}

func (r Rate) tighterThan(o Rate) bool {
	switch {
	case r.IsZero():
		return false
	case o.IsZero():
		return true
	}
	// r.Limit/r.Per < o.Limit/o.Per, in 128 bits
	hi, lo := bits.Mul64(uint64(r.Limit), uint64(o.Per))
	otherHi, otherLo := bits.Mul64(uint64(o.Limit), uint64(r.Per))
	return r.Burst < o.Burst || hi < otherHi || hi == otherHi && lo < otherLo
}
