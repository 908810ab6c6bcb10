package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/policy"
	"sluice/worker"
)

// oneActivity runs one activity and returns its number.
func oneActivity(ctx workflow.Context, name string, o workflow.ActivityOptions) (int, error) {
	var n int
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), name).Get(ctx, &n)
	return n, err
}

// FailUnderLease fails each attempt, with a lease that the policy takes for it.
func FailUnderLease(context.Context) (int, error) { return 0, errors.New("no luck") }

// WaitForLease needs a lease of the gate "one".
func WaitForLease(ctx context.Context) (int, error) {
	return 1, activities.Do(ctx, "one", activities.Cost{}, func(context.Context) error { return nil })
}

// Progress records progress in its first attempt and fails; later attempts need
// a lease and return what the first one recorded.
func Progress(ctx context.Context) (int, error) {
	if activity.GetInfo(ctx).Attempt == 1 {
		activity.RecordHeartbeat(ctx, 7, "seven")
		return 0, errors.New("once more")
	}
	var n int
	var text string
	if err := activity.GetHeartbeatDetails(ctx, &n, &text); err != nil || text != "seven" {
		return 0, temporal.NewNonRetryableApplicationError("progress lost: "+text, "Lost", err)
	}
	return n, activities.Do(ctx, "one", activities.Cost{}, func(context.Context) error { return nil })
}

// TestLastAttempt: the last attempt, too, gives its lease back.
func TestLastAttempt(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://last.test", MaxInFlight: 1, Activities: []string{"FailUnderLease"}})
	p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, oneActivity, "FailUnderLease", workflow.ActivityOptions{
		StartToCloseTimeout: 20 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond, MaximumAttempts: 3},
	})
	require.NoError(t, err)
	err = run.Get(ctx, nil)
	require.ErrorContains(t, err, "no luck")
	require.Eventually(t, func() bool {
		st := status(t, p.client, pol.Gates()[0])
		return st.Counters.Admissions == 3 && st.Counters.Releases == 3 && st.Reserved+st.Started+st.Queued == 0
	}, 10*time.Second, 20*time.Millisecond, "one lease for each attempt, each given back")
}

// TestCancelledActivity: cancellation reaches a waiting activity through its
// heartbeats, and is reported as what it is.
func TestCancelledActivity(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://cancelled.test", Name: "one", MaxInFlight: 1})
	p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
	gate := pol.Gates()[0]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	blocker := take(t, ctx, p)
	run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, oneActivity, "WaitForLease", workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, HeartbeatTimeout: 2 * time.Second, WaitForCancellation: true,
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return status(t, p.client, gate).Queued == 1 }, 10*time.Second, 20*time.Millisecond)
	require.NoError(t, p.client.CancelWorkflow(ctx, run.GetID(), ""))
	err = run.Get(ctx, nil)
	var cancelled *temporal.CanceledError
	require.ErrorAs(t, err, &cancelled)
	var timeout *temporal.TimeoutError
	require.False(t, errors.As(err, &timeout), "a cancelled wait is no timeout: %v", err)
	require.Eventually(t, func() bool { return status(t, p.client, gate).Queued == 0 }, 10*time.Second, 20*time.Millisecond, "its place is given up")
	blocker.Release()
}

// take takes the only place of the gate "one".
func take(t *testing.T, ctx context.Context, p *process) activities.Lease {
	t.Helper()
	g, err := p.plugin.Gates().Gate("one")
	require.NoError(t, err)
	l, err := g.Acquire(ctx, activities.Request{Label: "blocker"})
	require.NoError(t, err)
	return l
}

// TestHeartbeatDetailsSurviveAWait: attempt 1 records progress, attempt 2 waits
// and is killed, attempt 3 reads what attempt 1 recorded.
func TestHeartbeatDetailsSurviveAWait(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://progress.test", Name: "one", MaxInFlight: 1})
	host := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{LocalActivityWorkerOnly: true}, register)
	victim := spawnWorker(t, ts, pol)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	blocker := take(t, ctx, host)
	run, err := host.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, oneActivity, "Progress", workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, HeartbeatTimeout: 2 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond, MaximumAttempts: 5},
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		d, err := host.client.DescribeWorkflowExecution(ctx, run.GetID(), "")
		if err != nil || len(d.PendingActivities) != 1 {
			return false
		}
		a := d.PendingActivities[0]
		if a.Attempt != 2 || a.LastHeartbeatTime.AsTime().Before(a.LastStartedTime.AsTime()) {
			return false // attempt 2 has not heartbeat while it waits yet
		}
		var n int
		var text string
		require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(a.HeartbeatDetails, &n, &text))
		assert.Equal(t, 7, n)
		assert.Equal(t, "seven", text)
		return true
	}, 20*time.Second, 50*time.Millisecond)
	victim.kill()
	spawnWorker(t, ts, pol)
	blocker.Release()
	var n int
	require.NoError(t, run.Get(ctx, &n))
	require.Equal(t, 7, n)
}
