package admission

import "time"

// Wait is a reason for which a ticket waits.
type Wait uint8

// The reasons, one for each part of the rule. WaitBudget is the first budget;
// WaitBudget+i is the i-th of Limits.Budgets.
const (
	WaitOrder Wait = iota // a present ticket stood before it
	WaitCap
	WaitPacing
	WaitCooldown
	WaitPaused
	WaitLearning // the gate collected what holders knew after its state was lost
	WaitBudget
	numWaits = int(WaitBudget) + MaxBudgets
)

// Waits is how long an attempt's ticket waited for each reason. Together they
// are the time from when the attempt asked to its start, except while it held a
// lease that it handed back. (Under rules 1 a ticket's earlier attempts count.)
type Waits [numWaits]time.Duration

// Total is the sum over all reasons.
func (w *Waits) Total() time.Duration {
	var sum time.Duration
	for _, d := range w {
		sum += d
	}
	return sum
}

// Name is the word for a reason; budgets are named by their unit.
func (w Wait) Name(l *Limits) string {
	switch w {
	case WaitOrder:
		return "order"
	case WaitCap:
		return "cap"
	case WaitPacing:
		return "pacing"
	case WaitCooldown:
		return "cooldown"
	case WaitPaused:
		return "paused"
	case WaitLearning:
		return "learning"
	}
	if b := int(w - WaitBudget); b < len(l.Budgets) {
		return "budget:" + l.Budgets[b].Unit
	}
	return "unknown"
}

// focus finds the first present ticket, or none, and keeps the accounts: only
// that one waits for anything but order. Where another stood first until now,
// its account is closed at the instant at which it ceased to.
func (s *Scheduler) focus(now Instant) int32 {
	i := s.first()
	if i == s.head {
		return i
	}
	at := now
	if s.head != none {
		at = min(now, s.absentFrom(s.q.entries[s.head].holder))
		s.account(s.head, at)
	}
	s.head = none
	if i != none {
		s.account(i, at)
	}
	s.head = i
	return i
}

// accountHead closes the head's account before a change of what it waits for.
func (s *Scheduler) accountHead(now Instant) {
	if i := s.focus(now); i != none {
		s.account(i, now)
	}
}

// account attributes the time since the ticket was last accounted.
func (s *Scheduler) account(i int32, to Instant) {
	e := &s.q.entries[i]
	from := e.accounted
	if to <= from {
		return
	}
	e.accounted = to
	if e.holder == none {
		return
	}
	if i != s.head {
		s.q.waiting(i)[WaitOrder] += to.Sub(from)
		return
	}
	s.explain(i, from, to)
}

// explain says what the first in line waited for.
func (s *Scheduler) explain(i int32, from, to Instant) {
	if to <= from {
		return
	}
	waits := s.q.waiting(i)
	last := WaitOrder
	until := func(w Wait, t Instant) {
		if t = min(t, to); t > from {
			waits[w] += t.Sub(from)
			from, last = t, w
		}
	}
	until(WaitOrder, s.lastStart)
	if s.paused {
		until(WaitPaused, to)
	}
	until(WaitLearning, s.learnUntil)
	until(WaitCooldown, max(s.cool.until, s.rampUntil()))
	if r := s.limits.Pacing; !r.IsZero() {
		if r.Spaced() {
			last = WaitPacing // which the time of delivery belongs to
		}
		until(WaitPacing, Instant(s.pacing.admissible(1, r).ceil()))
	}
	for b := range s.limits.Budgets {
		if cost := s.q.costs[i][b]; cost > 0 {
			until(WaitBudget+Wait(b), Instant(s.budgets[b].admissible(cost, s.limits.Budgets[b].Rate).ceil()))
		}
	}
	if s.capBlocked {
		until(WaitCap, s.now)
	}
	// What is left is the gate's own lateness.
	waits[last] += to.Sub(from)
}
