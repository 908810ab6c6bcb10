package admission

import "time"

// The gate paces its own control traffic: the server takes ten updates in
// flight per run, and a crowd of holders that all send at once gets refused,
// backs off blindly and collapses. So each answer names the holder's next
// slot, slots being gap apart, and the gap follows what holders report.
type traffic struct {
	gap      time.Duration
	lastSlot Instant
	seen     int     // holders that sent in the present second
	second   Instant // its beginning
	crowd    int     // holders that sent in the second before
}

const (
	minGap       = 500 * time.Microsecond
	maxGap       = 50 * time.Millisecond
	freeHolders  = 6 // so few need no slots: they fit in the updates in flight
	keepAlive    = 3 // exchanges per holder TTL
	queuedReturn = time.Second
	aheadReturn  = 200 * time.Millisecond // so a cooldown reaches unstarted leases within 250 ms
	nextReturn   = 20 * time.Millisecond
	maxWaits     = 4 // open at a time
)

// report takes in how a holder's last exchange fared.
func (s *Scheduler) report(now Instant, refused uint32, roundTrip time.Duration) {
	t := &s.traffic
	if now >= t.second.Add(time.Second) {
		t.crowd, t.seen, t.second = t.seen, 0, now
	}
	t.seen++
	switch {
	case refused > 0:
		t.gap = min(max(t.gap+t.gap/2, 4*minGap), maxGap)
	case t.gap > 0:
		t.gap -= max(t.gap/128, 1)
		if t.gap < minGap {
			t.gap = 0
		}
	}
}

// slot returns the instant before which the holder should not send again.
func (s *Scheduler) slot(now Instant) Instant {
	t := &s.traffic
	gap := time.Duration(0)
	if len(s.holderByID) > freeHolders {
		gap = t.gap
	}
	if most := s.limits.MaxExchangesPerSecond; most > 0 {
		gap = max(gap, time.Second/time.Duration(most))
	}
	if gap == 0 {
		return now
	}
	t.lastSlot = max(now, t.lastSlot.Add(gap))
	return t.lastSlot
}

// promise works out when the holder has to be back even if it has nothing to
// say: soon where it is next in line, seldom where nothing can happen.
func (s *Scheduler) promise(i int32, now, slot Instant) Instant {
	h := &s.holders[i]
	back := now.Add(s.limits.HolderTTL / keepAlive)
	if h.queued.tickets == 0 && h.leased == 0 {
		return 0 // it has nothing here, and need not come
	}
	if h.leased > 0 && s.lastStart > now {
		back = now.Add(aheadReturn) // leases that have not started
	}
	if h.queued.tickets > 0 {
		back = min(back, s.expectGrant(i, now))
	}
	return max(back, slot)
}

// expectGrant guesses when the holder's first ticket may be admitted, from its
// position and the pace of admissions.
func (s *Scheduler) expectGrant(i int32, now Instant) Instant {
	pace := max(s.limits.Pacing.Spacing(), s.releaseGap)
	position, first := int64(0), none
	for at := s.q.head; at != none && position < 1000; at = s.q.entries[at].next {
		if e := &s.q.entries[at]; e.holder == i {
			first = at
			break
		}
		position++
	}
	wait := time.Duration(min(position, 1000)) * min(pace, time.Second)
	at := now.Add(wait)
	if first != none && first == s.first() {
		if t := s.earliest(&s.q.entries[first], now); t != Never {
			at = max(at, t.Add(-max(s.limits.LookAhead, 0)/2))
		}
	}
	if s.cool.until > now {
		at = max(at, s.cool.until.Add(-max(s.limits.LookAhead, 0)/2))
	}
	return min(max(at, now.Add(nextReturn)), now.Add(queuedReturn))
}

// mayWait reports whether the holder may keep an open wait: at most maxWaits
// do, those next in line or with leases that have not started.
func (s *Scheduler) mayWait(i int32, now Instant) bool {
	h := &s.holders[i]
	if h.queued.tickets == 0 && (h.leased == 0 || s.lastStart <= now) {
		return false
	}
	if h.waiting {
		return true
	}
	open := 0
	for at := range s.holders {
		if s.holders[at].waiting {
			open++
		}
	}
	return open < maxWaits
}

// SetWaiting says whether the holder has an open wait.
func (s *Scheduler) SetWaiting(h HolderRef, open bool) {
	if s.check(h) == nil {
		s.holders[h].waiting = open
	}
}

// HolderByID finds a registered holder.
func (s *Scheduler) HolderByID(id string) (HolderRef, bool) {
	i, ok := s.holderByID[id]
	return HolderRef(i), ok
}

// MayWait reports whether the holder may open a wait now.
func (s *Scheduler) MayWait(h HolderRef) bool {
	return s.check(h) == nil && s.mayWait(int32(h), s.now)
}
