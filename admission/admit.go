package admission

import "time"

// Advance brings the scheduler to now: what is due ends, and every ticket that
// becomes admissible within the look-ahead is admitted.
func (s *Scheduler) Advance(now Instant) {
	now = s.observe(now)
	for next := s.nextDue(); next.i != none && next.at <= now; next = s.nextDue() {
		s.end(next.i, now)
	}
	s.expireHolders(now)
	i := s.focus(now)
	for i != none && s.admitHead(i, now) {
		i = s.focus(now)
	}
	s.capBlocked = i != none && s.capExceeded(&s.q.entries[i])
}

// end does what is due for an entry: a lease outlived max_hold, a deadline
// passed, the time of a parked ticket or of a kept lease is over.
func (s *Scheduler) end(i int32, now Instant) {
	e := &s.q.entries[i]
	if e.state == entryLeased {
		s.Counters.Expired++
		cause := RevokedMaxHold
		if now < e.expires {
			cause = RevokedAway
		}
		s.revoke(i, cause)
		s.forget(i)
		return
	}
	if e.holder != none {
		s.refuseQueued(now, i, Refusal{Kind: RefusedQueueTimeout})
	}
	s.drop(i)
}

// first present ticket of the queue, or none.
func (s *Scheduler) first() int32 {
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		if e := &s.q.entries[i]; e.holder != none && s.present(e.holder, s.now) {
			return i
		}
	}
	return none
}

// admitHead admits the head if it may start within the look-ahead, or refuses
// it if that can't be before its deadline. It reports whether the head has gone.
func (s *Scheduler) admitHead(i int32, now Instant) bool {
	e := &s.q.entries[i]
	held := s.held(e, now)
	if held && e.deadline == 0 {
		return false // most steps end here, and needn't know when it could be
	}
	t := s.earliest(i, now)
	start := t
	if s.limits.Pacing.Spaced() {
		start = max(t, now.Add(s.holders[e.holder].delivery))
	}
	if e.deadline != 0 && start >= e.deadline {
		s.refuseQueued(now, i, Refusal{Kind: RefusedTooLate, ComeAgain: start})
		s.drop(i)
		return true
	}
	if held || t > now.Add(s.ahead()) {
		return false
	}
	s.admit(i, start)
	return true
}

// ahead is the look-ahead.
func (s *Scheduler) ahead() time.Duration { return max(s.limits.LookAhead, 0) }

// held reports whether only an event, or the end of learning, can let the head
// pass.
func (s *Scheduler) held(e *entry, now Instant) bool {
	return s.paused || s.learnUntil > now || s.capExceeded(e)
}

func (s *Scheduler) capExceeded(e *entry) bool {
	return s.limits.MaxInFlight > 0 && s.inUse+int64(e.weight) > s.limits.MaxInFlight
}

// earliest is the first instant, from now on, at which cooldown, pacing and
// budgets let the head pass as things stand.
func (s *Scheduler) earliest(i int32, now Instant) Instant {
	// Whoever was admitted ahead still stands before it until then.
	t := max(now, s.lastStart, s.cool.until, s.rampUntil())
	if r := s.limits.Pacing; !r.IsZero() {
		t = max(t, Instant(s.pacing.admissible(1, r).ceil()))
	}
	for b := range s.limits.Budgets {
		if cost := s.q.costs[i][b]; cost > 0 {
			t = max(t, Instant(s.budgets[b].admissible(cost, s.limits.Budgets[b].Rate).ceil()))
		}
	}
	return t
}

// admit turns the ticket into a lease that starts at t.
func (s *Scheduler) admit(i int32, t Instant) {
	s.account(i, t)
	s.head = none
	s.q.dequeue(i)
	s.queued--
	e := &s.q.entries[i]
	h := &s.holders[e.holder]
	h.queued.remove(s.q.cost(i), len(s.limits.Budgets))
	h.leased++
	s.leases++
	s.charge(i, t, s.leases)
	e.state, e.lease, e.startAt, e.expires = entryLeased, s.leases, t, t.Add(s.limits.MaxHold)
	e.generation++
	s.names.leases.put(e.lease, 0, i)
	s.inUse += int64(e.weight)
	s.Counters.Admissions++
	s.schedule(i)
	s.grantNotice(i)
}

// charge takes what an attempt that starts at t costs.
func (s *Scheduler) charge(i int32, t Instant, lease uint64) {
	if r := s.limits.Pacing; !r.IsZero() {
		s.pacing.take(t, 1, r)
	}
	for b := range s.limits.Budgets {
		if cost := s.q.costs[i][b]; cost > 0 {
			s.budgets[b].take(t, lease, cost, s.limits.Budgets[b].Rate)
		}
	}
	s.cool.ramped(t)
	s.lastStart = t
}

// NextWake returns when Advance is due by itself; Never while nothing is. After
// Advance(now) it is later than now.
func (s *Scheduler) NextWake() Instant {
	wake := s.nextWake()
	s.armed = wake
	if wake == Never {
		s.armed = 0
	}
	return wake
}

func (s *Scheduler) nextWake() Instant {
	wake := s.nextDue().at
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
	wake = min(wake, s.absentFrom(e.holder))
	if s.learnUntil > s.now {
		return min(wake, s.learnUntil)
	}
	if !s.held(e, s.now) {
		// Half a look-ahead of lead: each wake-up then admits half a
		// look-ahead's worth, rather than one ticket at a time.
		wake = min(wake, max(s.now, s.earliest(i, s.now).Add(-s.ahead()/2)))
	}
	return wake
}
