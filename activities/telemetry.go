package activities

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// scope names this library to OpenTelemetry.
const scope = "sluice/activities"

// Names of spans, of their attributes and events, and of metrics.
// docs/telemetry.md says what each means, and a test holds it to this list.
const (
	spanWait    = "admission.wait"
	spanAttempt = "admission.attempt"

	eventCooldown  = "sluice.cooldown"
	eventHandBack  = "sluice.hand_back"
	eventLeaseLost = "sluice.lease.lost"

	attrGate       = attribute.Key("sluice.gate")
	attrTicket     = attribute.Key("sluice.ticket")
	attrOutcome    = attribute.Key("sluice.outcome")
	attrPosition   = attribute.Key("sluice.queue.position")
	attrDepth      = attribute.Key("sluice.queue.depth")
	attrInFlight   = attribute.Key("sluice.in_flight")
	attrCap        = attribute.Key("sluice.cap")
	attrLease      = attribute.Key("sluice.lease.id")
	attrGeneration = attribute.Key("sluice.lease.generation")
	attrLocal      = attribute.Key("sluice.lease.local")
	attrWhy        = attribute.Key("sluice.hand_back.reason")
	attrAsked      = attribute.Key("sluice.cooldown.asked")
	attrApplied    = attribute.Key("sluice.cooldown.applied")
	attrLeft       = attribute.Key("sluice.cooldown.left")
	attrSource     = attribute.Key("sluice.cooldown.source")
	attrReason     = attribute.Key("sluice.reason")
	attrState      = attribute.Key("sluice.state")
	attrKind       = attribute.Key("sluice.refusal.kind")
	attrStatus     = attribute.Key("http.response.status_code")
	attrErrorType  = attribute.Key("error.type")

	// A reason's own attribute on a wait is this and the reason, seconds.
	attrWaitPrefix = "sluice.wait."

	metricWait       = "sluice.wait.duration"
	metricReason     = "sluice.wait.reason.duration"
	metricLeases     = "sluice.leases"
	metricDepth      = "sluice.queue.depth"
	metricAdmissions = "sluice.admissions"
	metricAttempts   = "sluice.attempts"
	metricOverloads  = "sluice.overloads"
	metricCooldown   = "sluice.cooldown.duration"
	metricHandBacks  = "sluice.hand_backs"
	metricExchanges  = "sluice.exchanges"
	metricResyncs    = "sluice.resyncs"
	metricLost       = "sluice.holders.lost"
	metricExpired    = "sluice.leases.expired"
	metricRefusals   = "sluice.refusals"
)

// waitBounds are the bounds of the histograms of waits and cooldowns, in seconds:
// a wait may be a millisecond, and it may be an hour.
var waitBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}

// telemetry is what the gates of one policy tell OpenTelemetry. What it calls is
// a stranger's: nothing that goes wrong there may reach a call, or keep a lease.
// Spans end, with all that they tell, in a goroutine of their own.
type telemetry struct {
	gates  *Gates
	tracer trace.Tracer // nil: none

	wait, reason, cooldown                                                   metric.Float64Histogram
	admissions, attempts, overloads, handBacks, exchanges, resyncs, refusals metric.Int64Counter
	leases, depth                                                            metric.Int64ObservableGauge
	lost, expired                                                            metric.Int64ObservableCounter
	registration                                                             metric.Registration
	later                                                                    finisher
}

// newTelemetry makes the instruments. What can't be made is logged, once, and
// left out.
func newTelemetry(g *Gates) *telemetry {
	t := &telemetry{gates: g}
	t.later.shield = func(job func()) { g.shielded("telemetry", job) }
	g.shielded("TracerProvider", func() {
		p := g.options.TracerProvider
		if p == nil {
			p = otel.GetTracerProvider()
		}
		t.tracer = p.Tracer(scope)
		if _, none := t.tracer.(noop.Tracer); none {
			t.tracer = nil // it would take its time for nothing
		}
	})
	g.shielded("MeterProvider", func() {
		p := g.options.MeterProvider
		if p == nil {
			p = otel.GetMeterProvider()
		}
		if err := t.instruments(p.Meter(scope)); err != nil {
			g.options.Logger.Error("sluice: a metric is left out", "error", err)
		}
	})
	return t
}

func (t *telemetry) instruments(m metric.Meter) error {
	var failed error
	histogram := func(name, text string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), metric.WithExplicitBucketBoundaries(waitBounds...))
		failed = errors.Join(failed, err)
		return h
	}
	counter := func(name, unit, text string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		failed = errors.Join(failed, err)
		return c
	}
	t.wait = histogram(metricWait, "Waits for admission, from the request to the start or the error.")
	t.reason = histogram(metricReason, "What waits for admission were for; each reason that a wait had is counted once.")
	t.cooldown = histogram(metricCooldown, "Cooldowns that attempts of this process asked for, as far as the policy follows them.")
	t.admissions = counter(metricAdmissions, "{lease}", "Leases that started in this process.")
	t.attempts = counter(metricAttempts, "{attempt}", "Attempts of this process that are over.")
	t.overloads = counter(metricOverloads, "{attempt}", "Attempts of this process to which the provider said: slow down.")
	t.handBacks = counter(metricHandBacks, "{lease}", "Leases that this process gave back before they started.")
	t.exchanges = counter(metricExchanges, "{exchange}", "Exchanges of this process that the gate answered.")
	t.resyncs = counter(metricResyncs, "{exchange}", "Exchanges in which this process presented all that it has.")
	t.refusals = counter(metricRefusals, "{ticket}", "Tickets of this process that the gate refused.")
	gauge := func(name, unit, text string) metric.Int64ObservableGauge {
		g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		failed = errors.Join(failed, err)
		return g
	}
	observed := func(name, unit, text string) metric.Int64ObservableCounter {
		c, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		failed = errors.Join(failed, err)
		return c
	}
	t.leases = gauge(metricLeases, "{lease}", "Leases that this process has.")
	t.depth = gauge(metricDepth, "{ticket}", "Tickets in the gate's queue, of all processes.")
	t.lost = observed(metricLost, "{holder}", "Processes with tickets or leases that the gate lost, counted by the gate.")
	t.expired = observed(metricExpired, "{lease}", "Leases that the gate ended by itself, counted by the gate.")
	if failed != nil {
		return failed
	}
	var err error
	t.registration, err = m.RegisterCallback(t.observe, t.leases, t.depth, t.lost, t.expired)
	return err
}

// observe tells how the gates stand.
func (t *telemetry) observe(_ context.Context, o metric.Observer) error {
	t.gates.mu.Lock()
	open := make([]*holder, 0, len(t.gates.open))
	for _, h := range t.gates.open {
		open = append(open, h)
	}
	t.gates.mu.Unlock()
	for _, h := range open {
		h.mu.Lock()
		g, reserved, started := h.telemetry, int64(len(h.reserved)), int64(0)
		for _, ticket := range h.tickets {
			if ticket.started {
				started++
			}
		}
		depth, parked, lost, expired, known := h.depth, h.parked, int64(h.lost), int64(h.expired), h.counter != 0
		h.mu.Unlock()
		o.ObserveInt64(t.leases, reserved, g.reserved)
		o.ObserveInt64(t.leases, started, g.started)
		if known { // else the gate has not said anything yet
			o.ObserveInt64(t.depth, depth-parked, g.present)
			o.ObserveInt64(t.depth, parked, g.parked)
			o.ObserveInt64(t.lost, lost, g.gate)
			o.ObserveInt64(t.expired, expired, g.gate)
		}
	}
	return nil
}

// close ends the observation and waits for what is still to be told, as long as
// ctx lasts.
func (t *telemetry) close(ctx context.Context) {
	t.gates.shielded("MeterProvider", func() {
		if t.registration != nil {
			_ = t.registration.Unregister() // there is nothing else to do about it
		}
	})
	t.later.drain(ctx)
}

// refusalKinds are the kinds that a gate refuses tickets for, as its status names
// them; the first one stands for those of a newer gate.
var refusalKinds = []string{"unspecified", "queue_timeout", "queue_full", "never_admissible", "too_late", "invalid", "superseded", "policy_conflict", "operator"}

// gateTelemetry is telemetry of one gate, with the sets of attributes made
// beforehand. A nil one tells nothing.
type gateTelemetry struct {
	*telemetry
	id string

	gate, reserved, started, present, parked metric.MeasurementOption
	counts                                   []metric.AddOption // gate alone
	byOutcome                                map[Outcome][]metric.AddOption
	byKind                                   map[int32][]metric.AddOption
	byWhy                                    map[string][]metric.AddOption

	recording atomic.Int64 // spans of waits that are under way

	mu      sync.Mutex
	records map[string][]metric.RecordOption // by outcome and reason: few
}

func (t *telemetry) of(g policy.Gate) *gateTelemetry {
	gate := attrGate.String(g.ID())
	set := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more, gate)...))
	}
	add := func(more ...attribute.KeyValue) []metric.AddOption { return []metric.AddOption{set(more...)} }
	o := &gateTelemetry{
		telemetry: t, id: g.ID(), gate: set(),
		reserved: set(attrState.String("reserved")), started: set(attrState.String("started")),
		present: set(attrState.String("present")), parked: set(attrState.String("parked")),
		counts: add(), byOutcome: map[Outcome][]metric.AddOption{}, byKind: map[int32][]metric.AddOption{}, byWhy: map[string][]metric.AddOption{},
		records: map[string][]metric.RecordOption{},
	}
	for outcome, name := range outcomeNames {
		o.byOutcome[Outcome(outcome)] = add(attrOutcome.String(name))
	}
	for kind, name := range refusalKinds {
		o.byKind[int32(kind)] = add(attrKind.String(name))
	}
	for _, why := range handBackNames {
		o.byWhy[why] = add(attrWhy.String(why))
	}
	// What has not happened is 0, and not absent.
	for _, c := range []metric.Int64Counter{o.admissions, o.overloads, o.exchanges, o.resyncs} {
		o.add(c, 0, o.counts)
	}
	for _, options := range o.byOutcome {
		o.add(o.attempts, 0, options)
	}
	for kind, options := range o.byKind {
		if kind > 0 {
			o.add(o.refusals, 0, options)
		}
	}
	for _, options := range o.byWhy {
		o.add(o.handBacks, 0, options)
	}
	return o
}

// add counts; a nil counter could not be made.
func (g *gateTelemetry) add(c metric.Int64Counter, n int64, options []metric.AddOption) {
	if g == nil || c == nil {
		return
	}
	defer g.recovered("metric")
	c.Add(context.Background(), n, options...)
}

// record measures, with the gate and what else is named.
func (g *gateTelemetry) record(h metric.Float64Histogram, d time.Duration, outcome, reason string) {
	if h == nil {
		return
	}
	g.mu.Lock()
	options := g.records[outcome+" "+reason]
	if options == nil {
		attributes := []attribute.KeyValue{attrGate.String(g.id)}
		if outcome != "" {
			attributes = append(attributes, attrOutcome.String(outcome))
		}
		if reason != "" {
			attributes = append(attributes, attrReason.String(reason))
		}
		options = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}
		g.records[outcome+" "+reason] = options
	}
	g.mu.Unlock()
	defer g.recovered("metric")
	h.Record(context.Background(), d.Seconds(), options...)
}

func (g *gateTelemetry) measures(h metric.Float64Histogram) (yes bool) {
	if h == nil {
		return false
	}
	defer g.recovered("metric")
	return h.Enabled(context.Background())
}

// start begins a span; nil where nobody records it. It is told nothing yet: that
// would cost something where nobody does.
func (g *gateTelemetry) start(ctx context.Context, name string) (span trace.Span) {
	if g.tracer == nil {
		return nil
	}
	recording := false
	defer func() {
		if !recording {
			span = nil
		}
	}()
	defer g.recovered("tracer")
	_, span = g.tracer.Start(ctx, name)
	recording = span.IsRecording()
	return span
}

func (t *telemetry) recovered(what string) {
	if p := recover(); p != nil {
		t.gates.warnOnce("sluice: a panic was kept from the call", "in", what, "panic", panicText(p))
	}
}

// handedBackLocked counts a lease that is handed back and notes it on its ticket's
// wait.
func (h *holder) handedBackLocked(t *ticket, why contract.HandBackReason) {
	g, name := h.telemetry, handBackNames[why]
	if g == nil {
		return
	}
	g.add(g.handBacks, 1, g.byWhy[name])
	if t.wait != nil {
		t.wait.handBacks++
		t.wait.event(eventHandBack, attrWhy.String(name), attrLease.Int64(int64(t.grant.GetLease())))
	}
}

// refusedLocked counts a refusal.
func (h *holder) refusedLocked(r *contract.Refusal) {
	g := h.telemetry
	if g == nil {
		return
	}
	options, known := g.byKind[int32(r.Kind)]
	if !known {
		options = g.byKind[0]
	}
	g.add(g.refusals, 1, options)
}

// exchangedLocked counts an exchange that was answered.
func (h *holder) exchangedLocked(x *contract.Exchange) {
	g := h.telemetry
	if g == nil {
		return
	}
	g.add(g.exchanges, 1, g.counts)
	if x.Resync {
		g.add(g.resyncs, 1, g.counts)
	}
}

// longer is by how much a cooldown must become longer to be worth an event: fifty
// answers to one burst prolong it fifty times.
const longer = 100 * time.Millisecond

// cooledLocked notes a cooldown that began, or became longer, on all waits.
func (h *holder) cooledLocked(c *contract.Cooldown) {
	until := admission.Instant(c.GetUntil())
	if h.telemetry == nil || h.telemetry.recording.Load() == 0 || until < h.cooldown.Add(longer) {
		return
	}
	left := attrLeft.Float64(max(h.clock.until(until), 0).Seconds())
	for _, t := range h.tickets {
		t.wait.event(eventCooldown, left, attrSource.String(c.GetCause()))
	}
}

// finisher runs jobs one after the other, off the callers' path. It has a
// goroutine only while there are any.
type finisher struct {
	shield func(job func())

	mu      sync.Mutex
	jobs    []func()
	running chan struct{} // closed when there is nothing left; nil: there is nothing
}

// maxUnfinished bounds what waits for a slow processor of spans. What comes then
// is not told.
const maxUnfinished = 4096

func (f *finisher) do(job func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.jobs) >= maxUnfinished {
		return
	}
	f.jobs = append(f.jobs, job)
	if f.running == nil {
		f.running = make(chan struct{})
		go f.run(f.running)
	}
}

func (f *finisher) run(done chan struct{}) {
	for {
		f.mu.Lock()
		jobs := f.jobs
		f.jobs = nil
		if len(jobs) == 0 {
			f.running = nil
			close(done)
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		for _, job := range jobs {
			f.shield(job)
		}
	}
}

// drain returns when nothing is left to do, or ctx ends.
func (f *finisher) drain(ctx context.Context) {
	f.mu.Lock()
	running := f.running
	f.mu.Unlock()
	if running == nil {
		return
	}
	select {
	case <-running:
	case <-ctx.Done():
	}
}
