package admission

import (
	"cmp"
	"slices"
)

// Status is the whole gate for a person. Ages are for the reader to compute
// from Now.
type Status struct {
	Now          Instant
	Rules        Rules
	Limits       Limits
	InUse        int64 // weights of all leases
	Reserved     int   // leases that have not started
	Started      int
	Queued       int // parked ones included
	Parked       int
	Paused       bool
	PauseCause   string
	LearnUntil   Instant
	Cooldown     Instant
	Cause        Cause
	Streak       int32
	NextStart    Instant // of the pacing
	Holders      []HolderStatus
	Leases       []LeaseStatus  // at most the limit asked for, oldest first
	Queue        []TicketStatus // likewise, the head first
	Counters     Counters
	StateCounter uint64
}

// HolderStatus is one holder for a person.
type HolderStatus struct {
	ID         string
	Generation uint64
	LastSeen   Instant
	Present    bool
	Waiting    bool
	Queued     int
	Leased     int
}

// LeaseStatus is one lease for a person.
type LeaseStatus struct {
	Lease   uint64
	Label   string
	Holder  string
	Attempt int32
	Weight  int64
	StartAt Instant
	Expires Instant
}

// TicketStatus is one waiting ticket for a person.
type TicketStatus struct {
	Ticket    uint64 // its number in the order of arrival, see CancelTicket
	Label     string
	Holder    string // empty: parked
	Attempt   int32
	Weight    int64
	ArrivedAt Instant
	Deadline  Instant
	Reason    Wait // what it waits for now
}

// Status describes the scheduler; at most limit leases and tickets are listed.
func (s *Scheduler) Status(limit int) Status {
	st := Status{
		Now: s.now, Rules: s.rules, Limits: s.limits, InUse: s.inUse, Queued: s.queued, Parked: s.parked,
		Paused: s.paused, PauseCause: s.pauseCause, LearnUntil: s.learnUntil, Cooldown: s.cool.until, Cause: s.cool.cause,
		Streak: s.cool.streak, NextStart: Instant(s.pacing.full.ceil()), Counters: s.Counters, StateCounter: s.counter,
	}
	for _, i := range s.holderOrder() {
		h := &s.holders[i]
		st.Holders = append(st.Holders, HolderStatus{
			ID: h.id, Generation: h.generation, LastSeen: h.lastSeen, Present: s.present(i, s.now),
			Waiting: h.waiting, Queued: int(h.queued.tickets), Leased: h.leased,
		})
	}
	for i := range s.q.entries {
		e := &s.q.entries[i]
		if e.state != entryLeased {
			continue
		}
		if e.startAt > s.now {
			st.Reserved++
		} else {
			st.Started++
		}
		st.Leases = append(st.Leases, LeaseStatus{
			Lease: e.lease, Label: s.q.labels[i], Holder: s.holderName(e.holder), Attempt: e.attempt, Weight: int64(e.weight), StartAt: e.startAt, Expires: e.expires,
		})
	}
	slices.SortFunc(st.Leases, func(a, b LeaseStatus) int { return cmp.Compare(a.Lease, b.Lease) })
	st.Leases = st.Leases[:min(max(limit, 0), len(st.Leases))]
	first := s.first()
	for i := s.q.head; i != none && len(st.Queue) < limit; i = s.q.entries[i].next {
		e := &s.q.entries[i]
		st.Queue = append(st.Queue, TicketStatus{
			Ticket: e.arrival, Label: s.q.labels[i], Holder: s.holderName(e.holder), Attempt: e.attempt, Weight: int64(e.weight),
			ArrivedAt: e.arrivedAt, Deadline: e.deadline, Reason: s.reason(i, first),
		})
	}
	return st
}

func (s *Scheduler) holderName(i int32) string {
	if i == none {
		return ""
	}
	return s.holders[i].id
}

// reason is what a queued ticket waits for at this moment.
func (s *Scheduler) reason(i, first int32) Wait {
	e := &s.q.entries[i]
	switch {
	case i != first:
		return WaitOrder
	case s.paused:
		return WaitPaused
	case s.learnUntil > s.now:
		return WaitLearning
	case max(s.cool.until, s.rampUntil()) > s.now:
		return WaitCooldown
	case s.capExceeded(e):
		return WaitCap
	}
	for b := range s.limits.Budgets {
		if cost := s.q.costs[i][b]; cost > 0 && s.budgets[b].admissible(cost, s.limits.Budgets[b].Rate).ceil() > int64(s.now) {
			return WaitBudget + Wait(b)
		}
	}
	return WaitPacing
}
