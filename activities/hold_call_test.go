package activities

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/admission"
	"sluice/policy"
)

// attempts runs an activity with three attempts, gated by a local gate with one
// place, and returns the leases that its attempts ran on.
func attempts(t *testing.T, gates *Gates, do func(ctx context.Context, attempt int32) error) (leases []uint64, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(gates)}})
	env.SetTestTimeout(20 * time.Second)
	env.RegisterActivityWithOptions(func(ctx context.Context) error {
		st, err := gates.LocalStatus("one")
		if err != nil {
			return err
		}
		for _, l := range st.Leases {
			leases = append(leases, l.Lease)
		}
		return do(ctx, activity.GetInfo(ctx).Attempt)
	}, activity.RegisterOptions{Name: "Call"})
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			StartToCloseTimeout: time.Minute,
			RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Millisecond, BackoffCoefficient: 1, MaximumAttempts: 3},
		})
		return workflow.ExecuteActivity(ctx, "Call").Get(ctx, nil)
	})
	require.True(t, env.IsWorkflowCompleted())
	return leases, env.GetWorkflowError()
}

func inUse(t *testing.T, gates *Gates) admission.Status {
	t.Helper()
	var st admission.Status
	require.Eventually(t, func() bool {
		var err error
		st, err = gates.LocalStatus("one")
		require.NoError(t, err)
		return st.InUse == 0
	}, 5*time.Second, time.Millisecond, "the lease is given back")
	return st
}

// TestHoldCall: one lease from the first attempt to the call's end, given back
// once. Ends that the test environment doesn't know (it tells activities no retry
// policy) are tested on a real server.
func TestHoldCall(t *testing.T) {
	failing := errors.New("try again")
	for _, c := range []struct {
		name  string
		do    func(attempt int32) error
		lasts int // attempts
	}{
		{"success at last", func(n int32) error {
			if n < 3 {
				return failing
			}
			return nil
		}, 3},
		{"success at once", func(int32) error { return nil }, 1},
		{"not retryable", func(n int32) error {
			if n == 2 {
				return temporal.NewNonRetryableApplicationError("no", "Bad", nil)
			}
			return failing
		}, 2},
		{"panics", func(n int32) error {
			if n < 3 {
				panic("try again")
			}
			return nil
		}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			gates := local(t, policy.Gate{Endpoint: "http://hold.test/" + c.name[:5], MaxInFlight: 1, Hold: policy.HoldCall, Activities: []string{"Call"}})
			defer closeAll(t, gates)
			leases, _ := attempts(t, gates, func(_ context.Context, n int32) error { return c.do(n) })
			require.Len(t, leases, c.lasts)
			for _, l := range leases {
				assert.Equal(t, leases[0], l, "every attempt runs on one lease")
			}
			assert.EqualValues(t, 1, inUse(t, gates).Counters.Admissions)
		})
	}
}

// TestHoldAttempt is the default: each attempt has a lease of its own.
func TestHoldAttempt(t *testing.T) {
	gates := local(t, policy.Gate{MaxInFlight: 1, Activities: []string{"Call"}})
	defer closeAll(t, gates)
	leases, err := attempts(t, gates, func(context.Context, int32) error { return errors.New("try again") })
	require.Error(t, err)
	require.Len(t, leases, 3)
	assert.NotEqual(t, leases[0], leases[1])
	assert.EqualValues(t, 3, inUse(t, gates).Counters.Admissions)
}

// TestHoldCallKeepsOthersOut: between two attempts nobody else gets the place.
func TestHoldCallKeepsOthersOut(t *testing.T) {
	gate := policy.Gate{MaxInFlight: 1, Hold: policy.HoldCall, Activities: []string{"Call"}}
	gates, others := local(t, gate), local(t, gate)
	defer closeAll(t, gates, others)
	var lease Lease
	done := make(chan struct{})
	other := func() {
		defer close(done)
		var err error
		lease, err = gateOf(t, others).Acquire(context.Background(), Request{Label: "other"})
		assert.NoError(t, err)
	}
	_, err := attempts(t, gates, func(_ context.Context, n int32) error {
		if n == 1 {
			go other()
			require.Eventually(t, func() bool {
				st, err := gates.LocalStatus("one")
				return assert.NoError(t, err) && st.Queued == 1
			}, 5*time.Second, time.Millisecond)
		}
		st, err := gates.LocalStatus("one")
		require.NoError(t, err)
		assert.Len(t, st.Queue, 1, "attempt %d", n)
		if n < 3 {
			return errors.New("try again")
		}
		return nil
	})
	require.NoError(t, err)
	<-done
	lease.Release()
	assert.EqualValues(t, 2, inUse(t, gates).Counters.Admissions)
}

// TestHoldCallWithinAnAttempt: with one place, a call that is made again within
// the attempt continues with its lease, and two at once are two.
func TestHoldCallWithinAnAttempt(t *testing.T) {
	gates := local(t, policy.Gate{MaxInFlight: 1, Hold: policy.HoldCall})
	defer closeAll(t, gates)
	ids := map[uint64]bool{}
	_, err := attempts(t, gates, func(ctx context.Context, n int32) error {
		var err error
		for range 3 {
			err = Do(ctx, "one", Cost{}, func(context.Context) error {
				st, err := gates.LocalStatus("one")
				require.NoError(t, err)
				require.Len(t, st.Leases, 1)
				ids[st.Leases[0].Lease] = true
				return errors.New("try again")
			})
		}
		if n < 3 {
			return err
		}
		return nil
	})
	require.NoError(t, err)
	assert.Len(t, ids, 1)
	inUse(t, gates)

	pair := local(t, policy.Gate{Endpoint: "http://pair.test", MaxInFlight: 2, Hold: policy.HoldCall})
	defer closeAll(t, pair)
	_, err = attempts(t, pair, func(ctx context.Context, _ int32) error {
		return Do(ctx, "one", Cost{}, func(context.Context) error {
			return Do(WithGates(ctx, pair), "one", Cost{}, func(context.Context) error {
				st, err := pair.LocalStatus("one")
				require.NoError(t, err)
				assert.Len(t, st.Leases, 2)
				return nil
			})
		})
	})
	require.NoError(t, err)
	inUse(t, pair)
}
