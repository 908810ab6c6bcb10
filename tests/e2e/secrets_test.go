package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"sluice/activities"
	"sluice/policy"
	"sluice/worker"
	"sluice/workflows"
)

// secrets are planted where a secret stands in real life.
var secrets = map[string]string{
	"userinfo": "planted-userinfo-7f3a", "query": "planted-query-91bc", "fragment": "planted-fragment-2d05",
	"header": "planted-header-c44e", "body": "planted-body-5a6f", "answer": "planted-answer-e817", "answered header": "planted-answered-header-03d9",
}

// lockedBuffer is a log that many write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSecretsStayOut: endpoints with userinfo and keys, requests with credentials
// and bodies, answers with what nobody else should read: no history of any
// workflow, no log line, no status, no error, no span and no metric names any of it.
func TestSecretsStayOut(t *testing.T) {
	ts := server(t)
	var mu sync.Mutex
	calls := 0
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, password, _ := r.BasicAuth()
		mu.Lock()
		defer mu.Unlock()
		calls++
		// The provider does get what it must.
		for where, got := range map[string]string{"header": r.Header.Get("X-Api-Key"), "userinfo": password, "body": string(body), "query": r.URL.Query().Get("key")} {
			if got != secrets[where] {
				t.Errorf("the provider got %q as %s", got, where)
			}
		}
		w.Header().Set("X-Account", secrets["answered header"])
		w.Header().Set("Retry-After", "soon, says "+secrets["answered header"]) // malformed
		w.Header().Set("X-Ratelimit-Remaining", "0")
		w.Header().Set("X-Ratelimit-Reset", secrets["answered header"])
		if calls == 1 {
			w.WriteHeader(http.StatusTooManyRequests)
		} else if calls == 2 {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = fmt.Fprint(w, `{"error": "`+secrets["answer"]+`"}`)
	}))
	t.Cleanup(provider.Close)
	host := strings.TrimPrefix(provider.URL, "http://")
	endpoint := "http://user:" + secrets["userinfo"] + "@" + host + "/v1?key=" + secrets["query"] + "#" + secrets["fragment"]

	pol := policyOf(t, policy.Gate{Provider: "secret", Endpoint: endpoint, MaxInFlight: 1, FallbackCooldown: 10 * time.Millisecond, MaxCooldown: time.Second, Learn: true, QueueTimeout: time.Second, Activities: []string{"CallWithSecrets"}})
	gate := pol.Gates()[0]
	logs := &lockedBuffer{}
	handler := slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})
	spans, metrics := &lockedBuffer{}, sdkmetric.NewManualReader()
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(spans))
	require.NoError(t, err)
	plugin, err := worker.NewPlugin(worker.Options{
		Policy: pol, TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics)),
	})
	require.NoError(t, err)
	c, err := client.Dial(client.Options{HostPort: ts.GetFrontendHostPort(), Namespace: ts.GetDefaultNamespace(), Logger: log.NewStructuredLogger(slog.New(handler)), Plugins: []client.Plugin{plugin}})
	require.NoError(t, err)
	w := sdkworker.New(c, taskQueue, sdkworker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, name string) error {
		return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			StartToCloseTimeout: time.Minute, RetryPolicy: &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond, MaximumAttempts: 5},
		}), name).Get(ctx, nil)
	}, workflow.RegisterOptions{Name: "secret"})
	w.RegisterActivity(&secretCaller{url: endpoint})
	require.NoError(t, w.Start())

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "secret", TaskQueue: taskQueue}, "secret", "CallWithSecrets")
	require.NoError(t, err)
	require.NoError(t, run.Get(ctx, nil))

	// An HTTP client puts the URL into the error of a request that isn't admitted.
	held, err := plugin.Gates().Gate(gate.ID())
	require.NoError(t, err)
	lease, err := held.Acquire(ctx, activities.Request{})
	require.NoError(t, err)
	refused, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "refused", TaskQueue: taskQueue}, "secret", "CallUngated")
	require.NoError(t, err)
	err = refused.Get(ctx, nil)
	lease.Release()
	var failed *temporal.ApplicationError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, workflows.ErrTypeQueueTimeout, failed.Type())
	st := status(t, c, gate)
	assert.EqualValues(t, 1, st.Counters.Overloads)
	assert.EqualValues(t, 4, st.Counters.Admissions-st.Counters.HandBacks)

	found := map[string]string{"error of a refused request": err.Error(), "gate ID": gate.ID(), "workflow ID": gate.WorkflowID()}
	encoded, err := json.Marshal(st)
	require.NoError(t, err)
	found["status"] = string(encoded)
	listed, err := c.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{})
	require.NoError(t, err)
	require.Len(t, listed.Executions, 3, "the callers and the gate")
	for _, e := range listed.Executions {
		id := e.GetExecution().GetWorkflowId()
		found["listing of "+id] = protojson.Format(e)
		for _, h := range chain(t, ctx, c, id) {
			// Payloads are base64 in the JSON: they are looked through as they are.
			found["history of "+id] += protojson.Format(h) + payloadsOf(t, h.ProtoReflect())
		}
	}
	_, err = pol.ByName("nobody")
	found["error of an unknown gate"] = err.Error()
	var measured metricdata.ResourceMetrics
	require.NoError(t, metrics.Collect(ctx, &measured))
	found["metrics"] = fmt.Sprintf("%+v", measured)
	w.Stop()
	c.Close()
	found["spans"] = spans.String() // the gates are closed: all have ended
	for _, name := range []string{"admission.wait", "admission.attempt", "sluice.QueueTimeout", "429", host} {
		require.Contains(t, found["spans"], name)
	}
	require.Contains(t, found["metrics"], host)
	found["log"] = logs.String()
	require.Contains(t, found["log"], "CallWithSecrets", "the log says something")
	require.Contains(t, found["history of "+gate.WorkflowID()], host, "the histories are read")
	for where, text := range found {
		for what, secret := range secrets {
			assert.NotContains(t, text, secret, "%s in the %s", what, where)
		}
	}
}

type secretCaller struct{ url string }

// CallWithSecrets is a call as people write them. Its error is what the client
// says, without the answer.
func (s *secretCaller) CallWithSecrets(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(secrets["body"]))
	if err != nil {
		return err
	}
	r.Header.Set("X-Api-Key", secrets["header"])
	response, err := activities.HTTPClient(ctx).Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return &answeredError{response}
	}
	return nil
}

// CallUngated is the same, and only its request is gated.
func (s *secretCaller) CallUngated(ctx context.Context) error { return s.CallWithSecrets(ctx) }

// answeredError carries the answer, as client libraries' errors do.
type answeredError struct{ Response *http.Response }

func (e *answeredError) Error() string { return "answered " + e.Response.Status }

// payloadsOf are all bytes fields below a message, as text.
func payloadsOf(t *testing.T, m protoreflect.Message) string {
	t.Helper()
	var b strings.Builder
	_ = protorange.Range(m, func(v protopath.Values) error {
		if last, ok := v.Index(-1).Value.Interface().([]byte); ok {
			b.Write(last)
			b.WriteByte('\n')
		}
		return nil
	})
	return b.String()
}
