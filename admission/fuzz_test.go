package admission

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// busy returns a gate with something of everything in its state.
func busy(t testing.TB) *Scheduler {
	s, err := New(testEpoch, Limits{
		MaxInFlight: 3, Pacing: Rate{Limit: 7, Per: time.Second, Burst: 1}, MaxCooldown: time.Minute, FallbackCooldown: time.Second,
		Budgets: []Budget{{Unit: "tokens", Rate: Rate{Limit: 60, Per: time.Minute, Burst: 60}}},
	}, Options{})
	require.NoError(t, err)
	now := testEpoch
	for i, id := range []string{"a", "b", "c"} {
		x := &Exchange{Holder: id, Generation: 1, Seq: 1, RoundTrip: 3 * time.Millisecond}
		for n := range 3 {
			r := request(uint64(n + 1))
			r.Key[15] = byte(i)
			r.Cost = []UnitCost{{Unit: "tokens", N: 5}}
			r.Deadline = now + Instant(n)*Instant(time.Minute)
			x.Acquire = append(x.Acquire, r)
		}
		s.Apply(now, x)
		now += Instant(time.Second)
	}
	a, _ := s.HolderByID("a")
	s.Release(now, a, s.Notices(a)[0].Lease, 0, Feedback{Outcome: OutcomeOverload, Asked: -1, Actual: []UnitCost{{Unit: "tokens", N: 1}}})
	s.Park(now, a, 2, 1)
	s.NextWake()
	return s
}

// exercise lets a scheduler live on and checks that it keeps its bounds.
func exercise(t *testing.T, s *Scheduler) {
	now := s.now
	for step := range 20 {
		s.Advance(now)
		if wake := s.NextWake(); wake <= s.now && wake != Never {
			t.Fatalf("next wake %v is not after %v", wake, s.now)
		}
		before := s.Counters.Admissions
		a := s.Apply(now, &Exchange{Holder: "fuzz", Generation: 1, Seq: uint64(step + 1), Acquire: []Request{request(uint64(step + 1))}})
		if most := s.limits.MaxInFlight; most > 0 && s.Counters.Admissions > before && s.inUse > most {
			t.Fatalf("in use %d, cap %d", s.inUse, s.limits.MaxInFlight)
		}
		for _, n := range a.Notices {
			if n.Kind == NoticeGrant {
				h, _ := s.HolderByID("fuzz")
				s.HandBack(now, h, n.Lease, true)
				break
			}
		}
		data := s.Snapshot(nil)
		restored, err := Restore(data)
		if err != nil {
			t.Fatalf("a snapshot is not restored: %v", err)
		}
		if again := restored.Snapshot(nil); !bytes.Equal(data, again) {
			t.Fatalf("a restored snapshot differs:\n%x\n%x", data, again)
		}
		now = s.now.Add(700 * time.Millisecond)
	}
}

// sane reports whether the state's time is one that a clock can show. A gate
// whose time is the end of all time need not work well, only not panic.
func sane(s *Scheduler) bool { return s.now > 0 && s.now < testEpoch*2 }

// FuzzRestore feeds Restore with bytes: it never panics, and what it restores
// lives on.
func FuzzRestore(f *testing.F) {
	f.Add([]byte{})
	f.Add(busy(f).Snapshot(nil))
	empty, err := New(testEpoch, Limits{}, Options{})
	require.NoError(f, err)
	f.Add(empty.Snapshot(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Restore(data)
		if err != nil || len(s.q.entries) > 10_000 {
			return
		}
		if sane(s) {
			exercise(t, s)
		} else {
			s.Advance(s.now)
			s.NextWake()
		}
	})
}

// FuzzApply feeds a gate with hostile exchanges made from bytes: it never
// panics, and the bounds hold.
func FuzzApply(f *testing.F) {
	f.Add([]byte("an exchange that makes little sense, but has some length to it"))
	f.Add(bytes.Repeat([]byte{1, 0, 2, 0xFF}, 40))
	f.Add(bytes.Repeat([]byte{0xFF}, 200))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := busy(t)
		in := &bytesReader{data: data}
		now := s.now
		for len(in.data) > 0 {
			before := s.Counters.Admissions
			s.Apply(now, in.exchange())
			// Presented leases may exceed the cap; admissions come last, and may not.
			if s.Counters.Admissions > before && s.inUse > s.limits.MaxInFlight {
				t.Fatalf("admitted to %d in use, cap %d", s.inUse, s.limits.MaxInFlight)
			}
			if s.cool.until > s.now.Add(s.limits.MaxCooldown) {
				t.Fatalf("cooldown until %v, now %v", s.cool.until, s.now)
			}
			if s.queued > s.limits.MaxQueue || len(s.holderByID) > MaxHolders {
				t.Fatalf("%d queued, %d holders", s.queued, len(s.holderByID))
			}
			now += Instant(in.uint() % uint64(10*time.Second))
		}
		exercise(t, s)
	})
}

// bytesReader makes values from bytes, small ones and extreme ones.
type bytesReader struct{ data []byte }

func (in *bytesReader) byte() byte {
	if len(in.data) == 0 {
		return 0
	}
	b := in.data[0]
	in.data = in.data[1:]
	return b
}

func (in *bytesReader) uint() uint64 {
	switch b := in.byte(); {
	case b < 200:
		return uint64(b % 8)
	case b < 230:
		return uint64(testEpoch) + uint64(b)*uint64(time.Second)
	case b < 250:
		return uint64(testEpoch)/1000 + uint64(in.byte()%8)
	default:
		var raw [8]byte
		copy(raw[:], in.data)
		in.data = in.data[min(8, len(in.data)):]
		return binary.LittleEndian.Uint64(raw[:])
	}
}

func (in *bytesReader) list(do func()) {
	for range in.byte() % 4 {
		do()
	}
}

func (in *bytesReader) costs() (costs []UnitCost) {
	in.list(func() {
		costs = append(costs, UnitCost{Unit: []string{"tokens", "images", "", "TOKENS"}[in.byte()%4], N: int64(in.uint())})
	})
	return costs
}

func (in *bytesReader) request() Request {
	r := request(in.uint())
	r.Key = Key{in.byte() % 4, 15: in.byte() % 4}
	r.Label = string(bytes.Repeat([]byte("\u20ac"), int(in.byte())))
	r.Attempt, r.Weight, r.Cost = int32(in.uint()), int64(in.uint()), in.costs()
	r.Deadline, r.Hold = Instant(in.uint()), Hold(in.byte())
	return r
}

func (in *bytesReader) exchange() *Exchange {
	x := &Exchange{
		Holder: []string{"a", "b", "c", "d", ""}[in.byte()%5], Generation: in.uint(), Seq: in.uint(), Confirmed: in.uint(),
		Resync: in.byte()%2 == 1, CooldownUntil: Instant(in.uint()), LastStart: Instant(in.uint()),
		RefusedBefore: uint32(in.uint()), RoundTrip: time.Duration(in.uint()),
	}
	in.list(func() {
		x.Present = append(x.Present, Present{Request: in.request(), Lease: in.uint(), Generation: uint32(in.uint()), StartAt: Instant(in.uint())})
	})
	in.list(func() { x.Acquire = append(x.Acquire, in.request()) })
	in.list(func() {
		x.Cancel = append(x.Cancel, Cancel{Ticket: in.uint(), Attempt: int32(in.uint()), Park: in.byte()%2 == 1})
	})
	in.list(func() { x.HandBack = append(x.HandBack, HandBack{Lease: in.uint(), Late: in.byte()%2 == 1}) })
	in.list(func() {
		x.Release = append(x.Release, Release{Lease: in.uint(), Generation: uint32(in.uint()), Feedback: Feedback{
			Outcome: Outcome(in.byte()), Asked: time.Duration(in.uint()), Source: string(x.Holder), Actual: in.costs(), StartedAt: Instant(in.uint()),
		}})
	})
	in.list(func() { x.Ask = append(x.Ask, in.uint()) })
	return x
}
