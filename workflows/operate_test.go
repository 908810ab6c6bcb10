package workflows

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// operate sends one act and hands its answer to then.
func (g *gateTest) operate(o Operate, then func(Act)) {
	g.nth++
	g.UpdateWorkflow(UpdateOperate, fmt.Sprint("operate-", g.nth), &testsuite.TestUpdateCallback{
		OnAccept: func() {},
		OnReject: func(err error) { require.NoError(g.t, err) },
		OnComplete: func(result any, err error) {
			require.NoError(g.t, err)
			then(result.(Act))
		},
	}, o)
}

// done is for acts that only have to be done.
func (g *gateTest) done(a Act) { g.t.Helper(); assert.Empty(g.t, a.Error) }

func fields(set map[string]string) map[string]json.RawMessage {
	raw := map[string]json.RawMessage{}
	for field, value := range set {
		raw[field] = json.RawMessage(value)
	}
	return raw
}

// TestOperatorsBySignal: the signals of the contract, which answer nobody.
func TestOperatorsBySignal(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 4, Requests: admission.Rate{Limit: 10, Per: time.Second, Burst: 1}})
	g.at(time.Second, func() {
		g.SignalWorkflow(SignalPause, Pause{Who: "ann", Why: "provider is down"})
		g.SignalWorkflow(SignalConfigure, Configure{Set: map[string]json.RawMessage{"max_in_flight": json.RawMessage("2")}, For: Duration(10 * time.Second), Who: "ann"})
		g.SignalWorkflow(SignalConfigure, Configure{Set: map[string]json.RawMessage{"max_in_flight": json.RawMessage("-2")}, Who: "bob"})
	})
	g.at(2*time.Second, func() {
		st := g.status()
		assert.True(t, st.Paused)
		assert.Equal(t, "ann provider is down", st.PauseCause)
		assert.EqualValues(t, 2, st.Cap)
		require.Len(t, st.Log, 3)
		acts := map[string]Act{}
		for _, act := range st.Log {
			acts[act.What+" by "+act.Who] = act
		}
		assert.Empty(t, acts["set max_in_flight=2 by ann"].Error)
		assert.Contains(t, acts["set max_in_flight=-2 by bob"].Error, "max_in_flight")
		g.SignalWorkflow(SignalResume, Pause{Who: "ann"})
	})
	g.at(10*time.Second, func() { st := g.status(); assert.False(t, st.Paused); assert.EqualValues(t, 2, st.Cap) })
	g.at(12*time.Second, func() { assert.EqualValues(t, 4, g.status().Cap, "the overlay goes back by itself") })
	g.run(20 * time.Second)
}

// TestPauseAndResume tell what they came to, are in the log with who and why, and
// are done once however often they arrive: also when the run has changed meanwhile.
func TestPauseAndResume(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	pause := Operate{ID: "act-1", Do: DoPause, Who: "ann@desk", Why: "provider is down"}
	g.at(time.Second, func() {
		g.operate(pause, func(a Act) {
			assert.Equal(t, Act{ID: "act-1", At: a.At, What: "pause", Who: "ann@desk", Why: "provider is down"}, a)
		})
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer, err error) {
			assert.NoError(t, err)
			assert.True(t, a.Paused)
			assert.Empty(t, a.Grants)
		})
	})
	g.at(2*time.Second, func() {
		st := g.status()
		assert.Equal(t, "ann@desk: provider is down", st.PauseCause)
		assert.Equal(t, "paused", st.Queue[0].Reason)
		g.operate(Operate{Do: DoResume, Who: "bob"}, func(a Act) { assert.Equal(t, "resume", a.What) })
		g.operate(pause, func(a Act) { assert.Equal(t, "pause", a.What, "the answer of the first time") })
		g.operate(Operate{Do: DoResume}, func(a Act) { assert.Equal(t, "resume (it was not paused)", a.What) })
	})
	g.at(3*time.Second, func() {
		st := g.status()
		assert.False(t, st.Paused)
		assert.Equal(t, 1, st.Started)
		require.Len(t, st.Log, 3)
		g.SetContinueAsNewSuggested(true)
		g.operate(Operate{ID: "act-2", Do: DoPause}, g.done)
	})
	g.run(time.Minute)
	next := g.next()
	require.Len(t, next.Log, 4)

	again := newGateTest(t, g.policy)
	again.start = next
	again.at(time.Second, func() {
		again.operate(Operate{ID: "act-2", Do: DoPause}, func(a Act) { assert.Equal(t, "pause", a.What, "it was not paused then") })
	})
	again.at(2*time.Second, func() { assert.True(t, again.status().Paused); assert.Len(t, again.status().Log, 4) })
	again.run(3 * time.Second)
}

// TestSetHoldsFromTheNextGrantOn: what was granted ahead under looser limits is to
// be handed back, and after the given time all is as before.
func TestSetHoldsFromTheNextGrantOn(t *testing.T) {
	g := newGateTest(t, policy.Gate{Requests: admission.Rate{Limit: 4, Per: time.Second, Burst: 1}})
	var leases []uint64
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
			x.Acquire = []*contract.Acquire{acquire(1), acquire(2), acquire(3), acquire(4)}
		}), func(a *contract.Answer, err error) {
			assert.NoError(t, err)
			for _, grant := range a.Grants {
				leases = append(leases, grant.Lease)
			}
			assert.Zero(t, a.HandBackTo)
		})
	})
	g.at(1100*time.Millisecond, func() {
		g.operate(Operate{Do: DoSet, Set: fields(map[string]string{"requests_per_second": "1"}), For: Duration(30 * time.Second), Who: "ann", Why: "slow"}, func(a Act) {
			assert.Empty(t, a.Error)
			assert.Equal(t, "set requests_per_second=1", a.What)
			assert.Equal(t, []policy.Change{
				{Field: "requests", Old: "4 per 1s", New: "1 per 1s"}, {Field: "start_window", Old: "250ms", New: "1s"},
			}, a.Changes)
			assert.Equal(t, 30*time.Second, a.Until.Sub(a.At))
		})
	})
	g.at(1200*time.Millisecond, func() {
		require.Len(t, leases, 4)
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
			x.Confirmed = 4
			for _, lease := range leases[1:] {
				x.HandBack = append(x.HandBack, &contract.HandBack{Lease: lease, Reason: contract.HandBackReason_HAND_BACK_TIGHTER})
			}
		}), func(a *contract.Answer, err error) {
			assert.NoError(t, err)
			assert.EqualValues(t, 4, a.HandBackTo)
			assert.EqualValues(t, time.Second, a.Spacing)
		})
	})
	for _, d := range []time.Duration{2, 3, 4} { // it keeps coming back
		g.at(d*time.Second, func() { g.send(UpdateExchange, g.exchange("a", nil), func(*contract.Answer, error) {}) })
	}
	g.at(10*time.Second, func() {
		st := g.status()
		require.Len(t, st.Leases, 4)
		for i, lease := range st.Leases[1:] {
			// One new spacing after the last start that was granted before, and
			// then one by one.
			assert.Equal(t, time.Duration(i+1)*time.Second+750*time.Millisecond, lease.StartAt.Sub(st.Leases[0].StartAt))
		}
		assert.EqualValues(t, 3, st.Counters.HandBacks)
		require.Len(t, st.Overlays, 1)
		assert.EqualValues(t, 4, st.Policy.Requests.Limit)
		assert.EqualValues(t, 1, st.InForce.Requests.Limit)
	})
	g.at(32*time.Second, func() {
		st := g.status()
		assert.Empty(t, st.Overlays)
		assert.EqualValues(t, 4, st.InForce.Requests.Limit)
		require.Len(t, st.Log, 2)
		assert.Equal(t, "end of what was set", st.Log[1].What)
		assert.Equal(t, "ann", st.Log[1].Who)
		assert.Equal(t, policy.Change{Field: "requests", Old: "1 per 1s", New: "4 per 1s"}, st.Log[1].Changes[0])
	})
	g.run(time.Minute)
}

// TestOverlaysLieUponEachOther: the last one holds, what it covers for good is
// forgotten, and a reset takes all away.
func TestOverlaysLieUponEachOther(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 8, MaxQueue: 100})
	set := func(d time.Duration, values map[string]string) {
		g.operate(Operate{Do: DoSet, Set: fields(values), For: Duration(d)}, g.done)
	}
	g.at(time.Second, func() {
		for n := range 3 * maxOverlays {
			set(0, map[string]string{"max_in_flight": fmt.Sprint(n + 1)})
		}
		set(0, map[string]string{"max_in_flight": "6", "max_queue": "50"})
		set(10*time.Second, map[string]string{"max_in_flight": "2"})
	})
	g.at(2*time.Second, func() {
		st := g.status()
		assert.Len(t, st.Overlays, 2)
		assert.EqualValues(t, 2, st.InForce.MaxInFlight)
		assert.Equal(t, 50, st.InForce.MaxQueue)
		assert.Len(t, st.Log, maxActs)
	})
	g.at(12*time.Second, func() {
		assert.EqualValues(t, 6, g.status().InForce.MaxInFlight)
		g.operate(Operate{Do: DoReset}, func(a Act) {
			assert.Equal(t, []policy.Change{{Field: "max_in_flight", Old: "6", New: "8"}, {Field: "max_queue", Old: "50", New: "100"}}, a.Changes)
		})
	})
	g.at(13*time.Second, func() {
		assert.Empty(t, g.status().Overlays)
		for n := range maxOverlays {
			set(time.Duration(maxOverlays-n)*time.Minute, map[string]string{"max_in_flight": fmt.Sprint(n + 1)})
		}
		g.operate(Operate{Do: DoSet, Set: fields(map[string]string{"max_in_flight": "3"}), For: Duration(time.Second)}, func(a Act) {
			assert.Contains(t, a.Error, "16 overlays are in force; allowed: at most 16")
		})
		set(0, map[string]string{"max_in_flight": "5"}) // covers them all
	})
	g.at(14*time.Second, func() { assert.Len(t, g.status().Overlays, 1) })
	g.run(15 * time.Second)
}

// TestActsThatCanNotBe are answered with the reason, logged, and change nothing.
func TestActsThatCanNotBe(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 8})
	answered := 0
	g.at(time.Second, func() {
		for _, c := range []struct {
			o    Operate
			says string
		}{
			{Operate{Do: "dance"}, `do is "dance"; allowed: pause, resume`},
			{Operate{Do: DoSet}, "set names no field; allowed: max_in_flight"},
			{Operate{Do: DoSet, Set: fields(map[string]string{"max_in_flight": "4"}), For: -1}, "for is -1ns"},
			{Operate{Do: DoSet, Set: fields(map[string]string{"max_in_flight": "-1", "max_queue": "0"})}, "max_in_flight is -1; allowed: 0 (no cap) to 1000000; max_queue is 0"},
			{Operate{Do: DoSet, Set: fields(map[string]string{"hold": `"call"`})}, "hold: it can't be set while the gate runs"},
			{Operate{Do: DoCancelTicket}, "no ticket in the queue is named"},
			{Operate{Do: DoCancelTicket, Ticket: 7}, "no ticket 7 in the queue"},
			{Operate{Do: DoCancelTicket, Label: "x"}, `no ticket in the queue has the label "x"`},
			{Operate{Do: DoRevokeLease, Lease: 7}, "no lease 7: it has ended"},
			{Operate{Do: DoRevokeLease, Label: "x"}, `no lease has the label "x"`},
		} {
			g.operate(c.o, func(a Act) {
				answered++
				assert.Contains(t, a.Error, c.says)
				assert.NotContains(t, a.Error, "\n")
			})
		}
		for i, poison := range []any{"not an object", map[string]any{"do": 7}, Operate{Do: DoPause, ID: strings.Repeat("x", MaxActID+1)}} {
			g.UpdateWorkflow(UpdateOperate, fmt.Sprint("poison-", i), &testsuite.TestUpdateCallback{
				OnAccept: func() {}, OnReject: func(err error) { assert.NoError(t, err) },
				OnComplete: func(_ any, err error) {
					answered++
					assert.ErrorContains(t, err, "operate")
				},
			}, poison)
		}
	})
	g.at(2*time.Second, func() {
		st := g.status()
		assert.Len(t, st.Log, 10)
		assert.NotEmpty(t, st.Log[0].Error)
		assert.Empty(t, st.Overlays)
		assert.False(t, st.Paused)
		assert.EqualValues(t, 3, st.Counters.Malformed)
	})
	g.run(3 * time.Second)
	assert.Equal(t, 13, answered)
}

// TestCancelTicket ends a wait with an error of its own; those behind go on.
func TestCancelTicket(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	twin := func(n uint64) *contract.Acquire {
		a := acquire(n)
		a.Label = "twin"
		return a
	}
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
			x.Acquire = []*contract.Acquire{acquire(1), acquire(2), acquire(3), twin(4), twin(5)}
		}), func(_ *contract.Answer, err error) { assert.NoError(t, err) })
	})
	g.at(2*time.Second, func() {
		queue := g.status().Queue
		require.Len(t, queue, 4)
		g.operate(Operate{Do: DoCancelTicket, Ticket: queue[0].Ticket, Who: "ann"}, func(a Act) {
			assert.Equal(t, fmt.Sprintf("cancel ticket %d", queue[0].Ticket), a.What)
		})
		g.operate(Operate{Do: DoCancelTicket, Label: "ticket 3"}, g.done)
		g.operate(Operate{Do: DoCancelTicket, Label: "ticket 1"}, func(a Act) { assert.Contains(t, a.Error, "no ticket in the queue") })
		g.operate(Operate{Do: DoCancelTicket, Label: "twin"}, func(a Act) {
			assert.Contains(t, a.Error, fmt.Sprintf(`label "twin": 2 have it; name one by its number: %d %d`, queue[2].Ticket, queue[3].Ticket))
		})
		g.send(UpdateExchange, g.exchange("a", nil), func(a *contract.Answer, err error) {
			assert.NoError(t, err)
			require.Len(t, a.Refusals, 2)
			for i, refusal := range a.Refusals {
				assert.EqualValues(t, i+2, refusal.Number)
				assert.Equal(t, contract.RefusalKind_REFUSAL_OPERATOR, refusal.Kind)
			}
			assert.EqualValues(t, 2, a.Depth)
		})
	})
	g.run(3 * time.Second)
	assert.EqualValues(t, 2, g.status().Counters.Refusals["operator"])
}

// TestRevokeLease frees the place at once and tells the holder.
func TestRevokeLease(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(_ *contract.Answer, err error) { assert.NoError(t, err) })
		g.send(UpdateExchange, g.exchange("b", func(x *contract.Exchange) {
			x.Acquire = []*contract.Acquire{acquire(2), acquire(3)}
		}), func(_ *contract.Answer, err error) { assert.NoError(t, err) })
	})
	g.at(2*time.Second, func() {
		lease := g.status().Leases[0].Lease
		g.operate(Operate{Do: DoRevokeLease, Lease: lease}, func(a Act) { assert.Equal(t, fmt.Sprintf("revoke lease %d", lease), a.What) })
		g.operate(Operate{Do: DoRevokeLease, Lease: lease}, func(a Act) { assert.Contains(t, a.Error, "it has ended") })
		g.send(UpdateExchange, g.exchange("b", nil), func(a *contract.Answer, err error) {
			assert.NoError(t, err)
			require.Len(t, a.Grants, 1, "the place is free at once")
		})
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
			x.Confirmed = 1
			x.Release = []*contract.Release{{Lease: lease}}
		}), func(a *contract.Answer, err error) {
			assert.NoError(t, err)
			require.Len(t, a.Revoked, 1)
			assert.Equal(t, contract.RevokeCause_REVOKE_OPERATOR, a.Revoked[0].Cause)
			assert.EqualValues(t, 1, a.InFlight, "a late release frees nobody else's place")
		})
	})
	g.at(3*time.Second, func() {
		g.operate(Operate{Do: DoRevokeLease, Label: "ticket 2"}, g.done)
	})
	g.at(4*time.Second, func() {
		st := g.status()
		assert.EqualValues(t, 2, st.Counters.Revoked)
		require.Len(t, st.Leases, 1)
		assert.Equal(t, "ticket 3", st.Leases[0].Label)
	})
	g.run(5 * time.Second)
}
