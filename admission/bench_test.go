package admission

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// testEpoch is where time begins in the tests.
const testEpoch = Instant(1_750_000_000_000_000_000)

// waiting returns a gate with a full cap and n tickets in the queue.
func waiting(b *testing.B, n int, limits Limits) (s *Scheduler, h HolderRef) {
	b.Helper()
	limits.MaxInFlight, limits.MaxQueue, limits.MaxHold = 8, MaxQueueBound, MaxDuration
	s, err := New(testEpoch, limits, Options{Unbounded: true})
	if err != nil {
		b.Fatal(err)
	}
	if h, err = s.Register(testEpoch, "holder", 1); err != nil {
		b.Fatal(err)
	}
	for i := range n + 8 {
		if err := s.Acquire(testEpoch, h, request(uint64(i+1))); err != nil {
			b.Fatal(err)
		}
	}
	s.Advance(testEpoch)
	return s, h
}

func request(number uint64) Request {
	r := Request{Number: number, Label: "summaries/42/7", Attempt: 1, Weight: 1}
	// Keys are hashes: all their bits vary.
	binary.LittleEndian.PutUint64(r.Key[:8], number*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(r.Key[8:], number*0xC2B2AE3D27D4EB4F)
	return r
}

// BenchmarkSteadyState measures one acquire, one admission and one release, the
// notice confirmed, at a full cap with so many tickets waiting. Acquires come
// eight at a time, as an exchange brings several.
func BenchmarkSteadyState(b *testing.B) {
	for _, n := range []int{10, 1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			s, h := waiting(b, n, Limits{})
			leases := make([]uint64, 0, 16) // in use, oldest first
			for _, notice := range s.Notices(h) {
				leases = append(leases, notice.Lease)
			}
			s.Confirm(h, uint64(len(leases)))
			number := uint64(n + 8)
			now := testEpoch
			at := 0
			requests := make([]Request, len(leases))
			runtime.GC() // what filling the queue left behind is no part of a step
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				now += 1000
				if at == 0 {
					for i := range requests {
						number++
						requests[i] = request(number)
					}
					s.acquireAll(now, h, requests)
				}
				s.Release(now, h, leases[at], 0, Feedback{Asked: -1})
				s.Advance(now)
				notices := s.Notices(h)
				leases[at] = notices[0].Lease
				at = (at + 1) % len(leases)
				s.Confirm(h, notices[0].N)
			}
			b.StopTimer()
			if left := (len(requests) - at) % len(requests); s.queued != n+left || s.Counters.Releases != uint64(b.N) {
				b.Fatalf("%d in the queue instead of %d, %d releases instead of %d", s.queued, n+left, s.Counters.Releases, b.N)
			}
		})
	}
}

// BenchmarkSnapshot writes and reads back a gate with 10,000 tickets.
func BenchmarkSnapshot(b *testing.B) {
	s, _ := waiting(b, 10_000-8, Limits{Budgets: []Budget{{Unit: "tokens", Rate: Rate{Limit: 90_000, Per: time.Minute, Burst: 90_000}}}})
	data := s.Snapshot(nil)
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			data = s.Snapshot(data[:0])
		}
		b.ReportMetric(float64(len(data)), "bytes")
	})
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := Restore(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
