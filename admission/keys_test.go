package admission

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyWithHash makes different keys with one hash.
func keyWithHash(hash uint32, n uint64) (k Key) {
	inverse := uint64(spread)
	for range 5 {
		inverse *= 2 - spread*inverse // Newton's: twice as many bits are right each time
	}
	binary.LittleEndian.PutUint64(k[8:], n)
	binary.LittleEndian.PutUint64(k[:8], (uint64(hash)<<32*inverse)^bits.RotateLeft64(n, 31))
	return k
}

// TestKeys compares with a map: keys that come, change hands and go, few of their
// hashes different, so that groups overflow into each other and tags are those of
// other keys; or so many that the table grows.
func TestKeys(t *testing.T) {
	for name, test := range map[string]struct {
		hash  func(n uint32) uint32
		most  int
		steps int
	}{
		"apart":      {func(n uint32) uint32 { return n * 0x9E3779B1 }, 5_000, 40_000},
		"few hashes": {func(n uint32) uint32 { return n % 7 * 0x0100_0001 }, 150, 20_000},
		"tag 1":      {func(n uint32) uint32 { return n % 3 << 24 }, 40, 20_000},                  // beside free places, whose tag is 0
		"two homes":  {func(n uint32) uint32 { return n * 0x9E3779B1 & 0xFF00_0001 }, 38, 20_000}, // in a table that never grows
		"one hash":   {func(uint32) uint32 { return 0xFFFF_FFFF }, 2*many + 50, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			s, rng := empty(), rand.New(rand.NewPCG(3, 4))
			var known []Key // and who owns them
			owner := map[Key]int32{}
			enter := func(k Key) {
				i := s.q.alloc()
				s.q.entries[i] = entry{key: k, place: none, waits: none}
				s.own(i)
				owner[k] = i
			}
			leave := func(k Key) {
				s.disinherit(owner[k])
				s.q.release(owner[k])
				delete(owner, k)
			}
			for step := range test.steps {
				grows := rng.IntN(100) < 50+10*(1-step/(test.steps/4)%2*2)
				switch at := 0; {
				case len(known) == 0 || grows && len(known) < test.most:
					k := keyWithHash(test.hash(uint32(step)), uint64(step))
					enter(k)
					known = append(known, k)
				case rng.IntN(4) == 0:
					// The old entry goes on beside the new one, for a while.
					at = rng.IntN(len(known))
					old := owner[known[at]]
					s.disinherit(old)
					enter(known[at])
					require.Equal(t, owner[known[at]], s.byKey(&known[at]), "step %d: the entry beside", step)
					s.q.release(old)
				default:
					at = rng.IntN(len(known)) / (1 + rng.IntN(20)) // old ones most
					k := known[at]
					leave(k)
					known[at] = known[len(known)-1]
					known = known[:len(known)-1]
					require.Equal(t, none, s.byKey(&k), "step %d: it has gone", step)
				}
				if len(known) > 0 {
					k := known[rng.IntN(len(known))]
					require.Equal(t, owner[k], s.byKey(&k), "step %d", step)
				}
				other := keyWithHash(test.hash(uint32(step)), 1<<40)
				require.Equal(t, none, s.byKey(&other), "step %d: a key that never came", step)
			}
			for _, k := range known {
				require.Equal(t, owner[k], s.byKey(&k))
				leave(k)
				require.Equal(t, none, s.byKey(&k))
			}
			table := &s.names.keys
			table.writeFreed()
			require.Zero(t, table.used)
			for _, g := range table.groups {
				require.Zero(t, g.tags)
				if g.over != many {
					require.Zero(t, g.over)
				}
			}
		})
	}
}

// TestGroup compares a look at all tags at once with one at each.
func TestGroup(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 100_000 {
		var g group
		for i := range g.tags {
			g.tags[i] = uint8(rng.IntN(1 + rng.IntN(256)))
		}
		g.over = uint8(rng.IntN(256))
		tag := uint8(rng.IntN(4))
		have := map[uint32]bool{}
		found := g.find(tag)
		if found != 0 {
			require.Equal(t, tag, g.tags[first(found)], "the first of %v", g.tags)
		}
		for ; found != 0; found &= found - 1 {
			require.Less(t, first(found), uint32(groupLen))
			have[first(found)] = true
		}
		for i, is := range g.tags {
			require.False(t, is == tag && !have[uint32(i)], "place %d of %v hasn't %d", i, g.tags, tag)
		}
	}
}

// TestKeysOverflowAround makes a table all of whose groups have keys behind them. A
// look-up of another key still comes to an end.
func TestKeysOverflowAround(t *testing.T) {
	s, n := empty(), uint64(0)
	in := map[uint32][]int32{} // by home
	add := func(home uint32, keys int) {
		for range keys {
			n++
			i := s.q.alloc()
			s.q.entries[i] = entry{key: keyWithHash(home, n), place: none, waits: none}
			s.own(i)
			in[home] = append(in[home], i)
		}
	}
	thin := func(home uint32, keys int) {
		for _, i := range in[home][:keys] {
			s.disinherit(i)
			s.q.release(i)
		}
		in[home] = in[home][keys:]
	}
	add(0, 2*groupLen+5) // two groups, and five keys in a third
	thin(0, 2*groupLen-1)
	s.names.keys.writeFreed()
	add(2, groupLen-4) // one more than the five leave room for
	s.names.keys.writeFreed()
	add(3, groupLen) // the one that was too many is there already
	groups := s.names.keys.groups
	require.Len(t, groups, leastGroups, "it grew")
	for at := range groups {
		require.NotZero(t, groups[at].over, "group %d", at)
	}
	for home := range uint32(leastGroups) {
		other := keyWithHash(home, 1<<40)
		require.Equal(t, none, s.byKey(&other))
		for _, i := range in[home] {
			require.Equal(t, i, s.byKey(&s.q.entries[i].key))
		}
	}
}
