package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/opentelemetry"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.temporal.io/server/temporaltest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
	"sluice/workflows"
)

// network is what lies between a process and the server: its exchanges may take
// long, or not arrive.
type network struct {
	slow atomic.Int64 // ns
	down atomic.Bool
}

func (n *network) intercept(ctx context.Context, method string, in, out any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	if u, ok := in.(*workflowservice.UpdateWorkflowExecutionRequest); ok && u.GetRequest().GetInput().GetName() == workflows.UpdateExchange {
		if n.down.Load() {
			return grpcstatus.Error(codes.Unavailable, "no way there")
		}
		if slow := time.Duration(n.slow.Load()); slow > 0 {
			select {
			case <-time.After(slow):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return invoke(ctx, method, in, out, cc, o...)
}

// traced is a worker process whose spans are kept, Temporal's own among them.
type traced struct {
	*process
	t       *testing.T
	tracer  trace.Tracer
	spans   *tracetest.SpanRecorder
	network network
}

func startTraced(t *testing.T, ts *temporaltest.TestServer, o worker.Options, register func(sdkworker.Registry)) *traced {
	t.Helper()
	p := &traced{t: t, spans: tracetest.NewSpanRecorder()}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p.spans))
	p.tracer = provider.Tracer("test")
	tracing, err := opentelemetry.NewTracingInterceptor(opentelemetry.TracerOptions{Tracer: provider.Tracer("temporal")})
	require.NoError(t, err)
	o.TracerProvider = provider
	plugin, err := worker.NewPlugin(o)
	require.NoError(t, err)
	c, err := client.Dial(client.Options{
		HostPort: ts.GetFrontendHostPort(), Namespace: ts.GetDefaultNamespace(), Logger: quiet(), Plugins: []client.Plugin{plugin},
		Interceptors:      []interceptor.ClientInterceptor{tracing},
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(p.network.intercept)}},
	})
	require.NoError(t, err)
	p.process = &process{client: c, worker: sdkworker.New(c, taskQueue, sdkworker.Options{}), plugin: plugin}
	register(p.worker)
	require.NoError(t, p.worker.Start())
	t.Cleanup(p.stop)
	return p
}

// ended returns the spans of a name that have ended, with an attribute.
func (p *traced) ended(name string, with attribute.KeyValue) (found []sdktrace.ReadOnlySpan) {
	for _, s := range p.spans.Ended() {
		if s.Name() == name && valueOf(s, with.Key) == with.Value {
			found = append(found, s)
		}
	}
	return found
}

func (p *traced) byID(id trace.SpanID) sdktrace.ReadOnlySpan {
	for _, s := range p.spans.Ended() {
		if s.SpanContext().SpanID() == id {
			return s
		}
	}
	return nil
}

func valueOf(s sdktrace.ReadOnlySpan, key attribute.Key) attribute.Value {
	for _, kv := range s.Attributes() {
		if kv.Key == key {
			return kv.Value
		}
	}
	return attribute.Value{}
}

// line is what leads from a span to its trace's root, by name.
func (p *traced) line(s sdktrace.ReadOnlySpan) (names []string) {
	for s != nil {
		names = append(names, strings.SplitN(s.Name(), ":", 2)[0])
		s = p.byID(s.Parent().SpanID())
	}
	return names
}

// waiting is one way to wait: a gate, what is done about it, and what the span of
// an activity's wait is to say.
type waiting struct {
	name    string
	gate    policy.Gate
	units   map[string]int64
	before  func(w *waitingNow) // before the activity is started
	during  func(w *waitingNow) // when it has been
	options workflow.ActivityOptions

	outcome string
	reason  string // the one that most of the time was for; empty: it hardly waited
	failure string // error.type
	events  []string
}

type waitingNow struct {
	*testing.T
	p     *traced
	ctx   context.Context
	g     activities.Gate
	gate  *policy.Gate
	run   client.WorkflowRun
	lease activities.Lease
}

// long is how long waits are made to last: what a busy machine adds is little of it.
const long = 800 * time.Millisecond

func (w *waitingNow) pass(d time.Duration) { <-time.After(d) } // the wait itself

func (w *waitingNow) occupy() {
	l, err := w.g.Acquire(w.ctx, activities.Request{Label: "occupier"})
	require.NoError(w, err)
	w.lease = l
}

func (w *waitingNow) free() { w.lease.Release() }

// queued returns when so many are in the queue.
func (w *waitingNow) queued(n int) {
	w.Helper()
	require.Eventually(w, func() bool { return status(w.T, w.p.client, w.gate).Queued == n }, 20*time.Second, 10*time.Millisecond)
}

func (w *waitingNow) overload(d time.Duration) {
	w.lease.(activities.FeedbackLease).ReleaseWith(activities.Feedback{Outcome: activities.Overload, Status: 429, Asked: d, Source: "retry-after"})
}

// TestWaitsAreTold: for each outcome and each reason, a real activity's wait at a
// real gate: the span stands within the activity's, the reasons add up to its
// length, and the one that it was about has most of it.
func TestWaitsAreTold(t *testing.T) {
	occupied := func(w *waitingNow) { w.occupy() }
	cases := []waiting{
		{name: "immediate", gate: policy.Gate{MaxInFlight: 1}, outcome: "immediate",
			before: func(w *waitingNow) { w.occupy(); w.free() }},
		{name: "cap", gate: policy.Gate{MaxInFlight: 1}, outcome: "waited", reason: "cap", before: occupied,
			during: func(w *waitingNow) { w.queued(1); w.pass(long); w.free() }},
		{name: "order", gate: policy.Gate{MaxInFlight: 1}, outcome: "waited", reason: "order",
			before: func(w *waitingNow) {
				w.occupy()
				first := make(chan activities.Lease, 1)
				go func() {
					l, err := w.g.Acquire(w.ctx, activities.Request{Label: "first"})
					assert.NoError(w, err)
					first <- l
				}()
				w.queued(1)
				occupier := w.lease
				w.lease = releaser(func() { occupier.Release(); (<-first).Release() })
			},
			during: func(w *waitingNow) { w.queued(2); w.pass(long); w.free() }},
		{name: "pacing", gate: policy.Gate{Requests: admission.Rate{Limit: 1, Per: 2 * long, Burst: 1}}, outcome: "waited", reason: "pacing",
			before: func(w *waitingNow) { w.occupy(); w.free() }},
		{name: "budget:tokens", gate: policy.Gate{Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 1, Per: 2 * long, Burst: 1}}}},
			units: map[string]int64{"tokens": 1}, outcome: "waited", reason: "budget:tokens",
			before: func(w *waitingNow) {
				l, err := w.g.Acquire(w.ctx, activities.Request{Cost: activities.Cost{Units: map[string]int64{"tokens": 1}}})
				require.NoError(w, err)
				l.Release()
			}},
		{name: "cooldown", gate: policy.Gate{MaxInFlight: 1}, outcome: "waited", reason: "cooldown",
			before: func(w *waitingNow) { w.occupy(); w.overload(2 * long) }},
		{name: "paused", gate: policy.Gate{MaxInFlight: 1}, outcome: "waited", reason: "paused",
			before: func(w *waitingNow) {
				w.occupy()
				w.free()
				require.NoError(w, w.p.client.SignalWorkflow(w.ctx, w.gate.WorkflowID(), "", workflows.SignalPause, workflows.Pause{}))
			},
			during: func(w *waitingNow) {
				w.queued(1)
				w.pass(long)
				require.NoError(w, w.p.client.SignalWorkflow(w.ctx, w.gate.WorkflowID(), "", workflows.SignalResume, workflows.Pause{}))
			}},
		{name: "learning", gate: policy.Gate{MaxInFlight: 1, HolderTTL: 2 * time.Second}, outcome: "waited", reason: "learning",
			before: func(w *waitingNow) {
				w.occupy()
				w.free()
				require.NoError(w, w.p.client.TerminateWorkflow(w.ctx, w.gate.WorkflowID(), "", "a test"))
			}},
		{name: "delivery", gate: policy.Gate{MaxInFlight: 1}, outcome: "immediate", reason: "delivery",
			before: func(w *waitingNow) { w.occupy(); w.free(); w.p.network.slow.Store(int64(long)) },
			during: func(w *waitingNow) { _ = w.run.Get(w.ctx, nil); w.p.network.slow.Store(0) }},
		{name: "unavailable for a while", gate: policy.Gate{MaxInFlight: 1}, outcome: "waited", reason: "unavailable",
			before: func(w *waitingNow) { w.occupy(); w.free(); w.p.network.down.Store(true) },
			during: func(w *waitingNow) { w.pass(long); w.p.network.down.Store(false) }},
		{name: "unavailable", gate: policy.Gate{MaxInFlight: 1, OnUnavailable: policy.UnavailableFail}, outcome: "unavailable", reason: "unavailable",
			failure: workflows.ErrTypeUnavailable,
			before:  func(w *waitingNow) { w.occupy(); w.free(); w.p.network.down.Store(true) },
			during:  func(w *waitingNow) { _ = w.run.Get(w.ctx, nil); w.p.network.down.Store(false) }},
		{name: "queue timeout", gate: policy.Gate{MaxInFlight: 1, QueueTimeout: long}, outcome: "timeout", reason: "cap",
			failure: workflows.ErrTypeQueueTimeout, before: occupied,
			during: func(w *waitingNow) { _ = w.run.Get(w.ctx, nil); w.free() }},
		{name: "still queued", gate: policy.Gate{MaxInFlight: 1}, outcome: "timeout", reason: "cap", failure: workflows.ErrTypeStillQueued,
			options: workflow.ActivityOptions{StartToCloseTimeout: 2 * time.Second}, before: occupied,
			during: func(w *waitingNow) { _ = w.run.Get(w.ctx, nil); w.free() }},
		{name: "cancelled", gate: policy.Gate{MaxInFlight: 1}, outcome: "cancelled", reason: "cap", failure: "canceled",
			options: workflow.ActivityOptions{HeartbeatTimeout: 2 * time.Second, WaitForCancellation: true}, before: occupied,
			during: func(w *waitingNow) {
				w.queued(1)
				require.NoError(w, w.p.client.CancelWorkflow(w.ctx, w.run.GetID(), ""))
				_ = w.run.Get(w.ctx, nil)
				w.free()
			}},
		{name: "refused by a person", gate: policy.Gate{MaxInFlight: 1}, outcome: "refused", reason: "cap", failure: workflows.ErrTypeTicketCancelled,
			before: occupied,
			during: func(w *waitingNow) {
				w.queued(1)
				w.pass(long)
				ticket := status(w.T, w.p.client, w.gate).Queue[0].Ticket
				h, err := w.p.client.UpdateWorkflow(w.ctx, client.UpdateWorkflowOptions{
					WorkflowID: w.gate.WorkflowID(), UpdateName: workflows.UpdateOperate, WaitForStage: client.WorkflowUpdateStageCompleted,
					Args: []any{workflows.Operate{Do: workflows.DoCancelTicket, Ticket: ticket}},
				})
				require.NoError(w, err)
				require.NoError(w, h.Get(w.ctx, nil))
				_ = w.run.Get(w.ctx, nil)
				w.free()
			}},
		{name: "refused at once", gate: policy.Gate{Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 1, Per: time.Second, Burst: 1}}}},
			units: map[string]int64{"tokens": 2}, outcome: "refused", failure: workflows.ErrTypeNeverAdmissible},
		{name: "handed back", gate: policy.Gate{MaxInFlight: 2, Requests: admission.Rate{Limit: 1, Per: time.Second, Burst: 1}}, outcome: "waited", reason: "cooldown",
			events: []string{"sluice.cooldown", "sluice.hand_back"}, before: occupied,
			during: func(w *waitingNow) {
				require.Eventually(w, func() bool { return status(w.T, w.p.client, w.gate).Reserved == 1 }, 20*time.Second, 5*time.Millisecond)
				w.overload(3 * time.Second)
			}},
	}
	ts := server(t)
	var gates []policy.Gate
	units := map[string]map[string]int64{}
	for i := range cases {
		c := &cases[i]
		c.gate.Provider, c.gate.Endpoint, c.gate.Name = "test", fmt.Sprintf("http://way-%d.test", i), fmt.Sprint("way", i)
		units[c.gate.Name] = c.units
		gates = append(gates, c.gate)
	}
	pol := policyOf(t, gates...)
	p := startTraced(t, ts, worker.Options{Policy: pol}, func(r sdkworker.Registry) {
		r.RegisterWorkflowWithOptions(func(ctx workflow.Context, gate string, o workflow.ActivityOptions) error {
			if o.StartToCloseTimeout == 0 {
				o.StartToCloseTimeout = 30 * time.Second
			}
			o.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 1}
			return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), "Wait", gate).Get(ctx, nil)
		}, workflow.RegisterOptions{Name: "wait"})
		r.RegisterActivityWithOptions(func(ctx context.Context, gate string) error {
			return activities.Do(ctx, gate, activities.Cost{Units: units[gate]}, func(context.Context) error { return nil })
		}, activity.RegisterOptions{Name: "Wait"})
	})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			gate, err := pol.ByName(c.gate.Name)
			require.NoError(t, err)
			g, err := p.plugin.Gates().Gate(c.gate.Name)
			require.NoError(t, err)
			now := &waitingNow{T: t, p: p, ctx: ctx, g: g, gate: gate}
			if c.before != nil {
				c.before(now)
			}
			rootCtx, root := p.tracer.Start(ctx, "root")
			now.run, err = p.client.ExecuteWorkflow(rootCtx, client.StartWorkflowOptions{ID: c.gate.Name, TaskQueue: taskQueue}, "wait", c.gate.Name, c.options)
			require.NoError(t, err)
			root.End()
			if c.during != nil {
				c.during(now)
			}
			if err := now.run.Get(ctx, nil); c.failure == "" {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
			}
			label := attribute.String("sluice.ticket", "Wait "+c.gate.Name+"/5")
			require.Eventually(t, func() bool { return len(p.ended("admission.wait", label)) == 1 }, 10*time.Second, 10*time.Millisecond)
			c.check(t, p, gate, p.ended("admission.wait", label)[0])
		})
	}
}

// TestALeavingIsToldBySignals: where answers are read by query, the gate tells what a
// ticket waited for whose caller left, too.
func TestALeavingIsToldBySignals(t *testing.T) {
	ts := server(t)
	pol := policyOf(t, policy.Gate{Provider: "test", Endpoint: "http://signals.test", Name: "one", MaxInFlight: 1})
	p := startTraced(t, ts, worker.Options{Policy: pol, Transport: activities.TransportSignal}, register)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	occupier := take(t, ctx, p.process)
	defer occupier.Release()
	g, err := p.plugin.Gates().Gate("one")
	require.NoError(t, err)
	brief, leave := context.WithTimeout(ctx, 2*long)
	defer leave()
	_, err = g.Acquire(brief, activities.Request{Label: "leaving"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	label := attribute.String("sluice.ticket", "leaving")
	require.Eventually(t, func() bool { return len(p.ended("admission.wait", label)) == 1 }, 10*time.Second, 10*time.Millisecond)
	s := p.ended("admission.wait", label)[0]
	assert.Equal(t, "timeout", valueOf(s, "sluice.outcome").AsString())
	assert.Equal(t, "deadline_exceeded", valueOf(s, "error.type").AsString())
	length := s.EndTime().Sub(s.StartTime()).Seconds()
	assert.Greater(t, valueOf(s, "sluice.wait.cap").AsFloat64(), length/2)
	assert.Less(t, valueOf(s, "sluice.wait.remainder").AsFloat64(), length/5)
}

// releaser is a lease that is given back in a way of its own.
type releaser func()

func (r releaser) Release() { r() }

func (c *waiting) check(t *testing.T, p *traced, gate *policy.Gate, s sdktrace.ReadOnlySpan) {
	t.Helper()
	require.Eventually(t, func() bool { return p.byID(s.Parent().SpanID()) != nil }, 10*time.Second, 10*time.Millisecond, "the activity's span ends, too")
	assert.Equal(t, []string{"admission.wait", "RunActivity", "StartActivity", "RunWorkflow", "StartWorkflow", "root"}, p.line(s))
	assert.Equal(t, gate.ID(), valueOf(s, "sluice.gate").AsString())
	assert.Equal(t, c.outcome, valueOf(s, "sluice.outcome").AsString())
	assert.Equal(t, c.failure, valueOf(s, "error.type").AsString())
	assert.Equal(t, gate.MaxInFlight, valueOf(s, "sluice.cap").AsInt64())
	if c.outcome != "refused" && c.outcome != "unavailable" {
		assert.Positive(t, valueOf(s, "sluice.queue.position").AsInt64())
		assert.Positive(t, valueOf(s, "sluice.queue.depth").AsInt64())
	}
	length := s.EndTime().Sub(s.StartTime()).Seconds()
	sum := 0.0
	for _, kv := range s.Attributes() {
		if strings.HasPrefix(string(kv.Key), "sluice.wait.") {
			assert.GreaterOrEqual(t, kv.Value.AsFloat64(), 0.0, kv.Key)
			sum += kv.Value.AsFloat64()
		}
	}
	t.Logf("%.3f s: %v", length, s.Attributes())
	assert.InDelta(t, length, sum, 0.005, "the reasons add up")
	var events []string
	for _, e := range s.Events() {
		events = append(events, e.Name)
	}
	for _, event := range c.events {
		assert.Contains(t, events, event)
	}
	if c.reason == "" {
		return
	}
	assert.GreaterOrEqual(t, length, 0.3)
	assert.Less(t, valueOf(s, "sluice.wait.remainder").AsFloat64(), length/5)
	key := attribute.Key("sluice.wait." + strings.ReplaceAll(c.reason, ":", "."))
	assert.Greater(t, valueOf(s, key).AsFloat64(), length/2, "most of it was for %s", c.reason)
}

// TestAttemptsAreTold: the span of an attempt says what the provider answered and
// what the gate makes of it, and what the attempt sends is part of it.
func TestAttemptsAreTold(t *testing.T) {
	ts := server(t)
	provider := provider(t, loopback.Quota{Interval: time.Hour, RetryAfter: "90"}) // the first request is served
	pol := policyOf(t, policy.Gate{Provider: "loopback", Endpoint: provider.URL(), Name: "one", MaxInFlight: 2, MaxCooldown: 200 * time.Millisecond})
	var sent atomic.Pointer[trace.SpanContext]
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		sc := trace.SpanContextFromContext(r.Context())
		sent.Store(&sc)
		return http.DefaultTransport.RoundTrip(r)
	})
	p := startTraced(t, ts, worker.Options{Policy: pol}, func(r sdkworker.Registry) {
		r.RegisterWorkflow(fanOut)
		r.RegisterActivity((&activities.Caller{Base: base}).CallProvider)
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gate := attribute.String("sluice.gate", pol.Gates()[0].ID())
	attempts := func(n int) []sdktrace.ReadOnlySpan {
		require.Eventually(t, func() bool { return len(p.ended("admission.attempt", gate)) >= n }, 20*time.Second, 10*time.Millisecond)
		return p.ended("admission.attempt", gate)
	}
	run, err := p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "served", TaskQueue: taskQueue}, fanOut, provider.CallURL("told"), 1)
	require.NoError(t, err)
	require.NoError(t, run.Get(ctx, nil))
	served := attempts(1)[0]
	assert.Equal(t, "success", valueOf(served, "sluice.outcome").AsString())
	assert.EqualValues(t, http.StatusOK, valueOf(served, "http.response.status_code").AsInt64())
	assert.Equal(t, served.SpanContext().SpanID(), sent.Load().SpanID(), "what is sent is part of the attempt")
	wait := p.ended("admission.wait", gate)[0]
	assert.Equal(t, wait.Parent().SpanID(), served.Parent().SpanID(), "wait and attempt stand beside each other")
	assert.Equal(t, valueOf(wait, "sluice.lease.id"), valueOf(served, "sluice.lease.id"))
	assert.False(t, served.StartTime().Before(wait.EndTime()))

	run, err = p.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "refused", TaskQueue: taskQueue}, fanOut, provider.CallURL("told"), 1)
	require.NoError(t, err)
	refused := attempts(2)[1]
	require.NoError(t, p.client.TerminateWorkflow(ctx, run.GetID(), "", "seen enough"))
	assert.Equal(t, "overload", valueOf(refused, "sluice.outcome").AsString())
	assert.EqualValues(t, http.StatusTooManyRequests, valueOf(refused, "http.response.status_code").AsInt64())
	assert.Equal(t, "429", valueOf(refused, "error.type").AsString())
	assert.InDelta(t, 90, valueOf(refused, "sluice.cooldown.asked").AsFloat64(), 1)
	assert.InDelta(t, 0.2, valueOf(refused, "sluice.cooldown.applied").AsFloat64(), 0.001)
	assert.Equal(t, "retry-after", valueOf(refused, "sluice.cooldown.source").AsString())
	require.Len(t, refused.Events(), 1)
	assert.Equal(t, "sluice.cooldown", refused.Events()[0].Name)
}
