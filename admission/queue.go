package admission

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
	number  uint64 // the holder's own small integer for the ticket
	lease   uint64
	holder  int32 // index into holders; none: parked
	next    int32 // in the queue, or in the free list
	prev    int32
	due     int32 // position in the due heap; none: not there
	attempt int32

	generation uint32 // of the lease; grows when it is granted or moves
	state      entryState
	hold       Hold
	handBacks  uint8 // for lateness
	owner      bool  // its key stands for it
	presented  bool  // the lease is known from its holder alone, see presentLease
	arrival    uint64
	weight     int64
	label      string

	arrivedAt Instant
	deadline  Instant // of the queue; 0: none
	parkedAt  Instant // 0: not parked
	startAt   Instant // of the lease
	expires   Instant
	accounted Instant // up to where waits is filled
	waits     Waits
	cost      [MaxBudgets]int64 // in the order of Limits.Budgets
}

// slab holds the entries and the queue threaded through them.
type slab struct {
	entries    []entry
	free       int32
	head, tail int32
}

func newSlab() slab { return slab{free: none, head: none, tail: none} }

// alloc returns a free entry; the caller overwrites it whole.
func (q *slab) alloc() int32 {
	if i := q.free; i != none {
		q.free = q.entries[i].next
		return i
	}
	q.entries = append(q.entries, entry{})
	return int32(len(q.entries) - 1)
}

func (q *slab) release(i int32) {
	e := &q.entries[i]
	e.state, e.label, e.holder, e.next = entryFree, "", none, q.free
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
