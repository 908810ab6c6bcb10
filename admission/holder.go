package admission

import "time"

// HolderRef is a holder's place in one scheduler; it is valid until the holder
// is lost and is never carried over.
type HolderRef int32

// Bounds of what the gate remembers of holders.
const (
	MaxHolders  = 5_000
	MaxHolderID = 256 // bytes
)

// holder is a worker process as the gate knows it.
type holder struct {
	id         string
	generation uint64 // its process start
	order      uint64 // of registration: the order in which holders are told apart
	lastSeen   Instant
	comeAgain  Instant // when it promised to be back; 0: no promise
	seq        uint64  // of the last exchange applied
	rules      Rules   // the newest that its process can host; 0: it never said
	queued     tally
	leased     int
	delivery   time.Duration // observed time for a grant to arrive
	waiting    bool          // it has an open wait
	invited    Instant       // until when it is taken to be about to open one; not in snapshots

	outbox    []Notice // not confirmed, in order
	confirmed uint64   // up to here the holder has seen
	noticed   uint64   // number of the last notice
	woken     bool     // it has news since TakeWoken
	loose     uint64   // grants up to this notice are under limits that were tightened since
}

// tally sums a holder's queued tickets.
type tally struct {
	tickets int64
	cost    costs
}

// No sum overflows: MaxQueueBound tickets of at most MaxRateLimit each.
func (t *tally) add(cost *costs, budgets int) {
	t.tickets++
	for b := range budgets {
		t.cost[b] += cost[b]
	}
}

func (t *tally) remove(cost *costs, budgets int) {
	t.tickets--
	for b := range budgets {
		t.cost[b] -= cost[b]
	}
}

func (t *tally) merge(o *tally) {
	t.tickets += o.tickets
	for b, n := range o.cost {
		t.cost[b] += n
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
	if id == "" || len(id) > MaxHolderID {
		return 0, ErrHolderID
	}
	if len(s.holderByID) >= MaxHolders {
		return 0, ErrTooManyHolders
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
			if s.since(2) && e.startAt > now {
				s.refund(at, now)
			}
			s.forget(at)
			s.Counters.Expired++
		}
	}
	s.wakeAll() // places are free, and those in line may be others now
	delete(s.holderByID, h.id)
	s.notices -= len(h.outbox)
	*h = holder{outbox: h.outbox[:0]}
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

// absentFrom is when a holder ceases to be present unless it comes back: it
// broke its last promise then.
func (s *Scheduler) absentFrom(i int32) Instant {
	if h := &s.holders[i]; h.comeAgain != 0 {
		return h.comeAgain.Add(PresenceGrace)
	}
	return Never
}

func (s *Scheduler) present(i int32, now Instant) bool { return now < s.absentFrom(i) }

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

// HolderByID finds a registered holder.
func (s *Scheduler) HolderByID(id string) (HolderRef, bool) {
	i, ok := s.holderByID[id]
	return HolderRef(i), ok
}
