package admission

import (
	"encoding/binary"
	"math/bits"
)

// Three names lead to an entry. The tables are chained through the entries
// themselves: a steady state allocates nothing, and each step costs half of
// what a map takes. Keys and numbers come from workers of the same namespace;
// one that made them collide on purpose would only slow its own gate.
const (
	nameKey    = iota // the key, to the ticket that owns it
	nameNumber        // a holder's number for its ticket or lease
	nameLease         // a lease
	numNames
)

const unlinked int32 = -2 // the entry is not in that table

// names is one of the tables: the first entry of each chain.
type names struct {
	chains []int32 // a power of two of them
	used   int
}

const spread = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio

func hashKey(k *Key) uint64 {
	return (binary.LittleEndian.Uint64(k[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(k[8:]), 31)) * spread
}

func hashNumber(number uint64, holder int32) uint64 {
	return (number ^ uint64(holder)<<40) * spread
}

func hashLease(lease uint64) uint64 { return lease * spread }

func (e *entry) hash(name int) uint64 {
	switch name {
	case nameKey:
		return hashKey(&e.key)
	case nameNumber:
		return hashNumber(e.number, e.holder)
	}
	return hashLease(e.lease)
}

func (t *names) chain(hash uint64) *int32 {
	return &t.chains[hash>>(64-bits.Len(uint(len(t.chains)-1)))]
}

// first of the chain in which an entry with this hash would be.
func (t *names) first(hash uint64) int32 {
	if len(t.chains) == 0 {
		return none
	}
	return *t.chain(hash)
}

// link makes the entry findable under its name.
func (s *Scheduler) link(name int, i int32) {
	t := &s.names[name]
	if t.used >= len(t.chains) {
		s.grow(name)
	}
	e := &s.q.entries[i]
	at := t.chain(e.hash(name))
	e.links[name], *at = *at, i
	t.used++
}

func (s *Scheduler) unlink(name int, i int32) {
	e := &s.q.entries[i]
	if e.links[name] == unlinked {
		return
	}
	t := &s.names[name]
	at := t.chain(e.hash(name))
	for *at != i {
		at = &s.q.entries[*at].links[name]
	}
	*at, e.links[name] = e.links[name], unlinked
	t.used--
}

func (s *Scheduler) grow(name int) {
	t := &s.names[name]
	old := t.chains
	t.chains = make([]int32, max(16, 2*len(old)))
	for c := range t.chains {
		t.chains[c] = none
	}
	for _, i := range old {
		for i != none {
			e := &s.q.entries[i]
			after := e.links[name]
			at := t.chain(e.hash(name))
			e.links[name], *at = *at, i
			i = after
		}
	}
}

// byKey finds the ticket that owns a key, or none.
func (s *Scheduler) byKey(k *Key) int32 {
	i := s.names[nameKey].first(hashKey(k))
	for i != none && s.q.entries[i].key != *k {
		i = s.q.entries[i].links[nameKey]
	}
	return i
}

// byNumber finds a holder's ticket or lease, or none.
func (s *Scheduler) byNumber(h HolderRef, number uint64) int32 {
	i := s.names[nameNumber].first(hashNumber(number, int32(h)))
	for i != none && (s.q.entries[i].number != number || s.q.entries[i].holder != int32(h)) {
		i = s.q.entries[i].links[nameNumber]
	}
	return i
}

// byLease finds a lease, or none.
func (s *Scheduler) byLease(lease uint64) int32 {
	i := s.names[nameLease].first(hashLease(lease))
	for i != none && s.q.entries[i].lease != lease {
		i = s.q.entries[i].links[nameLease]
	}
	return i
}

// leased counts the leases.
func (s *Scheduler) leased() int { return s.names[nameLease].used }

// owns reports whether the entry is the one that its key stands for.
func (s *Scheduler) owns(i int32) bool { return s.q.entries[i].links[nameKey] != unlinked }
