package admission

// names lead to entries: the key to the ticket that owns it, a holder's number
// to its ticket or lease, and a lease's ID to the lease. The tables are
// open-addressed, with linear probing; a look-up seldom touches an entry that it
// doesn't want, and a steady state allocates nothing: together half the time of
// maps. Keys and numbers come from workers of one namespace; a worker that made
// them collide on purpose would only slow its own gate.
type names struct {
	keys    keys
	numbers serials // each holder's own
	leases  serials
}

const (
	leastBlocks = 8
	spread      = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio
)

// newNames returns empty tables with room for so many tickets, as a start.
func newNames(tickets int) names {
	blocks := leastBlocks
	for blockLen*blocks < 2*tickets {
		blocks *= 2
	}
	return names{
		keys:    newKeys(tickets),
		numbers: serials{blocks: make([]block, blocks)},
		leases:  serials{blocks: make([]block, leastBlocks)},
	}
}

// byNumber finds a holder's ticket or lease, or none.
func (s *Scheduler) byNumber(h HolderRef, number uint64) int32 {
	return s.names.numbers.find(number, int32(h))
}

// byLease finds a lease, or none.
func (s *Scheduler) byLease(lease uint64) int32 { return s.names.leases.find(lease, 0) }

// leased counts the leases.
func (s *Scheduler) leased() int { return s.names.leases.n }

// after is the slot to look at next, of so many.
func after(slot uint32, slots int) uint32 { return (slot + 1) & uint32(slots-1) }

// closes reports whether what stands at a slot may move up to a gap before it:
// its home doesn't lie between the two.
func closes(gap, slot, home uint32, slots int) bool {
	mask := uint32(slots - 1)
	return (slot-home)&mask >= (slot-gap)&mask
}

// serials finds entries by numbers that come in sequence, each owner's own.
// So many in a row are one block: what comes next is where the last one was. At
// most half of the blocks are used.
type serials struct {
	blocks []block // a power of two of them
	used   int     // blocks that aren't empty
	n      int     // numbers
}

type block struct {
	of    uint64 // its numbers over blockLen
	owner int32
	live  int32           // of its numbers; 0: it is empty
	at    [blockLen]int32 // the entry's index plus one; 0: none
}

// blockLen: with fewer, numbers in a row are spread over more places of a large table,
// none of which a cache holds; more are wasted where a holder has few tickets.
const blockLen = 64

func (t *serials) home(of uint64, owner int32) uint32 {
	return uint32((of^uint64(owner)<<40)*spread>>32) & uint32(len(t.blocks)-1)
}

func (t *serials) after(slot uint32) uint32 { return after(slot, len(t.blocks)) }

// slot is where a number's block is, or the empty one where it would be.
func (t *serials) slot(number uint64, owner int32) uint32 {
	slot := t.home(number/blockLen, owner)
	for {
		if b := &t.blocks[slot]; b.live == 0 || b.of == number/blockLen && b.owner == owner {
			return slot
		}
		slot = t.after(slot)
	}
}

// find returns the entry that has a number, or none.
func (t *serials) find(number uint64, owner int32) int32 {
	return t.blocks[t.slot(number, owner)].at[number%blockLen] - 1
}

// put gives an entry a number that no other has.
func (t *serials) put(number uint64, owner, i int32) {
	b := &t.blocks[t.slot(number, owner)]
	if b.live == 0 {
		if 2*t.used >= len(t.blocks) {
			t.grow()
			b = &t.blocks[t.slot(number, owner)]
		}
		b.of, b.owner = number/blockLen, owner
		t.used++
	}
	b.at[number%blockLen] = i + 1
	b.live++
	t.n++
}

func (t *serials) grow() {
	old := t.blocks
	t.blocks = make([]block, 2*len(old))
	for i := range old {
		if b := &old[i]; b.live != 0 {
			t.blocks[t.slot(b.of*blockLen, b.owner)] = *b
		}
	}
}

// remove takes a number from the entry that has it, and closes the gap that an
// empty block leaves.
func (t *serials) remove(number uint64, owner int32) {
	gap := t.slot(number, owner)
	b := &t.blocks[gap]
	b.at[number%blockLen] = 0
	b.live--
	t.n--
	if b.live > 0 {
		return
	}
	t.used--
	for next := t.after(gap); t.blocks[next].live != 0; next = t.after(next) {
		if b := &t.blocks[next]; closes(gap, next, t.home(b.of, b.owner), len(t.blocks)) {
			t.blocks[gap] = *b
			*b = block{}
			gap = next
		}
	}
}
