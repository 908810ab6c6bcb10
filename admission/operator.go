package admission

import "slices"

// What a person does to one ticket or lease. Limits, pauses and their ends are
// in SetLimits, Pause and Resume.

// CancelTicket takes a ticket out of the queue, by its number in the order of
// arrival as Status shows it. Its holder is told; of a parked one nobody is,
// and its caller begins anew where it comes back. ErrNoTicket: it is not in
// the queue, or not any more.
func (s *Scheduler) CancelTicket(now Instant, ticket uint64) error {
	now = s.observe(now)
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		e := &s.q.entries[i]
		if e.arrival != ticket {
			continue
		}
		if e.holder != none {
			s.refuseQueued(now, i, Refusal{Kind: RefusedOperator})
		}
		s.drop(i)
		return nil
	}
	return ErrNoTicket
}

// RevokeLease ends a lease and frees its place at once. Its holder is told, and
// may not know for a while: what the attempt used or will use is unknown, so
// nothing that was reserved is given back. A holder that presents it before it
// heard of its end doesn't get it back. ErrNoLease: it has ended, or never
// was.
func (s *Scheduler) RevokeLease(now Instant, lease uint64) error {
	s.observe(now)
	i := s.byLease(lease)
	if i == none {
		return ErrNoLease
	}
	s.Counters.Revoked++
	s.revoke(i, RevokedOperator)
	s.forget(i)
	return nil
}

// LeasesLabelled returns the leases with a label, the oldest first.
func (s *Scheduler) LeasesLabelled(label string) []uint64 {
	var leases []uint64
	for i := range s.q.entries {
		if e := &s.q.entries[i]; e.state == entryLeased && s.q.labels[i] == label {
			leases = append(leases, e.lease)
		}
	}
	slices.Sort(leases)
	return leases
}

// TicketsLabelled returns the numbers of the tickets in the queue with a label,
// in their order.
func (s *Scheduler) TicketsLabelled(label string) []uint64 {
	var tickets []uint64
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		if s.q.labels[i] == label {
			tickets = append(tickets, s.q.entries[i].arrival)
		}
	}
	return tickets
}
