package soak

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// A moment is one thing that happened at the gate: an exchange that it was about
// to apply, or what there was to see afterwards.
type moment struct {
	at       time.Time          // gate time
	exchange *contract.Exchange // nil: a look
	look     look
}

// look is what the gate says of itself.
type look struct {
	holders  []holderLook
	cooldown time.Time // until when
}

// holderLook is what it says of one holder, in its status and in the answer to
// the holder's own query.
type holderLook struct {
	id       string
	leased   int
	grants   []*contract.Grant // not seen before
	refusals []*contract.Refusal
	revoked  []*contract.Revoked
}

// gateLog reads the histories of all runs of a gate and replays them. What a
// history doesn't hold, such as grants that were read by query, the replayed gate
// is asked for: its decisions are the same, or the replay fails.
func gateLog(ctx context.Context, c client.Client, workflowID string) (log []moment, events int, err error) {
	histories, err := gateclient.Histories(ctx, c, workflowID)
	if err != nil {
		return nil, 0, err
	}
	parts := make([][]moment, len(histories))
	failed := make([]error, len(histories))
	var all sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := range next {
				parts[i], failed[i] = replay(histories[i])
			}
		})
	}
	for i := range histories {
		next <- i
	}
	close(next)
	all.Wait()
	for i := range parts {
		events += len(histories[i].Events)
		if failed[i] != nil {
			return nil, events, fmt.Errorf("run %d of the gate doesn't replay: %w", i+1, failed[i])
		}
		log = append(log, parts[i]...)
	}
	return log, events, nil
}

func replay(h *historypb.History) ([]moment, error) {
	w := &watcher{seen: map[string]uint64{}, generation: map[string]uint64{}}
	r, err := sdkworker.NewWorkflowReplayerWithOptions(sdkworker.WorkflowReplayerOptions{
		Interceptors: []interceptor.WorkerInterceptor{w}, DisableDeadlockDetection: true, DisableRegistrationAliasing: true,
	})
	if err != nil {
		return nil, err
	}
	r.RegisterWorkflowWithOptions(workflows.AdmissionWorkflow, workflow.RegisterOptions{Name: workflows.WorkflowType})
	if err := r.ReplayWorkflowHistory(silent{}, h); err != nil {
		return nil, err
	}
	return w.moments, w.err
}

// silent drops what the replayer logs: it returns its errors.
type silent struct{}

func (silent) Debug(string, ...any)     {}
func (silent) Info(string, ...any)      {}
func (silent) Warn(string, ...any)      {}
func (silent) Error(string, ...any)     {}
func (s silent) With(...any) log.Logger { return s }

var _ log.Logger = silent{}

// watcher sees what one replayed run of the gate takes in, in the order in which
// it is applied, and looks at the gate after each.
type watcher struct {
	interceptor.WorkerInterceptorBase
	moments []moment
	err     error

	out        interceptor.WorkflowOutboundInterceptor
	grants     func(converter.RawValue) (converter.RawValue, error)
	status     func() (workflows.Status, error)
	pending    *contract.Exchange // of an update, behind the signals that came before it
	dirty      bool               // an exchange was applied since the last look
	seen       map[string]uint64  // by holder: the last notice
	generation map[string]uint64
}

func (w *watcher) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	in := &watchedIn{w: w}
	in.Next = next
	return in
}

type watchedIn struct {
	interceptor.WorkflowInboundInterceptorBase
	w *watcher
}

func (i *watchedIn) Init(outbound interceptor.WorkflowOutboundInterceptor) error {
	out := &watchedOut{w: i.w}
	out.Next = outbound
	i.w.out = outbound
	return i.Next.Init(out)
}

func (i *watchedIn) ExecuteUpdate(ctx workflow.Context, in *interceptor.UpdateInput) (any, error) {
	if in.Name == workflows.UpdateExchange && len(in.Args) == 1 {
		if raw, ok := in.Args[0].(converter.RawValue); ok {
			i.w.pending = i.w.decode(raw)
		}
	}
	result, err := i.Next.ExecuteUpdate(ctx, in)
	i.w.look(ctx)
	return result, err
}

func (w *watcher) decode(raw converter.RawValue) *contract.Exchange {
	x := &contract.Exchange{}
	if _, err := workflows.Decode(raw.Payload(), x); err != nil {
		return nil // refused: nothing is applied
	}
	return x
}

// arrives takes down an exchange that is applied next.
func (w *watcher) arrives(ctx workflow.Context, x *contract.Exchange) {
	if x == nil {
		return
	}
	if id := x.GetHolder().GetId(); x.GetHolder().GetGeneration() > w.generation[id] {
		w.generation[id], w.seen[id] = x.GetHolder().GetGeneration(), 0
	}
	w.moments = append(w.moments, moment{at: w.out.Now(ctx), exchange: x})
	w.dirty = true
}

// look takes down what there is to see at the gate.
func (w *watcher) look(ctx workflow.Context) {
	w.dirty = false
	if w.status == nil || w.grants == nil || w.err != nil {
		return
	}
	st, err := w.status()
	if err != nil {
		w.err = err
		return
	}
	m := moment{at: w.out.Now(ctx), look: look{cooldown: st.CooldownUntil}}
	// A holder that was lost and comes back is told from the beginning.
	maps.DeleteFunc(w.seen, func(id string, _ uint64) bool {
		return !slices.ContainsFunc(st.Holders, func(h workflows.Holder) bool { return h.ID == id })
	})
	for _, h := range st.Holders {
		l := holderLook{id: h.ID, leased: h.Leased}
		a, err := w.ask(h.ID)
		if err != nil {
			w.err = err
			return
		}
		seen := w.seen[h.ID]
		for _, g := range a.Grants {
			if g.Notice > seen {
				l.grants = append(l.grants, g)
			}
		}
		for _, r := range a.Refusals {
			if r.Notice > seen {
				l.refusals = append(l.refusals, r)
			}
		}
		for _, r := range a.Revoked {
			if r.Notice > seen {
				l.revoked = append(l.revoked, r)
			}
		}
		w.seen[h.ID] = max(seen, a.Notice)
		m.look.holders = append(m.look.holders, l)
	}
	w.moments = append(w.moments, m)
}

// ask reads what the gate has to say to a holder.
func (w *watcher) ask(holder string) (*contract.Answer, error) {
	raw, err := workflows.Encode(&contract.Read{Contract: workflows.ContractVersion, Holder: &contract.Holder{Id: holder, Generation: 1}}, false)
	if err != nil {
		return nil, err
	}
	if raw, err = w.grants(raw); err != nil {
		return nil, err
	}
	a := &contract.Answer{}
	_, err = workflows.Decode(raw.Payload(), a)
	return a, err
}

type watchedOut struct {
	interceptor.WorkflowOutboundInterceptorBase
	w *watcher
}

func (o *watchedOut) SetQueryHandler(ctx workflow.Context, name string, handler any) error {
	switch h := handler.(type) {
	case func(converter.RawValue) (converter.RawValue, error):
		o.w.grants = h
	case func() (workflows.Status, error):
		o.w.status = h
	}
	return o.Next.SetQueryHandler(ctx, name, handler)
}

func (o *watchedOut) GetSignalChannel(ctx workflow.Context, name string) workflow.ReceiveChannel {
	c := o.Next.GetSignalChannel(ctx, name)
	if name == workflows.SignalExchange {
		return &watchedInbox{c, ctx, o.w}
	}
	return c
}

func (o *watchedOut) Await(ctx workflow.Context, condition func() bool) error {
	o.w.look(ctx) // the gate has made its step
	return o.Next.Await(ctx, condition)
}

func (o *watchedOut) NewContinueAsNewError(ctx workflow.Context, wfn any, args ...any) error {
	o.w.look(ctx)
	return o.Next.NewContinueAsNewError(ctx, wfn, args...)
}

// watchedInbox sees the exchanges that come as signals when the gate takes them in.
type watchedInbox struct {
	workflow.ReceiveChannel
	ctx workflow.Context
	w   *watcher
}

func (c *watchedInbox) ReceiveAsync(value any) bool {
	if c.w.dirty {
		c.w.look(c.ctx)
	}
	if c.ReceiveChannel.ReceiveAsync(value) {
		if raw, ok := value.(*converter.RawValue); ok {
			c.w.arrives(c.ctx, c.w.decode(*raw))
		}
		return true
	}
	// All signals have been taken in: the update that waited behind them is next.
	c.w.arrives(c.ctx, c.w.pending)
	c.w.pending = nil
	return false
}
