package activities

import (
	"errors"
	"fmt"
	"slices"
)

// An activity that takes a second lease of a gate whose places it has itself waits for
// what only it can give: a response that is open, at a cap of 1. Whoever reads the
// wait's error has to learn that.

// placed is a lease that knows whether it has its place still.
type placed interface{ inPlace() bool }

// inPlace implements placed. What is kept for the call's next attempt is in nobody's way.
func (l *lease) inPlace() bool {
	l.holder.mu.Lock()
	defer l.holder.mu.Unlock()
	return !l.ticket.ended && !l.ticket.kept
}

// ownPlace is a lease that an attempt took.
type ownPlace struct {
	gate   Gate
	lease  placed
	weight int64
}

// uses notes that the attempt has a lease of a gate.
func (a *attempt) uses(g Gate, l Lease, cost Cost) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.gates, g) {
		a.gates = append(a.gates, g)
	}
	if p, ok := l.(placed); ok {
		a.places = append(slices.DeleteFunc(a.places, func(p ownPlace) bool { return !p.lease.inPlace() }), ownPlace{g, p, max(cost.Weight, 1)})
	}
}

// blocksItselfLocked says that the attempt can't get a further lease while it has those
// that it has; "" where it isn't so.
func (a *attempt) blocksItselfLocked(g Gate, cost Cost) string {
	most, own := g.Policy().MaxInFlight, int64(0)
	for _, p := range a.places {
		if p.gate == g && p.lease.inPlace() {
			own += p.weight
		}
	}
	if most == 0 || own == 0 || own+max(cost.Weight, 1) <= most {
		return ""
	}
	return fmt.Sprintf("this activity itself has %d of the gate's %d places", own, most)
}

// explain adds to the error of a wait that the attempt waited for itself, where it did.
func (a *attempt) explain(err error, g Gate, cost Cost) error {
	var e *Error
	if a == nil || !errors.As(err, &e) || e.Kind != KindStillQueued && e.Kind != KindQueueTimeout {
		return err
	}
	a.mu.Lock()
	why := a.blocksItselfLocked(g, cost)
	a.mu.Unlock()
	if why == "" {
		return err
	}
	explained := *e
	explained.Detail += "; " + why + ": read its open responses to their end or close them before the next call"
	return &explained
}
