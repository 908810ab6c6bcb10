package workflows

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// The moments at which systems of this kind lose a lease or give one twice, each
// with skipped time. docs/failures.md names them.

// nextRun is the run that follows, as long after the end of this one.
func (g *gateTest) nextRun(after time.Duration) *gateTest {
	g.t.Helper()
	next := newGateTest(g.t, g.policy)
	next.start, next.seq = g.next(), g.seq
	next.SetStartTime(g.Now().Add(after))
	return next
}

// suggest makes the run continue as new with its next step, which a last
// exchange of the holder brings about.
func (g *gateTest) suggest(holder string) {
	g.SetContinueAsNewSuggested(true)
	g.send(UpdateExchange, g.exchange(holder, nil), func(_ *contract.Answer, err error) { assert.NoError(g.t, err) })
}

// answered sends an exchange that has to be answered.
func (g *gateTest) answered(x *contract.Exchange, then func(*contract.Answer)) {
	g.send(UpdateExchange, x, func(a *contract.Answer, err error) {
		require.NoError(g.t, err)
		then(a)
	})
}

func ignore(*contract.Answer) {}

// leasesOf are the leases of grants.
func leasesOf(a *contract.Answer) (leases []uint64) {
	for _, grant := range a.Grants {
		leases = append(leases, grant.Lease)
	}
	return leases
}

// TestAnUpdateTwiceAroundContinueAsNew: updates are at-least-once; one in flight
// when the run continues as new may be run by both.
func TestAnUpdateTwiceAroundContinueAsNew(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 2})
	x := g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1), acquire(2), acquire(3)} })
	var first []uint64
	g.at(time.Second, func() {
		g.answered(x, func(a *contract.Answer) { first = leasesOf(a) })
		g.suggest("b")
	})
	g.run(time.Minute)
	require.Len(t, first, 2)

	next := g.nextRun(10 * time.Millisecond)
	next.at(time.Millisecond, func() {
		next.answered(x, func(a *contract.Answer) {
			assert.False(t, a.Resync)
			assert.Equal(t, first, leasesOf(a), "the same leases, told again")
		})
	})
	next.run(time.Second)
	st := next.status()
	assert.EqualValues(t, 2, st.Counters.Admissions)
	assert.EqualValues(t, 1, st.Counters.Duplicates)
	assert.Equal(t, 1, st.Queued)
}

// TestACancelRacesTheGrant: the caller left while its grant was on its way.
func TestACancelRacesTheGrant(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	g.at(time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer) { require.Len(t, a.Grants, 1) })
		g.answered(g.exchange("b", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(2)} }), ignore)
	})
	g.at(2*time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Cancel = []*contract.Cancel{{Number: 1, Attempt: 1}} }), ignore)
		g.answered(g.exchange("b", nil), func(a *contract.Answer) { require.Len(t, a.Grants, 1, "the place is free") })
		// And the cancel of a ticket that is gone.
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Cancel = []*contract.Cancel{{Number: 1, Attempt: 1}} }), ignore)
	})
	g.run(3 * time.Second)
	st := g.status()
	assert.EqualValues(t, 1, st.InFlight)
	assert.EqualValues(t, 1, st.Counters.StaleCancels)
}

// TestAZombiesCancel: attempt 1 stopped, attempt 2 has its ticket; what attempt 1
// still says is named and changes nothing.
func TestAZombiesCancel(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	second := acquire(1)
	second.Number, second.Attempt = 7, 2
	g.at(time.Second, func() {
		g.answered(g.exchange("other", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(9)} }), ignore)
		g.answered(g.exchange("zombie", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), ignore)
		g.answered(g.exchange("new", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{second} }), ignore)
	})
	g.at(2*time.Second, func() {
		again := acquire(1)
		again.Number = 2
		g.answered(g.exchange("zombie", func(x *contract.Exchange) {
			x.Cancel = []*contract.Cancel{{Number: 1, Attempt: 1}}
			x.Acquire = []*contract.Acquire{again}
		}), func(a *contract.Answer) {
			require.Len(t, a.Refusals, 2)
			for _, refusal := range a.Refusals {
				assert.Equal(t, contract.RefusalKind_REFUSAL_SUPERSEDED, refusal.Kind)
			}
		})
	})
	g.run(3 * time.Second)
	st := g.status()
	require.Len(t, st.Queue, 1)
	assert.Equal(t, "new", st.Queue[0].Holder)
	assert.EqualValues(t, 2, st.Queue[0].Attempt)
}

// TestAReleaseRacesTheExpiry: the lease outlived max_hold a moment before it was
// given back. Its place is free once, not twice.
func TestAReleaseRacesTheExpiry(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1, MaxHold: 10 * time.Second})
	var lease uint64
	g.at(time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer) { lease = leasesOf(a)[0] })
		g.answered(g.exchange("b", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(2), acquire(3)} }), ignore)
	})
	g.at(10900*time.Millisecond, func() { g.answered(g.exchange("b", nil), ignore) }) // it is there
	g.at(11*time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Release = []*contract.Release{{Lease: lease}} }), func(a *contract.Answer) {
			require.Len(t, a.Revoked, 1)
			assert.Equal(t, contract.RevokeCause_REVOKE_MAX_HOLD, a.Revoked[0].Cause)
		})
	})
	g.run(12 * time.Second)
	st := g.status()
	assert.EqualValues(t, 1, st.InFlight)
	assert.Equal(t, 1, st.Queued)
	assert.EqualValues(t, 1, st.Counters.StaleReleases)
	assert.EqualValues(t, 1, st.Counters.Expired)
}

// TestAPolicyInMidQueue: a worker with a newer revision comes while tickets wait
// that it can never admit. They are refused with both numbers, and the others go
// on in their order.
func TestAPolicyInMidQueue(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 4})
	tighter := g.policy
	tighter.MaxInFlight, tighter.Revision = 2, 2
	body, err := json.Marshal(tighter)
	require.NoError(t, err)
	heavy := func(n uint64, weight int64) *contract.Acquire {
		a := acquire(n)
		a.Weight = weight
		return a
	}
	var lease uint64
	g.at(time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) {
			x.Acquire = []*contract.Acquire{heavy(1, 4), heavy(2, 3), heavy(3, 2)}
		}), func(a *contract.Answer) { lease = leasesOf(a)[0] })
	})
	g.at(2*time.Second, func() {
		g.answered(g.exchange("b", func(x *contract.Exchange) {
			x.Policy = &contract.Policy{Revision: 2, Hash: tighter.Hash(), Body: body}
		}), func(a *contract.Answer) { assert.EqualValues(t, 2, a.Cap) })
		g.answered(g.exchange("a", func(x *contract.Exchange) {
			x.Confirmed = 1
			x.Release = []*contract.Release{{Lease: lease}}
		}), func(a *contract.Answer) {
			require.Len(t, a.Refusals, 1)
			assert.EqualValues(t, 2, a.Refusals[0].Number)
			assert.Equal(t, contract.RefusalKind_REFUSAL_NEVER_ADMISSIBLE, a.Refusals[0].Kind)
			assert.EqualValues(t, 3, a.Refusals[0].Value)
			assert.EqualValues(t, 2, a.Refusals[0].Bound)
			require.Len(t, a.Grants, 1)
			assert.EqualValues(t, 3, a.Grants[0].Number)
		})
	})
	g.run(3 * time.Second)
}

// TestAWorkersClockAnHourOff: a worker's instants are bounded by what the gate
// knows. No cooldown is longer than the policy's bound, no start further ahead
// than the look-ahead, and a wrong started_at harms nobody.
func TestAWorkersClockAnHourOff(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			g := newGateTest(t, policy.Gate{Requests: admission.Rate{Limit: 1, Per: time.Second, Burst: 1}, MaxCooldown: 10 * time.Second, FallbackCooldown: time.Second})
			var lease uint64
			g.at(time.Second, func() {
				theirs := g.Now().Add(off).UnixNano()
				g.answered(g.exchange("a", func(x *contract.Exchange) {
					x.Resync, x.CooldownUntil, x.LastStart = true, theirs, theirs
					x.Acquire = []*contract.Acquire{acquire(1)}
				}), ignore)
			})
			g.at(15*time.Second, func() {
				g.answered(g.exchange("a", nil), func(a *contract.Answer) {
					require.Len(t, a.Grants, 1, "after ten seconds at the latest")
					lease = a.Grants[0].Lease
				})
			})
			g.at(16*time.Second, func() {
				g.answered(g.exchange("a", func(x *contract.Exchange) {
					x.Release = []*contract.Release{{Lease: lease, Outcome: contract.Outcome_OUTCOME_OVERLOAD, StartedAt: g.Now().Add(off).UnixNano()}}
					x.Acquire = []*contract.Acquire{acquire(2)}
				}), func(a *contract.Answer) {
					require.NotNil(t, a.Cooldown)
					assert.EqualValues(t, time.Second, a.Cooldown.Until-a.Now, "the fallback, once")
				})
			})
			g.run(20 * time.Second)
			assert.EqualValues(t, 2, g.status().Counters.Admissions)
		})
	}
}

// TestAHostAwayForTenMinutes: no host ran the workflow for longer than any TTL,
// while the holders went on. They are not taken for dead.
func TestAHostAwayForTenMinutes(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 2, HolderTTL: 10 * time.Second})
	g.at(time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1), acquire(2), acquire(3)} }), ignore)
		g.suggest("b")
	})
	g.run(time.Minute)

	next := g.nextRun(10 * time.Minute)
	next.at(5*time.Second, func() {
		st := next.status()
		assert.Equal(t, 2, st.Started, "the leases are in use still")
		assert.Equal(t, 1, st.Queued)
		assert.Zero(t, st.Parked)
		assert.Zero(t, st.Counters.LostHolders)
	})
	next.at(11*time.Second, func() {
		st := next.status()
		assert.Zero(t, st.Started, "one fresh TTL is over, and nobody came")
		assert.EqualValues(t, 1, st.Counters.LostHolders)
	})
	next.run(12 * time.Second)
}

// present are leases as their holder presents them.
func present(at time.Time, leases ...uint64) (list []*contract.Present) {
	for _, lease := range leases {
		list = append(list, &contract.Present{Ticket: acquire(lease % 1000), Lease: lease, Generation: 1, StartAt: at.UnixNano()})
	}
	return list
}

// TestTerminatedWhileLeasesAreInUse: the new run knows nothing. For one TTL it
// takes what holders present, then it grants what fits beside that.
func TestTerminatedWhileLeasesAreInUse(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 5, HolderTTL: 10 * time.Second})
	g.start.LearnFor = 10 * time.Second
	last := uint64(g.Now().UnixMicro()) / 1000 * 1000
	ids := func(n ...uint64) (leases []uint64) { // as an earlier run would have given them out
		for _, n := range n {
			leases = append(leases, last+n)
		}
		return leases
	}
	g.at(time.Second, func() {
		// Who has nothing to present waits.
		g.answered(g.exchange("b", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(901), acquire(902), acquire(903)} }), func(a *contract.Answer) {
			assert.Empty(t, a.Grants)
		})
		g.seq["a"] = 40 // it exchanged with the run before
		g.answered(g.exchange("a", nil), func(a *contract.Answer) { assert.True(t, a.Resync) })
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Resync, x.Present = true, present(g.Now(), ids(1, 2, 3)...) }), func(a *contract.Answer) {
			assert.False(t, a.Resync)
			assert.EqualValues(t, 3, a.InFlight)
		})
	})
	g.at(9*time.Second, func() {
		g.answered(g.exchange("b", nil), func(a *contract.Answer) { assert.Empty(t, a.Grants, "it learns") })
		// One that was cut off until now.
		g.seq["c"] = 7
		g.answered(g.exchange("c", func(x *contract.Exchange) { x.Resync, x.Present = true, present(g.Now(), ids(4)...) }), func(a *contract.Answer) { assert.EqualValues(t, 4, a.InFlight) })
		g.answered(g.exchange("a", nil), ignore)
	})
	g.at(11*time.Second, func() {
		g.answered(g.exchange("b", nil), func(a *contract.Answer) {
			require.Len(t, a.Grants, 1, "four of five places are taken")
			assert.EqualValues(t, 901, a.Grants[0].Number)
			assert.Greater(t, a.Grants[0].Lease, ids(4)[0], "no lease ID is given twice")
			require.Len(t, a.Grants[0].Reasons, 2)
			assert.Equal(t, "learning", a.Grants[0].Reasons[1].Reason)
		})
	})
	g.run(12 * time.Second)
	assert.EqualValues(t, 5, g.status().InFlight)
}

// TestResetWhileLeasesAreInUse: the state goes back to an earlier point of the
// history. Its counter tells the holders, who present what they have since.
func TestResetWhileLeasesAreInUse(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 5})
	var early *contract.Answer
	g.at(time.Second, func() {
		g.answered(g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer) { early = a })
		g.suggest("b")
	})
	g.run(time.Minute)
	point := g.nextRun(0).start // the point that an operator resets to

	later := g.nextRun(0)
	late := &contract.Answer{}
	later.at(time.Second, func() {
		later.answered(later.exchange("a", func(x *contract.Exchange) {
			x.Confirmed = early.Notice
			for n := uint64(2); n <= 5; n++ {
				x.Acquire = append(x.Acquire, acquire(n))
			}
		}), func(a *contract.Answer) { late = a })
	})
	later.run(2 * time.Second)
	require.Len(t, late.Grants, 4)

	reset := newGateTest(t, g.policy)
	reset.start, reset.seq = point, later.seq
	reset.SetStartTime(later.Now())
	reset.at(time.Second, func() {
		reset.answered(reset.exchange("a", nil), func(a *contract.Answer) {
			assert.True(t, a.Resync, "it missed an exchange")
			assert.Less(t, a.StateCounter, late.StateCounter)
		})
		reset.answered(reset.exchange("a", func(x *contract.Exchange) {
			x.Resync = true
			for _, grant := range slices.Concat(early.Grants, late.Grants) {
				x.Present = append(x.Present, &contract.Present{Ticket: acquire(grant.Number), Lease: grant.Lease, Generation: grant.Generation, StartAt: grant.StartAt})
			}
		}), func(a *contract.Answer) { assert.EqualValues(t, 5, a.InFlight) })
		reset.answered(reset.exchange("b", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(60)} }), func(a *contract.Answer) {
			assert.Empty(t, a.Grants, "all places are taken")
		})
	})
	reset.run(2 * time.Second)
}

// TestHostileMessages: what can be decoded and is still absurd is counted or
// refused by the ticket; the rest of the batch goes on, and the bounds hold.
func TestHostileMessages(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	long := strings.Repeat("x", 1<<20)
	g.at(time.Second, func() {
		g.answered(g.exchange("owner", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer) {
			lease := a.Grants[0].Lease
			g.answered(g.exchange("thief", func(x *contract.Exchange) {
				x.Release = []*contract.Release{{Lease: lease}}
				x.HandBack = []*contract.HandBack{{Lease: lease}}
				x.Cancel = []*contract.Cancel{{Number: 1, Attempt: 99}}
			}), func(a *contract.Answer) { assert.EqualValues(t, 1, a.InFlight, "it is not theirs to give back") })
		})
		nothing := g.exchange("nothing", nil)
		for n := range uint64(10_000) {
			nothing.Release = append(nothing.Release, &contract.Release{Lease: n, Outcome: contract.Outcome(n % 9), Status: -7})
		}
		g.answered(nothing, func(a *contract.Answer) { assert.EqualValues(t, 1, a.InFlight) })
		g.answered(g.exchange("talker", func(x *contract.Exchange) {
			x.Acquire = []*contract.Acquire{
				{Ticket: []byte("short"), Number: 1, Attempt: 1},
				{Ticket: make([]byte, 16), Number: 0, Attempt: 1},
				{Ticket: make([]byte, 16), Number: 2, Attempt: -1, Label: long[:200_000], Weight: -1},
				{Ticket: []byte("0123456789abcdef"), Number: 3, Attempt: 1, Label: long[:200_000], Cost: []*contract.Cost{{Unit: long[:1000], N: -1 << 63}}},
				{Ticket: []byte("fedcba9876543210"), Number: 4, Attempt: 1, Deadline: -1 << 63},
			}
			x.Ask = make([]uint64, 10_000)
			x.RoundTrip, x.RefusedBefore = -1<<63, 1<<32-1
		}), func(a *contract.Answer) {
			assert.Len(t, a.Refusals, 2)
			assert.Len(t, a.Position, admission.MaxPositions)
			assert.EqualValues(t, 1, a.Depth, "ticket 4")
		})
		g.send(UpdateExchange, converter.NewRawValue(&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`"` + long + `"`)}),
			func(_ *contract.Answer, err error) { assert.ErrorContains(t, err, "bytes; allowed") })
		// A sequence number from the far future, and one from the past.
		g.seq["owner"] += 1 << 60
		g.answered(g.exchange("owner", nil), func(a *contract.Answer) { assert.True(t, a.Resync) })
		g.seq["owner"] = 0
		g.answered(g.exchange("owner", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(5)} }), func(a *contract.Answer) {
			assert.False(t, a.Resync)
			assert.EqualValues(t, 1, a.Depth, "a repeated number changes nothing")
		})
		old := g.exchange("other version", nil)
		old.Contract = 99
		g.send(UpdateExchange, old, func(_ *contract.Answer, err error) { assert.ErrorContains(t, err, "contract version 99") })
		g.send(UpdateWait, &contract.Wait{Contract: 99, Holder: &contract.Holder{Id: "w"}}, func(_ *contract.Answer, err error) {
			assert.ErrorContains(t, err, "contract version 99")
		})
		g.send(UpdateWait, &contract.Wait{Contract: ContractVersion, Holder: &contract.Holder{Id: "nobody"}}, func(a *contract.Answer, err error) {
			require.NoError(t, err)
			assert.True(t, a.Resync, "an unknown holder presents itself first")
		})
	})
	g.run(2 * time.Second)
	st := g.status()
	assert.EqualValues(t, 1, st.InFlight)
	assert.EqualValues(t, 10_002, st.Counters.StaleReleases)
	assert.EqualValues(t, 3, st.Counters.Malformed)
	for _, ticket := range st.Queue {
		assert.LessOrEqual(t, len(ticket.Label), admission.MaxLabel)
	}
}
