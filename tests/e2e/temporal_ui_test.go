package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/admission"
	"sluice/policy"
	"sluice/worker"
	"sluice/workflows"
)

// TestTheGateInTemporalsUI: the list shows type, ID, memo and summary; the page of
// the workflow its current details, in every run. Looking writes no event.
func TestTheGateInTemporalsUI(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://ui.test/v1", Name: "one", MaxInFlight: 2, Requests: admission.Rate{Limit: 50, Per: time.Second}})
	p := start(t, ts, worker.Options{Policy: pol, RunEvents: 40}, sdkworker.Options{LocalActivityWorkerOnly: true}, register)
	gate := pol.Gates()[0]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text := func(payload *commonpb.Payload) (s string) {
		t.Helper()
		require.NoError(t, converter.GetDefaultDataConverter().FromPayload(payload, &s))
		return s
	}
	const limits = "2 in flight, 50 requests per 1s"

	take(t, ctx, p).Release()
	first, err := p.client.DescribeWorkflowExecution(ctx, gate.WorkflowID(), "")
	require.NoError(t, err)
	assert.Equal(t, "Gate of test: "+limits, text(first.GetExecutionConfig().GetUserMetadata().GetSummary()))
	assert.Contains(t, text(first.GetExecutionConfig().GetUserMetadata().GetDetails()), gate.ID())

	for status(t, p.client, gate).Runs == 0 { // each takes events of the run
		take(t, ctx, p).Release()
	}
	held := take(t, ctx, p)
	require.Eventually(t, func() bool {
		list, err := p.client.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: "WorkflowId = '" + gate.WorkflowID() + "' AND ExecutionStatus = 'Running'"})
		if err != nil || len(list.Executions) != 1 || list.Executions[0].GetExecution().GetRunId() == first.GetWorkflowExecutionInfo().GetExecution().GetRunId() {
			return false
		}
		e := list.Executions[0]
		assert.Equal(t, workflows.WorkflowType, e.GetType().GetName())
		memo := e.GetMemo().GetFields()
		assert.Equal(t, "test", text(memo["provider"]))
		assert.Equal(t, gate.Endpoint, text(memo["endpoint"]))
		assert.Equal(t, "one", text(memo["name"]))
		assert.Equal(t, limits, text(memo["limits_at_start"]), "a later run, too")
		return true
	}, 20*time.Second, 50*time.Millisecond)

	before, err := p.client.DescribeWorkflowExecution(ctx, gate.WorkflowID(), "")
	require.NoError(t, err)
	details := currentDetails(t, p, gate)
	assert.Contains(t, details, "`"+gate.ID()+"`")
	assert.Contains(t, details, "**limits**: "+limits)
	assert.Contains(t, details, "**holders**: 1")
	held.Release()
	require.Eventually(t, func() bool { return status(t, p.client, gate).InFlight == 0 }, 10*time.Second, 20*time.Millisecond)
	assert.Contains(t, currentDetails(t, p, gate), "**in use**: 0 of 2", "a gate at rest is shown as it is")
	pause(t, p, gate, "provider `is` down")
	require.Eventually(t, func() bool { return status(t, p.client, gate).Paused }, 10*time.Second, 20*time.Millisecond)
	assert.Contains(t, currentDetails(t, p, gate), "**paused**: `ann provider 'is' down`")
	for range 20 {
		currentDetails(t, p, gate)
	}
	after, err := p.client.DescribeWorkflowExecution(ctx, gate.WorkflowID(), "")
	require.NoError(t, err)
	assert.Less(t, after.GetWorkflowExecutionInfo().GetHistoryLength(), before.GetWorkflowExecutionInfo().GetHistoryLength()+20, "looking writes no event")
}

func pause(t *testing.T, p *process, g *policy.Gate, why string) {
	t.Helper()
	require.NoError(t, p.client.SignalWorkflow(t.Context(), g.WorkflowID(), "", workflows.SignalPause, workflows.Pause{Who: "ann", Why: why}))
}

// currentDetails are what the page of the workflow shows.
func currentDetails(t *testing.T, p *process, g *policy.Gate) string {
	t.Helper()
	v, err := p.client.QueryWorkflow(t.Context(), g.WorkflowID(), "", "__temporal_workflow_metadata")
	require.NoError(t, err)
	var m sdkpb.WorkflowMetadata
	require.NoError(t, v.Get(&m))
	return m.GetCurrentDetails()
}
