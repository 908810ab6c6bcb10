package workflows

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// AdmissionWorkflow is one gate. It returns to continue as new and when it is
// cancelled; the next holder then starts another one, which learns what is in
// use as after a termination.
func AdmissionWorkflow(ctx workflow.Context, start Start) error {
	g, err := open(ctx, start)
	if err != nil {
		return err
	}
	if err := g.handle(ctx); err != nil {
		return err
	}
	for {
		g.drain(ctx)
		g.step(ctx)
		g.countTask(ctx)
		if g.runIsFull(ctx) {
			return g.continueAsNew(ctx)
		}
		if ctx.Err() != nil {
			return g.cancelled(ctx)
		}
		g.sleep(ctx)
	}
}

// gate is the running state of one admission workflow.
type gate struct {
	start    Start
	base     policy.Gate // what holders agreed on
	hash     string      // of base
	overlays []Overlay
	s        *admission.Scheduler
	firstRun string
	signals  int // taken in by this run
	updates  int
	written  int // lines of earlier updates, see mostWritten
	length   int // of the history when the last task began

	inbox, configure, pause, resume workflow.ReceiveChannel

	waits   []*openWait
	timer   workflow.Future
	timerAt admission.Instant // when the timer fires; Never: none is armed
	cancel  workflow.CancelFunc
	changed bool // something happened since the main coroutine last looked
	leaving bool // the run continues as new: no wait may open

	detailed detailed

	exchange admission.Exchange // buffers
	woken    []string
}

type openWait struct {
	holder string
	done   bool
}

func open(ctx workflow.Context, start Start) (*gate, error) {
	base, err := policy.DecodeGate(start.Policy)
	if err != nil {
		return nil, temporal.NewNonRetryableApplicationError("policy: "+err.Error(), ErrTypeMalformed, nil)
	}
	if start.RunEvents <= 0 {
		start.RunEvents = DefaultRunEvents
	}
	g := &gate{
		start: start, base: base, hash: base.Hash(), overlays: start.Overlays, timerAt: admission.Never,
		firstRun: workflow.GetInfo(ctx).FirstRunID,
		inbox:    workflow.GetSignalChannel(ctx, SignalExchange), configure: workflow.GetSignalChannel(ctx, SignalConfigure),
		pause: workflow.GetSignalChannel(ctx, SignalPause), resume: workflow.GetSignalChannel(ctx, SignalResume),
	}
	if start.State == nil {
		opts := admission.Options{Rules: max(admission.Rules(start.Rules), admission.OldestRules)}
		if start.LearnFor > 0 {
			opts.LearnUntil = g.now(ctx).Add(start.LearnFor)
		}
		g.s, err = admission.New(g.now(ctx), base.Limits(), opts)
	} else {
		g.s, err = restore(start.State)
	}
	if err != nil {
		// Not the workflow's fault but this program's: another host may know
		// these rules, so the task fails and is tried again, there.
		panic(fmt.Sprintf("gate %s: %v", start.GateID, err))
	}
	return g, nil
}

func (g *gate) now(ctx workflow.Context) admission.Instant {
	return admission.InstantOf(workflow.Now(ctx))
}

// handle registers everything that a message can reach.
func (g *gate) handle(ctx workflow.Context) error {
	if err := workflow.SetQueryHandler(ctx, QueryGrants, g.grants); err != nil {
		return err
	}
	if err := workflow.SetQueryHandler(ctx, QueryStatus, g.status); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateExchange, g.onExchange, workflow.UpdateHandlerOptions{
		Description: "One batched message from a holder.",
	}); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateWait, g.onWait, workflow.UpdateHandlerOptions{
		Description: "Ends when the holder has news.",
	}); err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, UpdateOperate, g.onOperate, workflow.UpdateHandlerOptions{
		Description: "One act of an operator: pause, resume, set, reset, cancel_ticket, revoke_lease.",
	})
}

// onExchange is the handler of the update.
func (g *gate) onExchange(ctx workflow.Context, raw converter.RawValue) (converter.RawValue, error) {
	g.updates++
	g.changed = true
	g.drain(ctx)
	return g.take(ctx, raw, true)
}

// take applies an exchange from either transport and answers it. answered says
// that the answer reaches the holder, so its open wait need not end for it.
func (g *gate) take(ctx workflow.Context, raw converter.RawValue, answered bool) (reply converter.RawValue, err error) {
	defer g.survive(&err)
	m := &contract.Exchange{}
	asJSON, err := Decode(raw.Payload(), m)
	if err == nil {
		err = ExchangeOf(m, g.now(ctx), &g.exchange)
	}
	if err != nil {
		g.s.Counters.Malformed++
		return reply, temporal.NewNonRetryableApplicationError(err.Error(), ErrTypeMalformed, nil)
	}
	answer := g.agree(ctx, m.GetPolicy())
	if answer == nil {
		a := g.s.Apply(g.now(ctx), &g.exchange)
		g.noteLower(ctx, m.GetLowerLimits())
		if answered {
			g.endWaits(g.exchange.Holder)
		} else {
			g.endWaits("")
		}
		limits := g.s.Limits()
		answer = AnswerOf(&a, &limits, g.exchange.Ask)
	}
	answer.PolicyNeeded = answer.PolicyNeeded || m.GetPolicy().GetRevision() > g.base.Revision
	return Encode(g.sign(answer), asJSON)
}

// sign adds what the scheduler doesn't know.
func (g *gate) sign(a *contract.Answer) *contract.Answer {
	a.Contract, a.FirstRun = ContractVersion, g.firstRun
	a.PolicyRevision, a.PolicyHash = g.base.Revision, g.hash
	return a
}

// survive turns a panic of a handler into a counted refusal: whatever a message
// did, the gate goes on. Errors of the SDK itself still fail the task.
func (g *gate) survive(err *error) {
	if p := recover(); p != nil {
		g.s.Counters.Malformed++
		*err = temporal.NewNonRetryableApplicationError(fmt.Sprintf("message refused: %v", p), ErrTypeMalformed, nil)
	}
}

// agree compares a holder's policy with the gate's. A higher revision takes
// over; the same revision with different content is refused with the fields
// that differ. nil: go on.
func (g *gate) agree(ctx workflow.Context, p *contract.Policy) *contract.Answer {
	if p == nil || p.Revision < g.base.Revision || p.Hash == g.hash {
		return nil
	}
	if len(p.Body) == 0 {
		if p.Revision > g.base.Revision {
			return nil // go on under the present policy until the body comes
		}
		return g.plainAnswer(ctx, &contract.Answer{PolicyNeeded: true})
	}
	theirs, err := policy.DecodeGate(p.Body)
	switch {
	case err != nil:
		g.s.Counters.Malformed++
		return g.plainAnswer(ctx, &contract.Answer{PolicyConflict: []string{err.Error()}})
	case theirs.ID() != g.base.ID():
		return g.plainAnswer(ctx, &contract.Answer{PolicyConflict: []string{fmt.Sprintf("gate: %s != %s", theirs.ID(), g.base.ID())}})
	case theirs.Revision > g.base.Revision:
		g.base, g.hash = theirs, theirs.Hash()
		g.enforce(ctx)
		return nil
	}
	if fields := g.base.Diff(theirs); len(fields) > 0 {
		g.s.Counters.Conflict++
		return g.plainAnswer(ctx, &contract.Answer{PolicyConflict: fields})
	}
	return nil
}

// plainAnswer answers without having applied anything.
func (g *gate) plainAnswer(ctx workflow.Context, a *contract.Answer) *contract.Answer {
	a.Now = int64(g.now(ctx))
	a.NotBefore = a.Now
	return a
}

// onWait is the handler of the update wait.
func (g *gate) onWait(ctx workflow.Context, raw converter.RawValue) (reply converter.RawValue, err error) {
	g.updates++
	g.changed = true
	g.drain(ctx)
	m := &contract.Wait{}
	asJSON, err := Decode(raw.Payload(), m)
	if err == nil {
		err = checkHolder(m.GetContract(), m.GetHolder())
	}
	if err != nil {
		g.s.Counters.Malformed++
		return reply, temporal.NewNonRetryableApplicationError(err.Error(), ErrTypeMalformed, nil)
	}
	h, known := g.s.HolderByID(m.Holder.Id)
	opens := known && !g.leaving && g.s.MayWait(h) && !g.hasNews(h, m.Confirmed)
	if opens {
		w := &openWait{holder: m.Holder.Id}
		for _, other := range g.waits {
			other.done = other.done || other.holder == w.holder // one per holder: the older ends
		}
		g.waits = append(g.waits, w)
		g.s.SetWaiting(h, true)
		if err := workflow.Await(ctx, func() bool { return w.done }); err != nil {
			return reply, err
		}
		h, known = g.s.HolderByID(m.Holder.Id)
	}
	if !known {
		return Encode(g.sign(g.plainAnswer(ctx, &contract.Answer{Resync: true})), asJSON)
	}
	var a admission.Answer
	if opens {
		a = g.s.AnswerFor(h)
		if g.s.Rules() >= 3 {
			a.NotBefore = 0 // the holder has a slot
		}
	} else {
		a = g.s.Ask(g.now(ctx), h)
	}
	a.Now = g.now(ctx)
	if a.MayWait {
		g.s.Invite(h)
	}
	limits := g.s.Limits()
	return Encode(g.sign(AnswerOf(&a, &limits, nil)), asJSON)
}

func (g *gate) hasNews(h admission.HolderRef, confirmed uint64) bool {
	notices := g.s.Notices(h)
	return len(notices) > 0 && notices[len(notices)-1].N > confirmed
}

// endWaits ends the waits of the holders that have news, except one that gets
// them in the answer under way, and of those that have nothing left to wait for:
// an idle gate has no open update.
func (g *gate) endWaits(except string) {
	g.woken = g.s.TakeWoken(g.woken[:0])
	for _, id := range g.woken {
		for _, w := range g.waits {
			w.done = w.done || w.holder == id && id != except
		}
	}
	open, ended := g.waits[:0], []*openWait(nil)
	for _, w := range g.waits {
		h, known := g.s.HolderByID(w.holder)
		w.done = w.done || !known || !g.s.MayWait(h)
		if w.done {
			ended = append(ended, w)
		} else {
			open = append(open, w)
		}
	}
	clear(g.waits[len(open):])
	g.waits = open
	for _, w := range ended {
		g.noLongerWaits(w.holder)
	}
}

// noLongerWaits takes the mark from a holder that has no open wait.
func (g *gate) noLongerWaits(holder string) {
	open := slices.ContainsFunc(g.waits, func(w *openWait) bool { return w.holder == holder })
	if h, known := g.s.HolderByID(holder); known && !open {
		g.s.SetWaiting(h, false)
	}
}

// drain takes in every signal that has arrived.
func (g *gate) drain(ctx workflow.Context) {
	var raw converter.RawValue
	for g.inbox.ReceiveAsync(&raw) {
		g.signals++
		_, _ = g.take(ctx, raw, false) // counted; nobody waits for the answer
	}
	for g.configure.ReceiveAsync(&raw) {
		g.signals++
		g.onConfigure(ctx, raw)
	}
	for g.pause.ReceiveAsync(&raw) {
		g.signals++
		g.onPause(ctx, raw, "pause")
	}
	for g.resume.ReceiveAsync(&raw) {
		g.signals++
		g.onPause(ctx, raw, "resume")
	}
}

// step lets time pass: overlays end, tickets are admitted, waits end.
func (g *gate) step(ctx workflow.Context) {
	g.changed = false
	g.endOverlays(ctx)
	g.s.Advance(g.now(ctx))
	g.endWaits("")
	g.detail(ctx)
}

// sleep waits for a message or the timer. The timer is armed anew only when it
// must fire earlier; one that fires too early costs a step and no decision.
func (g *gate) sleep(ctx workflow.Context) {
	wake := min(g.s.NextWake(), g.nextOverlayEnd())
	switch {
	case wake == admission.Never && g.timer != nil:
		g.cancel() // an idle gate writes no events
		g.timer, g.timerAt = nil, admission.Never
	case wake < g.timerAt:
		if g.timer != nil {
			g.cancel()
		}
		timerCtx, cancel := workflow.WithCancel(ctx)
		g.cancel, g.timerAt = cancel, wake
		g.timer = workflow.NewTimer(timerCtx, max(wake.Sub(g.now(ctx)), time.Millisecond))
	}
	_ = workflow.Await(ctx, func() bool {
		return g.changed || g.timer != nil && g.timer.IsReady() ||
			g.inbox.Len() > 0 || g.configure.Len() > 0 || g.pause.Len() > 0 || g.resume.Len() > 0
	})
	if g.timer != nil && g.timer.IsReady() {
		g.timer, g.timerAt = nil, admission.Never
	}
}

// countTask takes in what the workflow task under way will write of earlier updates,
// once: the updates that it brings are taken in one after the other.
func (g *gate) countTask(ctx workflow.Context) {
	if n := workflow.GetInfo(ctx).GetCurrentHistoryLength(); n != g.length {
		g.length = n
		g.written += g.updates
	}
}

// runIsFull reports whether it is time to continue as new. The server's own
// suggestion doesn't look at signals and updates, which have limits of their own.
func (g *gate) runIsFull(ctx workflow.Context) bool {
	info := workflow.GetInfo(ctx)
	return info.GetContinueAsNewSuggested() || info.GetCurrentHistoryLength() >= g.start.RunEvents ||
		g.updates >= 1_500 || g.signals >= 8_000 || g.s.Rules() >= 3 && g.written >= mostWritten+perTicket*g.s.Tickets()
}

// What a run's updates may cost its later tasks. The server keeps a line of each
// update with the workflow, as long as the run lasts, and writes all of them with every
// task: when so many were written, a new run, which begins with none, is cheaper than
// to go on. That is after a hundred updates that have a task each, and after several
// hundred in a crowd, whose updates share tasks, or where many tickets are handed on.
const (
	mostWritten = 5_000 // lines, about 13 ms of the embedded server's time
	perTicket   = 5     // lines take as long as to write a ticket or lease and to read it back
)

// cancelled ends the run at the wish of an operator.
func (g *gate) cancelled(ctx workflow.Context) error {
	disconnected, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if err := g.leave(disconnected); err != nil {
		return err
	}
	return ctx.Err()
}

// leave ends the open waits and takes in what has arrived. Nothing may yield
// between its end and the run's.
func (g *gate) leave(ctx workflow.Context) error {
	g.leaving = true
	ended := g.waits
	g.waits = nil
	for _, w := range ended {
		w.done = true
		g.noLongerWaits(w.holder)
	}
	if err := workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) }); err != nil {
		return err
	}
	g.drain(ctx)
	g.step(ctx)
	return nil
}

// continueAsNew hands the state on to a new run.
func (g *gate) continueAsNew(ctx workflow.Context) error {
	if err := g.leave(ctx); err != nil {
		return err
	}
	body, err := json.Marshal(g.base)
	if err != nil {
		return err
	}
	if g.s.Rules() >= 2 {
		g.s.NextWake() // what the next run is late for, if no host takes it up in time
	}
	next := g.start
	next.Policy, next.Overlays, next.LearnFor = body, g.overlays, 0
	next.State = compress(g.s.SnapshotUnder(g.s.NextRules(), nil))
	next.Runs++
	return workflow.NewContinueAsNewError(ctx, WorkflowType, next)
}

func compress(data []byte) []byte {
	var buf bytes.Buffer
	w, _ := flate.NewWriter(&buf, flate.BestSpeed) // fails only for an unknown level
	_, _ = w.Write(data)                           // a bytes.Buffer takes everything
	_ = w.Close()
	return buf.Bytes()
}

// maxState bounds what a hostile or broken state can expand to.
const maxState = 64 << 20

func restore(state []byte) (*admission.Scheduler, error) {
	data, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(state)), maxState))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return admission.Restore(data)
}
