package activities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"sluice/admission"
	"sluice/policy"
)

// recorded opens local gates whose spans are kept.
func recorded(t *testing.T, g policy.Gate) (*Gates, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	g.Provider, g.Name, g.Endpoint = "test", "one", "http://"+t.Name()[4:]+".test"
	p, err := policy.New(g)
	require.NoError(t, err)
	return NewLocalGates(p, GatesOptions{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}), spans
}

func attributesOf(s sdktrace.ReadOnlySpan) map[attribute.Key]attribute.Value {
	all := map[attribute.Key]attribute.Value{}
	for _, kv := range s.Attributes() {
		all[kv.Key] = kv.Value
	}
	return all
}

// TestAWaitTellsWhatItWasFor: in a bubble's time every reason is exact, and
// nothing remains.
func TestAWaitTellsWhatItWasFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates, spans := recorded(t, policy.Gate{MaxInFlight: 1, Requests: admission.Rate{Limit: 1, Per: time.Second, Burst: 1}})
		g := gateOf(t, gates)
		first, err := g.Acquire(t.Context(), Request{Label: "first"})
		require.NoError(t, err)
		go func() {
			time.Sleep(3 * time.Second)
			first.Release()
		}()
		second, err := g.Acquire(t.Context(), Request{Label: "second"})
		require.NoError(t, err)
		second.Release()
		closeAll(t, gates)
		var waits []map[attribute.Key]attribute.Value
		for _, s := range spans.Ended() {
			if s.Name() == spanWait {
				waits = append(waits, attributesOf(s))
			}
		}
		require.Len(t, waits, 2)
		assert.Equal(t, waitImmediate, waits[0][attrOutcome].AsString())
		assert.Equal(t, waitWaited, waits[1][attrOutcome].AsString())
		assert.Equal(t, "second", waits[1][attrTicket].AsString())
		assert.InDelta(t, 1, waits[1]["sluice.wait.pacing"].AsFloat64(), 0.05)
		assert.InDelta(t, 2, waits[1]["sluice.wait.cap"].AsFloat64(), 0.05)
		assert.Zero(t, waits[1]["sluice.wait.remainder"].AsFloat64())
		assert.EqualValues(t, 1, waits[1][attrPosition].AsInt64())
		assert.EqualValues(t, 1, waits[1][attrCap].AsInt64())
	})
}

// panickingProvider is a tracer provider that panics wherever it can.
type panickingProvider struct {
	trace.TracerProvider
	started bool // its spans do, too
}

func (b panickingProvider) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return panickingTracer{noop.Tracer{}, b.started}
}

type panickingTracer struct {
	trace.Tracer
	started bool
}

func (b panickingTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	if !b.started {
		panic("tracer")
	}
	return ctx, panickingSpan{}
}

type panickingSpan struct{ noop.Span }

func (panickingSpan) IsRecording() bool                     { return true }
func (panickingSpan) SetAttributes(...attribute.KeyValue)   { panic("attributes") }
func (panickingSpan) End(...trace.SpanEndOption)            { panic("end") }
func (panickingSpan) AddEvent(string, ...trace.EventOption) { panic("event") }
func (panickingSpan) SpanContext() trace.SpanContext        { panic("context") }

// TestBrokenTelemetryBreaksNoCall: a tracer that panics, spans that do, and an
// exporter that never returns cost no call and no lease.
func TestBrokenTelemetryBreaksNoCall(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	for name, provider := range map[string]trace.TracerProvider{
		"tracer panics": panickingProvider{}, "spans panic": panickingProvider{started: true},
		"exporter never returns": sdktrace.NewTracerProvider(sdktrace.WithSyncer(stuckExporter{stuck})),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.New(policy.Gate{Provider: "test", Name: "one", Endpoint: "http://broken.test", MaxInFlight: 1})
			require.NoError(t, err)
			gates := NewLocalGates(p, GatesOptions{TracerProvider: provider})
			for range 3 {
				require.NoError(t, Do(WithGates(t.Context(), gates), "one", Cost{}, func(context.Context) error { return nil }))
			}
			st, err := gates.LocalStatus("one")
			require.NoError(t, err)
			assert.EqualValues(t, 3, st.Counters.Admissions)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			require.NoError(t, gates.Close(ctx))
		})
	}
}

type stuckExporter struct{ until chan struct{} }

func (e stuckExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	<-e.until
	return nil
}
func (e stuckExporter) Shutdown(context.Context) error { return nil }

// brokenMeter panics when an instrument is made.
type brokenMeter struct{ metric.MeterProvider }

func (brokenMeter) Meter(string, ...metric.MeterOption) metric.Meter { panic("meter") }

func TestABrokenMeterBreaksNoCall(t *testing.T) {
	p, err := policy.New(policy.Gate{Provider: "test", Name: "one", Endpoint: "http://broken-meter.test", MaxInFlight: 1})
	require.NoError(t, err)
	gates := NewLocalGates(p, GatesOptions{MeterProvider: brokenMeter{}})
	require.NoError(t, Do(WithGates(t.Context(), gates), "one", Cost{}, func(context.Context) error { return nil }))
	closeAll(t, gates)
}

// TestNobodyLooksCostsNoRecord: without a provider a wait is not followed.
func TestNobodyLooksCostsNoRecord(t *testing.T) {
	gates := local(t, policy.Gate{MaxInFlight: 1})
	defer closeAll(t, gates)
	h := gateOf(t, gates).(*holder)
	assert.Nil(t, h.telemetry.beginWait(t.Context(), "label"))
}
