package activities

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"sluice/admission"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// Pauses between tries of one exchange that was not answered.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 2 * time.Second
	// retriesPerTrip are the tries per round trip that all holders together aim at:
	// what ended one exchange most likely ended those of the others, too.
	retriesPerTrip = 4
)

// wakeLocked has the loop look at what there is to say. The loop runs only
// while there is anything: an idle holder has no goroutine and no traffic.
func (h *holder) wakeLocked() {
	if !h.running && !h.stopping {
		h.running = true
		h.idle = make(chan struct{})
		go h.run(h.idle)
	}
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// run keeps at most one exchange in flight; what arrives meanwhile goes into
// the next one.
func (h *holder) run(idle chan struct{}) {
	defer close(idle)
	for {
		h.mu.Lock()
		x, pause := h.nextLocked()
		if x == nil && (pause < 0 || h.stop.Err() != nil) {
			h.running = false
			h.mu.Unlock()
			return
		}
		h.openWaitLocked()
		h.mu.Unlock()
		if x != nil {
			if !h.send(x) {
				h.mu.Lock()
				h.running = false
				h.mu.Unlock()
				return
			}
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-h.kick:
		case <-timer.C:
		case <-h.stop.Done():
		}
		timer.Stop()
	}
}

// nextLocked returns the next exchange if it is due, or how long until one may
// be; a negative pause means that there is nothing to come back for.
func (h *holder) nextLocked() (*contract.Exchange, time.Duration) {
	if h.flight != nil {
		return h.flight, 0
	}
	now := time.Now()
	news := !h.out.empty() || h.resync
	due := time.Duration(-1)
	switch {
	case h.spacing > 0 && len(h.reserved) > 0 && h.clock.unsure():
		due = 0 // better know the time before the first start
	case news:
		due = max(h.unhurriedLocked(now), h.ungatheredLocked(now), 0)
	case len(h.tickets) > 0 && !h.comeAgain.IsZero():
		due = max(h.returnLocked(now), 0)
	case len(h.tickets) > 0:
		due = h.gate.HolderTTL / 3
	default:
		return nil, -1
	}
	if wait := h.notBefore.Sub(now); wait > due {
		due = min(wait, h.gate.HolderTTL/3)
	}
	switch {
	case due > 0:
		return nil, due
	case !news && h.askLocked(now):
		return nil, waitReturn
	}
	h.flight = h.exchangeLocked()
	return h.flight, 0
}

// returnLocked is how long until the holder has to be back with nothing to say. An
// open wait counts as being there, and ends if there is news, so meanwhile it is soon
// enough after waitReturn, or when a keep-alive is due. Not so where leases are about
// to start: a cooldown must reach them in time whatever becomes of the wait.
func (h *holder) returnLocked(now time.Time) time.Duration {
	due := h.comeAgain.Sub(now)
	if h.waiting && len(h.reserved) == 0 {
		due = max(due, min(h.waitingFrom.Add(waitReturn).Sub(now), h.keepAliveLocked().Sub(now)))
	}
	return due
}

// keepAliveLocked is when an exchange is due, whatever else shows that the holder is there.
func (h *holder) keepAliveLocked() time.Time { return h.answered.Add(h.gate.HolderTTL / 3) }

// waitReturn is how long the gate takes an open wait for having come back. Where it
// never got there, the holder is still back within admission.PresenceGrace.
const waitReturn = time.Second

// askLocked asks for a wait in place of an exchange that had nothing to say: the gate
// lets it open, or says when to come again. It keeps no lease alive and doesn't show
// that the gate was reset, so in between an exchange is due as a keep-alive.
func (h *holder) askLocked(now time.Time) bool {
	if h.rules < 3 || !h.link.asks() || h.waiting || h.waitFailed || len(h.reserved) > 0 ||
		!h.waitsForNewsLocked() || !now.Before(h.keepAliveLocked()) {
		return false
	}
	h.mayWait = true
	return true
}

// unhurriedLocked is how long an exchange may wait for company, as every exchange
// costs the server's work and history events. A ticket can't start at once where
// others are before it, and nobody waits for the end of a call at a gate that doesn't
// count its calls.
func (h *holder) unhurriedLocked(now time.Time) time.Duration {
	if h.resync || h.out.urgent || len(h.out.cancel)+len(h.out.handBack) > 0 {
		return 0
	}
	wait := maxCompany
	if len(h.out.release) > 0 {
		if h.cap > 0 {
			return 0
		}
		wait = h.out.since.Add(maxCompany).Sub(now)
	}
	if len(h.out.acquire) > 0 {
		wait = min(wait, h.arrived.Add(min(h.aheadLocked()/4, maxCompany)).Sub(now))
	}
	return wait
}

// aheadLocked is how long a new ticket waits at least, since others are before it:
// those in a paced gate's queue, and those whose start here is known.
func (h *holder) aheadLocked() time.Duration {
	ahead := time.Duration(min(h.depth, 1000)) * h.spacing
	if n := len(h.reserved); n > 0 && h.spacing > 0 {
		ahead = max(ahead, h.clock.until(admission.Instant(h.reserved[n-1].grant.StartAt)))
	}
	return ahead
}

// maxCompany bounds how long a ticket, or the end of a call, is kept back for company.
const maxCompany = 250 * time.Millisecond

// gatherLocked keeps the next exchange back for a moment after an answer that
// started several calls at once: short calls end together, too, and the first of
// them would go out alone while the others wait for a whole round trip.
func (h *holder) gatherLocked(started int, arrived time.Time) {
	if started > 1 {
		h.gather, h.gathering = started, arrived.Add(min(h.roundTrip/gatherShare, maxGather))
	}
}

const (
	gatherShare = 4 // of a round trip
	maxGather   = 10 * time.Millisecond
)

// ungatheredLocked is how long an exchange waits for the calls that started
// together: until they have ended, or the moment is over.
func (h *holder) ungatheredLocked(now time.Time) time.Duration {
	if len(h.out.release) >= h.gather {
		return 0
	}
	return h.gathering.Sub(now)
}

// send sends an exchange until it is answered. An error means that nobody knows
// whether it was applied, so it goes out again unchanged. false: the holder
// stops, and the exchange is kept for flush.
func (h *holder) send(x *contract.Exchange) bool {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		sent := time.Now()
		a, err := h.link.exchange(h.stop, x)
		arrived := time.Now()
		h.mu.Lock()
		if a != nil {
			h.answeredLocked(x, a, sent, arrived)
			h.mu.Unlock()
			return true
		}
		if h.stop.Err() != nil {
			h.mu.Unlock()
			return false
		}
		if errors.Is(err, errMalformed) {
			h.malformedLocked(x, err)
			h.mu.Unlock()
			return true
		}
		if errors.Is(err, errRefused) {
			h.refused++
		} else {
			h.outages.began(sent)
		}
		if h.unavailable.IsZero() {
			h.unavailable = sent
		}
		if since := time.Since(h.unavailable); since > unavailableAfter && since < unavailableAfter+lastPause {
			h.logger.Warn("sluice: gate unavailable", "gate", h.id, "since", since.Round(time.Second), "error", err)
		}
		h.distrustLocked()
		crowd := time.Duration(h.known) * h.roundTrip / retriesPerTrip
		h.mu.Unlock()
		wait = min(max(wait, crowd), lastPause)
		_ = pause(h.stop, wait/2+rand.N(wait)) // the next try says that it stops
	}
}

func (h *holder) answeredLocked(x *contract.Exchange, a *contract.Answer, sent, arrived time.Time) {
	h.unavailable, h.distrusted, h.waitFailed = time.Time{}, false, false
	h.outages.ended(arrived)
	h.exchangedLocked(x)
	h.endShareLocked()
	h.answered, h.arrived, h.roundTrip = sent, arrived, arrived.Sub(sent)
	if len(a.PolicyConflict) == 0 && a.PolicyNeeded && a.StateCounter == 0 {
		// Not applied: the same exchange again, with the body.
		h.takeLocked(a, sent, arrived, false)
		x.Policy.Body = h.body
		return
	}
	if h.flight == x {
		h.flight = nil
	}
	h.takeLocked(a, sent, arrived, false)
	h.answeredLeftLocked(x)
	if h.resync && !x.Resync {
		// Not applied. Releases are still worth saying; all else is presented.
		h.out.release, h.out.urgent = append(x.Release, h.out.release...), true
		h.out.lower = append(x.LowerLimits, h.out.lower...)
	}
	if !h.out.urgent && h.untold != nil {
		h.expected = 0 // the gate has said what it made of all feedback
		close(h.untold)
		h.untold = nil
	}
}

// malformedLocked drops an exchange that the gate can't read: sending it again
// would change nothing.
func (h *holder) malformedLocked(x *contract.Exchange, err error) {
	h.logger.Error("sluice: exchange refused", "gate", h.id, "error", err)
	h.flight = nil
	for _, a := range x.Acquire {
		if t := h.tickets[a.Number]; t != nil && !t.started {
			h.failLocked(t, &Error{Kind: KindUnavailable, Gate: h.id, Detail: err.Error()})
		}
	}
	h.resync = len(h.tickets) > 0
}

// distrustLocked gives leases up one margin before the gate does, counted from
// the start of the last answered exchange.
func (h *holder) distrustLocked() {
	if h.distrusted || h.answered.IsZero() || time.Since(h.answered) < h.gate.HolderTTL*4/5 {
		return
	}
	h.distrusted = true
	for _, t := range h.tickets {
		if t.started && !t.kept {
			h.loseLocked(t, "the gate can't be reached")
		}
	}
	for len(h.reserved) > 0 {
		h.handBackLocked(h.reserved[0], contract.HandBackReason_HAND_BACK_OTHER)
	}
}

// openWaitLocked opens a wait where the gate said that it is welcome.
func (h *holder) openWaitLocked() {
	if h.waiting || !h.mayWait || h.stopping || len(h.tickets) == 0 || !h.waitsForNewsLocked() {
		return
	}
	h.waiting, h.waitingFrom = true, time.Now()
	h.waits.Add(1)
	w := &contract.Wait{
		Contract: workflows.ContractVersion, Holder: &contract.Holder{Id: h.name.Id, Generation: h.name.Generation}, Confirmed: h.confirmed,
	}
	go func() {
		defer h.waits.Done()
		sent := time.Now()
		a, err := h.link.wait(h.stop, w)
		arrived := time.Now()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.waiting = false
		if err != nil {
			h.mayWait, h.waitFailed = false, true // until an exchange is answered
			h.wakeLocked()
			return
		}
		h.takeLocked(a, sent, arrived, true)
		h.wakeLocked()
	}()
}

// waitsForNewsLocked reports whether any ticket has not started.
func (h *holder) waitsForNewsLocked() bool {
	for _, t := range h.tickets {
		if !t.started {
			return true
		}
	}
	return false
}

// close ends the holder. Waiting callers get ErrStopped; what is left to say
// goes out as one last durable message. Leases in use are given back: call it
// when the activities have drained.
func (h *holder) close(ctx context.Context) error {
	h.mu.Lock()
	if h.stopping {
		h.mu.Unlock()
		return nil
	}
	h.stopping = true
	h.endShareLocked()
	running, idle := h.running, h.idle
	for _, t := range h.tickets {
		if !t.started {
			if t.granted {
				h.out.handBack = append(h.out.handBack, &contract.HandBack{Lease: t.grant.Lease, Reason: contract.HandBackReason_HAND_BACK_STOPPING})
			}
			h.out.cancel = append(h.out.cancel, &contract.Cancel{Number: t.acquire.Number, Attempt: t.acquire.Attempt, Park: true})
			h.failLocked(t, ErrStopped)
		}
	}
	h.mu.Unlock()
	h.halt()
	if running {
		<-idle
	}
	h.waits.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starter != nil {
		h.starter.Stop()
	}
	for _, t := range h.tickets {
		if t.kept { // the next attempt, in another process, takes it over
			h.forgetLocked(t)
			continue
		}
		h.out.release = append(h.out.release, &contract.Release{
			Lease: t.grant.GetLease(), Generation: t.grant.GetGeneration(), Outcome: contract.Outcome_OUTCOME_ABANDONED, StartedAt: int64(t.startAt),
		})
		h.forgetLocked(t)
	}
	h.tellAllLeftLocked()
	if h.flight != nil {
		if err := h.link.flush(ctx, h.flight); err != nil {
			return err
		}
		h.flight = nil
	}
	h.out.acquire = nil
	for !h.out.empty() {
		if err := h.link.flush(ctx, h.exchangeLocked()); err != nil {
			return err
		}
	}
	return nil
}

var _ Gate = (*holder)(nil)
