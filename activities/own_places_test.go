package activities

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/policy"
)

// TestAnActivityThatWaitsForItself: of two requests at a cap of one, the second waits
// until the first one's response is read or closed. Where the activity doesn't do
// that, the error says whose doing it is.
func TestAnActivityThatWaitsForItself(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "body") }))
	defer provider.Close()
	get := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
		if err != nil {
			return nil, err
		}
		return HTTPClient(ctx).Do(r)
	}
	open := func(t *testing.T, ctx context.Context, _ *Gates) io.Closer {
		response, err := get(ctx)
		require.NoError(t, err)
		return response.Body
	}
	for name, c := range map[string]struct {
		places int64
		first  func(*testing.T, context.Context, *Gates) io.Closer // what it does before the second request
		says   string                                              // "": the second one gets through
	}{
		"the first response is open": {1, open, "the ticket's queue deadline passed; this activity itself has 1 of the gate's 1 places: read its open responses to their end or close them before the next call"},
		"it is read": {1, func(t *testing.T, ctx context.Context, gates *Gates) io.Closer {
			response := open(t, ctx, gates)
			_, err := io.ReadAll(response.(io.Reader))
			require.NoError(t, err)
			return response
		}, ""},
		"there is another place": {2, open, ""},
		"somebody else has the place": {1, func(t *testing.T, _ context.Context, gates *Gates) io.Closer {
			l, err := gateOf(t, gates).Acquire(t.Context(), Request{})
			require.NoError(t, err)
			return closer(l.Release)
		}, "the ticket's queue deadline passed"},
	} {
		t.Run(name, func(t *testing.T) {
			gates := local(t, policy.Gate{Endpoint: provider.URL, MaxInFlight: c.places, QueueTimeout: 100 * time.Millisecond})
			defer closeAll(t, gates)
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			env.SetWorkerOptions(sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(gates)}})
			ran := false
			twice := func(ctx context.Context) error {
				ran = true
				first := c.first(t, ctx, gates)
				defer first.Close()
				response, err := get(ctx)
				if c.says == "" {
					require.NoError(t, err)
					return response.Body.Close()
				}
				require.ErrorIs(t, err, ErrQueueTimeout)
				var e *Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, c.says, e.Detail)
				return nil
			}
			env.RegisterActivity(twice)
			_, err := env.ExecuteActivity(twice)
			require.NoError(t, err)
			assert.True(t, ran)
		})
	}
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}
