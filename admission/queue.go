package admission

import "time"

// Key identifies a ticket across holders and attempts: a 128-bit hash of its ID.
type Key [16]byte

type entryState uint8

const (
	entryFree entryState = iota
	entryQueued
	entryLeased
)

const none int32 = -1

// entry is a ticket and, once admitted, its lease. Entries live in one slab
// and are linked by index, so the steady state allocates nothing.
type entry struct {
	key     Key
	label   string
	number  uint64 // the holder's own small integer for the ticket
	arrival uint64 // order of arrival at the gate
	weight  int64
	cost    [MaxBudgets]int64 // in the order of Limits.Budgets

	arrivedAt Instant
	deadline  Instant // of the queue; 0: none
	parkedAt  Instant // 0: not parked
	accounted Instant // up to where waits is filled
	waits     Waits

	lease   uint64
	startAt Instant
	expires Instant // of the lease

	attempt    int32
	generation uint32 // of the lease; grows when it moves
	handBacks  uint8  // for lateness
	hold       Hold
	state      entryState

	holder     int32 // index into holders; none: parked
	next, prev int32 // queue, or next in the free list
	due        int32 // position in the due heap; none: not there
}

// slab holds the entries, the queue threaded through them, and the heap of
// what is due.
type slab struct {
	entries    []entry
	free       int32
	head, tail int32
	heap       []int32
}

func newSlab() slab { return slab{free: none, head: none, tail: none} }

func (q *slab) alloc() int32 {
	if q.free != none {
		i := q.free
		q.free = q.entries[i].next
		return i
	}
	q.entries = append(q.entries, entry{})
	return int32(len(q.entries) - 1)
}

func (q *slab) release(i int32) {
	q.entries[i] = entry{next: q.free, due: none, holder: none}
	q.free = i
}

// enqueue puts an entry where its arrival belongs. New tickets go to the tail
// at once; handed-back ones are older than nearly all and are looked for from
// the head.
func (q *slab) enqueue(i int32) {
	e := &q.entries[i]
	e.state = entryQueued
	before := none // the entry that e stands before
	if q.tail != none && q.entries[q.tail].arrival > e.arrival {
		before = q.head
		for q.entries[before].arrival < e.arrival {
			before = q.entries[before].next
		}
	}
	e.next = before
	if before == none {
		e.prev, q.tail = q.tail, i
	} else {
		e.prev = q.entries[before].prev
		q.entries[before].prev = i
	}
	if e.prev == none {
		q.head = i
	} else {
		q.entries[e.prev].next = i
	}
}

func (q *slab) dequeue(i int32) {
	e := &q.entries[i]
	if e.prev == none {
		q.head = e.next
	} else {
		q.entries[e.prev].next = e.next
	}
	if e.next == none {
		q.tail = e.prev
	} else {
		q.entries[e.next].prev = e.prev
	}
	e.next, e.prev = none, none
}

// dueAt is when something happens to the entry by itself.
func (s *Scheduler) dueAt(e *entry) Instant {
	switch {
	case e.state == entryLeased:
		return e.expires
	case e.state == entryFree:
		return 0
	case e.parkedAt != 0:
		park := e.parkedAt.Add(s.limits.ParkTTL)
		if e.deadline != 0 {
			return min(park, e.deadline)
		}
		return park
	}
	return e.deadline
}

// schedule brings an entry's place in the due heap up to date.
func (s *Scheduler) schedule(i int32) {
	e := &s.q.entries[i]
	switch want := s.dueAt(e) != 0; {
	case want && e.due == none:
		e.due = int32(len(s.q.heap))
		s.q.heap = append(s.q.heap, i)
		s.siftUp(e.due)
	case want:
		s.siftUp(e.due)
		s.siftDown(e.due)
	case e.due != none:
		s.unschedule(i)
	}
}

func (s *Scheduler) unschedule(i int32) {
	at := s.q.entries[i].due
	if at == none {
		return
	}
	last := int32(len(s.q.heap) - 1)
	s.swapDue(at, last)
	s.q.heap = s.q.heap[:last]
	s.q.entries[i].due = none
	if at < last {
		s.siftUp(at)
		s.siftDown(at)
	}
}

// sooner orders by instant, then by arrival, so that equal instants end in one
// order on every machine.
func (s *Scheduler) sooner(a, b int32) bool {
	x, y := &s.q.entries[s.q.heap[a]], &s.q.entries[s.q.heap[b]]
	dx, dy := s.dueAt(x), s.dueAt(y)
	return dx < dy || dx == dy && x.arrival < y.arrival
}

func (s *Scheduler) swapDue(a, b int32) {
	h := s.q.heap
	h[a], h[b] = h[b], h[a]
	s.q.entries[h[a]].due, s.q.entries[h[b]].due = a, b
}

func (s *Scheduler) siftUp(at int32) {
	for at > 0 {
		parent := (at - 1) / 2
		if !s.sooner(at, parent) {
			return
		}
		s.swapDue(at, parent)
		at = parent
	}
}

func (s *Scheduler) siftDown(at int32) {
	for {
		child := 2*at + 1
		if child >= int32(len(s.q.heap)) {
			return
		}
		if child+1 < int32(len(s.q.heap)) && s.sooner(child+1, child) {
			child++
		}
		if !s.sooner(child, at) {
			return
		}
		s.swapDue(at, child)
		at = child
	}
}

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

// Waits is how long a ticket waited for each reason.
type Waits [numWaits]time.Duration

// Total is the sum over all reasons.
func (w *Waits) Total() time.Duration {
	var sum time.Duration
	for _, d := range w {
		sum += d
	}
	return sum
}
