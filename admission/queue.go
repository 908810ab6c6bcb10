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
// and are linked by index, so the steady state allocates nothing. In a long
// queue each comes from memory that no cache holds: an entry is two cache
// lines, and what not every admission reads stands beside it in the slab.
type entry struct {
	key       Key
	number    uint64 // the holder's own small integer for the ticket
	arrival   uint64
	holder    int32 // index into holders; none: parked
	next      int32 // in the queue, in the line of ends, or in the free list
	prev      int32
	due       int32 // position in the heap of what is due; lined; none: nothing is
	weight    int32 // at most MaxInFlightBound
	attempt   int32
	place     int32 // in the table of keys; none: its key doesn't stand for it
	state     entryState
	hold      Hold
	handBacks uint8 // for lateness
	spent     bool  // nothing of what the lease reserved is given back

	arrivedAt  Instant
	deadline   Instant // of the queue; 0: none
	parkedAt   Instant // 0: not parked; of a lease: since when it is kept between attempts
	accounted  Instant // up to where its waits are filled
	lease      uint64
	startAt    Instant // of the lease
	expires    Instant
	generation uint32 // of the lease; grows when it is granted or moves
	waits      int32  // index into the slab's; none: it has not waited yet
}

// costs is what a ticket takes of each budget, in the order of Limits.Budgets.
type costs [MaxBudgets]int64

// arrival is how the ticket's present attempt found the queue. Since rules 2.
type arrival struct {
	at       Instant
	position int32 // in line, 1 is the head; see Account
	depth    int32 // tickets in the queue, this one and parked ones included
}

// slab holds the entries and the queue threaded through them.
type slab struct {
	entries   []entry
	labels    []string // of the entry with the same index, as are arrived and costs
	arrived   []arrival
	costly    bool    // there are budgets
	costs     []costs // if costly
	waits     []Waits // of the entries that have waited
	freeWaits []int32
	free      int32
	line      // the queue
}

func newSlab() slab { return slab{free: none, line: emptyLine} }

// reserve makes room in an empty slab.
func (q *slab) reserve(n int) {
	q.entries = make([]entry, 0, n)
	q.labels = make([]string, 0, n)
	q.arrived = make([]arrival, 0, n)
	if q.costly {
		q.costs = make([]costs, 0, n)
	}
}

// alloc returns a free entry; the caller overwrites it whole.
func (q *slab) alloc() int32 {
	if i := q.free; i != none {
		q.free = q.entries[i].next
		return i
	}
	q.entries = append(q.entries, entry{})
	q.labels = append(q.labels, "")
	if q.costly {
		q.costs = append(q.costs, costs{})
	}
	q.arrived = append(q.arrived, arrival{})
	return int32(len(q.entries) - 1)
}

// cost is what the entry takes of each budget; nil where there is none.
func (q *slab) cost(i int32) *costs {
	if !q.costly {
		return nil
	}
	return &q.costs[i]
}

func (q *slab) setCost(i int32, cost *costs) {
	if q.costly {
		q.costs[i] = *cost
	}
}

func (q *slab) release(i int32) {
	q.forgetWaits(i)
	e := &q.entries[i]
	e.state, e.holder, e.next = entryFree, none, q.free
	q.labels[i] = ""
	q.free = i
}

// forgetWaits begins the account of an entry anew.
func (q *slab) forgetWaits(i int32) {
	if e := &q.entries[i]; e.waits != none {
		q.freeWaits = append(q.freeWaits, e.waits)
		e.waits = none
	}
}

// waited is how long the entry has waited.
func (q *slab) waited(i int32) Waits {
	if at := q.entries[i].waits; at != none {
		return q.waits[at]
	}
	return Waits{}
}

// waiting is the account of an entry that waits.
func (q *slab) waiting(i int32) *Waits {
	e := &q.entries[i]
	if e.waits == none {
		if n := len(q.freeWaits); n > 0 {
			e.waits, q.freeWaits = q.freeWaits[n-1], q.freeWaits[:n-1]
			q.waits[e.waits] = Waits{}
		} else {
			e.waits = int32(len(q.waits))
			q.waits = append(q.waits, Waits{})
		}
	}
	return &q.waits[e.waits]
}

// enqueue puts an entry where its arrival belongs. New tickets go to the tail
// at once; handed-back ones are older than nearly all and are looked for from
// the head.
func (q *slab) enqueue(i int32) {
	e := &q.entries[i]
	e.state = entryQueued
	before := none
	if q.tail != none && q.entries[q.tail].arrival > e.arrival {
		before = q.head
		for q.entries[before].arrival < e.arrival {
			before = q.entries[before].next
		}
	}
	q.link(&q.line, i, before)
}

func (q *slab) dequeue(i int32) { q.unlink(&q.line, i) }

// line is a list of entries, threaded through them; each is in one at most.
type line struct{ head, tail int32 }

var emptyLine = line{none, none}

// link puts an entry before another one, or at the tail before none.
func (q *slab) link(l *line, i, before int32) {
	e := &q.entries[i]
	e.next = before
	if before == none {
		e.prev, l.tail = l.tail, i
	} else {
		e.prev = q.entries[before].prev
		q.entries[before].prev = i
	}
	if e.prev == none {
		l.head = i
	} else {
		q.entries[e.prev].next = i
	}
}

func (q *slab) unlink(l *line, i int32) {
	e := &q.entries[i]
	if e.prev == none {
		l.head = e.next
	} else {
		q.entries[e.prev].next = e.next
	}
	if e.next == none {
		l.tail = e.prev
	} else {
		q.entries[e.next].prev = e.prev
	}
	e.next, e.prev = none, none
}
