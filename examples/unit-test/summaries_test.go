package summaries

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
)

// A gate in the test's process stands in for the durable one: the same
// scheduler and the same policy, without Temporal.
func localGates(t *testing.T, gate policy.Gate) *activities.Gates {
	t.Helper()
	p, err := policy.New(gate)
	require.NoError(t, err)
	gates := activities.NewLocalGates(p, activities.GatesOptions{})
	t.Cleanup(func() { assert.NoError(t, gates.Close(context.Background())) })
	return gates
}

// options make a test environment run activities as a worker with Sluice's
// plugin does.
func options(gates *activities.Gates) sdkworker.Options {
	return sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{activities.NewInterceptor(gates)}}
}

func environment(gates *activities.Gates, s *Summarizer) *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(options(gates))
	env.RegisterActivity(s)
	return env
}

func summarize(env *testsuite.TestActivityEnvironment, s *Summarizer, text string) (string, error) {
	value, err := env.ExecuteActivity(s.Summarize, text)
	if err != nil {
		return "", err
	}
	var summary string
	err = value.Get(&summary)
	return summary, err
}

// provider answers with answer and remembers when calls came and how many were
// there at once.
type provider struct {
	*httptest.Server
	answer func(n int, w http.ResponseWriter) // n: 1 for the first call

	mu      sync.Mutex
	arrived []time.Time
	now     int
	most    int
}

func newProvider(t *testing.T, answer func(n int, w http.ResponseWriter)) *provider {
	p := &provider{answer: answer}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	p.arrived = append(p.arrived, time.Now())
	n := len(p.arrived)
	p.now++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	p.answer(n, w)
	p.mu.Lock()
	p.now--
	p.mu.Unlock()
}

func ok(_ int, w http.ResponseWriter) { _, _ = fmt.Fprint(w, "short") }

// summarizeAll runs n activities at once. Several activities that wait at once
// need a workflow environment: to activity environments each is the first
// activity of one and the same workflow.
func summarizeAll(ctx workflow.Context, n int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	var calls []workflow.Future
	for range n {
		calls = append(calls, workflow.ExecuteActivity(ctx, "Summarize", "long"))
	}
	for _, call := range calls {
		if err := call.Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func TestCallsArePacedAndCapped(t *testing.T) {
	const calls, spacing, most = 6, 20 * time.Millisecond, 2
	p := newProvider(t, ok)
	gates := localGates(t, policy.Gate{
		Provider: "example", Endpoint: p.URL, MaxInFlight: most,
		Requests: admission.Rate{Limit: 1, Per: spacing, Burst: 1},
	})
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(options(gates))
	env.RegisterWorkflow(summarizeAll)
	env.RegisterActivity(&Summarizer{URL: p.URL, Caller: activities.Caller{Base: p.Client().Transport}})

	began := time.Now()
	env.ExecuteWorkflow(summarizeAll, calls)
	elapsed := time.Since(began)

	require.NoError(t, env.GetWorkflowError())
	assert.Len(t, p.arrived, calls)
	assert.LessOrEqual(t, p.most, most)
	assert.GreaterOrEqual(t, elapsed, (calls-1)*spacing)
}

func TestOverloadHoldsTheNextCallBack(t *testing.T) {
	const asked = 60 * time.Millisecond
	var told time.Time
	p := newProvider(t, func(n int, w http.ResponseWriter) {
		if n == 1 {
			told = time.Now()
			w.Header().Set("Retry-After-Ms", "60")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		ok(n, w)
	})
	gates := localGates(t, policy.Gate{Provider: "example", Endpoint: p.URL})
	s := &Summarizer{URL: p.URL, Caller: activities.Caller{Base: p.Client().Transport}}
	env := environment(gates, s)

	_, err := summarize(env, s, "long")
	var refused *temporal.ApplicationError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, activities.ErrTypeProvider, refused.Type())
	assert.False(t, refused.NonRetryable())

	_, err = summarize(env, s, "long")
	require.NoError(t, err)
	assert.GreaterOrEqual(t, p.arrived[1].Sub(told), asked)
}

func TestTheLeaseComesBackAfterAnError(t *testing.T) {
	p := newProvider(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) })
	gates := localGates(t, policy.Gate{Provider: "example", Endpoint: p.URL, MaxInFlight: 1})
	s := &Summarizer{URL: p.URL, Caller: activities.Caller{Base: p.Client().Transport}}

	_, err := summarize(environment(gates, s), s, "long")
	require.Error(t, err)

	ctx := activities.WithGates(t.Context(), gates)
	lease, free, err := activities.TryAcquire(ctx, gates.Policy().Gates()[0].ID(), activities.Cost{})
	require.NoError(t, err)
	require.True(t, free, "the only place is free again")
	lease.Release()
}
