package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdkworker "go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/encoding/protojson"

	"sluice/admission"
	"sluice/policy"
	"sluice/worker"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// speaker is a holder that speaks the contract by itself, as another SDK would.
type speaker struct {
	t    *testing.T
	ctx  context.Context
	c    client.Client
	id   string // of the workflow
	name string
	seq  uint64
	last *contract.Answer
}

// exchange sends the next exchange and returns its answer.
func (s *speaker) exchange(fill func(*contract.Exchange)) *contract.Answer {
	s.t.Helper()
	x := s.next(fill)
	raw, err := workflows.Encode(x, false)
	require.NoError(s.t, err)
	s.last = s.send(raw)
	return s.last
}

func (s *speaker) next(fill func(*contract.Exchange)) *contract.Exchange {
	s.seq++
	x := &contract.Exchange{
		Contract: workflows.ContractVersion, RulesMax: uint32(admission.NewestRules), Holder: &contract.Holder{Id: s.name, Generation: 1},
		Seq: s.seq, Confirmed: s.last.GetNotice(), RoundTrip: int64(3 * time.Millisecond),
	}
	if fill != nil {
		fill(x)
	}
	return x
}

func (s *speaker) send(raw converter.RawValue) *contract.Answer {
	s.t.Helper()
	handle, err := s.c.UpdateWorkflow(s.ctx, client.UpdateWorkflowOptions{
		WorkflowID: s.id, UpdateName: workflows.UpdateExchange, Args: []any{raw}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	require.NoError(s.t, err)
	var reply converter.RawValue
	require.NoError(s.t, handle.Get(s.ctx, &reply))
	a := &contract.Answer{}
	_, err = workflows.Decode(reply.Payload(), a)
	require.NoError(s.t, err)
	return a
}

func (s *speaker) signal(name string, arg any) {
	s.t.Helper()
	require.NoError(s.t, s.c.SignalWorkflow(s.ctx, s.id, "", name, arg))
}

func ticket(n uint64, hold contract.Hold, tokens int64) *contract.Acquire {
	a := &contract.Acquire{Ticket: []byte(fmt.Sprintf("%016d", n)), Number: n, Label: fmt.Sprint("scenario ", n), Attempt: 1, Hold: hold}
	if tokens > 0 {
		a.Cost = []*contract.Cost{{Unit: "tokens", N: tokens}}
	}
	return a
}

// TestScenario lets two holders say everything that the contract has, to a gate
// on a real server. Its first run is what the replay test keeps of each version
// of the rules:
//
//	go test ./tests/e2e -run TestScenario -count=1 -record ../replay/testdata/rules-N-scenario.json
func TestScenario(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{
		Provider: "test", Endpoint: "http://scenario.test", MaxInFlight: 3, Requests: admission.Rate{Limit: 50, Per: time.Second, Burst: 1},
		Budgets:          []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 1000, Per: time.Second, Burst: 500}}},
		FallbackCooldown: 100 * time.Millisecond, HolderTTL: 2 * time.Second, ParkTTL: time.Second,
	})
	gate := pol.Gates()[0]
	host := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	startGate(t, ctx, host.client, gate, admission.NewestRules, 160)
	a := &speaker{t: t, ctx: ctx, c: host.client, id: gate.WorkflowID(), name: "a"}
	b := &speaker{t: t, ctx: ctx, c: host.client, id: gate.WorkflowID(), name: "b"}

	// Leases of both kinds; then the queue, with a cancelled and a parked ticket.
	leases := map[uint64]*contract.Grant{}
	take := func(answer *contract.Answer) {
		for _, grant := range answer.Grants {
			leases[grant.Number] = grant
		}
	}
	take(a.exchange(func(x *contract.Exchange) {
		x.Acquire = []*contract.Acquire{ticket(1, contract.Hold_HOLD_CALL, 100), ticket(2, 0, 50), ticket(3, 0, 0), ticket(4, 0, 10), ticket(5, 0, 0)}
	}))
	require.Len(t, leases, 3)
	b.exchange(func(x *contract.Exchange) {
		x.Acquire = []*contract.Acquire{ticket(11, 0, 0), ticket(12, 0, 900), ticket(13, 0, 0)}
		x.Ask = []uint64{11, 13}
	})
	a.exchange(func(x *contract.Exchange) {
		x.Cancel = []*contract.Cancel{{Number: 4, Attempt: 1}, {Number: 5, Attempt: 1, Park: true}}
		x.LowerLimits = []*contract.LowerLimit{{Header: "x-ratelimit-limit-requests", Unit: "requests", Limit: 40, Per: int64(time.Second), Policy: 50}}
	})

	// A kept lease that moves to b's next attempt of the call; feedback of each kind.
	asked := int64(200 * time.Millisecond)
	a.exchange(func(x *contract.Exchange) {
		x.Release = []*contract.Release{
			{Lease: leases[1].Lease, Generation: 1, Keep: true, Outcome: contract.Outcome_OUTCOME_OVERLOAD, Status: 429, AskedCooldown: &asked, HintSource: "retry-after"},
			{Lease: leases[2].Lease, Status: 200, Actual: []*contract.Cost{{Unit: "tokens", N: 20}}},
		}
	})
	moved := ticket(1, contract.Hold_HOLD_CALL, 100)
	moved.Number, moved.Attempt = 21, 2
	take(b.exchange(func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{moved} }))
	require.Contains(t, leases, uint64(21))
	assert.EqualValues(t, leases[1].Lease, leases[21].Lease)

	// Repeated, out of order, in JSON, unreadable, and of no meaning at all.
	raw, err := workflows.Encode(b.next(nil), true)
	require.NoError(t, err)
	b.send(raw)
	b.send(raw)
	b.seq += 5
	assert.True(t, b.exchange(nil).Resync)
	b.exchange(func(x *contract.Exchange) {
		x.Resync, x.LastStart = true, leases[21].StartAt
		x.Present = []*contract.Present{{Ticket: moved, Lease: leases[21].Lease, Generation: 2, StartAt: leases[21].StartAt}, {Ticket: ticket(11, 0, 0)}}
	})
	a.signal(workflows.SignalExchange, map[string]any{"contract": "what"})

	// What operators do; a hand-back for the pause, and a late one.
	a.signal(workflows.SignalConfigure, workflows.Configure{Set: map[string]json.RawMessage{"max_in_flight": json.RawMessage("2")}, For: workflows.Duration(time.Second), Who: "test"})
	a.signal(workflows.SignalPause, workflows.Pause{Who: "test", Why: "scenario"})
	take(a.exchange(func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{ticket(6, 0, 0)} }))
	a.signal(workflows.SignalResume, workflows.Pause{Who: "test"})
	b.exchange(func(x *contract.Exchange) { x.Release = []*contract.Release{{Lease: leases[21].Lease, Generation: 2}} })
	signalled, err := workflows.Encode(a.next(func(x *contract.Exchange) { x.Release = []*contract.Release{{Lease: leases[3].Lease}} }), false)
	require.NoError(t, err)
	a.signal(workflows.SignalExchange, signalled)
	require.Eventually(t, func() bool {
		take(b.exchange(nil))
		return leases[11] != nil
	}, 10*time.Second, 20*time.Millisecond, "b's ticket is next")
	b.exchange(func(x *contract.Exchange) {
		x.HandBack = []*contract.HandBack{{Lease: leases[11].Lease, Reason: contract.HandBackReason_HAND_BACK_LATE}}
	})

	// Both fall silent: the leases end, and the parked tickets after them. Then
	// the gate is used until its run is full.
	require.Eventually(t, func() bool {
		st := status(t, host.client, gate)
		return st.InFlight+int64(st.Queued) == 0
	}, 20*time.Second, 50*time.Millisecond)
	for n := uint64(100); status(t, host.client, gate).Runs == 0; n++ {
		a.seq, a.last = 0, nil // it was lost: it begins anew
		answer := a.exchange(func(x *contract.Exchange) { x.Holder.Generation, x.Acquire = n, []*contract.Acquire{ticket(n, 0, 1)} })
		a.exchange(func(x *contract.Exchange) {
			x.Holder.Generation = n
			for _, grant := range answer.Grants {
				x.Release = append(x.Release, &contract.Release{Lease: grant.Lease})
			}
		})
	}
	st := status(t, host.client, gate)
	assert.EqualValues(t, 1, st.Counters.Malformed)
	assert.EqualValues(t, 1, st.Counters.Gaps)
	assert.EqualValues(t, 1, st.Counters.Duplicates)
	assert.Positive(t, st.Counters.LostHolders)
	assert.Positive(t, st.Counters.HandBacks)
	assert.Len(t, st.LowerLimits, 1)
	assert.EqualValues(t, admission.NewestRules, st.Rules)
	history := chain(t, ctx, host.client, gate.WorkflowID())[0]
	assert.Equal(t, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW, history.Events[len(history.Events)-1].EventType)
	if *record != "" {
		data, err := protojson.Marshal(history)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(*record, append(data, '\n'), 0o644))
	}
}
