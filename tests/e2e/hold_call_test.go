package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/policy"
	"sluice/worker"
)

// heldCall is what the activity of TestHoldCall does in an attempt.
type heldCall func(ctx context.Context, attempt int32) error

// TestHoldCall: on a real server one lease lasts over all attempts of an
// activity and is given back once, whatever the end is. The gate has one place.
func TestHoldCall(t *testing.T) {
	ts := server(t)
	again := errors.New("try again")
	for _, c := range []struct {
		name   string
		do     heldCall
		cancel bool // once the first attempt runs
		lasts  int  // attempts
	}{
		{name: "success at last", lasts: 3, do: func(_ context.Context, n int32) error {
			if n < 3 {
				return again
			}
			return nil
		}},
		{name: "attempts run out", lasts: 3, do: func(context.Context, int32) error { return again }},
		{name: "panics to the end", lasts: 3, do: func(context.Context, int32) error { panic("no") }},
		{name: "not retryable", lasts: 2, do: func(_ context.Context, n int32) error {
			if n == 2 {
				return temporal.NewNonRetryableApplicationError("no", "Bad", nil)
			}
			return again
		}},
		{name: "cancelled", lasts: 1, cancel: true, do: func(ctx context.Context, _ int32) error {
			for ctx.Err() == nil { // a heartbeat is how a cancellation comes
				activity.RecordHeartbeat(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
			return ctx.Err()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pol := policyOf(t, policy.Gate{
				Provider: "hold", Endpoint: "http://hold.test", Name: strings.ReplaceAll(c.name, " ", "-"), MaxInFlight: 1,
				Hold: policy.HoldCall, Activities: []string{"Held"}, ParkTTL: 30 * time.Minute,
			})
			gate := pol.Gates()[0]
			var mu sync.Mutex
			var leases []uint64
			var p *process
			running := make(chan struct{}, 10)
			p = start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, func(r sdkworker.Registry) {
				r.RegisterWorkflowWithOptions(holdWorkflow, workflow.RegisterOptions{Name: "hold"})
				r.RegisterActivityWithOptions(func(ctx context.Context) error {
					for _, l := range status(t, p.client, gate).Leases {
						mu.Lock()
						leases = append(leases, l.Lease)
						mu.Unlock()
					}
					running <- struct{}{}
					return c.do(ctx, activity.GetInfo(ctx).Attempt)
				}, activity.RegisterOptions{Name: "Held"})
			})
			defer p.stop()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "hold-" + gate.Name, TaskQueue: taskQueue}, "hold")
			require.NoError(t, err)
			if c.cancel {
				<-running
				require.NoError(t, p.client.CancelWorkflow(ctx, run.GetID(), ""))
			}
			_ = run.Get(ctx, nil) // how it ends is the case's
			require.NoError(t, ctx.Err())
			require.Eventually(t, func() bool { return status(t, p.client, gate).InFlight == 0 }, 10*time.Second, 20*time.Millisecond, "given back")
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, leases, c.lasts)
			for _, l := range leases {
				assert.Equal(t, leases[0], l, "every attempt runs on one lease")
			}
			st := status(t, p.client, gate)
			assert.EqualValues(t, 1, st.Counters.Admissions)
			assert.EqualValues(t, 1, st.Counters.Releases, "given back once")
			assert.Zero(t, st.Counters.StaleReleases)
		})
	}
}

func holdWorkflow(ctx workflow.Context) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, HeartbeatTimeout: 10 * time.Second, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 20 * time.Millisecond, BackoffCoefficient: 1, MaximumAttempts: 3},
	})
	return workflow.ExecuteActivity(ctx, "Held").Get(ctx, nil)
}
