package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/worker"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// TestHostLoss: the process that hosts the admission workflow is killed, and
// another one goes on. With Temporal's defaults that takes more than ten seconds.
func TestHostLoss(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://host.test", MaxInFlight: 1})
	host := spawnWorker(t, ts, pol)
	local, err := client.Dial(client.Options{HostPort: ts.GetFrontendHostPort(), Namespace: ts.GetDefaultNamespace(), Logger: quiet()})
	require.NoError(t, err)
	t.Cleanup(local.Close)
	gates := activities.NewDurableGates(pol, activities.DurableOptions{Service: local.WorkflowService(), Namespace: ts.GetDefaultNamespace()}, activities.GatesOptions{})
	t.Cleanup(func() { _ = gates.Close(context.Background()) }) // the server may be gone
	gate, err := gates.Gate(pol.Gates()[0].ID())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 3 { // by now the workflow is in the host's cache
		lease, err := gate.Acquire(ctx, activities.Request{})
		require.NoError(t, err)
		lease.Release()
	}
	spawnWorker(t, ts, pol)
	killed := time.Now()
	host.kill()
	lease, err := gate.Acquire(ctx, activities.Request{})
	require.NoError(t, err)
	lease.Release()
	t.Logf("%v without a host", time.Since(killed))
	assert.Less(t, time.Since(killed), 8*time.Second)
}

// TestASignalBurstAtContinueAsNew: 500 exchanges at a time come by signal, more than
// the server buffers while one workflow task runs, to a run that is about to end.
// The next runs have them all, in their order.
func TestASignalBurstAtContinueAsNew(t *testing.T) {
	const burst, runEvents, runs = 500, 60, 5
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://burst.test", MaxInFlight: 1, HolderTTL: 5 * time.Minute})
	gate := pol.Gates()[0]
	p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	startGate(t, ctx, p.client, gate, admission.NewestRules, runEvents)
	s := &speaker{t: t, ctx: ctx, c: p.client, id: gate.WorkflowID(), name: "bursting"}
	var st workflows.Status
	sent := 0
	// How many runs a burst takes depends on how many signals a task finds, which a
	// fast machine has few of. A burst ends at least the run that it comes to.
	for st.Runs < runs {
		require.Less(t, sent, runs*burst, "%d runs", st.Runs)
		for range burst {
			sent++
			raw, err := workflows.Encode(s.next(func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{ticket(uint64(sent), 0, 0)} }), false)
			require.NoError(t, err)
			s.signal(workflows.SignalExchange, raw)
		}
		require.Eventually(t, func() bool {
			st = status(t, p.client, gate)
			return st.Queued == sent-1
		}, time.Minute, 50*time.Millisecond, "all have come")
		assert.EqualValues(t, 1, st.InFlight)
		assert.Zero(t, st.Counters.Gaps+st.Counters.Malformed)
		for i, queued := range st.Queue {
			require.Equal(t, fmt.Sprint("scenario ", i+2), queued.Label)
		}
	}
}

// TestUnknownRulesFailTheTask, not the workflow: a run of rules that no host knows
// waits for one that does.
func TestUnknownRulesFailTheTask(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://newer.test", MaxInFlight: 1})
	gate := pol.Gates()[0]
	p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	startGate(t, ctx, p.client, gate, admission.NewestRules+7, 0)
	require.Eventually(t, func() bool {
		d, err := p.client.DescribeWorkflowExecution(ctx, gate.WorkflowID(), "")
		require.NoError(t, err)
		require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, d.WorkflowExecutionInfo.Status)
		return d.PendingWorkflowTask.GetAttempt() > 1
	}, 30*time.Second, 50*time.Millisecond, "its task is tried again")
}

// startGate starts a gate's workflow as a holder does.
func startGate(t *testing.T, ctx context.Context, c client.Client, gate *policy.Gate, rules admission.Rules, runEvents int) {
	t.Helper()
	body, err := json.Marshal(*gate)
	require.NoError(t, err)
	_, err = c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: gate.WorkflowID(), TaskQueue: workflows.TaskQueue},
		workflows.WorkflowType, workflows.Start{
			Contract: workflows.ContractVersion, GateID: gate.ID(), Policy: body, Rules: uint32(rules), RunEvents: runEvents,
		})
	require.NoError(t, err)
}

// TestSignalsComeFirst: a signal and an update that came after it wait for a host
// together. The SDK runs the update's handler first; the gate takes the signal
// first all the same. (The test environment with skipped time doesn't show this.)
func TestSignalsComeFirst(t *testing.T) {
	ts := server(t)
	var gates []policy.Gate
	for n := range 10 {
		gates = append(gates, policy.Gate{Provider: "test", Endpoint: "http://first.test", Name: fmt.Sprint("gate-", n), MaxInFlight: 1})
	}
	pol := policyOf(t, gates...)
	c := ts.GetDefaultClient()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answers := make(chan *contract.Answer, len(gates))
	for _, gate := range pol.Gates() {
		startGate(t, ctx, c, gate, admission.NewestRules, 0)
		s := &speaker{t: t, ctx: ctx, c: c, id: gate.WorkflowID(), name: "a"}
		raw, err := workflows.Encode(s.next(func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{ticket(1, 0, 0)} }), false)
		require.NoError(t, err)
		s.signal(workflows.SignalExchange, raw)
		go func() {
			answers <- s.exchange(func(x *contract.Exchange) { x.Acquire = []*contract.Acquire{ticket(2, 0, 0)} })
		}()
	}
	<-time.After(500 * time.Millisecond) // for the updates to reach the server; one that hasn't proves less
	start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	for range gates {
		a := <-answers
		assert.False(t, a.Resync, "the signal's number was missed")
		if assert.Len(t, a.Grants, 1) {
			assert.EqualValues(t, 1, a.Grants[0].Number, "first come, first served")
		}
	}
}

// TestACrowdAtOnce: sixteen holders begin at once at a server that takes ten updates
// in flight, its default. What it refuses goes out as a signal; every call is served.
func TestACrowdAtOnce(t *testing.T) {
	const holders, calls = 16, 20
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://crowd.test", MaxInFlight: holders})
	gate := pol.Gates()[0]
	start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register) // hosts it
	c := ts.GetDefaultClient()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	failed := make([]error, holders)
	for i := range holders {
		gates := activities.NewDurableGates(pol, activities.DurableOptions{Service: c.WorkflowService(), Namespace: ts.GetDefaultNamespace()},
			activities.GatesOptions{Logger: slog.New(slog.DiscardHandler)})
		t.Cleanup(func() { _ = gates.Close(context.Background()) }) // the server may be gone
		all.Go(func() {
			g, err := gates.Gate(gate.ID())
			for n := 0; n < calls && err == nil; n++ {
				var l activities.Lease
				if l, err = g.Acquire(ctx, activities.Request{}); err == nil {
					l.Release()
				}
			}
			failed[i] = err
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(failed...))
	var st workflows.Status
	require.Eventually(t, func() bool {
		st = status(t, c, gate)
		return st.InFlight == 0
	}, 30*time.Second, 50*time.Millisecond)
	assert.Zero(t, st.Queued)
	assert.EqualValues(t, holders*calls, st.Counters.Admissions-st.Counters.HandBacks)
	assert.Equal(t, st.Counters.Admissions-st.Counters.HandBacks, st.Counters.Releases)
	assert.Zero(t, st.Counters.Expired+st.Counters.LostHolders)
}
