package admission

import (
	"slices"
	"time"
)

// The gate paces its own control traffic: the server takes ten updates in
// flight per run, and a crowd of holders that all send at once gets refused,
// backs off blindly and collapses. So each answer names the holder's next
// slot, slots being gap apart. One update too many is dear: a server may end all
// that are in flight for it (v1.32.1 does).
//
// Under rules 1 the gap follows the round trips that holders report, and grows with
// refusals that they report. Both are old when they arrive, the older the wider the
// gaps are, so a crowd took long to settle. Since rules 2 it follows what the gate
// sees itself: how many exchanges its host takes in at one instant, which is half
// of what is in flight. What it aims at is a window: it grows while nothing is
// refused, for a server may take more than ten, and shrinks after a refusal. Each
// refusal makes the gate wait twice as long until it tries again.
type traffic struct {
	gap      time.Duration
	trip     time.Duration // smoothed round trip, for rules 1
	lastSlot Instant
	// Since rules 2.
	last     Instant       // when the last exchange was taken in
	together int64         // exchanges taken in at that instant, so far
	usual    int64         // the same at most instants, smoothed, in 1/16
	wider    int64         // updates in flight that the gaps aim at beyond crowdFlight, in 1/16
	refused  Instant       // when one was refused
	patience time.Duration // from then on, until the window may grow
}

const (
	minGap       = 500 * time.Microsecond
	maxGap       = 50 * time.Millisecond
	freeHolders  = 6 // so few need no slots: they fit in the updates in flight
	perTrip      = 8 // exchanges in flight that the gaps aim at, under rules 1
	crowdFlight  = 6 // the least window, open waits included: of ten the rest is for bad moments
	maxFlight    = 64
	minPatience  = 10 * time.Second
	maxPatience  = 10 * time.Minute
	maxTogether  = 1 << 10
	crowdCycle   = 2 * time.Second // since rules 2: within it all holders have a slot
	keepAlive    = 3               // exchanges per holder TTL
	queuedReturn = time.Second
	aheadReturn  = 150 * time.Millisecond // so a cooldown reaches unstarted leases within 250 ms
	aheadReturn1 = 200 * time.Millisecond // the same under rules 1
	nextReturn   = 20 * time.Millisecond
	maxWaits     = 4                      // open at a time
	inviteFor    = 250 * time.Millisecond // that a holder which may open a wait is taken to be about to
	inLine       = 1000                   // tickets looked through for who is next
)

// report takes in how a holder's last exchange fared.
func (t *traffic) report(refused uint32, roundTrip time.Duration) {
	if roundTrip > 0 {
		t.trip += (min(roundTrip, perTrip*maxGap) - t.trip) / 8
	}
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

// came takes in that an exchange came, and whether it was refused before. More at
// one instant than aim make the gap wider, fewer make it narrower. A crowd that
// waited for a host which stood still comes together whatever the gap is, so one
// instant widens it by no more than half.
func (t *traffic) came(now Instant, aim int64, refused bool) {
	switch {
	case now == t.last:
		t.together = min(t.together+1, maxTogether)
	default:
		t.usual += (16*t.together - t.usual) / 4
		if t.together >= aim && now >= t.refused.Add(t.patience) {
			more := int64(16) // soon, until there is something to be careful about
			if t.patience > 0 {
				more = 2
			}
			t.wider = min(t.wider+more, (maxFlight-crowdFlight)*16)
		}
		t.last, t.together = now, 1
	}
	if refused && now >= t.refused.Add(time.Second) { // what comes within a second has one reason
		if t.wider > 0 || t.patience == 0 {
			t.patience = min(max(2*t.patience, minPatience), maxPatience)
		}
		t.wider, t.refused = t.wider/2, now
	}
	switch above := t.together - aim; {
	case above <= 0:
		t.gap -= t.gap / 32
	case above <= 4:
		t.gap = min(t.gap+t.gap/10, maxGap)
	}
	t.gap = max(t.gap, minGap)
}

// window is how many updates may be in flight, open waits included.
func (t *traffic) window() int { return crowdFlight + int(t.wider)/16 }

// slot returns the instant before which the holder should not send again.
func (s *Scheduler) slot(now Instant) Instant {
	t := &s.traffic
	gap := time.Duration(0)
	switch crowd := len(s.holderByID); {
	case crowd <= freeHolders:
	case s.since(2):
		gap = min(t.gap, crowdCycle/time.Duration(crowd))
	default:
		gap = max(t.gap, t.trip/perTrip)
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
		ahead := aheadReturn // leases that have not started
		if !s.since(2) {
			ahead = aheadReturn1
		}
		back = now.Add(ahead)
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
	position, first := 0, none
	for at := s.q.head; at != none && first == none && position < inLine; at = s.q.entries[at].next {
		switch s.q.entries[at].holder {
		case i:
			first = at
		case none: // parked, and not in line
		default:
			position++
		}
	}
	if s.holders[i].waiting {
		return now.Add(queuedReturn) // its wait ends when there is news
	}
	if s.since(3) && position >= maxWaits {
		position -= maxWaits - 1 // it is welcome to wait before it is the first
	}
	pace = min(pace, 4*time.Second)
	at := now.Add(time.Duration(position)*pace + pace/4)
	if first != none && first == s.head && !s.held(&s.q.entries[first], now) {
		at = max(at, s.earliest(first, now).Add(-s.ahead()/2))
	}
	at = max(at, s.cool.until.Add(-s.ahead()/2))
	return min(max(at, now.Add(nextReturn)), now.Add(queuedReturn))
}

// MayWait reports whether the holder may keep an open wait: at most maxWaits do, and
// fewer in a busy crowd; those next in line or with leases that have not started.
func (s *Scheduler) MayWait(h HolderRef) bool {
	if s.check(h) != nil {
		return false
	}
	holder := &s.holders[h]
	ahead := holder.leased > 0 && s.lastStart > s.now
	if holder.queued.tickets == 0 && !ahead {
		return false
	}
	if holder.waiting || holder.invited > s.now {
		return true
	}
	return s.openWaits(s.now) < s.waitsAllowed() && (ahead || s.nextInLine(int32(h)))
}

// waitsAllowed is how many waits may be open at a time. When the workflow's host
// is slow for a moment, each holder's exchange stays in flight; in a crowd that has
// much to say, open waits would then be too many beside them.
func (s *Scheduler) waitsAllowed() int {
	if !s.since(2) || len(s.holderByID) <= freeHolders {
		return maxWaits
	}
	return min(max(s.traffic.window()-2*int((s.traffic.usual+8)/16), 0), maxWaits)
}

// exchangesAimedAt is how many exchanges a crowd should have taken in at one
// instant: as many are on their way meanwhile, and the waits take places, too.
func (s *Scheduler) exchangesAimedAt(now Instant) int64 {
	return max(int64(s.traffic.window()-s.openWaits(now))/2, 1)
}

// openWaits counts the holders that have an open wait, or that were told lately
// that they may open one.
func (s *Scheduler) openWaits(now Instant) int {
	open := 0
	for at := range s.holders {
		if h := &s.holders[at]; h.waiting || h.invited > now {
			open++
		}
	}
	return open
}

// Invite is to be called when the holder is told that it may open a wait: till it
// does, its wait counts as open, so that no more are invited than may be open.
func (s *Scheduler) Invite(h HolderRef) {
	if s.since(2) && s.check(h) == nil && !s.holders[h].waiting {
		s.holders[h].invited = s.now.Add(inviteFor)
	}
}

// nextInLine reports whether the holder is one of the maxWaits present ones
// whose tickets come first.
func (s *Scheduler) nextInLine(i int32) bool {
	var before [maxWaits]int32
	n, seen := 0, 0
	for at := s.q.head; at != none && seen < inLine; at = s.q.entries[at].next {
		h := s.q.entries[at].holder
		if h == i {
			return true
		}
		seen++
		if h == none || slices.Contains(before[:n], h) || !s.present(h, s.now) {
			continue
		}
		if n == maxWaits-1 {
			return false
		}
		before[n] = h
		n++
	}
	return false
}

// Ask takes in that a holder has come to open a wait, which it may not, or which would
// end at once. Since rules 3 that counts as a visit, as an exchange does: the answer
// names the next slot and says when to come again.
func (s *Scheduler) Ask(now Instant, h HolderRef) Answer {
	if s.check(h) != nil || !s.since(3) {
		return s.AnswerFor(h)
	}
	now = s.observe(now)
	s.traffic.came(now, s.exchangesAimedAt(now), false)
	return s.visit(now, h)
}

// visit answers a holder that has come by: its next slot, and when to come again.
func (s *Scheduler) visit(now Instant, h HolderRef) Answer {
	slot := s.slot(now)
	s.holders[h].comeAgain = s.promise(int32(h), now, slot)
	a := s.AnswerFor(h)
	a.NotBefore = slot
	return a
}

// SetWaiting says whether the holder has an open wait. Opening one counts as
// coming back.
func (s *Scheduler) SetWaiting(h HolderRef, open bool) {
	if s.check(h) != nil {
		return
	}
	holder := &s.holders[h]
	if open && !holder.waiting && holder.comeAgain != 0 {
		holder.comeAgain = max(holder.comeAgain, s.now.Add(queuedReturn))
	}
	holder.waiting, holder.invited = open, 0
}
