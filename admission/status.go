package admission

import (
	"cmp"
	"slices"
	"time"
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
	Ages         Ages
	Waits        Quantiles // from arrival to start, of all leases
	Counters     Counters
	StateCounter uint64
}

// Ages says how long the present tickets of the whole queue have waited, by when
// they arrived. Zero instants: none is present.
type Ages struct {
	Present int     // how many there are
	P50     Instant // of the one that half of them came after
	P90     Instant
	Oldest  Instant
}

// Quantiles are those of a number of durations. All are 0 where there is none.
type Quantiles struct {
	P50, P90, Max time.Duration
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
	var waits []time.Duration
	for i := range s.q.entries {
		e := &s.q.entries[i]
		if e.state != entryLeased {
			continue
		}
		waits = append(waits, max(e.startAt.Sub(e.arrivedAt), 0))
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
	st.Waits = quantiles(waits)
	st.Ages = s.Ages()
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

// Ages describes the ages of the queue. It walks it: a cost that grows with its
// length.
func (s *Scheduler) Ages() Ages {
	a := Ages{Present: s.queued - s.parked}
	if a.Present <= 0 {
		return Ages{}
	}
	p50, p90 := rank(a.Present, 50), rank(a.Present, 90) // by age: the oldest stand first
	at := a.Present
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		e := &s.q.entries[i]
		if e.holder == none {
			continue
		}
		if at == a.Present {
			a.Oldest = e.arrivedAt
		}
		if at == p90 {
			a.P90 = e.arrivedAt
		}
		if at == p50 {
			a.P50 = e.arrivedAt
			break
		}
		at--
	}
	return a
}

// rank is the nearest rank of a percentile among n, from 1.
func rank(n, percent int) int { return max((n*percent+99)/100, 1) }

// quantiles sorts the durations.
func quantiles(of []time.Duration) Quantiles {
	n := len(of)
	if n == 0 {
		return Quantiles{}
	}
	slices.Sort(of)
	return Quantiles{P50: of[rank(n, 50)-1], P90: of[rank(n, 90)-1], Max: of[n-1]}
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
