package activities

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// held is a lease that the code under a context runs on: further sends to the
// same gate go under it, so no call waits for itself.
type held struct {
	gates  *Gates
	gate   Gate
	lease  Lease
	cost   Cost // the estimate
	parent *held

	mu       sync.Mutex
	feedback Feedback  // what the gate will be told
	at       time.Time // when that was read; zero: nothing was
	told     []answer  // that have been read, for this gate or another
	used     usedUnits
	ended    bool
}

// maxTold bounds the answers that a lease remembers.
const maxTold = 64

func hold(ctx context.Context, gates *Gates, g Gate, l Lease, cost Cost) (context.Context, *held) {
	h := &held{gates: gates, gate: g, lease: l, cost: cost, parent: innermost(ctx)}
	return context.WithValue(inAttempt(ctx, l), heldKey, h), h
}

// innermost is the lease that was taken last of those that the context runs on;
// nil if none.
func innermost(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey).(*held)
	return h
}

// heldFrom returns the lease of a gate that the context runs on; nil if none.
func heldFrom(ctx context.Context, g Gate) *held {
	for h := innermost(ctx); h != nil; h = h.parent {
		if h.gate == g {
			return h
		}
	}
	return nil
}

// learn keeps what the attempt was told, where it outranks what it was told
// before.
func (h *held) learn(f Feedback) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lower := append(slices.Clip(h.feedback.Lower), f.Lower...)
	if h.at.IsZero() || f.outranks(h.feedback.after(time.Since(h.at))) {
		h.feedback, h.at = f, time.Now()
	}
	h.feedback.Lower = lower
}

// saw notes, for all leases that the code runs on, that an answer has been read:
// it comes back in the error of that code.
func (h *held) saw(a answer) {
	for ; h != nil; h = h.parent {
		h.mu.Lock()
		if len(h.told) == maxTold {
			h.told = slices.Delete(h.told, 0, 1)
		}
		h.told = append(h.told, a)
		h.mu.Unlock()
	}
}

// sawResponse is saw for what Transport got.
func (h *held) sawResponse(r *http.Response) {
	if h != nil && r != nil {
		h.saw(answer{status: r.StatusCode, header: r.Header})
	}
}

func (h *held) knows(a answer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.told, a.same)
}

// meter counts a send under the lease, and what its answer says that it cost
// once its body has been read. m is nil where nobody asks.
func (h *held) meter(response *http.Response, m *meter) {
	h.mu.Lock()
	h.used.unknown++
	h.mu.Unlock()
	if m == nil {
		return
	}
	settle := sync.OnceFunc(func() {
		units, known := m.units()
		if !known {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.used.unknown--
		h.used.add(units)
	})
	if !watch(response, m.seer(), settle) {
		settle()
	}
}

// heed learns from the error that the code under the lease returned. An answer
// counts once, whoever reads it first, and for its own provider's gate.
func (h *held) heed(err error) {
	h.gates.shielded("feedback from an error", func() {
		for _, a := range answersIn(err) {
			if !h.knows(a) && h.concerns(a) {
				h.learn(read(h.gate.Policy(), a, func(limit int) []byte { return heldBody(a.response, limit) }))
				h.saw(a)
			}
		}
	})
}

// concerns reports whether an answer may be that of the gate's provider. Where
// its URL is known and the policy gives that to other gates alone, it isn't.
func (h *held) concerns(a answer) bool {
	if a.response == nil || a.response.Request == nil {
		return true
	}
	own := h.gate.Policy()
	_, err := h.gates.policy.Find(a.response.Request.Method, a.response.Request.URL, own.ID())
	return err == nil
}

// finish gives the lease back with what was learned; the first call counts.
func (h *held) finish(outcome Outcome) {
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return
	}
	h.ended = true
	f := Feedback{Outcome: outcome, Asked: -1}
	if !h.at.IsZero() {
		f = h.feedback.after(time.Since(h.at))
	}
	if f.rank() == 0 {
		f.Outcome = outcome
	}
	f.Actual = h.used.actual(h.cost.Units)
	h.mu.Unlock()
	h.gates.release(h.lease, f)
}

// release gives a lease back, with feedback where its gate wants it.
func (g *Gates) release(l Lease, f Feedback) {
	g.shielded("release", func() {
		if fl, ok := l.(FeedbackLease); ok {
			fl.ReleaseWith(f)
			return
		}
		l.Release()
	})
}
