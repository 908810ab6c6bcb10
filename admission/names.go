package admission

import (
	"encoding/binary"
	"math/bits"
)

// Three names lead to an entry. The tables are open-addressed over hashes that
// stand beside the index, so a look-up seldom touches an entry that it doesn't
// want, and a steady state allocates nothing: together half the time of maps.
// Keys and numbers come from workers of one namespace; a worker that made them
// collide on purpose would only slow its own gate.
const (
	nameKey    = iota // the key, to the ticket that owns it
	nameNumber        // a holder's number for its ticket or lease
	nameLease         // a lease
	numNames
)

// names is one of the tables: linear probing, at most half full, and in the
// order of Robin Hood: no entry is further from its home than the one that it
// passed. So a gap closes at the next entry that is at home, which with numbers
// in sequence is the next one.
type names struct {
	slots []nameSlot // a power of two of them; an entry is at the slot hash mod that, or soon after
	used  int
}

type nameSlot struct {
	hash uint32
	at   int32 // the entry's index plus one; 0: empty
}

const (
	leastSlots = 16
	spread     = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio
)

func hashKey(k *Key) uint32 {
	return uint32((binary.LittleEndian.Uint64(k[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(k[8:]), 31)) * spread >> 32)
}

// Numbers and leases come in sequence: eight in a row share a cache line.
func hashNumber(number uint64, holder int32) uint32 {
	return uint32((number>>3^uint64(holder)<<40)*spread>>32)<<3 | uint32(number&7)
}

func hashLease(lease uint64) uint32 { return hashNumber(lease, 0) }

func newNames(slots int) names { return names{slots: make([]nameSlot, slots)} }

// home is where to begin to look.
func (t *names) home(hash uint32) uint32 { return hash & uint32(len(t.slots)-1) }

// after is the slot to look at next.
func (t *names) after(slot uint32) uint32 { return (slot + 1) & uint32(len(t.slots)-1) }

// away is how far the entry in a slot is from its home.
func (t *names) away(slot uint32) uint32 {
	return (slot - t.home(t.slots[slot].hash)) & uint32(len(t.slots)-1)
}

// put makes the entry findable under a hash.
func (t *names) put(hash uint32, i int32) {
	if 2*t.used >= len(t.slots) {
		t.grow()
	}
	t.used++
	if slot := &t.slots[t.home(hash)]; slot.at == 0 {
		*slot = nameSlot{hash, i + 1}
		return
	}
	t.insert(hash, i)
}

func (t *names) grow() {
	old := t.slots
	t.slots = make([]nameSlot, 2*len(old))
	for _, was := range old {
		if was.at != 0 {
			t.insert(was.hash, was.at-1)
		}
	}
}

func (t *names) insert(hash uint32, i int32) {
	in, away := nameSlot{hash, i + 1}, uint32(0)
	slot := t.home(hash)
	for ; t.slots[slot].at != 0; slot, away = t.after(slot), away+1 {
		if there := t.away(slot); there < away {
			in, t.slots[slot] = t.slots[slot], in
			away = there
		}
	}
	t.slots[slot] = in
}

// remove takes out an entry that is in the table, and closes the gap.
func (t *names) remove(hash uint32, i int32) {
	gap := t.home(hash)
	for t.slots[gap].at != i+1 {
		gap = t.after(gap)
	}
	for next := t.after(gap); t.slots[next].at != 0 && t.away(next) > 0; next = t.after(next) {
		t.slots[gap] = t.slots[next]
		gap = next
	}
	t.slots[gap] = nameSlot{}
	t.used--
}

// number makes the entry its holder's ticket of that number.
func (s *Scheduler) number(i int32) {
	e := &s.q.entries[i]
	s.names[nameNumber].put(hashNumber(e.number, e.holder), i)
}

// byKey finds the ticket that owns a key, or none.
func (s *Scheduler) byKey(k *Key) int32 {
	t, hash := &s.names[nameKey], hashKey(k)
	for slot := t.home(hash); ; slot = t.after(slot) {
		switch in := t.slots[slot]; {
		case in.at == 0:
			return none
		case in.hash == hash && s.q.entries[in.at-1].key == *k:
			return in.at - 1
		}
	}
}

// byNumber finds a holder's ticket or lease, or none.
func (s *Scheduler) byNumber(h HolderRef, number uint64) int32 {
	t, hash := &s.names[nameNumber], hashNumber(number, int32(h))
	for slot := t.home(hash); ; slot = t.after(slot) {
		in := t.slots[slot]
		if in.at == 0 {
			return none
		}
		if in.hash == hash {
			if e := &s.q.entries[in.at-1]; e.number == number && e.holder == int32(h) {
				return in.at - 1
			}
		}
	}
}

// byLease finds a lease, or none.
func (s *Scheduler) byLease(lease uint64) int32 {
	t, hash := &s.names[nameLease], hashLease(lease)
	for slot := t.home(hash); ; slot = t.after(slot) {
		switch in := t.slots[slot]; {
		case in.at == 0:
			return none
		case in.hash == hash && s.q.entries[in.at-1].lease == lease:
			return in.at - 1
		}
	}
}

// leased counts the leases.
func (s *Scheduler) leased() int { return s.names[nameLease].used }

// own makes the entry the one that its key stands for.
func (s *Scheduler) own(i int32) {
	e := &s.q.entries[i]
	s.names[nameKey].put(hashKey(&e.key), i)
	e.owner = true
}

// disinherit lets another entry have the key.
func (s *Scheduler) disinherit(i int32) {
	if e := &s.q.entries[i]; e.owner {
		s.names[nameKey].remove(hashKey(&e.key), i)
		e.owner = false
	}
}
