package admission

import (
	"slices"
	"time"
)

// A Notice tells a holder what became of one of its tickets. Notices are
// numbered per holder and repeated until the holder confirms them.
type Notice struct {
	N      uint64
	Kind   NoticeKind
	Ticket uint64 // the holder's number
	Lease  uint64

	// of a grant
	Generation uint32
	StartAt    Instant
	Window     time.Duration // how late it may start; 0: the gate's; negative: no limit
	Account

	Refusal Refusal     // of a refusal
	Revoked RevokeCause // of a revocation
}

// Account is what a ticket waited for in its present attempt. A grant, a refusal
// and NoticeLeft have one; under rules 1 a grant alone, with nothing but Waits.
type Account struct {
	Waits Waits
	// Since and Until are when the attempt's ticket arrived and up to where Waits
	// accounts for its time. Of a grant that is StartAt, and Until is 0. What Waits
	// lacks of the time between them passed with leases that were handed back.
	Since, Until Instant
	// Position is how many tickets stood in line when it arrived, itself included
	// and parked ones not. A ticket that was presented again has its place, and
	// Position is the most that it can be. 0: it wasn't put in line.
	Position int32
	// Depth is how many tickets the queue had then, parked ones and itself
	// included.
	Depth int32
}

// NoticeKind tells notices apart.
type NoticeKind uint8

const (
	NoticeGrant NoticeKind = iota + 1
	NoticeRefusal
	NoticeRevoked
	// NoticeLeft follows a [Cancel] that says when its caller left: it tells what
	// the ticket waited for until then. Since rules 2.
	NoticeLeft
)

// RefusalKind says why a ticket ended without a lease.
type RefusalKind uint8

const (
	RefusedQueueTimeout    RefusalKind = iota + 1 // its own deadline passed
	RefusedQueueFull                              // max_queue, or the state's bound
	RefusedNeverAdmissible                        // more than the limits can ever give
	RefusedTooLate                                // it could not start before its deadline
	RefusedInvalid                                // a weight or cost out of range
	RefusedSuperseded                             // another attempt owns the ticket
	RefusedPolicy                                 // equal revisions, different content
	RefusedOperator                               // a person took it out of the queue
	numRefusals
)

// Refusal is a ticket's end without a lease.
type Refusal struct {
	Kind      RefusalKind
	Field     string // what was too much: weight, or a unit
	Value     int64
	Bound     int64
	ComeAgain Instant // when it may be worth another try; 0: never
}

// RevokeCause says why a lease ended without its holder's doing.
type RevokeCause uint8

const (
	RevokedMaxHold  RevokeCause = iota + 1 // it outlived max_hold
	RevokedMoved                           // the next attempt of the call has it
	RevokedOperator                        // a person ended it
	RevokedAway                            // it was kept, and the call's next attempt did not come
)

// maxOutbox bounds what a holder may leave unconfirmed before its acquires are
// refused as misuse. What becomes of the tickets it has is still told.
const maxOutbox = 20_000

// notice adds one for a holder; the caller fills it in.
func (s *Scheduler) notice(i int32, kind NoticeKind, ticket uint64) *Notice {
	h := &s.holders[i]
	h.noticed++
	h.outbox = append(h.outbox, Notice{})
	s.notices++
	s.wake(i)
	n := &h.outbox[len(h.outbox)-1]
	n.N, n.Kind, n.Ticket = h.noticed, kind, ticket
	return n
}

// refuse refuses a ticket that is not in the queue.
func (s *Scheduler) refuse(now Instant, h HolderRef, number uint64, r Refusal) {
	s.Counters.Refusals[r.Kind]++
	n := s.notice(int32(h), NoticeRefusal, number)
	n.Refusal = r
	if s.since(2) {
		n.Since, n.Until, n.Depth = now, now, int32(s.queued)
	}
}

// refuseQueued refuses the holder of a queued ticket, and tells it what that
// waited for. What becomes of the ticket is the caller's to say.
func (s *Scheduler) refuseQueued(now Instant, i int32, r Refusal) {
	s.Counters.Refusals[r.Kind]++
	if s.since(2) {
		s.account(i, now)
	}
	e := &s.q.entries[i]
	n := s.notice(e.holder, NoticeRefusal, e.number)
	n.Refusal = r
	if s.since(2) {
		n.Account = s.accountOf(i)
	}
}

// accountOf is the account of an entry so far.
func (s *Scheduler) accountOf(i int32) Account {
	a := &s.q.arrived[i]
	return Account{Waits: s.q.waited(i), Since: a.at, Until: s.q.entries[i].accounted, Position: a.position, Depth: a.depth}
}

// tellLeft tells what a ticket waited for whose caller leaves, if it asked.
func (s *Scheduler) tellLeft(now Instant, h HolderRef, c *Cancel) {
	i := s.byNumber(h, c.Ticket)
	if c.LeftAt == 0 || !s.since(2) || i == none || s.q.entries[i].attempt > c.Attempt {
		return
	}
	if s.q.entries[i].state == entryQueued {
		s.account(i, min(max(c.LeftAt, s.q.arrived[i].at), now))
	}
	s.notice(int32(h), NoticeLeft, c.Ticket).Account = s.accountOf(i)
}

func (s *Scheduler) revoke(i int32, cause RevokeCause) {
	e := &s.q.entries[i]
	n := s.notice(e.holder, NoticeRevoked, e.number)
	n.Lease, n.Generation, n.Revoked = e.lease, e.generation, cause
}

func (s *Scheduler) grantNotice(i int32) {
	e := &s.q.entries[i]
	n := s.notice(e.holder, NoticeGrant, e.number)
	n.Lease, n.Generation, n.StartAt = e.lease, e.generation, e.startAt
	switch {
	case e.handBacks >= 3:
		n.Window = -1
	case e.handBacks == 2:
		n.Window = 2 * s.limits.StartWindow
	}
	if e.waits != none {
		n.Waits = s.q.waits[e.waits]
	}
	if s.since(2) {
		a := &s.q.arrived[i]
		n.Since, n.Position, n.Depth = a.at, a.position, a.depth
	}
}

// Notices returns what the holder has not confirmed, oldest first. The slice is
// valid until the next transition.
func (s *Scheduler) Notices(h HolderRef) []Notice {
	if s.check(h) != nil {
		return nil
	}
	return s.holders[h].outbox
}

// Confirm says that the holder has seen all notices up to number n. A number
// that was never given out is from a run that was lost and confirms nothing.
func (s *Scheduler) Confirm(h HolderRef, n uint64) {
	if s.check(h) != nil || n > s.holders[h].noticed {
		return
	}
	holder := &s.holders[h]
	holder.confirmed = max(holder.confirmed, n)
	seen := 0
	for seen < len(holder.outbox) && holder.outbox[seen].N <= holder.confirmed {
		seen++
	}
	if seen == 0 {
		return
	}
	s.notices -= seen
	left := copy(holder.outbox, holder.outbox[seen:])
	holder.outbox = holder.outbox[:left]
}

// dropDeadGrants takes back grants whose lease has ended before the holder
// confirmed them: it must not start them.
func (s *Scheduler) dropDeadGrants(h HolderRef) {
	holder := &s.holders[h]
	before := len(holder.outbox)
	holder.outbox = slices.DeleteFunc(holder.outbox, func(n Notice) bool {
		i := s.byLease(n.Lease)
		return n.Kind == NoticeGrant && (i == none || s.q.entries[i].holder != int32(h) || s.q.entries[i].generation != n.Generation)
	})
	s.notices -= before - len(holder.outbox)
}

// renumber makes the numbers of a holder's notices go on from what it confirmed
// to a run that was lost.
func (s *Scheduler) renumber(h *holder, confirmed uint64) {
	if confirmed <= h.noticed {
		return
	}
	h.noticed, h.confirmed = confirmed, confirmed
	for i := range h.outbox {
		h.noticed++
		h.outbox[i].N = h.noticed
	}
}

// wake marks a holder as having news.
func (s *Scheduler) wake(i int32) {
	if h := &s.holders[i]; !h.woken && h.id != "" {
		h.woken = true
		s.woken = append(s.woken, h.id)
	}
}

func (s *Scheduler) wakeAll() {
	for i := range s.holders {
		s.wake(int32(i))
	}
}

// TakeWoken appends the IDs of the holders that got news since the last call,
// in the order in which the news came; a holder that was lost is one of them.
// Whoever keeps open waits ends theirs.
func (s *Scheduler) TakeWoken(buf []string) []string {
	for _, id := range s.woken {
		if i, ok := s.holderByID[id]; ok {
			s.holders[i].woken = false
		}
	}
	buf = append(buf, s.woken...)
	s.woken = s.woken[:0]
	return buf
}
