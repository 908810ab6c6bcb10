package admission

import (
	"math/rand/v2"
	"testing"
)

// TestSerials compares with a map. Few owners with long and with scattered
// numbers make blocks that fill, empty and stand in each other's way.
func TestSerials(t *testing.T) {
	type name struct {
		number uint64
		owner  int32
	}
	rng := rand.New(rand.NewPCG(1, 2))
	table, want := newNames(0).numbers, map[name]int32{}
	next := [4]uint64{1, 1 << 20, 1 << 40, 0}
	var known []name
	for step := range 200_000 {
		if owner := int32(rng.IntN(len(next))); len(known) == 0 || rng.IntN(100) < 50+step/10_000%2*8-4 {
			n := name{next[owner], owner}
			next[owner] += 1 + uint64(rng.IntN(2)*rng.IntN(40))
			table.put(n.number, n.owner, int32(step))
			want[n] = int32(step)
			known = append(known, n)
		} else {
			i := rng.IntN(len(known)) / (1 + rng.IntN(20)) // old ones most
			n := known[i]
			known[i] = known[len(known)-1]
			known = known[:len(known)-1]
			table.remove(n.number, n.owner)
			delete(want, n)
			if got := table.find(n.number, n.owner); got != none {
				t.Fatalf("step %d: %v is still there: %d", step, n, got)
			}
		}
		if len(known) > 0 {
			n := known[rng.IntN(len(known))]
			if got := table.find(n.number, n.owner); got != want[n] {
				t.Fatalf("step %d: %v is %d, want %d", step, n, got, want[n])
			}
		}
	}
	for n, i := range want {
		if got := table.find(n.number, n.owner); got != i {
			t.Fatalf("%v is %d, want %d", n, got, i)
		}
		table.remove(n.number, n.owner)
	}
	if table.n != 0 || table.used != 0 {
		t.Fatalf("%d numbers and %d blocks are left", table.n, table.used)
	}
	for i := range table.blocks {
		if b := table.blocks[i]; b.live != 0 || b.at != ([blockLen]int32{}) {
			t.Fatalf("block %d isn't empty: %v", i, b)
		}
	}
}
