package admission

import (
	"encoding/binary"
	"math/bits"
)

// keys leads from a key to the ticket that owns it. In a long queue each key is
// somewhere that no cache holds, and waiting for one such place after the other
// would be most of what a step takes. So each has a tag of a byte, and the tags
// alone, with no branch that only chance decides, nearly always tell that a key is
// new; and what is only written is written late, together with more of it, so that
// the memory of all comes at once.
type keys struct {
	groups []group // a power of two of them; a key is in the group hash mod that, or soon after
	at     []int32 // by place: the entry
	used   int     // places
	placed []placed
	freed  []int32 // places that have a tag still
	read   uint8   // by expect; without a use the compiler would leave the reading out
}

// group is so many places of the table, a quarter of a cache line.
type group struct {
	tags [groupLen]uint8 // of the hashes; 0: the place is free
	over uint8           // keys that found this group full and are behind it; many: there may be
}

// placed is an entry that isn't in keys.at yet.
type placed struct{ place, entry int32 }

const (
	leastGroups = 4
	groupLen    = 15
	groupRoom   = 16 // places are numbered by group, of which each has room for so many
	groupFill   = 10 // keys for each group, on average, at which the table grows; one in twelve finds its own full then
	many        = 255
	late        = 16 // writes at once; a core doesn't ask for much more memory at a time
)

// newKeys returns an empty table with room for so many keys, as a start.
func newKeys(n int) keys {
	groups := leastGroups
	for groupFill*groups < n {
		groups *= 2
	}
	return keys{
		groups: make([]group, groups), at: make([]int32, groupRoom*groups),
		placed: make([]placed, 0, late), freed: make([]int32, 0, late),
	}
}

// expect reads where keys will be looked for, so that the memory of all comes at
// once.
func (t *keys) expect(requests []Request) {
	for i := range requests {
		t.read += t.groups[t.home(hashKey(&requests[i].Key))].over
	}
}

// byKey finds the ticket that owns a key, or none. It may do what was left for later.
func (s *Scheduler) byKey(k *Key) int32 {
	t, hash := &s.names.keys, hashKey(k)
	at := t.home(hash)
	for range t.groups { // each may have keys behind it
		g := &t.groups[at]
		found := g.find(tagOf(hash))
		if found != 0 {
			t.writePlaced()
		}
		for ; found != 0; found &= found - 1 {
			place := groupRoom*at + first(found)
			i := t.at[place]
			// The tag may be another key's, or of one that is gone.
			if e := &s.q.entries[i]; e.key == *k && e.place == int32(place) {
				return i
			}
		}
		if g.over == 0 {
			return none
		}
		at = t.after(at)
	}
	return none
}

// own makes the entry the one that its key stands for.
func (s *Scheduler) own(i int32) {
	t := &s.names.keys
	if t.used >= groupFill*len(t.groups) {
		*t = newKeys(2 * t.used)
		for at := range s.q.entries {
			if e := &s.q.entries[at]; e.place != none {
				e.place = t.put(hashKey(&e.key), int32(at))
			}
		}
	}
	e := &s.q.entries[i]
	e.place = t.put(hashKey(&e.key), i)
}

// disinherit lets another entry have the key.
func (s *Scheduler) disinherit(i int32) {
	if e := &s.q.entries[i]; e.place != none {
		s.names.keys.remove(hashKey(&e.key), e.place)
		e.place = none
	}
}

// put gives an entry a place under a hash, and tells which.
func (t *keys) put(hash uint32, i int32) int32 {
	for at := t.home(hash); ; at = t.after(at) {
		g := &t.groups[at]
		free := g.find(0)
		if free == 0 {
			if g.over < many {
				g.over++
			}
			continue
		}
		in := first(free)
		g.tags[in] = tagOf(hash)
		t.used++
		place := int32(groupRoom*at + in)
		if t.placed = append(t.placed, placed{place, i}); len(t.placed) == late {
			t.writePlaced()
		}
		return place
	}
}

func (t *keys) writePlaced() {
	for _, p := range t.placed {
		t.at[p.place] = p.entry
	}
	t.placed = t.placed[:0]
}

// remove takes out what was put at a place under a hash.
func (t *keys) remove(hash uint32, place int32) {
	for at := t.home(hash); at != uint32(place)/groupRoom; at = t.after(at) {
		if g := &t.groups[at]; g.over < many {
			g.over--
		}
	}
	if t.freed = append(t.freed, place); len(t.freed) == late {
		t.writeFreed()
	}
}

func (t *keys) writeFreed() {
	for _, place := range t.freed {
		t.groups[place/groupRoom].tags[place%groupRoom] = 0
	}
	t.used -= len(t.freed)
	t.freed = t.freed[:0]
}

func hashKey(k *Key) uint32 {
	return uint32((binary.LittleEndian.Uint64(k[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(k[8:]), 31)) * spread >> 32)
}

// tagOf is of the bits of a hash that its home doesn't tell.
func tagOf(hash uint32) uint8 { return uint8(max(hash>>24, 1)) }

// home is the group in which to begin to look.
func (t *keys) home(hash uint32) uint32 { return hash & uint32(len(t.groups)-1) }

func (t *keys) after(at uint32) uint32 { return after(at, len(t.groups)) }

// find returns which places of a group have a tag, as a set for [first]. A place
// that hasn't may be in a set that isn't empty, but not as its first.
func (g *group) find(tag uint8) uint64 {
	const ones, tops = 0x01_01_01_01_01_01_01_01, 0x80_80_80_80_80_80_80_80
	// Eight bytes each; the middle one is in both.
	a := binary.LittleEndian.Uint64(g.tags[:8]) ^ ones*uint64(tag)
	b := binary.LittleEndian.Uint64(g.tags[groupLen-8:]) ^ ones*uint64(tag)
	// Less one, a byte that is 0 gets its top bit, and may take from the byte above.
	return (a-ones)&^a&tops>>7 | (b-ones)&^b&tops>>6
}

// first is the first place of a set that [group.find] returned: bit 8n is for
// place n, bit 8n+1 for place n+7.
func first(found uint64) uint32 {
	bit := uint32(bits.TrailingZeros64(found))
	return bit/8 + bit%8*(groupLen-8)
}
