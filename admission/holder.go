package admission

import "time"

// HolderRef is a holder's place in one scheduler; it is valid until the holder
// is lost and is never carried over.
type HolderRef int32

// holder is a worker process as the gate knows it.
type holder struct {
	id         string
	generation uint64 // its process start
	order      uint64 // of registration: the order in which holders are told apart
	lastSeen   Instant
	comeAgain  Instant // when it promised to be back; 0: no promise
	seq        uint64  // of the last exchange applied
	queued     tally
	leased     int
	delivery   time.Duration // observed time for a grant to arrive
	waiting    bool          // it has an open wait

	outbox    []Notice // not confirmed, in order
	confirmed uint64   // up to here the holder has seen
	noticed   uint64   // number of the last notice
	woken     bool     // it has news since TakeWoken
}

// tally sums a holder's queued tickets.
type tally struct {
	tickets int64
	cost    [MaxBudgets]int64
}

func (t *tally) add(e *entry) {
	t.tickets++
	for b, n := range e.cost {
		t.cost[b] = saturatingAdd(t.cost[b], n)
	}
}

func (t *tally) remove(e *entry) {
	t.tickets--
	for b, n := range e.cost {
		t.cost[b] -= n
	}
}

func (t *tally) merge(o *tally) {
	t.tickets += o.tickets
	for b, n := range o.cost {
		t.cost[b] = saturatingAdd(t.cost[b], n)
	}
}

// Register makes a holder known, or renews it. A newer generation of the same
// ID ends the old one at once: its leases end, its tickets are parked. An older
// generation is refused.
func (s *Scheduler) Register(now Instant, id string, generation uint64) (HolderRef, error) {
	now = s.observe(now)
	if i, known := s.holderByID[id]; known {
		h := &s.holders[i]
		switch {
		case generation == h.generation:
			h.lastSeen = now
			return HolderRef(i), nil
		case generation < h.generation:
			return 0, ErrOldGeneration
		}
		s.lose(i, now)
	}
	i := none
	for at := range s.holders {
		if s.holders[at].id == "" {
			i = int32(at)
			break
		}
	}
	if i == none {
		i = int32(len(s.holders))
		s.holders = append(s.holders, holder{})
	}
	s.registered++
	s.holders[i] = holder{id: id, generation: generation, order: s.registered, lastSeen: now, outbox: s.holders[i].outbox[:0]}
	s.holderByID[id] = i
	return HolderRef(i), nil
}

// lose ends a holder: its leases free their places, its tickets are parked.
func (s *Scheduler) lose(i int32, now Instant) {
	h := &s.holders[i]
	for at := s.q.head; at != none && h.queued.tickets > 0; at = s.q.entries[at].next {
		if s.q.entries[at].holder == i {
			s.park(at, now)
		}
	}
	for at := int32(0); at < int32(len(s.q.entries)) && h.leased > 0; at++ {
		if e := &s.q.entries[at]; e.holder == i && e.state == entryLeased {
			s.forget(at)
			s.Counters.Expired++
		}
	}
	delete(s.holderByID, h.id)
	*h = holder{outbox: h.outbox[:0]}
	s.wakeAll() // places are free, and those in line may be others now
}

// Unregister ends a holder that goes away in good order.
func (s *Scheduler) Unregister(now Instant, h HolderRef) error {
	now = s.observe(now)
	if err := s.check(h); err != nil {
		return err
	}
	s.lose(int32(h), now)
	return nil
}

// expiry is when a holder counts as lost.
func (s *Scheduler) expiry(h *holder) Instant { return h.lastSeen.Add(s.limits.HolderTTL) }

// present reports whether a holder kept its last promise to come again.
func (s *Scheduler) present(i int32, now Instant) bool {
	h := &s.holders[i]
	return h.comeAgain == 0 || now < h.comeAgain.Add(PresenceGrace)
}

// expireHolders ends the holders whose time is over.
func (s *Scheduler) expireHolders(now Instant) {
	for i := range s.holders {
		if h := &s.holders[i]; h.id != "" && s.expiry(h) <= now {
			if h.leased > 0 || h.queued.tickets > 0 {
				s.Counters.LostHolders++
			}
			s.lose(int32(i), now)
		}
	}
}

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
	Waits      Waits

	Refusal Refusal     // of a refusal
	Revoked RevokeCause // of a revocation
}

// NoticeKind tells notices apart.
type NoticeKind uint8

const (
	NoticeGrant NoticeKind = iota + 1
	NoticeRefusal
	NoticeRevoked
)

// RefusalKind says why a ticket ended without a lease.
type RefusalKind uint8

const (
	RefusedQueueTimeout    RefusalKind = iota + 1 // its own deadline passed
	RefusedQueueFull                              // max_queue, or the state's bound
	RefusedNeverAdmissible                        // more than the limits can ever give
	RefusedTooLate                                // it could not start before its deadline
	RefusedInvalid                                // a weight or cost out of range
	RefusedSuperseded                             // a higher attempt owns the ticket
	RefusedPolicy                                 // equal revisions, different content
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
)

// maxOutbox bounds what is kept for a holder that confirms nothing. Beyond it
// the oldest go; the holder finds out by presenting everything again.
const maxOutbox = 20_000

func (s *Scheduler) notice(i int32, n Notice) {
	h := &s.holders[i]
	h.noticed++
	n.N = h.noticed
	if len(h.outbox) >= maxOutbox {
		h.outbox = append(h.outbox[:0], h.outbox[maxOutbox/2:]...)
	}
	h.outbox = append(h.outbox, n)
	s.wake(i)
}

func (s *Scheduler) refuse(h HolderRef, number uint64, r Refusal) {
	s.Counters.Refusals[r.Kind]++
	s.notice(int32(h), Notice{Kind: NoticeRefusal, Ticket: number, Refusal: r})
}

func (s *Scheduler) revoke(i int32, cause RevokeCause) {
	e := &s.q.entries[i]
	if e.holder != none {
		s.notice(e.holder, Notice{Kind: NoticeRevoked, Ticket: e.number, Lease: e.lease, Generation: e.generation, Revoked: cause})
	}
}

func (s *Scheduler) grantNotice(i int32) {
	e := &s.q.entries[i]
	n := Notice{Kind: NoticeGrant, Ticket: e.number, Lease: e.lease, Generation: e.generation, StartAt: e.startAt, Waits: e.waits}
	switch {
	case e.handBacks >= 3:
		n.Window = -1
	case e.handBacks == 2:
		n.Window = 2 * s.limits.StartWindow
	}
	s.notice(e.holder, n)
}

// Notices returns what the holder has not confirmed, oldest first. The slice is
// valid until the next transition.
func (s *Scheduler) Notices(h HolderRef) []Notice {
	if s.check(h) != nil {
		return nil
	}
	return s.holders[h].outbox
}

// Confirm says that the holder has seen all notices up to number n.
func (s *Scheduler) Confirm(h HolderRef, n uint64) {
	if s.check(h) != nil {
		return
	}
	holder := &s.holders[h]
	holder.confirmed = max(holder.confirmed, min(n, holder.noticed))
	keep := 0
	for keep < len(holder.outbox) && holder.outbox[keep].N <= holder.confirmed {
		keep++
	}
	holder.outbox = append(holder.outbox[:0], holder.outbox[keep:]...)
}

// wake marks a holder as having news.
func (s *Scheduler) wake(i int32) {
	if h := &s.holders[i]; !h.woken && h.id != "" {
		h.woken = true
		s.woken = append(s.woken, i)
	}
}

func (s *Scheduler) wakeAll() {
	for i := range s.holders {
		s.wake(int32(i))
	}
}

// TakeWoken returns the IDs of the holders that got news since the last call,
// in the order in which the news came. Whoever keeps open waits ends theirs.
func (s *Scheduler) TakeWoken(buf []string) []string {
	for _, i := range s.woken {
		if h := &s.holders[i]; h.woken {
			h.woken = false
			buf = append(buf, h.id)
		}
	}
	s.woken = s.woken[:0]
	return buf
}
