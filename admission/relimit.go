package admission

// SetLimits changes what is enforced, from the next admission on. Leases stay
// as they are; tickets that can never be admitted now are refused. On an error
// nothing has changed.
func (s *Scheduler) SetLimits(now Instant, limits Limits) error {
	limits = limits.WithDefaults()
	if err := limits.Validate(); err != nil {
		return err
	}
	now = s.observe(now)
	s.accountHead(now)
	old := s.limits
	s.limits = limits
	s.pacing.changeRate(now, s.lastStart, old.Pacing, limits.Pacing)
	s.rebase(now, &old)
	s.rebuildDue() // park_ttl may have changed
	for i := s.q.head; i != none; {
		e := &s.q.entries[i]
		next := e.next
		if refusal := s.neverAdmissible(int64(e.weight), &s.q.costs[i]); refusal.Kind != 0 {
			if e.holder != none {
				s.refuse(HolderRef(e.holder), e.number, refusal)
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
	for i := range s.holders {
		s.holders[i].queued = tally{}
	}
	for i := range s.q.entries {
		e := &s.q.entries[i]
		if e.state == entryFree {
			continue
		}
		was := s.q.costs[i]
		s.q.costs[i] = costs{}
		for o := range old.Budgets {
			if b := to[o]; b >= 0 {
				s.q.costs[i][b] = was[o]
			}
		}
		if e.state == entryQueued && e.holder != none {
			s.holders[e.holder].queued.add(&s.q.costs[i], len(s.limits.Budgets))
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
