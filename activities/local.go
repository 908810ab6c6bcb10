package activities

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// localGates are the in-process gates of this process, by gate ID: whoever uses
// the same one shares it.
var localGates = struct {
	mu     sync.Mutex
	byGate map[string]*localGate
}{byGate: map[string]*localGate{}}

// localGate is a gate without Temporal: the same scheduler, the same exchanges,
// the process's own clock. It has a timer only while anything is due.
type localGate struct {
	id    string
	users int // guarded by localGates.mu

	mu       sync.Mutex
	policy   policy.Gate
	hash     string
	s        *admission.Scheduler
	exchange admission.Exchange
	news     map[string]chan struct{}
	timer    *time.Timer
	started  time.Time
	woken    []string
}

// localLink connects a holder to a local gate.
type localLink struct {
	gate *localGate
}

// openLocal finds or makes the process's gate of a policy.
func openLocal(g policy.Gate) (*localLink, error) {
	localGates.mu.Lock()
	defer localGates.mu.Unlock()
	id := g.ID()
	gate := localGates.byGate[id]
	if gate == nil {
		link, err := newLocalLink(g)
		if err != nil {
			return nil, err
		}
		gate = link.gate
		localGates.byGate[id] = gate
	}
	gate.users++
	return &localLink{gate: gate}, nil
}

// newLocalLink makes a local gate that nobody shares.
func newLocalLink(g policy.Gate) (*localLink, error) {
	started := time.Now()
	s, err := admission.New(admission.InstantOf(started), g.Limits(), admission.Options{Unbounded: true})
	if err != nil {
		return nil, err
	}
	return &localLink{gate: &localGate{id: g.ID(), policy: g, hash: g.Hash(), s: s, news: map[string]chan struct{}{}, started: started}}, nil
}

// close gives the gate up; the last user's going ends it.
func (l *localLink) close() {
	localGates.mu.Lock()
	defer localGates.mu.Unlock()
	if l.gate.users--; l.gate.users == 0 {
		delete(localGates.byGate, l.gate.id)
		l.gate.mu.Lock()
		defer l.gate.mu.Unlock()
		if l.gate.timer != nil {
			l.gate.timer.Stop()
		}
	}
}

func (g *localGate) now() admission.Instant {
	return admission.InstantOf(g.started).Add(time.Since(g.started))
}

func (l *localLink) exchange(_ context.Context, x *contract.Exchange) (*contract.Answer, error) {
	g := l.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if x.Policy.GetHash() != g.hash {
		if a := g.agreeLocked(x.Policy); a != nil {
			return a, nil
		}
	}
	now := g.now()
	if err := workflows.ExchangeOf(x, now, &g.exchange); err != nil {
		return nil, err
	}
	answer := g.s.Apply(now, &g.exchange)
	limits := g.s.Limits()
	a := workflows.AnswerOf(&answer, &limits, x.Ask)
	a.FirstRun = "local"
	g.settleLocked()
	return a, nil
}

// agreeLocked refuses to mix two policies of one revision; a higher one takes
// over.
func (g *localGate) agreeLocked(p *contract.Policy) *contract.Answer {
	if p.GetRevision() < g.policy.Revision {
		return nil
	}
	if len(p.GetBody()) == 0 {
		return &contract.Answer{Now: int64(g.now()), PolicyNeeded: true}
	}
	theirs, err := policy.DecodeGate(p.GetBody())
	if err != nil {
		return &contract.Answer{Now: int64(g.now()), PolicyConflict: []string{err.Error()}}
	}
	if theirs.Revision == g.policy.Revision {
		return &contract.Answer{Now: int64(g.now()), PolicyConflict: g.policy.Diff(theirs)}
	}
	g.policy, g.hash = theirs, theirs.Hash()
	_ = g.s.SetLimits(g.now(), theirs.Limits()) // decoded, so valid
	return nil
}

// settleLocked tells holders their news and arms the timer.
func (g *localGate) settleLocked() {
	g.woken = g.s.TakeWoken(g.woken[:0])
	for _, id := range g.woken {
		if c := g.news[id]; c != nil {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	wake := g.s.NextWake()
	switch {
	case wake == admission.Never:
		if g.timer != nil {
			g.timer.Stop()
		}
	case g.timer == nil:
		g.timer = time.AfterFunc(wake.Sub(g.now()), g.step)
	default:
		g.timer.Reset(wake.Sub(g.now()))
	}
}

func (g *localGate) step() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.s.Advance(g.now())
	g.settleLocked()
}

func (l *localLink) wait(ctx context.Context, w *contract.Wait) (*contract.Answer, error) {
	g := l.gate
	g.mu.Lock()
	news := g.news[w.Holder.Id]
	if news == nil {
		news = make(chan struct{}, 1)
		g.news[w.Holder.Id] = news
	}
	g.mu.Unlock()
	for {
		g.mu.Lock()
		a := g.answerLocked(w.Holder)
		g.mu.Unlock()
		if a.Notice > w.Confirmed || a.Resync || !a.MayWait {
			return a, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// asks: an exchange costs nothing here.
func (l *localLink) asks() bool { return false }

func (g *localGate) answerLocked(h *contract.Holder) *contract.Answer {
	ref, known := g.s.HolderByID(h.Id)
	if !known {
		return &contract.Answer{Now: int64(g.now()), FirstRun: "local", Resync: true}
	}
	answer := g.s.AnswerFor(ref)
	answer.Now = g.now()
	answer.Notices = slices.Clone(answer.Notices)
	limits := g.s.Limits()
	a := workflows.AnswerOf(&answer, &limits, nil)
	a.FirstRun = "local"
	return a
}

func (l *localLink) flush(ctx context.Context, x *contract.Exchange) error {
	_, err := l.exchange(ctx, x)
	return err
}

// LocalStatus tells how a local gate stands, by ID or unique name: for tests
// that check that every lease was given back. The error is or wraps
// policy.ErrUnknownGate, or says that the gate isn't a local one.
func (g *Gates) LocalStatus(name string) (admission.Status, error) {
	found, err := g.Gate(name)
	if err != nil {
		return admission.Status{}, err
	}
	l, local := found.(*holder).link.(*localLink)
	if !local {
		return admission.Status{}, fmt.Errorf("gate %s is not a local gate", name)
	}
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	l.gate.s.Advance(l.gate.now())
	st := l.gate.s.Status(localStatusRows)
	l.gate.settleLocked()
	return st, nil
}

const localStatusRows = 1000
