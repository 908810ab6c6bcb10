package activities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/temporal"

	"sluice/admission"
	"sluice/workflows/contract"
)

// The outcomes of a wait, as telemetry names them.
const (
	waitImmediate   = "immediate"   // the gate had it wait no longer than a delivery takes
	waitWaited      = "waited"      // a lease, after a wait
	waitTimeout     = "timeout"     // its queue deadline, or the attempt's, came first
	waitCancelled   = "cancelled"   // the caller was, or its worker stops
	waitRefused     = "refused"     // by the gate
	waitUnavailable = "unavailable" // the gate could not be reached
)

// The reasons that the holder knows by itself; all others are the gate's.
const (
	reasonDelivery    = "delivery"    // on the way to the gate and back
	reasonUnavailable = "unavailable" // no answer from the gate
	reasonRemainder   = "remainder"   // what nobody accounts for
)

// waitSpan follows one wait for admission, from the request to its end. Its fields
// are guarded by the holder's lock once the ticket is submitted.
type waitSpan struct {
	telemetry *gateTelemetry
	span      trace.Span // nil: not recorded
	label     string
	began     time.Time
	events    []spanEvent

	ticket    *ticket // nil: none was made
	sent      bool    // the gate may know of it
	handBacks int

	ended   time.Time // zero: it goes on
	left    admission.Instant
	err     error
	lease   *lease
	local   bool
	account *contract.Account // as the gate told it; nil: it has not
	timer   *time.Timer       // of the answer to its leaving
}

// spanEvent is an event that is told when the span ends: what a span calls is a
// stranger's.
type spanEvent struct {
	name       string
	at         time.Time
	attributes []attribute.KeyValue
}

// maxEvents bounds the events of one span.
const maxEvents = 64

func (w *waitSpan) event(name string, attributes ...attribute.KeyValue) {
	if w != nil && w.span != nil && len(w.events) < maxEvents {
		w.events = append(w.events, spanEvent{name, time.Now(), attributes})
	}
}

func tell(span trace.Span, events []spanEvent) {
	for _, e := range events {
		span.AddEvent(e.name, trace.WithTimestamp(e.at), trace.WithAttributes(e.attributes...))
	}
}

// beginWait follows a wait; nil where nobody wants to know of it.
func (g *gateTelemetry) beginWait(ctx context.Context, label string) *waitSpan {
	if g == nil {
		return nil
	}
	span := g.start(ctx, spanWait)
	if span == nil && !g.measures(g.wait) && !g.measures(g.reason) {
		return nil
	}
	w := &waitSpan{telemetry: g, span: span, label: label, began: time.Now()}
	if span != nil {
		g.recording.Add(1)
		w.began = g.startOf(span, w.began)
	}
	return w
}

// startOf is when a span says that it began, where it does: its parts add up to its
// own length.
func (g *gateTelemetry) startOf(span trace.Span, now time.Time) (began time.Time) {
	began = now
	defer g.recovered("span")
	if s, ok := span.(interface{ StartTime() time.Time }); ok {
		began = s.StartTime()
	}
	return began
}

// leavesLocked notes that a caller leaves, and has the gate asked for what the
// ticket waited for.
func (h *holder) leavesLocked(w *waitSpan, c *contract.Cancel) {
	if w == nil {
		return
	}
	w.left = h.clock.now()
	if w.ticket.grant != nil {
		return // which tells it
	}
	c.LeftAt = int64(w.left)
	if h.left == nil {
		h.left = map[uint64]*waitSpan{}
	}
	h.left[c.Number] = w
}

// answerToLeaving is how long the end of a wait is kept back for what the gate
// has to say about it.
const answerToLeaving = 5 * time.Second

// endWait ends a wait with what its caller gets. Where the gate is still to say
// what it was for, it is told later.
func (h *holder) endWait(w *waitSpan, l Lease, err error) {
	if w == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w.ended, w.err = time.Now(), err
	switch l := l.(type) {
	case *lease:
		w.lease = l
	case shareLease:
		w.lease, w.local = l.lease, true
	}
	if w.ticket != nil {
		w.ticket.wait = nil
		if number := w.ticket.acquire.Number; h.left[number] == w {
			w.timer = time.AfterFunc(answerToLeaving, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.toldLocked(number, nil)
			})
			return
		}
	}
	h.completeLocked(w)
}

// toldLocked ends a wait whose caller has left with what the gate said; nil: it
// doesn't.
func (h *holder) toldLocked(number uint64, a *contract.Account) {
	w := h.left[number]
	if w == nil {
		return
	}
	delete(h.left, number)
	w.account = a
	if w.timer != nil {
		w.timer.Stop()
	}
	if !w.ended.IsZero() { // else its caller is about to end it
		h.completeLocked(w)
	}
}

// answeredLeftLocked ends those whose leaving an answered exchange carried and
// that the answer doesn't speak of.
func (h *holder) answeredLeftLocked(x *contract.Exchange) {
	for _, c := range x.Cancel {
		if c.LeftAt != 0 {
			h.toldLocked(c.Number, nil)
		}
	}
}

// tellAllLeftLocked ends all waits whose callers have left: no further answer comes.
func (h *holder) tellAllLeftLocked() {
	for number := range h.left {
		h.toldLocked(number, nil)
	}
}

// completeLocked works out what a wait was for and has it told.
func (h *holder) completeLocked(w *waitSpan) {
	if w.account == nil && w.ticket != nil && !w.local {
		if g := w.ticket.grant; g != nil {
			w.account = accountOf(g)
		} else if w.ticket.refusal != nil {
			w.account = w.ticket.refusal.Account
		}
	}
	if errors.Is(w.err, ErrPolicyConflict) {
		w.sent = false // it was sent, and not taken
	}
	parts := h.partsLocked(w)
	inFlight, most := h.inFlight, h.cap
	w.telemetry.later.do(func() { w.tell(parts, inFlight, most) })
}

// accountOf is a grant's account.
func accountOf(g *contract.Grant) *contract.Account {
	a := &contract.Account{Reasons: g.Reasons, Since: g.Since, Until: g.StartAt, Position: g.Position, Depth: g.Depth}
	if a.Since == 0 {
		a.Since = a.Until - int64(total(g.Reasons))
	}
	return a
}

func total(reasons []*contract.Waited) (sum time.Duration) {
	for _, r := range reasons {
		sum += time.Duration(r.Duration)
	}
	return sum
}

// part is a reason and how long a wait was for it.
type part struct {
	reason string
	d      time.Duration
}

// waitParts are what a wait was for; together they are its length.
type waitParts struct {
	gate                             []part
	delivery, unavailable, remainder time.Duration
	position, depth                  int32
}

// waited is what the gate accounts for.
func (p *waitParts) waited() (sum time.Duration) {
	for _, r := range p.gate {
		sum += r.d
	}
	return sum
}

// partsLocked works out what a wait was for. The gate accounts for the time from
// when the ticket reached it to the start. What lies before and after that is the
// holder's to tell: the time in which the gate did not answer, and the way there
// and back, lateness and leases that were handed back included.
func (h *holder) partsLocked(w *waitSpan) waitParts {
	var p waitParts
	length := w.ended.Sub(w.began)
	a := w.account
	if a == nil || a.Until == 0 {
		p.unavailable = h.outages.within(w.began, w.ended)
		if p.remainder = length - p.unavailable; !w.sent || w.err == nil {
			p.delivery, p.remainder = p.remainder, 0 // it never reached the gate
		}
		return p
	}
	p.position, p.depth = a.Position, a.Depth
	covered := time.Duration(a.Until - a.Since)
	for _, r := range a.Reasons {
		p.gate = append(p.gate, part{r.Reason, time.Duration(r.Duration)})
	}
	if gap := covered - p.waited(); gap > 0 && w.handBacks > 0 {
		p.delivery = gap // it had leases that it could not start
	}
	if w.left != 0 {
		// The gate accounts for time ahead, to a start that doesn't come.
		late := max(time.Duration(a.Until-int64(w.left)), 0)
		covered -= late
		p.trim(late)
	}
	outside := length - covered
	if outside < 0 { // by as much as the gate's clock is known
		p.trim(-outside)
		outside = 0
	}
	there := min(max(w.ended.Add(h.clock.until(admission.Instant(a.Since))-time.Since(w.ended)).Sub(w.began), 0), outside)
	back := outside - there
	p.unavailable = h.outages.within(w.began, w.began.Add(there)) + h.outages.within(w.ended.Add(-back), w.ended)
	p.delivery += outside - p.unavailable
	p.remainder = length - p.waited() - p.delivery - p.unavailable
	if p.remainder < 0 {
		p.trim(-p.remainder)
		p.remainder = length - p.waited() - p.delivery - p.unavailable
	}
	return p
}

// trim takes so much from the reasons, the longest first.
func (p *waitParts) trim(d time.Duration) {
	for d > 0 && len(p.gate) > 0 {
		longest := 0
		for i := range p.gate {
			if p.gate[i].d > p.gate[longest].d {
				longest = i
			}
		}
		less := min(d, p.gate[longest].d)
		if less == 0 {
			return
		}
		p.gate[longest].d -= less
		d -= less
	}
}

// all are all parts that there are; the remainder always is.
func (p *waitParts) all() []part {
	var list []part
	for _, r := range append(p.gate, part{reasonDelivery, p.delivery}, part{reasonUnavailable, p.unavailable}) {
		if r.d != 0 {
			list = append(list, r)
		}
	}
	return append(list, part{reasonRemainder, p.remainder})
}

func (w *waitSpan) outcome(p *waitParts) string {
	var e *Error
	switch {
	case w.err == nil && p.waited() <= admission.MaxDelivery && p.unavailable == 0:
		return waitImmediate
	case w.err == nil:
		return waitWaited
	case errors.As(w.err, &e):
		switch {
		case e.Kind == KindQueueTimeout, e.Kind == KindStillQueued && !w.ticket.stopped:
			return waitTimeout
		case e.Kind == KindStillQueued:
			return waitCancelled
		case e.Kind == KindUnavailable:
			return waitUnavailable
		}
		return waitRefused
	case errors.Is(w.err, context.DeadlineExceeded):
		return waitTimeout
	}
	return waitCancelled
}

// errorType is what kind of error ended a wait: few, and none with words of a
// stranger.
func errorType(err error) string {
	var e *Error
	switch {
	case errors.As(err, &e):
		return string(e.Kind)
	case errors.Is(err, ErrStopped):
		return "sluice.Stopped"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	case errors.Is(err, context.Canceled), temporal.IsCanceledError(err):
		return "canceled"
	}
	return fmt.Sprintf("%T", err) // a cause that somebody gave
}

// waitAttribute is the attribute of a reason: budget:tokens is sluice.wait.budget.tokens.
func waitAttribute(reason string) attribute.Key {
	return attribute.Key(attrWaitPrefix + strings.ReplaceAll(reason, ":", "."))
}

// tell ends the span and measures the wait.
func (w *waitSpan) tell(p waitParts, inFlight, most int64) {
	g, outcome := w.telemetry, w.outcome(&p)
	parts := p.all()
	g.record(g.wait, w.ended.Sub(w.began), outcome, "")
	for _, r := range parts {
		if r.d > 0 {
			g.record(g.reason, r.d, outcome, r.reason)
		}
	}
	if w.span == nil {
		return
	}
	g.recording.Add(-1)
	defer w.span.End(trace.WithTimestamp(w.ended)) // whatever comes before
	attributes := make([]attribute.KeyValue, 0, 12+len(parts))
	attributes = append(attributes, attrGate.String(g.id), attrTicket.String(w.label), attrOutcome.String(outcome),
		attrInFlight.Int64(inFlight), attrCap.Int64(most))
	if p.position > 0 {
		attributes = append(attributes, attrPosition.Int64(int64(p.position)))
	}
	if p.depth > 0 {
		attributes = append(attributes, attrDepth.Int64(int64(p.depth)))
	}
	if w.lease != nil {
		attributes = append(attributes, attrLease.Int64(int64(w.lease.ticket.grant.GetLease())))
		if w.local {
			attributes = append(attributes, attrLocal.Bool(true))
		}
	}
	for _, r := range parts {
		attributes = append(attributes, waitAttribute(r.reason).Float64(r.d.Seconds()))
	}
	if w.err != nil {
		kind := errorType(w.err)
		attributes = append(attributes, attrErrorType.String(kind))
		w.span.SetStatus(codes.Error, kind)
	}
	w.span.SetAttributes(attributes...)
	tell(w.span, w.events)
}
