package admission

// due is what happens by itself: ends of leases, deadlines, ends of parked
// tickets. Nearly all of it is ends of leases, and these come in order, as a
// lease starts after the one before it and may last as long: they stand in a
// line. What would not stand at its tail when it comes is in a heap.
type due struct {
	line
	heap []dueItem
}

type dueItem struct {
	at Instant
	i  int32 // entry
}

// lined is the entry.due of a lease in the line, for a position in the heap.
const lined int32 = -2

// dueAt is when something happens to the entry by itself; 0: never.
func (s *Scheduler) dueAt(e *entry) Instant {
	switch {
	case e.state == entryLeased && e.parkedAt != 0:
		return min(e.expires, e.parkedAt.Add(s.limits.ParkTTL))
	case e.state == entryLeased:
		return e.expires
	case e.parkedAt != 0:
		park := e.parkedAt.Add(s.limits.ParkTTL)
		if e.deadline != 0 {
			return min(park, e.deadline)
		}
		return park
	}
	return e.deadline
}

// nextDue is what happens first: at Never none, where nothing does.
func (s *Scheduler) nextDue() dueItem {
	first := dueItem{Never, none}
	if i := s.due.head; i != none {
		first = dueItem{s.q.entries[i].expires, i}
	}
	if len(s.due.heap) > 0 && (first.i == none || s.before(s.due.heap[0], first)) {
		first = s.due.heap[0]
	}
	return first
}

// before orders by instant, then by arrival, so that equal instants end in one
// order on every machine.
func (s *Scheduler) before(a, b dueItem) bool {
	return a.at < b.at || a.at == b.at && s.q.entries[a.i].arrival < s.q.entries[b.i].arrival
}

// schedule puts an entry where what happens to it now belongs.
func (s *Scheduler) schedule(i int32) {
	s.unschedule(i)
	e := &s.q.entries[i]
	item := dueItem{s.dueAt(e), i}
	switch tail := s.due.tail; {
	case item.at == 0:
	case e.state == entryLeased && e.parkedAt == 0 && (tail == none || s.before(dueItem{s.q.entries[tail].expires, tail}, item)):
		e.due = lined
		s.q.link(&s.due.line, i, none)
	default:
		s.due.heap = append(s.due.heap, item)
		s.siftUp(int32(len(s.due.heap)-1), item)
	}
}

func (s *Scheduler) unschedule(i int32) {
	switch at := s.q.entries[i].due; at {
	case none:
	case lined:
		s.q.entries[i].due = none
		s.q.unlink(&s.due.line, i)
	default:
		s.q.entries[i].due = none
		last := int32(len(s.due.heap) - 1)
		item := s.due.heap[last]
		s.due.heap = s.due.heap[:last]
		if at < last {
			s.replaceDue(at, item)
		}
	}
}

func (s *Scheduler) placeDue(at int32, item dueItem) {
	s.due.heap[at] = item
	s.q.entries[item.i].due = at
}

func (s *Scheduler) replaceDue(at int32, item dueItem) {
	if at > 0 && s.before(item, s.due.heap[(at-1)/2]) {
		s.siftUp(at, item)
	} else {
		s.siftDown(at, item)
	}
}

func (s *Scheduler) siftUp(at int32, item dueItem) {
	for at > 0 {
		parent := (at - 1) / 2
		if !s.before(item, s.due.heap[parent]) {
			break
		}
		s.placeDue(at, s.due.heap[parent])
		at = parent
	}
	s.placeDue(at, item)
}

func (s *Scheduler) siftDown(at int32, item dueItem) {
	heap := s.due.heap
	for {
		child := 2*at + 1
		if child >= int32(len(heap)) {
			break
		}
		if child+1 < int32(len(heap)) && s.before(heap[child+1], heap[child]) {
			child++
		}
		if !s.before(heap[child], item) {
			break
		}
		s.placeDue(at, heap[child])
		at = child
	}
	s.placeDue(at, item)
}

// rebuildDue orders the heap anew after a change of what is due when; that of
// the line doesn't change.
func (s *Scheduler) rebuildDue() {
	heap := s.due.heap
	for at := range heap {
		heap[at].at = s.dueAt(&s.q.entries[heap[at].i])
	}
	for at := len(heap) - 1; at >= 0; at-- {
		s.siftDown(int32(at), heap[at])
	}
}
