package admission

// dueHeap orders what happens by itself: ends of leases, deadlines, ends of
// parked tickets.
type dueHeap []dueItem

type dueItem struct {
	at Instant
	i  int32 // entry
}

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

// schedule brings an entry's place in the heap up to date.
func (s *Scheduler) schedule(i int32) {
	e := &s.q.entries[i]
	at := s.dueAt(e)
	switch {
	case at == 0:
		s.unschedule(i)
	case e.due == none:
		s.due = append(s.due, dueItem{at, i})
		s.siftUp(int32(len(s.due)-1), dueItem{at, i})
	default:
		s.replaceDue(e.due, dueItem{at, i})
	}
}

func (s *Scheduler) unschedule(i int32) {
	e := &s.q.entries[i]
	at := e.due
	if at == none {
		return
	}
	e.due = none
	last := int32(len(s.due) - 1)
	item := s.due[last]
	s.due = s.due[:last]
	if at < last {
		s.replaceDue(at, item)
	}
}

// before orders by instant, then by arrival, so that equal instants end in one
// order on every machine.
func (s *Scheduler) before(a, b dueItem) bool {
	return a.at < b.at || a.at == b.at && s.q.entries[a.i].arrival < s.q.entries[b.i].arrival
}

func (s *Scheduler) placeDue(at int32, item dueItem) {
	s.due[at] = item
	s.q.entries[item.i].due = at
}

func (s *Scheduler) replaceDue(at int32, item dueItem) {
	if at > 0 && s.before(item, s.due[(at-1)/2]) {
		s.siftUp(at, item)
	} else {
		s.siftDown(at, item)
	}
}

func (s *Scheduler) siftUp(at int32, item dueItem) {
	for at > 0 {
		parent := (at - 1) / 2
		if !s.before(item, s.due[parent]) {
			break
		}
		s.placeDue(at, s.due[parent])
		at = parent
	}
	s.placeDue(at, item)
}

func (s *Scheduler) siftDown(at int32, item dueItem) {
	for {
		child := 2*at + 1
		if child >= int32(len(s.due)) {
			break
		}
		if child+1 < int32(len(s.due)) && s.before(s.due[child+1], s.due[child]) {
			child++
		}
		if !s.before(s.due[child], item) {
			break
		}
		s.placeDue(at, s.due[child])
		at = child
	}
	s.placeDue(at, item)
}

// rebuildDue orders the heap anew after a change of what is due when.
func (s *Scheduler) rebuildDue() {
	for at := range s.due {
		s.due[at].at = s.dueAt(&s.q.entries[s.due[at].i])
	}
	for at := len(s.due) - 1; at >= 0; at-- {
		s.siftDown(int32(at), s.due[at])
	}
}
