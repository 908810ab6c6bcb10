package admission

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newTestScheduler(t *testing.T, l Limits, holders ...string) (*Scheduler, []HolderRef) {
	t.Helper()
	s, err := New(testEpoch, l, Options{})
	require.NoError(t, err)
	var refs []HolderRef
	for _, id := range holders {
		h, err := s.Register(testEpoch, id, 1)
		require.NoError(t, err)
		refs = append(refs, h)
	}
	return s, refs
}

func acquire(t *testing.T, s *Scheduler, h HolderRef, number uint64, cost ...UnitCost) {
	t.Helper()
	r := request(number)
	r.Cost = cost
	require.NoError(t, s.Acquire(s.now, h, r))
}

func TestLimitsValidateNamesEveryFault(t *testing.T) {
	err := Limits{
		MaxInFlight: -1, Pacing: Rate{Limit: 1}, MaxQueue: -1, LookAhead: time.Hour,
		Budgets: []Budget{{Unit: "Tokens", Rate: Rate{Limit: 1, Per: time.Second, Burst: 1}}, {Unit: "a"}, {Unit: "a"}},
	}.WithDefaults().Validate()
	for _, want := range []string{"max_in_flight is -1", "requests.per is 0s", "requests.burst is 0", "max_queue is -1", "look_ahead is 1h0m0s", "budgets[0].unit is Tokens", "budgets[2].unit is a; allowed: each unit once"} {
		assert.ErrorContains(t, err, want)
	}
	require.NoError(t, Limits{}.WithDefaults().Validate())
}

// A bucket that takes longer than MaxRefill to fill was accepted.
func TestLimitsRefuseAnEndlessRefill(t *testing.T) {
	l := Limits{Budgets: []Budget{{Unit: "tokens", Rate: Rate{Limit: 1, Per: MaxPer, Burst: 100}}}}
	var fault *LimitError
	require.ErrorAs(t, l.WithDefaults().Validate(), &fault)
	assert.Equal(t, "budgets[0].burst", fault.Field)
}

func TestMisuseIsAnErrorValue(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{}, "a")
	acquire(t, s, refs[0], 1)
	assert.ErrorIs(t, s.Acquire(testEpoch, refs[0], request(1)), ErrNumberTaken)
	assert.ErrorIs(t, s.Acquire(testEpoch, refs[0], request(0)), ErrNumberTaken)
	assert.ErrorIs(t, s.Acquire(testEpoch, 7, request(2)), ErrUnknownHolder)
	_, err := s.Register(testEpoch, "a", 0)
	assert.ErrorIs(t, err, ErrOldGeneration)
	_, err = s.Register(testEpoch, strings.Repeat("x", MaxHolderID+1), 1)
	assert.ErrorIs(t, err, ErrHolderID)
	_, err = New(testEpoch, Limits{}, Options{Rules: 99})
	var unknown *UnknownRulesError
	assert.ErrorAs(t, err, &unknown)
	_, err = Restore([]byte("nonsense"))
	assert.ErrorIs(t, err, ErrBadSnapshot)
	for range 3 * MaxHolders {
		_, err = s.Register(testEpoch, strings.Repeat("x", len(s.holderByID)%200+1)+string(rune('0'+len(s.holderByID))), 1)
		if errors.Is(err, ErrTooManyHolders) {
			return
		}
	}
	t.Fatal("the number of holders has no bound")
}

// TestTheEndOfTime: at Never all has ended, and nothing more happens.
func TestTheEndOfTime(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{MaxInFlight: 1}, "a")
	acquire(t, s, refs[0], 1)
	acquire(t, s, refs[0], 2)
	s.Advance(testEpoch)
	for range 2 {
		s.Advance(Never)
		assert.Equal(t, Never, s.NextWake())
		assert.Zero(t, s.leased())
	}
}

// Parking a ticket whose lease has to go, because a later attempt already stands
// in the queue, corrupted the slab.
func TestParkOfALeaseThatWasSuperseded(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{MaxInFlight: 1}, "a", "b")
	acquire(t, s, refs[0], 1)
	s.Advance(testEpoch)
	later := request(1)
	later.Number, later.Attempt = 9, 2
	require.NoError(t, s.Acquire(testEpoch, refs[1], later))
	s.Park(testEpoch, refs[0], 1, 1)
	s.Advance(testEpoch)
	require.Len(t, s.Notices(refs[1]), 1)
	assert.Equal(t, NoticeGrant, s.Notices(refs[1])[0].Kind)
	assert.Zero(t, s.parked)
}

// A refused acquire took the key away from the lease that goes on.
func TestRefusedAcquireLeavesTheLeaseItsKey(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{MaxInFlight: 2}, "a")
	acquire(t, s, refs[0], 1)
	s.Advance(testEpoch)
	again := request(1)
	again.Number, again.Attempt, again.Weight = 2, 2, 3
	require.NoError(t, s.Acquire(testEpoch, refs[0], again))
	assert.NotEqual(t, none, s.byKey(&again.Key))
}

// A unit listed twice in what was used was given back twice.
func TestSettleCountsAUnitOnce(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{Budgets: []Budget{{Unit: "tokens", Rate: Rate{Limit: 1, Per: time.Hour, Burst: 10}}}}, "a")
	acquire(t, s, refs[0], 1, UnitCost{"tokens", 4})
	acquire(t, s, refs[0], 2, UnitCost{"tokens", 6})
	s.Advance(testEpoch)
	s.Release(testEpoch, refs[0], s.Notices(refs[0])[0].Lease, 0, Feedback{Actual: []UnitCost{{"tokens", 1}, {"tokens", 2}}})
	assert.Equal(t, 9*time.Hour, time.Duration(s.budgets[0].lack(testEpoch, s.limits.Budgets[0].Rate).ns))
}

// One absurd report of what was used put the gate out of work for years.
func TestDebtOfOneAttemptIsBounded(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{Budgets: []Budget{{Unit: "tokens", Rate: Rate{Limit: 10, Per: time.Second, Burst: 10}}}}, "a")
	acquire(t, s, refs[0], 1, UnitCost{"tokens", 1})
	s.Advance(testEpoch)
	s.Release(testEpoch, refs[0], s.Notices(refs[0])[0].Lease, 0, Feedback{Actual: []UnitCost{{"tokens", 1 << 62}}})
	assert.LessOrEqual(t, s.budgets[0].lack(testEpoch, s.limits.Budgets[0].Rate).ns, int64(11*time.Second))
}

// A stale release told of a success long ago ended a streak.
func TestStaleReleaseTeachesOverloadsOnly(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{MaxCooldown: time.Minute, FallbackCooldown: time.Second}, "a")
	acquire(t, s, refs[0], 1)
	s.Advance(testEpoch)
	s.Release(testEpoch, refs[0], s.Notices(refs[0])[0].Lease, 0, Feedback{Outcome: OutcomeOverload, Asked: -1})
	s.Release(testEpoch, refs[0], 12345, 0, Feedback{Outcome: OutcomeSuccess, StartedAt: Never})
	assert.EqualValues(t, 1, s.cool.streak)
	s.Release(testEpoch, refs[0], 12345, 0, Feedback{Outcome: OutcomeOverload, Asked: 5 * time.Second})
	assert.Equal(t, testEpoch.Add(5*time.Second), s.cool.until)
}

// The wait of a holder that was lost was never ended.
func TestLostHolderIsAmongTheWoken(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{}, "a", "b")
	assert.Empty(t, s.TakeWoken(nil))
	require.NoError(t, s.Unregister(testEpoch, refs[0]))
	assert.Equal(t, []string{"a", "b"}, s.TakeWoken(nil))
	assert.Empty(t, s.TakeWoken(nil))
}

// An open wait counts as coming back, and so do four of them at most.
func TestWaits(t *testing.T) {
	s, _ := newTestScheduler(t, Limits{MaxInFlight: 1, LookAhead: -1})
	ids := []string{"a", "b", "c", "d", "e", "f", "g"}
	may := map[string]bool{}
	for _, id := range ids {
		may[id] = s.Apply(testEpoch, &Exchange{Holder: id, Generation: 1, Seq: 1, Acquire: []Request{keyed(id)}}).MayWait
	}
	// a has the lease; b to e are next in line.
	assert.Equal(t, map[string]bool{"a": false, "b": true, "c": true, "d": true, "e": true, "f": false, "g": false}, may)
	h, _ := s.HolderByID("b")
	s.Advance(testEpoch.Add(2 * time.Second))
	s.SetWaiting(h, true)
	s.Advance(testEpoch.Add(4500 * time.Millisecond))
	assert.True(t, s.present(int32(h), s.now), "its wait began two and a half seconds ago")
	s.Advance(testEpoch.Add(5 * time.Second))
	assert.False(t, s.present(int32(h), s.now))
}

// Those who were told that they may open a wait count as if they had, so that no
// more do than may; who doesn't open one soon counts no longer. Exchanges leave the
// waits their places among the updates in flight.
func TestInvitedWaits(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{MaxInFlight: 1}, "lease", "a", "b", "c", "d", "e", "f")
	now, seq := testEpoch, map[string]uint64{}
	exchange := func(id string, x Exchange) Answer {
		seq[id]++
		x.Holder, x.Generation, x.Seq = id, 1, seq[id]
		return s.Apply(now, &x)
	}
	for _, id := range []string{"lease", "a", "b", "c", "d", "e", "f"} {
		exchange(id, Exchange{Acquire: []Request{keyed(id)}})
	}
	require.Equal(t, 4, s.openWaits(now))
	assert.EqualValues(t, 1, s.exchangesAimedAt(now), "beside four waits")
	for i, id := range []string{"a", "b", "c", "d"} {
		assert.True(t, s.MayWait(refs[i+1]), id)
	}
	assert.False(t, s.MayWait(refs[5]), "four are about to wait")

	s.SetWaiting(refs[1], true)
	now = now.Add(inviteFor)
	require.Equal(t, 1, s.openWaits(now), "three didn't come")
	s.Cancel(now, refs[2], 1, 1)
	assert.True(t, exchange("e", Exchange{}).MayWait, "in the place of b, who left the queue")
	assert.EqualValues(t, 2, s.exchangesAimedAt(now), "beside two waits")
}

// TestAsk: who asks for a wait that it may not open is told when to come again, which
// is when it may, not when its turn is. Its question counts as a visit and as one of
// the crowd's messages. Under rules 2 it changed nothing.
func TestAsk(t *testing.T) {
	s, _ := newTestScheduler(t, Limits{MaxInFlight: 1, HolderTTL: time.Hour})
	now := testEpoch
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		s.Apply(now, &Exchange{Holder: id, Generation: 1, Seq: 1, Acquire: []Request{keyed(id)}})
	}
	s.releaseGap = 100 * time.Millisecond
	old, err := Restore(s.SnapshotUnder(2, nil))
	require.NoError(t, err)
	now = now.Add(10 * time.Millisecond)

	f, _ := s.HolderByID("f")
	a := s.Ask(now, f)
	assert.False(t, a.MayWait, "b to e stand before it")
	assert.Equal(t, now.Add(125*time.Millisecond), a.ComeAgain, "when three stand before it")
	assert.Equal(t, s.traffic.lastSlot, a.NotBefore)
	assert.EqualValues(t, 1, s.traffic.together)
	assert.True(t, s.present(int32(f), a.ComeAgain.Add(PresenceGrace)-1))
	assert.False(t, s.present(int32(f), a.ComeAgain.Add(PresenceGrace)))

	e, _ := s.HolderByID("e")
	assert.True(t, s.Ask(now, e).MayWait, "b to d stand before it")

	f, _ = old.HolderByID("f")
	before := old.Snapshot(nil)
	assert.Equal(t, testEpoch.Add(425*time.Millisecond), old.promise(int32(f), testEpoch, testEpoch), "when it is the first")
	assert.NotEqual(t, now.Add(125*time.Millisecond), old.Ask(now, f).ComeAgain)
	assert.Equal(t, before, old.Snapshot(nil))

	assert.True(t, s.Ask(now, 99).Resync, "an unknown holder")
}

// TestCrowd: the more exchanges a crowd's gate takes in at one instant, the wider the
// gaps between its slots and the fewer waits may be open; both come back soon, also
// where few exchanges come, and go on in the next run. What is refused bounds how
// many it aims at: where nothing is, that grows.
func TestCrowd(t *testing.T) {
	s, refs := newTestScheduler(t, Limits{MaxInFlight: 1, HolderTTL: time.Hour}, "a", "b", "c", "d", "e", "f", "g")
	now, seq := testEpoch, uint64(0)
	task := func(exchanges int, refused uint32) (gap time.Duration) {
		now = now.Add(10 * time.Millisecond)
		var slot Instant
		for range exchanges {
			seq++
			before := slot
			slot = s.Apply(now, &Exchange{Holder: "a", Generation: 1, Seq: seq, RefusedBefore: refused}).NotBefore
			gap = slot.Sub(before)
		}
		return gap
	}
	task(1, 1)
	for range 30 {
		task(2, 0)
	}
	assert.Equal(t, minGap, task(3, 0), "three at a time are what it aims at")
	assert.Equal(t, 2, s.waitsAllowed())
	for range 10 {
		task(8, 0)
	}
	wide := task(8, 0)
	assert.Greater(t, wide, 20*minGap)
	assert.Equal(t, 0, s.waitsAllowed())

	restored, err := Restore(s.Snapshot(nil))
	require.NoError(t, err)
	assert.Equal(t, s.traffic, restored.traffic, "in the next run")

	for range 150 {
		task(1, 0)
	}
	assert.Less(t, task(2, 0), wide/20)
	assert.Equal(t, 4, s.waitsAllowed())

	grow := func() (took time.Duration) {
		from := now
		for s.traffic.window() <= 10 {
			task(10, 0)
		}
		return now.Sub(from)
	}
	first := grow()
	assert.Less(t, first, minPatience, "the refusal was some seconds ago")
	assert.EqualValues(t, 5, s.exchangesAimedAt(now))
	task(1, 1)
	assert.Equal(t, 8, s.traffic.window())
	second := grow()
	assert.Greater(t, second, 2*minPatience, "not again soon")
	task(1, 1)
	assert.Greater(t, grow(), 4*minPatience)
	for range 2000 {
		task(40, 0)
	}
	assert.Equal(t, maxFlight, s.traffic.window())

	require.NoError(t, s.Unregister(now, refs[6]))
	assert.Zero(t, s.slot(now).Sub(now), "no crowd, no slots")
}

func keyed(id string) Request {
	r := Request{Number: 1, Attempt: 1, Label: id}
	copy(r.Key[:], id)
	return r
}

// A full gate's snapshot stays far below Temporal's limit of 2 MiB on a payload,
// whatever tickets, waits, budgets and unconfirmed notices it is full of.
func TestStateBound(t *testing.T) {
	l := Limits{MaxQueue: MaxQueueBound, MaxCooldown: time.Minute, LookAhead: -1}
	for b := range MaxBudgets {
		l.Budgets = append(l.Budgets, Budget{Unit: "unit" + string(rune('a'+b)), Rate: Rate{Limit: 1000, Per: time.Second, Burst: 1 << 30}})
	}
	for name, most := range map[string]int64{"queued": 1, "leased": MaxInFlightBound} {
		t.Run(name, func(t *testing.T) {
			l.MaxInFlight = most
			s, refs := newTestScheduler(t, l, "a")
			now := testEpoch
			for n := uint64(1); s.Counters.Refusals[RefusedQueueFull] < 100; n++ {
				r := request(n)
				r.Label = strings.Repeat("x", MaxLabel)
				r.Deadline = now.Add(100 * time.Hour)
				for _, b := range l.Budgets {
					r.Cost = append(r.Cost, UnitCost{b.Unit, 100_000})
				}
				require.NoError(t, s.Acquire(now, refs[0], r))
				if n%64 == 0 {
					now += 987_654
					s.Advance(now)
				}
			}
			size := len(s.Snapshot(nil))
			t.Logf("%d tickets, %d leases: %d bytes", s.queued, s.leased(), size)
			assert.Less(t, size, 1_800_000)
			assert.Greater(t, size, 700_000, "the bound is not needlessly tight")
		})
	}
}

// TestNextRules: a new run keeps rules that every live holder can host.
func TestNextRules(t *testing.T) {
	s, err := New(testEpoch, Limits{}, Options{})
	require.NoError(t, err)
	require.Equal(t, NewestRules, s.NextRules(), "nobody is there to ask")

	exchange := func(id string, generation uint64, rules Rules) {
		require.False(t, s.Apply(testEpoch, &Exchange{Holder: id, Generation: generation, Seq: 1, Rules: rules}).Resync)
	}
	exchange("new", 1, NewestRules+7)
	require.Equal(t, NewestRules, s.NextRules())
	exchange("old", 1, OldestRules)
	require.Equal(t, OldestRules, s.NextRules())
	exchange("old", 2, NewestRules)
	require.Equal(t, NewestRules, s.NextRules(), "it was rolled out")
	exchange("silent", 1, 0)
	require.Equal(t, OldestRules, s.NextRules(), "it never said")

	// The old rules come with the layout that old programs read, and back.
	back, err := Restore(s.SnapshotUnder(s.NextRules(), nil))
	require.NoError(t, err)
	require.Equal(t, OldestRules, back.Rules())
	require.Equal(t, OldestRules, back.NextRules(), "what holders said is not in the old layout")
	again, err := Restore(back.SnapshotUnder(NewestRules, nil))
	require.NoError(t, err)
	require.Equal(t, NewestRules, again.Rules())
}
