package admission

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAgesOfTheWholeQueue: they count every present ticket, however few are
// listed, and no parked one.
func TestAgesOfTheWholeQueue(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 10, 11, 250} {
		s, err := New(testEpoch, Limits{MaxInFlight: 1, HolderTTL: time.Hour}, Options{})
		require.NoError(t, err)
		ref, err := s.Register(testEpoch, "a", 1)
		require.NoError(t, err)
		now := testEpoch
		require.NoError(t, s.Acquire(now, ref, request(1_000_000))) // has the only place
		var arrived []Instant
		for i := range n {
			now = now.Add(time.Duration(i%7+1) * time.Second)
			require.NoError(t, s.Acquire(now, ref, request(uint64(i+1))))
			arrived = append(arrived, now)
		}
		if n > 2 {
			s.Park(now, ref, 1, 1)
			arrived = arrived[1:]
		}
		now = now.Add(time.Second)
		s.Advance(now)

		got := s.Status(1).Ages
		require.Equal(t, len(arrived), got.Present, n)
		if len(arrived) == 0 {
			assert.Zero(t, got)
			continue
		}
		slices.SortFunc(arrived, func(a, b Instant) int { return int(b - a) }) // by age, the youngest first
		at := func(percent int) Instant {
			return arrived[max((len(arrived)*percent+99)/100, 1)-1]
		}
		assert.Equal(t, Ages{Present: len(arrived), P50: at(50), P90: at(90), Oldest: at(100)}, got, n)
	}
}

// TestWaitsOfLeases are from arrival to start.
func TestWaitsOfLeases(t *testing.T) {
	s, err := New(testEpoch, Limits{MaxInFlight: 10, Pacing: Rate{Limit: 1, Per: time.Second, Burst: 1}, LookAhead: time.Minute, HolderTTL: time.Hour}, Options{})
	require.NoError(t, err)
	ref, err := s.Register(testEpoch, "a", 1)
	require.NoError(t, err)
	assert.Zero(t, s.Status(0).Waits)
	for i := range 10 {
		require.NoError(t, s.Acquire(testEpoch, ref, request(uint64(i+1))))
	}
	s.Advance(testEpoch)
	require.Len(t, s.Status(100).Leases, 10)
	first := s.Status(1).Leases[0].StartAt.Sub(testEpoch)
	assert.Equal(t, fmt.Sprint(Quantiles{P50: first + 4*time.Second, P90: first + 8*time.Second, Max: first + 9*time.Second}), fmt.Sprint(s.Status(0).Waits))
}
