package soak

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sluice/admission"
	"sluice/workflows/contract"
)

// books follow a gate through its log and judge it: a second, naive account of who
// stands in the queue and who has a lease. It is told of arrivals by the exchanges
// and of decisions by what the gate says, and knows the rules of nothing but the
// order: nobody is admitted before a present ticket that arrived earlier.
type books struct {
	holders map[string]*keptHolder
	queue   []*keptTicket // by arrival
	owners  map[string]*keptTicket
	arrival int

	leases   map[leaseID]*keptLease
	current  map[uint64]*keptTicket // by lease in use
	overtook []string               // violations of the order, for people
	uncooled []string               // overloads that the gate took in and made no cooldown of
	due      []dueCooldown          // to be seen at the next look
	submitted,
	granted int
}

// leaseID is what an attempt names.
type leaseID struct {
	lease      uint64
	generation uint32
}

// keptLease is a lease that was granted at some time.
type keptLease struct {
	holder  string
	granted time.Time
	release *contract.Release // nil: none was taken in
}

type keptHolder struct {
	id         string
	generation uint64
	seq        uint64
	heard      time.Time // its last exchange
	alive      bool
	noticed    uint64 // its last notice
	tickets    map[uint64]*keptTicket
	leased     []leasedAt // how many leases it had, when that changed
}

type leasedAt struct {
	at time.Time
	n  int
}

type keptTicket struct {
	key     string
	label   string
	holder  *keptHolder // nil: parked
	number  uint64
	attempt int32
	arrival int
	lease   uint64 // 0: queued
}

type dueCooldown struct {
	until time.Time
	lease uint64
}

func newBooks() *books {
	return &books{holders: map[string]*keptHolder{}, owners: map[string]*keptTicket{}, leases: map[leaseID]*keptLease{}, current: map[uint64]*keptTicket{}}
}

func (b *books) read(log []moment) {
	for i := range log {
		if m := &log[i]; m.exchange != nil {
			b.arrive(m.at, m.exchange)
		} else {
			b.see(m.at, &m.look)
		}
	}
}

// arrive applies an exchange, where the gate does.
func (b *books) arrive(at time.Time, x *contract.Exchange) {
	h := b.holders[x.Holder.GetId()]
	known := h != nil && h.alive
	switch {
	case known && x.Holder.Generation < h.generation:
		return // superseded
	case (!known || x.Holder.Generation > h.generation) && x.Seq != 1 && !x.Resync:
		return // it will present everything again
	}
	if !known || x.Holder.Generation > h.generation {
		if known {
			b.lose(h)
		}
		fresh := &keptHolder{id: x.Holder.Id, generation: x.Holder.Generation, alive: true, tickets: map[uint64]*keptTicket{}}
		if h != nil {
			fresh.leased = h.leased
		}
		h = fresh
		b.holders[h.id] = h
	}
	h.heard = at
	if x.Seq <= h.seq || x.Seq != h.seq+1 && !x.Resync {
		return // sent again, or one is missing
	}
	h.seq = x.Seq
	for _, r := range x.Release {
		b.release(at, h, r)
	}
	for _, back := range x.HandBack {
		if t := b.current[back.Lease]; t != nil && t.holder == h {
			b.requeue(t)
		}
	}
	if x.Resync {
		b.resync(at, h, x)
	}
	for _, c := range x.Cancel {
		t := h.tickets[c.Number]
		switch {
		case t == nil || t.attempt > c.Attempt:
		case c.Park:
			b.requeue(t)
			b.park(t)
		default:
			b.end(t)
		}
	}
	for _, a := range x.Acquire {
		b.acquire(h, a)
	}
}

func (b *books) acquire(h *keptHolder, a *contract.Acquire) {
	if a.Number == 0 || h.tickets[a.Number] != nil {
		return // misuse
	}
	b.submitted++
	key := string(a.Ticket)
	owner := b.owners[key]
	if owner != nil {
		switch {
		case owner.attempt > a.Attempt || owner.attempt == a.Attempt && owner.holder != nil && owner.holder != h:
			return // refused
		case owner.lease == 0:
			if owner.holder != nil {
				delete(owner.holder.tickets, owner.number)
			}
			owner.holder, owner.number, owner.attempt = h, a.Number, a.Attempt
			h.tickets[a.Number] = owner
			return
		}
	}
	b.arrival++
	t := &keptTicket{key: key, label: a.Label, holder: h, number: a.Number, attempt: a.Attempt, arrival: b.arrival}
	h.tickets[a.Number], b.owners[key] = t, t
	b.queue = append(b.queue, t)
}

func (b *books) release(at time.Time, h *keptHolder, r *contract.Release) {
	id := leaseID{r.Lease, r.Generation}
	if l := b.leases[id]; l != nil && l.release == nil {
		l.release = r
	}
	if r.Outcome == contract.Outcome_OUTCOME_OVERLOAD {
		asked := fallbackCooldown
		if r.AskedCooldown != nil {
			asked = time.Duration(*r.AskedCooldown)
		}
		b.due = append(b.due, dueCooldown{at.Add(min(asked, maxCooldown)), r.Lease})
	}
	if t := b.current[r.Lease]; t != nil && t.holder == h {
		b.end(t)
	}
}

// resync takes what a holder lists for all that it has.
func (b *books) resync(at time.Time, h *keptHolder, x *contract.Exchange) {
	listed := map[uint64]*contract.Present{}
	for _, p := range x.Present {
		listed[p.Ticket.GetNumber()] = p
	}
	for n, t := range h.tickets {
		if listed[n] == nil {
			b.end(t)
		}
	}
	for _, p := range x.Present {
		t := h.tickets[p.Ticket.GetNumber()]
		switch {
		case p.Lease == 0 && t == nil:
			b.acquire(h, p.Ticket)
		case p.Lease == 0 || t != nil && t.lease == p.Lease || b.current[p.Lease] != nil:
		default: // a lease that it has and the gate had ended: it is taken again
			if t != nil {
				b.end(t)
			}
			if b.leases[leaseID{p.Lease, p.Generation}] == nil {
				continue // never granted: the attempts under it are named
			}
			b.arrival++
			key := string(p.Ticket.Ticket)
			if owner := b.owners[key]; owner != nil && owner.lease == 0 && owner.attempt <= p.Ticket.Attempt {
				b.end(owner)
			}
			t = &keptTicket{key: key, label: p.Ticket.Label, holder: h, number: p.Ticket.Number, attempt: p.Ticket.Attempt, arrival: b.arrival, lease: p.Lease}
			h.tickets[t.number], b.current[p.Lease] = t, t
			if b.owners[key] == nil {
				b.owners[key] = t
			}
		}
	}
}

// see compares what the gate says with the books.
func (b *books) see(at time.Time, l *look) {
	for _, d := range b.due {
		if l.cooldown.Before(d.until) {
			b.uncooled = append(b.uncooled, fmt.Sprintf("lease %d: the cooldown ends %v, and should not end before %v", d.lease, l.cooldown, d.until))
		}
	}
	b.due = b.due[:0]
	present := map[string]bool{}
	for i := range l.holders {
		present[l.holders[i].id] = true
	}
	for id, h := range b.holders {
		if h.alive && !present[id] {
			b.lose(h)
			h.has(at, 0)
		}
	}
	type grant struct {
		*contract.Grant
		h *keptHolder
	}
	var grants []grant
	for i := range l.holders {
		seen := &l.holders[i]
		h := b.holders[seen.id]
		if h == nil {
			continue // it will be heard of
		}
		h.has(at, seen.leased)
		last := h.noticed
		for _, r := range seen.refusals {
			if t := h.tickets[r.Number]; r.Notice > last && t != nil {
				b.end(t)
			}
			h.noticed = max(h.noticed, r.Notice)
		}
		for _, r := range seen.revoked {
			if t := h.tickets[r.Number]; r.Notice > last && t != nil && t.lease == r.Lease {
				b.end(t)
			}
			h.noticed = max(h.noticed, r.Notice)
		}
		for _, g := range seen.grants {
			if g.Notice > last {
				grants = append(grants, grant{g, h})
			}
			h.noticed = max(h.noticed, g.Notice)
		}
	}
	slices.SortFunc(grants, func(a, b grant) int { return cmp.Compare(a.Lease, b.Lease) })
	for _, g := range grants {
		b.grant(at, g.h, g.Grant)
	}
}

func (b *books) grant(at time.Time, h *keptHolder, g *contract.Grant) {
	id := leaseID{g.Lease, g.Generation}
	if b.leases[id] == nil {
		b.leases[id] = &keptLease{holder: h.id, granted: at}
		b.granted++
	}
	t := h.tickets[g.Number]
	if t == nil || t.lease != 0 {
		return // it was told again
	}
	for _, a := range b.queue {
		if a.arrival >= t.arrival {
			break
		}
		if a.holder != nil && at.Sub(a.holder.heard) < admission.PresenceGrace {
			b.overtook = append(b.overtook, fmt.Sprintf("lease %d (%s of %s, arrival %d) was granted at %v before %s of %s, arrival %d, heard of %v before",
				g.Lease, t.label, h.id, t.arrival, at, a.label, a.holder.id, a.arrival, at.Sub(a.holder.heard)))
			break
		}
	}
	b.leave(t)
	t.lease = g.Lease
	b.current[g.Lease] = t
}

// lose ends what a lost holder had: its tickets keep their places.
func (b *books) lose(h *keptHolder) {
	h.alive = false
	for _, t := range h.tickets {
		if t.lease != 0 {
			b.end(t)
		} else {
			b.park(t)
		}
	}
}

func (b *books) park(t *keptTicket) {
	if t.holder != nil {
		delete(t.holder.tickets, t.number)
		t.holder = nil
	}
}

// requeue puts the ticket of a lease that was not used back where it stood.
func (b *books) requeue(t *keptTicket) {
	if t.lease == 0 {
		return
	}
	delete(b.current, t.lease)
	t.lease = 0
	i, _ := slices.BinarySearchFunc(b.queue, t, func(a, b *keptTicket) int { return cmp.Compare(a.arrival, b.arrival) })
	b.queue = slices.Insert(b.queue, i, t)
	if owner := b.owners[t.key]; owner != t && owner != nil {
		b.end(t) // a later attempt stands for the call
	} else {
		b.owners[t.key] = t
	}
}

// end takes a ticket, or its lease, out of the books.
func (b *books) end(t *keptTicket) {
	b.leave(t)
	if t.lease != 0 {
		delete(b.current, t.lease)
	}
	if t.holder != nil && t.holder.tickets[t.number] == t {
		delete(t.holder.tickets, t.number)
	}
	if b.owners[t.key] == t {
		delete(b.owners, t.key)
	}
}

// leave takes a ticket out of the queue.
func (b *books) leave(t *keptTicket) {
	if i := slices.Index(b.queue, t); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
}

// has notes how many leases a holder has.
func (h *keptHolder) has(at time.Time, n int) {
	if last := len(h.leased); last > 0 && h.leased[last-1].n == n || last == 0 && n == 0 {
		return
	}
	h.leased = append(h.leased, leasedAt{at, n})
}

// reclaimed returns when the gate had freed what a holder had at an instant; false
// if it had nothing then. A holder that the gate doesn't know has nothing.
func (b *books) reclaimed(holder string, from time.Time) (at time.Time, had bool) {
	h := b.holders[holder]
	if h == nil {
		return at, false
	}
	for _, l := range h.leased {
		switch {
		case !l.at.After(from):
			had = l.n > 0
		case had && l.n == 0:
			return l.at, true
		}
	}
	return time.Time{}, had
}
