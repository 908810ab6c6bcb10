package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// record writes the history of one run as a file for the replay test:
//
//	go test ./tests/e2e -run TestContinueAsNewUnderLoad/mixed -record ../replay/testdata/rules-1-mixed.json
var record = flag.String("record", "", "file that gets the history of one run of TestContinueAsNewUnderLoad")

// TestContinueAsNewUnderLoad continues as new at least five times without
// losing, repeating or reordering a ticket, whatever carries the exchanges.
func TestContinueAsNewUnderLoad(t *testing.T) {
	for _, transport := range []activities.ExchangeTransport{activities.TransportUpdate, activities.TransportSignal, activities.TransportMixed} {
		t.Run(string(transport), func(t *testing.T) {
			ts := server(t)
			p := provider(t, loopback.Quota{ServeTime: 10 * time.Millisecond})
			pol := policyOf(t, policy.Gate{Provider: "loopback", Endpoint: p.URL(), MaxInFlight: 4})
			gate := pol.Gates()[0]
			var processes []*process
			for range 2 {
				processes = append(processes, start(t, ts, worker.Options{Policy: pol, Transport: transport, RunEvents: 60},
					sdkworker.Options{MaxConcurrentActivityExecutionSize: 20}, register))
			}
			c := processes[0].client
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			var runs []client.WorkflowRun
			for i := range 4 {
				r, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: fmt.Sprint("load-", i), TaskQueue: taskQueue}, fanOut, p.CallURL("load"), 50)
				require.NoError(t, err)
				runs = append(runs, r)
			}
			for _, r := range runs {
				require.NoError(t, r.Get(ctx, nil))
			}
			require.Eventually(t, func() bool {
				st := status(t, c, gate)
				return st.Queued+st.Reserved+st.Started == 0
			}, 20*time.Second, 50*time.Millisecond)

			st := status(t, c, gate)
			assert.GreaterOrEqual(t, st.Runs, 5)
			assert.EqualValues(t, 200, st.Counters.Admissions, "no ticket is admitted twice, none is lost")
			assert.EqualValues(t, 200, st.Counters.Releases)
			assert.Zero(t, st.Counters.Malformed)
			stats := p.Stats("load")
			assert.Equal(t, 200, stats.Completed)
			assert.Equal(t, 200, stats.WireAttempts)
			assert.LessOrEqual(t, stats.MaxInFlight, 4)

			histories := chain(t, ctx, c, gate.WorkflowID())
			if !raceDetector {
				// Under it a holder may be so late that others may go on past it.
				assert.Equal(t, arrivalsIn(t, histories), byLease(p.Attempts("load")), "admitted in the order of arrival")
			}
			t.Logf("%d runs, %+v", len(histories), st.Counters)
			if *record != "" {
				data, err := protojson.Marshal(histories[len(histories)/2])
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(*record, append(data, '\n'), 0o644))
			}
		})
	}
}

// TestRunsAreShort: a run ends after about a hundred updates with a task each, which
// a host without it in its cache does at the same update.
func TestRunsAreShort(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://short.test"})
	gate := pol.Gates()[0]
	host := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	startGate(t, ctx, host.client, gate, admission.NewestRules, 0)
	a := &speaker{t: t, ctx: ctx, c: host.client, id: gate.WorkflowID(), name: "a"}
	for range 120 {
		a.exchange(nil)
	}
	histories := chain(t, ctx, host.client, gate.WorkflowID())
	require.Len(t, histories, 2)
	updates := len(exchangesIn(t, histories[:1]))
	assert.GreaterOrEqual(t, updates, 95)
	assert.LessOrEqual(t, updates, 105)
	for _, h := range histories {
		r := sdkworker.NewWorkflowReplayer()
		r.RegisterWorkflowWithOptions(workflows.AdmissionWorkflow, workflow.RegisterOptions{Name: workflows.WorkflowType})
		require.NoError(t, r.ReplayWorkflowHistory(nil, h))
	}
}

// chain reads the histories of all runs of a workflow, the oldest first.
func chain(t *testing.T, ctx context.Context, c client.Client, id string) (histories []*historypb.History) {
	t.Helper()
	for run, first := "", true; first || run != ""; first = false {
		h := &historypb.History{}
		for events := c.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
			e, err := events.Next()
			require.NoError(t, err)
			h.Events = append(h.Events, e)
		}
		histories = append([]*historypb.History{h}, histories...)
		run = h.Events[0].GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId()
	}
	return histories
}

// arrivalsIn lists the labels of tickets in the order in which the gate took
// them in; what was sent again counts once.
func arrivalsIn(t *testing.T, histories []*historypb.History) (labels []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, x := range exchangesIn(t, histories) {
		for _, acquire := range x.Acquire {
			if !seen[acquire.Label] {
				seen[acquire.Label] = true
				labels = append(labels, acquire.Label)
			}
		}
	}
	return labels
}

// exchangesIn lists what the gate was told, by update and by signal.
func exchangesIn(t *testing.T, histories []*historypb.History) (all []*contract.Exchange) {
	t.Helper()
	for _, h := range histories {
		for _, e := range h.Events {
			var payloads []*commonpb.Payload
			if s := e.GetWorkflowExecutionSignaledEventAttributes(); s.GetSignalName() == workflows.SignalExchange {
				payloads = s.GetInput().GetPayloads()
			}
			if a := e.GetWorkflowExecutionUpdateAcceptedEventAttributes(); a != nil && a.AcceptedRequest.GetInput().GetName() == workflows.UpdateExchange {
				payloads = a.AcceptedRequest.GetInput().GetArgs().GetPayloads()
			}
			for _, payload := range payloads {
				x := &contract.Exchange{}
				_, err := workflows.Decode(payload, x)
				require.NoError(t, err)
				all = append(all, x)
			}
		}
	}
	return all
}

// byLease lists the calls that arrived at the provider in the order of their
// leases, named as the gate's labels name them.
func byLease(attempts []loopback.Attempt) (labels []string) {
	sort.Slice(attempts, func(i, j int) bool { return padded(attempts[i].Lease) < padded(attempts[j].Lease) })
	for _, a := range attempts {
		labels = append(labels, "CallProvider "+a.CallID)
	}
	return labels
}
