package workflows

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// gateTest runs one admission workflow with skipped time.
type gateTest struct {
	*testsuite.TestWorkflowEnvironment
	t      *testing.T
	policy policy.Gate
	seq    map[string]uint64
	nth    int
	start  Start
}

func newGateTest(t *testing.T, g policy.Gate) *gateTest {
	t.Helper()
	g.Provider, g.Endpoint = "test", "http://gate.test"
	g, err := g.Normalize()
	require.NoError(t, err)
	body, err := json.Marshal(g)
	require.NoError(t, err)
	suite := &testsuite.WorkflowTestSuite{}
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflowWithOptions(AdmissionWorkflow, workflow.RegisterOptions{Name: WorkflowType})
	env.SetTestTimeout(20 * time.Second)
	return &gateTest{TestWorkflowEnvironment: env, t: t, policy: g, seq: map[string]uint64{},
		start: Start{Contract: ContractVersion, GateID: g.ID(), Policy: body, Rules: uint32(admission.NewestRules)}}
}

// run runs the workflow until stop; nothing ends it otherwise.
func (g *gateTest) run(stop time.Duration) {
	g.RegisterDelayedCallback(g.CancelWorkflow, stop)
	g.ExecuteWorkflow(WorkflowType, g.start)
}

// next is what the run handed to the next one; it must have continued as new.
func (g *gateTest) next() (next Start) {
	g.t.Helper()
	var again *workflow.ContinueAsNewError
	require.ErrorAs(g.t, g.GetWorkflowError(), &again)
	require.NoError(g.t, converter.GetDefaultDataConverter().FromPayloads(again.Input, &next))
	return next
}

// at schedules a step.
func (g *gateTest) at(d time.Duration, step func()) { g.RegisterDelayedCallback(step, d) }

// exchange makes the next exchange of a holder.
func (g *gateTest) exchange(holder string, fill func(*contract.Exchange)) *contract.Exchange {
	g.seq[holder]++
	x := &contract.Exchange{
		Contract: ContractVersion, Holder: &contract.Holder{Id: holder, Generation: 1}, Seq: g.seq[holder],
		Policy: &contract.Policy{Revision: g.policy.Revision, Hash: g.policy.Hash()},
	}
	if fill != nil {
		fill(x)
	}
	return x
}

// send sends a message as an update and hands the answer to then.
func (g *gateTest) send(name string, m any, then func(*contract.Answer, error)) {
	g.nth++
	raw, ok := m.(converter.RawValue)
	if !ok {
		raw = g.raw(m)
	}
	g.UpdateWorkflow(name, fmt.Sprint("update-", g.nth), &testsuite.TestUpdateCallback{
		OnAccept: func() {},
		OnReject: func(err error) { then(nil, err) },
		OnComplete: func(result any, err error) {
			if err != nil {
				then(nil, err)
				return
			}
			a := &contract.Answer{}
			_, err = Decode(result.(converter.RawValue).Payload(), a)
			then(a, err)
		},
	}, raw)
}

func (g *gateTest) raw(m any) converter.RawValue {
	g.t.Helper()
	var raw converter.RawValue
	var err error
	switch m := m.(type) {
	case *contract.Exchange:
		raw, err = Encode(m, false)
	case *contract.Wait:
		raw, err = Encode(m, false)
	case *contract.Read:
		raw, err = Encode(m, false)
	}
	require.NoError(g.t, err)
	return raw
}

func (g *gateTest) status() (st Status) {
	g.t.Helper()
	v, err := g.QueryWorkflow(QueryStatus)
	require.NoError(g.t, err)
	require.NoError(g.t, v.Get(&st))
	return st
}

func acquire(n uint64) *contract.Acquire {
	key := make([]byte, 16)
	key[15] = byte(n)
	return &contract.Acquire{Ticket: key, Number: n, Label: fmt.Sprint("ticket ", n), Attempt: 1}
}

func TestAGrantAndItsRelease(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	var lease uint64
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
			x.Acquire = []*contract.Acquire{acquire(1), acquire(2)}
		}), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			require.Len(t, a.Grants, 1)
			lease = a.Grants[0].Lease
			assert.EqualValues(t, 1, a.InFlight)
			assert.EqualValues(t, 1, a.Depth)
		})
	})
	g.at(2*time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
			x.Confirmed = 1
			x.Release = []*contract.Release{{Lease: lease}}
		}), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			require.Len(t, a.Grants, 1, "what was confirmed isn't repeated")
			assert.EqualValues(t, 2, a.Grants[0].Number)
			require.Len(t, a.Grants[0].Reasons, 1)
			assert.Equal(t, "cap", a.Grants[0].Reasons[0].Reason)
			assert.EqualValues(t, time.Second, a.Grants[0].Reasons[0].Duration)
		})
	})
	g.run(3 * time.Second)
	assert.EqualValues(t, 2, g.status().Counters.Admissions)
}

// TestARepeatedExchange: the answer was lost after the grant.
func TestARepeatedExchange(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 5})
	x := g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} })
	var leases []uint64
	for i := range 3 {
		g.at(time.Duration(i+1)*100*time.Millisecond, func() {
			g.send(UpdateExchange, x, func(a *contract.Answer, err error) {
				require.NoError(t, err)
				require.Len(t, a.Grants, 1)
				leases = append(leases, a.Grants[0].Lease)
			})
		})
	}
	g.run(time.Second)
	require.Len(t, leases, 3)
	assert.Equal(t, leases[0], leases[1])
	assert.Equal(t, leases[0], leases[2])
	st := g.status()
	assert.EqualValues(t, 1, st.Counters.Admissions)
	assert.EqualValues(t, 2, st.Counters.Duplicates)
}

// TestASignalBeforeAnUpdate: the server runs update handlers before the main
// coroutine sees signals that came earlier; the gate takes the signal first.
func TestASignalBeforeAnUpdate(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	g.at(time.Second, func() {
		g.SignalWorkflow(SignalExchange, g.raw(g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} })))
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(2)} }), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			assert.False(t, a.Resync)
			require.Len(t, a.Grants, 1)
			assert.EqualValues(t, 1, a.Grants[0].Number, "first come, first served")
		})
	})
	g.run(2 * time.Second)
	assert.Equal(t, 1, g.status().Queued)
}

func TestAGapIsNeverSkipped(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", nil), func(_ *contract.Answer, err error) { require.NoError(t, err) })
	})
	g.at(2*time.Second, func() {
		g.seq["a"] += 3
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			assert.True(t, a.Resync)
			assert.Empty(t, a.Grants)
		})
	})
	g.run(3 * time.Second)
	assert.EqualValues(t, 1, g.status().Counters.Gaps)
}

// TestAWaitEnds when a place is freed for its holder, and only then.
func TestAWaitEnds(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	var lease uint64
	var waited bool
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			lease = a.Grants[0].Lease
		})
	})
	g.at(2*time.Second, func() {
		g.send(UpdateExchange, g.exchange("b", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)}; x.Acquire[0].Ticket[0] = 9 }), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			assert.True(t, a.MayWait)
		})
		g.send(UpdateWait, &contract.Wait{Contract: ContractVersion, Holder: &contract.Holder{Id: "b", Generation: 1}}, func(a *contract.Answer, err error) {
			require.NoError(t, err)
			require.Len(t, a.Grants, 1)
			waited = true
		})
	})
	g.at(2500*time.Millisecond, func() { assert.False(t, waited); assert.True(t, g.status().Holders[1].Waiting) })
	g.at(3*time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Release = []*contract.Release{{Lease: lease}} }), func(_ *contract.Answer, err error) { require.NoError(t, err) })
	})
	g.at(3100*time.Millisecond, func() { assert.True(t, waited) })
	g.run(4 * time.Second)
	require.True(t, waited)
}

// TestAWaitThatMayNotOpen is answered at once with when to come again. An end of one
// that was open names no slot: its holder has one.
func TestAWaitThatMayNotOpen(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	wait := func(holder string, then func(*contract.Answer)) {
		g.send(UpdateWait, &contract.Wait{Contract: ContractVersion, Holder: &contract.Holder{Id: holder, Generation: 1}}, func(a *contract.Answer, err error) {
			require.NoError(t, err)
			then(a)
		})
	}
	g.at(time.Second, func() {
		for n, holder := range []string{"a", "b", "c", "d", "e", "f"} {
			g.answered(g.exchange(holder, func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(uint64(n + 1))} }), ignore)
		}
	})
	told, ended := false, false
	g.at(1500*time.Millisecond, func() {
		wait("f", func(a *contract.Answer) {
			told = true
			assert.False(t, a.MayWait)
			assert.Greater(t, a.ComeAgain, a.Now)
			assert.Equal(t, a.Now, a.NotBefore)
		})
		wait("b", func(a *contract.Answer) {
			ended = true
			assert.Zero(t, a.NotBefore)
		})
	})
	g.at(1600*time.Millisecond, func() {
		assert.True(t, told)
		assert.False(t, ended)
		g.answered(g.exchange("b", func(x *contract.Exchange) { x.Cancel = []*contract.Cancel{{Number: 2, Attempt: 1}} }), ignore)
	})
	g.run(2 * time.Second)
	require.True(t, ended)
}

// TestARunEndsWhenItsUpdatesAreDear: all updates of a run are written again with each
// of its tasks. After a hundred with a task each a new run is cheaper; where forty
// share a task, after some six hundred; where a thousand tickets are to be handed on,
// a little later. Under rules 2 nobody counted that.
func TestARunEndsWhenItsUpdatesAreDear(t *testing.T) {
	for name, test := range map[string]struct {
		rules         admission.Rules
		together      int
		waiting       int
		least, atMost int // updates of a run; 0: it didn't end
	}{
		"one by one":         {3, 1, 0, 98, 102},
		"in a crowd":         {3, 40, 0, 560, 680},
		"a long queue":       {3, 1, 1000, 138, 144},
		"one by one, before": {2, 1, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateTest(t, policy.Gate{MaxInFlight: 1})
			g.start.Rules = uint32(test.rules)
			updates, tasks := 0, 0
			var more func()
			more = func() {
				tasks++
				g.SetCurrentHistoryLength(tasks)
				for range test.together {
					updates++
					g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
						for ; test.waiting > 0; test.waiting-- {
							a := acquire(uint64(test.waiting))
							binary.BigEndian.PutUint64(a.Ticket, a.Number)
							x.Acquire = append(x.Acquire, a)
						}
					}), func(*contract.Answer, error) {})
				}
				if updates < 1200 {
					g.at(10*time.Millisecond, more)
				}
			}
			g.at(10*time.Millisecond, more)
			g.run(time.Minute)
			if test.atMost == 0 {
				var again *workflow.ContinueAsNewError
				require.False(t, errors.As(g.GetWorkflowError(), &again))
				return
			}
			g.next()
			assert.GreaterOrEqual(t, updates, test.least)
			assert.LessOrEqual(t, updates, test.atMost)
		})
	}
}

// TestAnIdleGateHasNoOpenWait: a holder with nothing left to wait for is let go.
func TestAnIdleGateHasNoOpenWait(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	ended := false
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1), acquire(2)} }), func(_ *contract.Answer, err error) { require.NoError(t, err) })
		g.send(UpdateWait, &contract.Wait{Contract: ContractVersion, Holder: &contract.Holder{Id: "a", Generation: 1}, Confirmed: 1}, func(_ *contract.Answer, err error) {
			require.NoError(t, err)
			ended = true
		})
	})
	g.at(2*time.Second, func() {
		require.False(t, ended)
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Cancel = []*contract.Cancel{{Number: 2, Attempt: 1}} }), func(_ *contract.Answer, err error) { require.NoError(t, err) })
	})
	g.at(3*time.Second, func() { assert.True(t, ended); assert.False(t, g.status().Holders[0].Waiting) })
	g.run(4 * time.Second)
	require.True(t, ended)
}

// TestTimeAlone ends a lease that nobody gives back, a silent holder, and a
// parked ticket.
func TestTimeAlone(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1, HolderTTL: 10 * time.Second, ParkTTL: time.Minute})
	g.at(time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1), acquire(2)} }), func(_ *contract.Answer, err error) { require.NoError(t, err) })
	})
	g.at(10*time.Second, func() { assert.Equal(t, 1, g.status().Started) })
	g.at(12*time.Second, func() {
		st := g.status()
		assert.Zero(t, st.Started, "the holder is lost")
		assert.Equal(t, 1, st.Parked)
		assert.EqualValues(t, 1, st.Counters.LostHolders)
	})
	g.at(72*time.Second, func() { assert.Zero(t, g.status().Queued, "park_ttl") })
	g.run(2 * time.Minute)
}

// TestPoison: what can't be read is refused and counted, and the gate goes on.
func TestPoison(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	poison := []*commonpb.Payload{
		{},
		{Metadata: map[string][]byte{"encoding": []byte("binary/protobuf")}, Data: []byte{0xff, 0xff, 0xff}},
		{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`{"contract": "one"}`)},
		{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`{"contract": 2, "holder": {"id": "x"}}`)},
		{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`{"contract": 1, "holder": {"id": ""}, "seq": "1"}`)},
		{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`{"contract": 1, "holder": {"id": "x"}}`)},
		{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: make([]byte, MaxExchangeBytes+1)},
	}
	refused := 0
	g.at(time.Second, func() {
		for _, p := range poison {
			g.send(UpdateExchange, converter.NewRawValue(p), func(_ *contract.Answer, err error) {
				require.Error(t, err)
				refused++
			})
			g.SignalWorkflow(SignalExchange, converter.NewRawValue(p))
		}
		g.SignalWorkflow(SignalConfigure, []string{"not", "an", "object"})
		g.SignalWorkflow(SignalPause, 7)
	})
	g.at(2*time.Second, func() {
		g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{acquire(1)} }), func(a *contract.Answer, err error) {
			require.NoError(t, err)
			assert.Len(t, a.Grants, 1)
		})
	})
	g.run(3 * time.Second)
	assert.Equal(t, len(poison), refused)
	assert.EqualValues(t, 2*len(poison)+2, g.status().Counters.Malformed)
}

// TestJSON: any SDK may speak JSON, and is answered in JSON.
func TestJSON(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	g.at(time.Second, func() {
		g.UpdateWorkflow(UpdateExchange, "json", &testsuite.TestUpdateCallback{
			OnAccept: func() {}, OnReject: func(err error) { require.NoError(t, err) },
			OnComplete: func(result any, err error) {
				require.NoError(t, err)
				assert.JSONEq(t, `"1"`, string(field(t, result.(converter.RawValue).Payload().Data, "grants", "number")))
			},
		}, map[string]any{
			"contract": 1, "holder": map[string]any{"id": "python", "generation": 1}, "seq": 1,
			"acquire": []any{map[string]any{"ticket": "AAAAAAAAAAAAAAAAAAAAAQ==", "number": 1, "attempt": 1}},
			"unknown": "is left alone",
		})
	})
	g.run(2 * time.Second)
}

func field(t *testing.T, data []byte, list, name string) json.RawMessage {
	t.Helper()
	var all map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &all))
	var items []map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(all[list], &items))
	require.Len(t, items, 1)
	return items[0][name]
}

func TestPoliciesAreNotMixed(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1})
	other := g.policy
	other.MaxInFlight = 2
	newer := other
	newer.Revision = 2
	send := func(p policy.Gate, body bool, then func(*contract.Answer)) {
		x := g.exchange("b", func(x *contract.Exchange) {
			x.Policy = &contract.Policy{Revision: p.Revision, Hash: p.Hash()}
			if body {
				x.Policy.Body, _ = json.Marshal(p)
			}
		})
		g.send(UpdateExchange, x, func(a *contract.Answer, err error) { require.NoError(t, err); then(a) })
	}
	g.at(time.Second, func() {
		send(other, false, func(a *contract.Answer) { assert.True(t, a.PolicyNeeded); assert.Zero(t, a.Seq) })
	})
	g.at(2*time.Second, func() {
		send(other, true, func(a *contract.Answer) {
			require.Len(t, a.PolicyConflict, 1)
			assert.Contains(t, a.PolicyConflict[0], "max_in_flight")
			assert.EqualValues(t, 1, a.PolicyRevision)
		})
	})
	g.at(3*time.Second, func() {
		g.seq["b"] = 0
		send(newer, true, func(a *contract.Answer) { assert.EqualValues(t, 2, a.PolicyRevision); assert.EqualValues(t, 2, a.Cap) })
	})
	g.run(4 * time.Second)
	assert.EqualValues(t, 2, g.status().Cap)
}

// TestTheRulesOfTheNextRun: a run keeps its rules; the next one has the newest
// that all live holders can host.
func TestTheRulesOfTheNextRun(t *testing.T) {
	for name, test := range map[string]struct {
		holders map[string]uint32
		next    admission.Rules
	}{
		"all are new":            {map[string]uint32{"a": 99, "b": 99}, admission.NewestRules},
		"one was not rolled out": {map[string]uint32{"a": 99, "b": 1}, admission.OldestRules},
		"one does not say":       {map[string]uint32{"a": 99, "b": 0}, admission.OldestRules},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateTest(t, policy.Gate{MaxInFlight: 1})
			g.at(time.Second, func() {
				for holder, rules := range test.holders {
					g.send(UpdateExchange, g.exchange(holder, func(x *contract.Exchange) { x.RulesMax = rules }), func(a *contract.Answer, err error) {
						assert.NoError(t, err)
						assert.EqualValues(t, admission.NewestRules, a.GetRules(), "the run keeps its own")
					})
				}
			})
			g.at(2*time.Second, func() {
				g.SetContinueAsNewSuggested(true)
				g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) { x.RulesMax = test.holders["a"] }), func(*contract.Answer, error) {})
			})
			g.run(time.Minute)
			next := g.next()
			s, err := restore(next.State)
			require.NoError(t, err)
			assert.Equal(t, test.next, s.Rules())
		})
	}
}

// TestRulesOfOldStarts: a start that names no rules is from before there were
// two, and replays under the first.
func TestRulesOfOldStarts(t *testing.T) {
	g := newGateTest(t, policy.Gate{})
	g.start.Rules = 0
	g.at(time.Second, func() { assert.EqualValues(t, admission.OldestRules, g.status().Rules) })
	g.run(2 * time.Second)
}

// TestLowerLimitsAreShown: what a provider names below the policy is shown, the
// latest of each, bounded, and survives the run.
func TestLowerLimitsAreShown(t *testing.T) {
	g := newGateTest(t, policy.Gate{})
	g.at(time.Second, func() {
		for n := range int64(3) {
			g.send(UpdateExchange, g.exchange("a", func(x *contract.Exchange) {
				x.LowerLimits = []*contract.LowerLimit{{Header: "x-ratelimit-limit-requests", Unit: "requests", Limit: 300 + n, Per: int64(time.Minute), Policy: 500}}
			}), func(_ *contract.Answer, err error) { assert.NoError(t, err) })
		}
		g.send(UpdateExchange, g.exchange("b", func(x *contract.Exchange) {
			for n := range 50 {
				x.LowerLimits = append(x.LowerLimits, &contract.LowerLimit{Header: strings.Repeat("h", 5000) + fmt.Sprint(n), Unit: fmt.Sprint(n)})
			}
		}), func(_ *contract.Answer, err error) { assert.NoError(t, err) })
	})
	g.at(2*time.Second, func() {
		shown := g.status().LowerLimits
		require.Len(t, shown, maxLower)
		assert.Equal(t, LowerLimit{At: shown[0].At, Header: "x-ratelimit-limit-requests", Unit: "requests", Limit: 302, Per: Duration(time.Minute), Policy: 500}, shown[0])
		assert.Len(t, shown[1].Header, MaxTextBytes)
		g.SetContinueAsNewSuggested(true)
		g.send(UpdateExchange, g.exchange("a", nil), func(*contract.Answer, error) {})
	})
	g.run(time.Minute)
	assert.Len(t, g.next().Lower, maxLower)
}
