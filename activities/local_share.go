package activities

import (
	"context"
	"time"

	"sluice/admission"
	"sluice/policy"
)

// localShare is this process's part of a gate's limits, which it may use while
// the gate can't be reached (`on_unavailable: local`): what all processes that
// the gate knew last would get if they shared alike. It is enforced in this
// process alone; nobody adds up what the others do.
type localShare struct {
	holder *holder
	link   *localLink
}

// shareOf divides a gate's limits among so many processes, each part rounded
// down; false where one of them comes to nothing, and then a caller waits.
func shareOf(g policy.Gate, holders int) (policy.Gate, bool) {
	n := int64(max(holders, 1))
	if g.MaxInFlight > 0 {
		if g.MaxInFlight /= n; g.MaxInFlight == 0 {
			return g, false
		}
	}
	ok := true
	part := func(r admission.Rate) admission.Rate {
		switch {
		case r.IsZero():
		case r.Per > admission.MaxPer/time.Duration(n):
			ok = false
		default:
			// Fewer at once, and each n times as far apart: exact.
			r.Burst = max(r.Burst/n, 1)
			r.Per *= time.Duration(n)
		}
		return r
	}
	g.Requests = part(g.Requests)
	budgets := make([]admission.Budget, len(g.Budgets))
	for i, b := range g.Budgets {
		if b.Rate.Burst < n {
			ok = false // a burst of nothing admits nothing
		}
		budgets[i] = admission.Budget{Unit: b.Unit, Rate: part(b.Rate)}
	}
	g.Budgets = budgets
	return g, ok
}

// share returns the process's share, opened when it is needed first; nil where
// there is none.
func (h *holder) share() *localShare {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.local != nil || h.stopping {
		return h.local
	}
	g, ok := shareOf(h.gate, h.known)
	if !ok {
		return nil
	}
	link, err := newLocalLink(g)
	if err != nil {
		return nil // shareOf made limits that can't be enforced: callers wait
	}
	inner, err := newHolder(g, h.name.Id, link, h.logger)
	if err != nil {
		return nil
	}
	h.local = &localShare{holder: inner, link: link}
	h.logger.Warn("sluice: gate unavailable; calls go on under this process's share of its limits", "gate", h.id,
		"processes", max(h.known, 1), "max_in_flight", g.MaxInFlight, "spacing", g.Requests.Spacing())
	return h.local
}

// endShareLocked lets the share go once the gate has answered. Leases of it that
// are in use end with their calls.
func (h *holder) endShareLocked() {
	if share := h.local; share != nil {
		h.local = nil
		h.logger.Warn("sluice: gate available again", "gate", h.id)
		go func() { _ = share.holder.close(context.Background()) }() // a local link can't fail
	}
}

// shareLease is a lease of a process's share.
type shareLease struct{ *lease }

func (l shareLease) Info() LeaseInfo {
	info := l.lease.Info()
	info.Local = true
	return info
}

// keep ends the lease: nothing is kept in a share.
func (l shareLease) keep(f Feedback) { l.ReleaseWith(f) }

// shareWait is a caller's wait for a lease of the share, beside its wait at the
// gate.
type shareWait struct {
	cancel context.CancelFunc
	leases chan *lease // one, or closed where none is to be had
}

// waitForShare begins to wait in the share's queue; nil where there is no share.
func (h *holder) waitForShare(ctx context.Context, r Request) *shareWait {
	share := h.share()
	if share == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &shareWait{cancel: cancel, leases: make(chan *lease, 1)}
	go func() {
		defer close(w.leases)
		l, err := share.holder.Acquire(ctx, Request{Label: r.Label, Cost: r.Cost, QueueTimeout: -1})
		if err == nil {
			w.leases <- l.(*lease)
		}
	}()
	return w
}

// ready delivers the lease; nil blocks.
func (w *shareWait) ready() <-chan *lease {
	if w == nil {
		return nil
	}
	return w.leases
}

// stop ends the wait; a lease that comes too late goes back unused.
func (w *shareWait) stop() {
	if w == nil {
		return
	}
	w.cancel()
	go func() {
		if l := <-w.leases; l != nil {
			l.ReleaseWith(Feedback{Outcome: Abandoned, Asked: -1})
		}
	}()
}
