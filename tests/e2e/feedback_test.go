package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	failurepb "go.temporal.io/api/failure/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.temporal.io/server/temporaltest"
	"google.golang.org/protobuf/proto"

	"sluice/activities"
	"sluice/policy"
	"sluice/worker"
)

// learned is what a gate has learned.
type learned struct {
	overloads uint64
	asked     time.Duration // by the last cooldown
	until     time.Time
	inUse     int
}

// onEachGate runs a test on the gate "one", durable and local.
func onEachGate(t *testing.T, ts *temporaltest.TestServer, g policy.Gate, test func(t *testing.T, gates *activities.Gates, look func() learned)) {
	g.Provider, g.Name = "test", "one"
	t.Run("durable", func(t *testing.T) {
		pol := policyOf(t, g)
		p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
		test(t, p.plugin.Gates(), func() learned { return durablyLearned(t, p.client, pol.Gates()[0]) })
	})
	t.Run("local", func(t *testing.T) {
		gates := activities.NewLocalGates(policyOf(t, g), activities.GatesOptions{})
		t.Cleanup(func() { require.NoError(t, gates.Close(context.Background())) })
		test(t, gates, func() learned {
			st, err := gates.LocalStatus("one")
			require.NoError(t, err)
			return learned{st.Counters.Overloads, st.Cause.Asked, st.Cooldown.Time(), st.Reserved + st.Started + st.Queued}
		})
	})
}

func durablyLearned(t *testing.T, c client.Client, g *policy.Gate) learned {
	t.Helper()
	st := status(t, c, g)
	l := learned{overloads: st.Counters.Overloads, until: st.CooldownUntil, inUse: st.Reserved + st.Started + st.Queued}
	if st.Cooldown != nil {
		l.asked = time.Duration(st.Cooldown.Asked)
	}
	return l
}

// overloaded answers every request 429, with a header.
func overloaded(t *testing.T, name, value string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(name, value)
		http.Error(w, "slow down", http.StatusTooManyRequests)
	}))
	t.Cleanup(s.Close)
	return s
}

// providerError is the error of a client library that Sluice doesn't know.
type providerError struct {
	StatusCode int
	Response   *http.Response
}

func (e *providerError) Error() string { return fmt.Sprintf("provider: %d", e.StatusCode) }

// ask calls a provider as a client library would, without Sluice's transport.
func ask(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_, err = io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil || response.StatusCode < 400 {
		return err
	}
	return fmt.Errorf("ask: %w", &providerError{response.StatusCode, response})
}

// TestFeedbackComesBeforeThePlace: who waits for the only place starts after the
// cooldown that its end brought, however the gate was told.
func TestFeedbackComesBeforeThePlace(t *testing.T) {
	ts := server(t)
	for _, c := range []struct {
		name string
		call func(ctx context.Context, url string) error
	}{
		{"by an error", ask},
		{"by a response", func(ctx context.Context, url string) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
			if err != nil {
				return err
			}
			response, err := activities.HTTPClient(ctx).Do(r)
			if err != nil {
				return err
			}
			return errors.Join(response.Body.Close(), errors.New("the library says nothing of it"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			provider := overloaded(t, "Retry-After", "1")
			onEachGate(t, ts, policy.Gate{Endpoint: provider.URL, MaxInFlight: 1}, func(t *testing.T, gates *activities.Gates, look func() learned) {
				ctx, cancel := context.WithTimeout(activities.WithGates(context.Background(), gates), 30*time.Second)
				defer cancel()
				gate, err := gates.Gate("one")
				require.NoError(t, err)
				next := make(chan activities.Lease, 1)
				calling, leave := context.WithCancel(ctx)
				defer leave()
				err = activities.Do(calling, "one", activities.Cost{}, func(calling context.Context) error {
					go func() {
						l, err := gate.Acquire(ctx, activities.Request{})
						assert.NoError(t, err)
						next <- l
					}()
					require.Eventually(t, func() bool { return look().inUse == 2 }, 10*time.Second, 10*time.Millisecond)
					err := c.call(calling, provider.URL)
					leave() // cancelled meanwhile
					return err
				})
				require.Error(t, err)
				l := <-next
				require.NotNil(t, l)
				now := look()
				assert.Equal(t, uint64(1), now.overloads)
				assert.Equal(t, time.Second, now.asked)
				assert.False(t, l.(activities.FeedbackLease).Info().StartAt.Before(now.until), "the place was freed after the cooldown was there")
				l.Release()
				require.Eventually(t, func() bool { return look().inUse == 0 }, 10*time.Second, 10*time.Millisecond)
			})
		})
	}
}

// AskProvider calls a provider without Sluice's transport; it is gated by name.
func AskProvider(ctx context.Context, url string) error { return ask(ctx, url) }

// askOnce runs AskProvider.
func askOnce(ctx workflow.Context, url string, o workflow.ActivityOptions) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), AskProvider, url).Get(ctx, nil)
}

func registerAsk(r sdkworker.Registry) {
	r.RegisterWorkflow(askOnce)
	r.RegisterActivity(AskProvider)
}

// TestEveryAttemptTeaches: the first, the last, and those between.
func TestEveryAttemptTeaches(t *testing.T) {
	ts := server(t)
	provider := overloaded(t, "Retry-After-Ms", "20")
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: provider.URL, Activities: []string{"AskProvider"}})
	p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, registerAsk)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, askOnce, provider.URL, workflow.ActivityOptions{
		StartToCloseTimeout: 20 * time.Second, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Millisecond, MaximumAttempts: 3},
	})
	require.NoError(t, err)
	err = run.Get(ctx, nil)
	var failed *temporal.ApplicationError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, "wrapError", failed.Type())
	assert.Equal(t, "ask: provider: 429", failed.Message())
	assert.Zero(t, failed.NextRetryDelay(), "no attempt follows the last one")
	require.Eventually(t, func() bool {
		now := durablyLearned(t, p.client, pol.Gates()[0])
		return now.overloads == 3 && now.asked == 20*time.Millisecond && now.inUse == 0
	}, 10*time.Second, 20*time.Millisecond)
}

// TestRetryWithoutASlot: a failed attempt comes again after the cooldown, and
// until then neither queues nor has a slot. Its failure is the one that it has
// without the delay, but for that.
func TestRetryWithoutASlot(t *testing.T) {
	ts := server(t)
	failures := map[policy.RetryHint]*failurepb.Failure{}
	for _, hint := range []policy.RetryHint{policy.RetryHintOn, policy.RetryHintOff} {
		t.Run(string(hint), func(t *testing.T) {
			var calls atomic.Int32
			provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if calls.Add(1) == 1 {
					w.Header().Set("Retry-After", "2")
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			t.Cleanup(provider.Close)
			pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: provider.URL, Activities: []string{"AskProvider"}, RetryHint: hint})
			p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, registerAsk)
			gate := pol.Gates()[0]
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, askOnce, provider.URL, workflow.ActivityOptions{
				StartToCloseTimeout: 20 * time.Second, RetryPolicy: &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond},
			})
			require.NoError(t, err)
			var pending *workflowpb.PendingActivityInfo
			require.Eventually(t, func() bool {
				d, err := p.client.DescribeWorkflowExecution(ctx, run.GetID(), "")
				require.NoError(t, err)
				if len(d.PendingActivities) == 1 && d.PendingActivities[0].LastFailure != nil {
					pending = d.PendingActivities[0]
				}
				return pending != nil
			}, 10*time.Second, 10*time.Millisecond)
			failures[hint] = pending.LastFailure
			require.NoError(t, run.Get(ctx, nil))
			require.Equal(t, int32(2), calls.Load())

			st := status(t, p.client, gate)
			if hint == policy.RetryHintOff {
				assert.Zero(t, pending.LastFailure.GetApplicationFailureInfo().GetNextRetryDelay().AsDuration())
				return
			}
			delay := pending.LastFailure.GetApplicationFailureInfo().GetNextRetryDelay().AsDuration()
			assert.Greater(t, delay, time.Second)
			assert.LessOrEqual(t, delay, 2*time.Second)
			assert.Equal(t, uint64(2), st.Counters.Admissions-st.Counters.HandBacks)
			require.NotNil(t, st.Cooldown)
			assert.Equal(t, int32(503), st.Cooldown.Status)
		})
	}
	on, off := failures[policy.RetryHintOn], failures[policy.RetryHintOff]
	require.NotNil(t, on)
	require.NotNil(t, off)
	on.GetApplicationFailureInfo().NextRetryDelay = nil
	assert.True(t, proto.Equal(on, off), "with:\n%v\nwithout:\n%v", on, off)
}
