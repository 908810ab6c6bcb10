package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/policy"
	"sluice/worker"
)

// NoProgress records nothing, so it must find nothing. It returns its attempt, and
// keeps a lease of the gate "one" until it is let go.
func NoProgress(ctx context.Context) (int, error) {
	var what any
	if has, err := activity.HasHeartbeatDetails(ctx), activity.GetHeartbeatDetails(ctx, &what); has || !errors.Is(err, temporal.ErrNoData) {
		return 0, temporal.NewNonRetryableApplicationError(fmt.Sprintf("progress that nobody made: %v, %v", what, err), "Found", nil)
	}
	return int(activity.GetInfo(ctx).Attempt), activities.Do(ctx, "one", activities.Cost{}, func(ctx context.Context) error {
		select {
		case <-let:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// let lets NoProgress go on under its lease.
var let = make(chan struct{})

// TestWhatAWaitingActivityWaitsFor is in its heartbeat details where it has none of its
// own; later attempts don't see it, and when the wait is over it is gone.
func TestWhatAWaitingActivityWaitsFor(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://told.test", Name: "one", MaxInFlight: 1})
	gate := pol.Gates()[0]
	p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	blocker := take(t, ctx, p)
	run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, oneActivity, "NoProgress", workflow.ActivityOptions{
		StartToCloseTimeout: 5 * time.Second, HeartbeatTimeout: 2 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond, MaximumAttempts: 10},
	})
	require.NoError(t, err)
	pending := func() *workflowpb.PendingActivityInfo {
		d, err := p.client.DescribeWorkflowExecution(ctx, run.GetID(), "")
		if err != nil || len(d.PendingActivities) != 1 {
			return nil
		}
		return d.PendingActivities[0]
	}
	var told struct {
		Gate    string    `json:"waits_for_gate"`
		Since   time.Time `json:"since"`
		Because string    `json:"because"`
		Queued  int64     `json:"queued_at_gate"`
	}
	says := func(because string) func() bool {
		return func() bool {
			a := pending()
			if a == nil || len(a.GetHeartbeatDetails().GetPayloads()) != 1 {
				return false
			}
			return json.Unmarshal(a.HeartbeatDetails.Payloads[0].Data, &told) == nil && told.Because == because
		}
	}
	require.Eventually(t, says("its turn has not come"), 20*time.Second, 50*time.Millisecond)
	assert.Equal(t, gate.ID(), told.Gate)
	assert.WithinDuration(t, time.Now(), told.Since, 30*time.Second)
	assert.EqualValues(t, 1, told.Queued)
	pause(t, p, gate, "for a look")
	require.Eventually(t, says("the gate is paused"), 20*time.Second, 50*time.Millisecond)
	require.NoError(t, p.client.SignalWorkflow(ctx, gate.WorkflowID(), "", "resume", nil))
	require.Eventually(t, func() bool {
		a := pending()
		return a != nil && a.Attempt >= 2 && len(a.GetHeartbeatDetails().GetPayloads()) == 1
	}, 30*time.Second, 50*time.Millisecond, "a later attempt waits, with what an earlier one said")

	blocker.Release()
	require.Eventually(t, func() bool { return status(t, p.client, gate).Started == 1 }, 20*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		a := pending()
		return a != nil && len(a.GetHeartbeatDetails().GetPayloads()) == 0
	}, 20*time.Second, 20*time.Millisecond, "the wait is over, and it is told so")
	close(let)
	var attempt int
	require.NoError(t, run.Get(ctx, &attempt))
	assert.GreaterOrEqual(t, attempt, 2)
}
