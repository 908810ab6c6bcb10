package activities

import (
	"time"

	"sluice/admission"
	"sluice/workflows/contract"
)

// startDueLocked starts the leases whose time has come, in order, never two
// closer together than the gate's spacing, and hands back those that are late. It
// returns how many started.
func (h *holder) startDueLocked() (started int) {
	for len(h.reserved) > 0 {
		t := h.reserved[0]
		now := h.clock.now()
		at := admission.Instant(t.grant.StartAt)
		if h.spacing > 0 && !h.lastStarted.IsZero() {
			at = max(at, now.Add(h.spacing-spacingSlack(h.spacing)-time.Since(h.lastStarted)))
		}
		if why, blocked := h.blockedLocked(t, now); blocked {
			h.handBackLocked(t, why)
			continue
		}
		window := h.window
		if t.grant.Window != 0 {
			window = time.Duration(t.grant.Window)
		}
		if limit := admission.Instant(t.grant.StartAt).Add(window); window > 0 && max(at, now) > limit {
			h.handBackLocked(t, contract.HandBackReason_HAND_BACK_LATE)
			continue
		}
		if at > now {
			h.armLocked(at.Sub(now))
			return started
		}
		h.reserved = h.reserved[1:]
		t.started, t.startAt = true, now
		h.lastStart, h.lastStarted = now, time.Now()
		close(t.ready)
		started++
	}
	return started
}

// spacingSlack is how much of a spacing two starts may lack. A start is some fraction
// of a millisecond late, more on a busy machine; without slack each lateness would
// push the next start out of its slot, and with it all that follow.
func spacingSlack(spacing time.Duration) time.Duration { return min(spacing/10, time.Millisecond) }

// blockedLocked reports whether a cooldown, a pause or tighter limits came after
// the grant.
func (h *holder) blockedLocked(t *ticket, now admission.Instant) (why contract.HandBackReason, blocked bool) {
	if t.grant.Notice <= h.loose {
		return contract.HandBackReason_HAND_BACK_TIGHTER, true
	}
	return contract.HandBackReason_HAND_BACK_COOLDOWN, h.paused || h.cooldown > now && admission.Instant(t.grant.StartAt) < h.cooldown
}

// armLocked has the first of reserved started in d. The runtime's timers are up to
// timerGrain late, so the last bit of the way is the system's to sleep.
func (h *holder) armLocked(d time.Duration) {
	h.starting = time.Now().Add(d)
	switch {
	case d > timerGrain:
		d -= timerGrain
	case !h.slept: // else time is faked, as in tests, and only timers pass it
		d = 0
	}
	if h.starter == nil {
		h.starter = time.AfterFunc(d, h.startOnTime)
		return
	}
	h.starter.Reset(d)
}

// startOnTime is called by the timer.
func (h *holder) startOnTime() {
	h.mu.Lock()
	rest := time.Until(h.starting)
	h.mu.Unlock()
	if rest > 0 && rest <= timerGrain { // else it was set anew
		sleepExactly(rest)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slept = true
	h.startDueLocked()
	h.slept = false
}
