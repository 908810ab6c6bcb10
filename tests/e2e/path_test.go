package e2e

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// fanOut runs n calls of one workflow at once.
func fanOut(ctx workflow.Context, url string, n int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	var calls []workflow.Future
	for i := range n {
		calls = append(calls, workflow.ExecuteActivity(ctx, "CallProvider", activities.CallRequest{
			Method: "POST", URL: url, Header: map[string]string{loopback.HeaderCallID: fmt.Sprint(workflow.GetInfo(ctx).WorkflowExecution.ID, "/", i)},
		}))
	}
	for _, call := range calls {
		if err := call.Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// TestTheWholePath is the acceptance of the path: 200 activities over three
// holders, with a cap and a spacing, judged at the provider and from the gate's
// history.
func TestTheWholePath(t *testing.T) {
	ts := server(t)
	p := provider(t, loopback.Quota{ServeTime: 30 * time.Millisecond})
	const run, spacing, limit = "path", 20 * time.Millisecond, 5
	pol := policyOf(t, policy.Gate{Provider: "loopback", Endpoint: p.URL(), MaxInFlight: limit, Requests: admission.Rate{Limit: 1, Per: spacing, Burst: 1}, StartWindow: 3 * time.Millisecond})
	gate := pol.Gates()[0]
	var processes []*process
	for range 3 {
		processes = append(processes, start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{MaxConcurrentActivityExecutionSize: 30}, func(r sdkworker.Registry) {
			r.RegisterWorkflow(fanOut)
			r.RegisterActivity(caller().CallProvider)
		}))
	}
	c := processes[0].client
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var runs []client.WorkflowRun
	for i := range 4 {
		r, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: fmt.Sprint("path-", i), TaskQueue: "calls"}, fanOut, p.CallURL(run), 50)
		require.NoError(t, err)
		runs = append(runs, r)
	}
	for _, r := range runs {
		require.NoError(t, r.Get(ctx, nil))
	}

	stats := p.Stats(run)
	assert.Equal(t, 200, stats.Completed)
	assert.Equal(t, 200, stats.WireAttempts)
	assert.LessOrEqual(t, stats.MaxInFlight, limit)
	attempts := p.Attempts(run)
	gaps := gapsOf(attempts)
	t.Logf("gaps: p1 %v, least %v; %.2f s", gaps[len(gaps)/100], gaps[0], stats.ElapsedS)
	assert.GreaterOrEqual(t, gaps[len(gaps)/100], 16*time.Millisecond)

	for i := 1; i < len(attempts); i++ {
		if d := attempts[i].Arrived - attempts[i-1].Arrived; d < 16*time.Millisecond {
			t.Logf("gap %d: %v (%s)", i, d, attempts[i].Lease)
		}
	}
	leases := make([]string, len(attempts))
	for i, a := range attempts {
		leases[i] = a.Lease
	}
	assert.True(t, slices.IsSortedFunc(leases, func(a, b string) int { return strings.Compare(padded(a), padded(b)) }), "starts in the order of the gate's grants: %v", leases)

	arrivals, grants := orderOf(t, ctx, c, gate.WorkflowID())
	assert.Equal(t, arrivals, grants, "grants in the order of arrival at the gate")

	require.Eventually(t, func() bool {
		st := status(t, c, gate)
		return st.Queued == 0 && st.Reserved == 0 && st.Started == 0
	}, 10*time.Second, 50*time.Millisecond)
	length := historyLength(t, ctx, c, gate.WorkflowID())
	assert.Never(t, func() bool { return historyLength(t, ctx, c, gate.WorkflowID()) != length }, 10*time.Second, time.Second, "an idle gate writes no events")
}

func padded(lease string) string { return fmt.Sprintf("%030s", lease) }

func gapsOf(attempts []loopback.Attempt) []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(attempts); i++ {
		gaps = append(gaps, attempts[i].Arrived-attempts[i-1].Arrived)
	}
	sort.Slice(gaps, func(i, j int) bool { return gaps[i] < gaps[j] })
	return gaps
}

func historyLength(t *testing.T, ctx context.Context, c client.Client, id string) int64 {
	t.Helper()
	d, err := c.DescribeWorkflowExecution(ctx, id, "")
	require.NoError(t, err)
	return d.WorkflowExecutionInfo.HistoryLength
}

// orderOf reads from a gate's history in which order tickets arrived, and in
// which order they were first granted.
func orderOf(t *testing.T, ctx context.Context, c client.Client, id string) (arrivals, grants []string) {
	t.Helper()
	holders := map[string]string{} // by update
	type granted struct {
		lease  uint64
		ticket string
	}
	var all []granted
	seen := map[string]bool{}
	waitsSeen := 0
	defer func() { fmt.Println("WAITS", waitsSeen) }()
	for events := c.GetWorkflowHistory(ctx, id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		require.NoError(t, err)
		if a := e.GetWorkflowExecutionUpdateAcceptedEventAttributes(); a != nil {
			in := a.AcceptedRequest.GetInput()
			switch in.GetName() {
			case workflows.UpdateExchange:
				x := &contract.Exchange{}
				_, err := workflows.Decode(in.GetArgs().GetPayloads()[0], x)
				require.NoError(t, err)
				holders[a.ProtocolInstanceId] = x.Holder.Id
				fmt.Printf("X %s seq %d acq %d rel %d hb %d canc %d resync %v conf %d rtt %v ref %d\n", x.Holder.Id[len(x.Holder.Id)-3:], x.Seq, len(x.Acquire), len(x.Release), len(x.HandBack), len(x.Cancel), x.Resync, x.Confirmed, time.Duration(x.RoundTrip), x.RefusedBefore)
				for _, acquire := range x.Acquire {
					arrivals = append(arrivals, fmt.Sprint(x.Holder.Id, "#", acquire.Number))
				}
			case workflows.UpdateWait:
				waitsSeen++
				w := &contract.Wait{}
				_, err := workflows.Decode(in.GetArgs().GetPayloads()[0], w)
				require.NoError(t, err)
				holders[a.ProtocolInstanceId] = w.Holder.Id
			}
		}
		if a := e.GetWorkflowExecutionUpdateCompletedEventAttributes(); a != nil {
			answer := &contract.Answer{}
			_, err := workflows.Decode(a.Outcome.GetSuccess().GetPayloads()[0], answer)
			require.NoError(t, err)
			for _, g := range answer.Grants {
				ticket := fmt.Sprint(holders[a.Meta.UpdateId], "#", g.Number)
				if !seen[ticket] {
					seen[ticket] = true
					all = append(all, granted{g.Lease, ticket})
				}
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].lease < all[j].lease })
	for _, g := range all {
		grants = append(grants, g.ticket)
	}
	return arrivals, grants
}
