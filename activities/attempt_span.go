package activities

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"sluice/admission"
	"sluice/workflows/contract"
)

// outcomeNames are the outcomes of attempts, as telemetry names them.
var outcomeNames = [...]string{Success: "success", Failed: "error", Overload: "overload", Abandoned: "abandoned"}

// handBackNames are the reasons for which leases are handed back.
var handBackNames = map[contract.HandBackReason]string{
	contract.HandBackReason_HAND_BACK_OTHER: "unreachable", contract.HandBackReason_HAND_BACK_LATE: "late",
	contract.HandBackReason_HAND_BACK_COOLDOWN: "cooldown", contract.HandBackReason_HAND_BACK_STOPPING: "stopping",
	contract.HandBackReason_HAND_BACK_TIGHTER: "tighter",
}

// attemptSpan follows the attempt that a lease is for, from the lease's start to
// its release. The zero one tells nothing.
type attemptSpan struct {
	telemetry *gateTelemetry
	span      trace.Span // nil: not recorded
	limits    *admission.Limits
	ended     atomic.Bool
}

// beginAttempt follows the attempt of a lease that is about to be returned. Where its
// wait w is not recorded, neither is the attempt.
func (h *holder) beginAttempt(ctx context.Context, l *lease, local bool, w *waitSpan) {
	g := h.telemetry
	if g == nil {
		return
	}
	g.add(g.admissions, 1, g.counts)
	a := &l.attempt
	a.telemetry, a.limits = g, &h.limits
	if w == nil || w.span == nil {
		return
	}
	if a.span = g.start(ctx, spanAttempt); a.span == nil {
		return
	}
	defer g.recovered("span")
	granted := l.ticket.grant
	a.span.SetAttributes(attrGate.String(g.id), attrLease.Int64(int64(granted.GetLease())), attrGeneration.Int64(int64(granted.GetGeneration())))
	if local {
		a.span.SetAttributes(attrLocal.Bool(true))
	}
}

// end tells what came of the attempt; the first call counts. lostAt is when its
// lease was lost; zero: it wasn't.
func (a *attemptSpan) end(f Feedback, lostAt time.Time) {
	g := a.telemetry
	if g == nil || a.ended.Swap(true) {
		return
	}
	g.add(g.attempts, 1, g.byOutcome[f.Outcome])
	if f.Outcome == Overload {
		g.add(g.overloads, 1, g.counts)
	}
	if applied := appliedOf(a.limits, f); a.span != nil || applied > 0 {
		now := time.Now()
		g.later.do(func() { a.tell(f, applied, now, lostAt) })
	}
}

// appliedOf is the cooldown that a gate makes of feedback, or the least that it may
// be: without a hint a streak makes it longer.
func appliedOf(limits *admission.Limits, f Feedback) time.Duration {
	asked := f.Asked
	if f.Outcome == Overload && asked < 0 {
		asked = limits.FallbackCooldown
	}
	if f.Outcome == Failed {
		return 0
	}
	return max(min(asked, limits.MaxCooldown), 0)
}

func (a *attemptSpan) tell(f Feedback, applied time.Duration, at, lostAt time.Time) {
	if applied > 0 {
		a.telemetry.record(a.telemetry.cooldown, applied, "", "")
	}
	if a.span == nil {
		return
	}
	defer a.span.End(trace.WithTimestamp(at))
	attributes := []attribute.KeyValue{attrOutcome.String(outcomeNames[f.Outcome])}
	if f.Status > 0 {
		attributes = append(attributes, attrStatus.Int(f.Status))
	}
	cooled := []attribute.KeyValue{attrApplied.Float64(applied.Seconds())}
	if f.Asked >= 0 {
		cooled = append(cooled, attrAsked.Float64(f.Asked.Seconds()))
	}
	if f.Source != "" {
		cooled = append(cooled, attrSource.String(f.Source))
	}
	if f.Outcome == Overload || applied > 0 {
		attributes = append(attributes, cooled...)
	}
	if !lostAt.IsZero() {
		a.span.AddEvent(eventLeaseLost, trace.WithTimestamp(lostAt))
	}
	if applied > 0 {
		a.span.AddEvent(eventCooldown, trace.WithTimestamp(at), trace.WithAttributes(cooled...))
	}
	if f.Outcome == Failed || f.Outcome == Overload {
		kind := "_OTHER"
		if f.Status >= 400 {
			kind = strconv.Itoa(f.Status)
		}
		attributes = append(attributes, attrErrorType.String(kind))
		a.span.SetStatus(codes.Error, outcomeNames[f.Outcome])
	}
	a.span.SetAttributes(attributes...)
}

// inAttempt is a context whose spans are part of the attempt of a lease.
func inAttempt(ctx context.Context, l Lease) context.Context {
	if c, ok := l.(*callLease); ok {
		l = c.keeper
	}
	switch l := l.(type) {
	case *lease:
		return l.attempt.within(ctx)
	case shareLease:
		return l.attempt.within(ctx)
	}
	return ctx
}

func (a *attemptSpan) within(ctx context.Context) context.Context {
	if a.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, a.span)
}
