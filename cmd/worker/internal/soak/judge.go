package soak

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/tests/loopback"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// Result is what a soak found, as --json prints it. What is said of attempts was
// counted at the provider, all else is from the gate's status and histories.
type Result struct {
	Lost            int     `json:"lost"`             // calls, and tickets at the gate, that came to no end
	OverCap         int     `json:"over_cap"`         // attempts above the cap
	ZombieOverlap   int     `json:"zombie_overlap"`   // attempts above the cap because of a process that stood still
	OrderViolations int     `json:"order_violations"` // grants before a present ticket that arrived earlier
	ActiveAtEnd     int     `json:"active_at_end"`    // leases in use after the drain
	QueuedAtEnd     int     `json:"queued_at_end"`
	LeakedLeases    int     `json:"leaked_leases"` // admissions less ends, after all workers have gone
	CooldownsLost   int     `json:"cooldowns_lost"`
	DoubleUse       int     `json:"double_use"`    // attempts under a lease that had one
	Ungranted       int     `json:"ungranted"`     // attempts under no lease, or one that the gate never granted
	ReclaimP90S     float64 `json:"reclaim_p90_s"` // from a worker's death until its places were free
	FDGrowth        int     `json:"fd_growth"`     // of the last server, from its second to its last quarter
	GoroutineGrowth int     `json:"goroutine_growth"`

	Attempts      int     `json:"attempts"`
	Calls         int     `json:"calls"`
	Completed     int     `json:"completed"` // calls
	Failed        int     `json:"failed"`    // calls that ended with their own error
	Overloads     int     `json:"overloads"` // 429s
	Aborted       int     `json:"aborted"`   // attempts whose caller left
	KilledWorkers int     `json:"killed_workers"`
	KilledServers int     `json:"killed_servers"`
	Stopped       int     `json:"stopped_workers"`
	Reclaimed     int     `json:"reclaimed"` // killed workers that held leases
	Submitted     int     `json:"submitted"` // tickets
	Granted       int     `json:"granted"`   // leases
	Cooldowns     int     `json:"cooldowns"`
	Runs          int     `json:"runs"`   // of the admission workflow
	Events        int     `json:"events"` // in all its histories
	LoadS         float64 `json:"load_s"` // until the last call ended
	ElapsedS      float64 `json:"elapsed_s"`
	Processes     int     `json:"processes"`
	Transport     string  `json:"transport"`
	Seed          uint64  `json:"seed"`
	OK            bool    `json:"ok"`
	// Broken names each bound that was broken.
	Broken []string `json:"broken,omitempty"`

	// Details say what was found, for a person; at most maxDetails of each kind.
	Details []string `json:"-"`
}

// The bounds that depend on the machine.
const (
	reclaimBound = holderTTL + 3*time.Second
	growthBound  = 10
)

// Correct reports whether all bounds hold that don't depend on the machine.
func (r *Result) Correct() bool { return len(r.brokenCorrectness()) == 0 }

func (r *Result) brokenCorrectness() (broken []string) {
	for _, b := range []struct {
		name string
		n    int
	}{
		{"lost", r.Lost}, {"over_cap", r.OverCap}, {"order_violations", r.OrderViolations}, {"active_at_end", r.ActiveAtEnd},
		{"queued_at_end", r.QueuedAtEnd}, {"leaked_leases", r.LeakedLeases}, {"cooldowns_lost", r.CooldownsLost},
		{"double_use", r.DoubleUse}, {"ungranted", r.Ungranted},
	} {
		if b.n != 0 {
			broken = append(broken, fmt.Sprintf("%s is %d; allowed: 0", b.name, b.n))
		}
	}
	return broken
}

// judgeBounds fills in OK and Broken.
func (r *Result) judgeBounds() {
	r.Broken = r.brokenCorrectness()
	if r.ReclaimP90S > reclaimBound.Seconds() {
		r.Broken = append(r.Broken, fmt.Sprintf("reclaim_p90_s is %.1f; allowed: at most %.0f", r.ReclaimP90S, reclaimBound.Seconds()))
	}
	if r.FDGrowth > growthBound {
		r.Broken = append(r.Broken, fmt.Sprintf("fd_growth is %d; allowed: at most %d", r.FDGrowth, growthBound))
	}
	if r.GoroutineGrowth > growthBound {
		r.Broken = append(r.Broken, fmt.Sprintf("goroutine_growth is %d; allowed: at most %d", r.GoroutineGrowth, growthBound))
	}
	r.OK = len(r.Broken) == 0
}

// evidence is all that is judged.
type evidence struct {
	attempts []loopback.Attempt // in the order of their arrival
	epoch    time.Time          // what their instants are measured from
	log      []moment
	calls    []string          // IDs of all that were asked for
	ended    map[string]string // those that ended with their own error
	drained  workflows.Status  // with the workers still there
	after    workflows.Status  // with all workers gone
	struck   blows
	loadEnd  time.Time
}

// maxDetails bounds what is said of each kind of finding.
const maxDetails = 10

// details collects findings, bounded.
type details struct {
	list []string
	n    map[string]int
}

func (d *details) add(kind, format string, args ...any) {
	if d.n == nil {
		d.n = map[string]int{}
	}
	if d.n[kind]++; d.n[kind] <= maxDetails {
		d.list = append(d.list, kind+": "+fmt.Sprintf(format, args...))
	}
}

// judge finds out what happened. It changes nothing but r.
func judge(e *evidence, r *Result) {
	var d details
	b := newBooks()
	b.read(e.log)
	r.Attempts, r.Calls, r.Submitted, r.Granted = len(e.attempts), len(e.calls), b.submitted, b.granted
	for i := range e.attempts {
		switch a := &e.attempts[i]; {
		case a.Status == http.StatusTooManyRequests:
			r.Overloads++
		case a.Aborted():
			r.Aborted++
		}
	}
	for _, text := range b.overtook {
		d.add("order_violations", "%s", text)
	}
	r.OrderViolations = len(b.overtook)
	judgeCalls(e, b, r, &d)
	judgeLeases(e, b, r, &d)
	judgeCap(e, b, r, &d)
	judgeCooldowns(e, b, r, &d)
	judgeEnd(e, r, &d)
	judgeReclaim(e, b, r, &d)
	r.FDGrowth, r.GoroutineGrowth = growth(e.struck.Sizes, e.loadEnd)
	r.KilledWorkers, r.KilledServers, r.Stopped = len(e.struck.Kills), len(e.struck.Outages), len(e.struck.Stops)
	r.Details = d.list
	r.judgeBounds()
}

// judgeCalls counts what came to no end: calls that the provider never served and
// that ended with no error of their own, and tickets that the gate still has though
// it says that its queue is empty.
func judgeCalls(e *evidence, b *books, r *Result, d *details) {
	served := map[string]bool{}
	for i := range e.attempts {
		if a := &e.attempts[i]; a.Status == http.StatusOK {
			served[a.CallID] = true
		}
	}
	for _, id := range e.calls {
		_, ended := e.ended[id]
		switch {
		case served[id]:
			r.Completed++
		case ended:
			r.Failed++
		default:
			r.Lost++
			d.add("lost", "call %s", id)
		}
	}
	for _, t := range b.queue {
		if t.holder != nil {
			r.Lost++
			d.add("lost", "ticket %d of %s: %s", t.number, t.holder.id, t.label)
		}
	}
}

// leaseOf reads the header by which an attempt names its lease.
func leaseOf(a *loopback.Attempt) (leaseID, bool) {
	lease, generation, ok := strings.Cut(a.Lease, "/")
	id, err := strconv.ParseUint(lease, 10, 64)
	g, err2 := strconv.ParseUint(generation, 10, 32)
	return leaseID{id, uint32(g)}, ok && err == nil && err2 == nil
}

func judgeLeases(e *evidence, b *books, r *Result, d *details) {
	used := map[leaseID]*loopback.Attempt{}
	for i := range e.attempts {
		a := &e.attempts[i]
		id, ok := leaseOf(a)
		if !ok || b.leases[id] == nil {
			r.Ungranted++
			d.add("ungranted", "attempt %d of %s under lease %q at %v", a.Seq, a.CallID, a.Lease, e.epoch.Add(a.Arrived))
		}
		if other := used[id]; ok && other != nil {
			r.DoubleUse++
			d.add("double_use", "attempts %d of %s and %d of %s under lease %s", other.Seq, other.CallID, a.Seq, a.CallID, a.Lease)
		}
		used[id] = a
	}
}

// noticeLag is how much later than its caller left the provider may know of it:
// the caller gives its lease back at once, and the next attempt can be here first.
const noticeLag = 50 * time.Millisecond

// judgeCap counts the attempts that arrived with the cap full. Those of a process
// that stood still and went on are counted apart: nobody can call back a request
// that a stopped process had begun, or keep it from beginning one it was about to.
func judgeCap(e *evidence, b *books, r *Result, d *details) {
	type end struct {
		at     time.Duration
		zombie bool
	}
	var serving []end
	for i := range e.attempts {
		a := &e.attempts[i]
		serving = slices.DeleteFunc(serving, func(s end) bool { return s.at <= a.Arrived })
		zombie := e.ofZombie(a, b)
		others := 0
		for _, s := range serving {
			if !s.zombie {
				others++
			}
		}
		switch {
		case !zombie && others >= maxInFlight:
			r.OverCap++
			d.add("over_cap", "attempt %d of %s under lease %s at %v: %d others in flight", a.Seq, a.CallID, a.Lease, e.epoch.Add(a.Arrived), others)
		case len(serving) >= maxInFlight:
			r.ZombieOverlap++
		}
		if a.Accepted() {
			s := end{at: a.Ended, zombie: zombie}
			switch {
			case a.Status == 0:
				s.at = math.MaxInt64
			case a.Aborted():
				s.at -= noticeLag
			}
			serving = append(serving, s)
		}
	}
}

// ofZombie reports whether an attempt is that of a process that stood still: made
// under a lease that was granted before it went on, and under way while it stood
// still or begun afterwards.
func (e *evidence) ofZombie(a *loopback.Attempt, b *books) bool {
	id, _ := leaseOf(a)
	l := b.leases[id]
	if l == nil {
		return false
	}
	for _, s := range e.struck.Stops {
		if s.Holder == l.holder && l.granted.Before(s.To) && (a.Ended == 0 || e.epoch.Add(a.Ended).After(s.From)) {
			return true
		}
	}
	return false
}

// livedFor is how much longer than it was told of a cooldown a worker must have
// lived for its next exchange to be one that it made after it had read the answer.
const livedFor = 2 * time.Second

// judgeCooldowns counts the 429s of which the gate made no cooldown, though the
// worker that was told lived to say so. A caller that was cancelled while the
// answer was on its way has not been told.
func judgeCooldowns(e *evidence, b *books, r *Result, d *details) {
	for _, text := range b.uncooled {
		r.CooldownsLost++
		d.add("cooldowns_lost", "%s", text)
	}
	for i := range e.attempts {
		a := &e.attempts[i]
		id, _ := leaseOf(a)
		l := b.leases[id]
		if a.Status != http.StatusTooManyRequests || l == nil {
			continue
		}
		r.Cooldowns++
		told := e.epoch.Add(a.Ended)
		for _, s := range e.struck.Stops {
			if s.Holder == l.holder && told.After(s.From) && told.Before(s.To) {
				told = s.To
			}
		}
		h := b.holders[l.holder]
		_, left := e.ended[a.CallID]
		switch {
		case h == nil || !h.heard.After(told.Add(livedFor)) || left:
		case l.release == nil:
			r.CooldownsLost++
			d.add("cooldowns_lost", "attempt %d under lease %s of %s: never released, last heard %v later", a.Seq, a.Lease, l.holder, h.heard.Sub(told))
		case l.release.Outcome != contract.Outcome_OUTCOME_OVERLOAD:
			r.CooldownsLost++
			d.add("cooldowns_lost", "attempt %d under lease %s of %s: released as %v", a.Seq, a.Lease, l.holder, l.release.Outcome)
		case a.RetryAfter != "" && l.release.AskedCooldown == nil:
			r.CooldownsLost++
			d.add("cooldowns_lost", "attempt %d under lease %s of %s: its Retry-After %s didn't reach the gate", a.Seq, a.Lease, l.holder, a.RetryAfter)
		}
	}
}

// judgeEnd reads the gate's books at the end.
func judgeEnd(e *evidence, r *Result, d *details) {
	r.ActiveAtEnd, r.QueuedAtEnd = e.drained.Reserved+e.drained.Started, e.drained.Queued
	for _, l := range e.drained.Leases {
		d.add("active_at_end", "lease %d of %s: %s", l.Lease, l.Holder, l.Label)
	}
	for _, t := range e.drained.Queue {
		d.add("queued_at_end", "%s of %q, attempt %d, arrived %v, waits for %s", t.Label, t.Holder, t.Attempt, t.ArrivedAt, t.Reason)
	}
	c := &e.after.Counters
	left := e.after.Reserved + e.after.Started
	unaccounted := int64(c.Admissions) - int64(c.Releases) - int64(c.HandBacks) - int64(c.Expired) - int64(left)
	r.LeakedLeases = left + int(max(unaccounted, 0))
	for _, l := range e.after.Leases {
		d.add("leaked_leases", "lease %d of %s: %s", l.Lease, l.Holder, l.Label)
	}
	r.Runs = e.after.Runs + 1
}

// judgeReclaim measures how long the places of killed workers stayed taken. While
// there is no server nobody can free them: from its return the time counts.
func judgeReclaim(e *evidence, b *books, r *Result, d *details) {
	var took []time.Duration
	for _, k := range e.struck.Kills {
		at, had := b.reclaimed(k.Holder, k.At)
		if !had {
			continue
		}
		if at.IsZero() {
			d.add("reclaim_p90_s", "the leases of %s, killed at %v, were never freed", k.Holder, k.At)
			took = append(took, time.Hour)
			continue
		}
		from := k.At
		for _, o := range e.struck.Outages {
			if o.From.Before(at) && o.To.After(from) {
				from = o.To
			}
		}
		took = append(took, max(at.Sub(from), 0))
		if at.Sub(from) > reclaimBound {
			d.add("reclaim_p90_s", "the leases of %s, killed at %v, were freed after %v", k.Holder, k.At, at.Sub(from))
		}
	}
	r.Reclaimed = len(took)
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	r.ReclaimP90S = took[(len(took)*9+9)/10-1].Seconds() // the nearest rank
}

// growth compares the last quarter of a server's life under load with its second
// one, by their medians: a moment in which many connections are made anew is not
// a growth.
func growth(sizes []sample, end time.Time) (files, goroutines int) {
	sizes = slices.DeleteFunc(slices.Clone(sizes), func(s sample) bool { return s.At.After(end) })
	if n := len(sizes); n >= 4 {
		second, last := sizes[n/4:n/2], sizes[n-n/4:]
		files = medianOf(last, func(s sample) int { return s.Files }) - medianOf(second, func(s sample) int { return s.Files })
		goroutines = medianOf(last, func(s sample) int { return s.Goroutines }) - medianOf(second, func(s sample) int { return s.Goroutines })
	}
	return files, goroutines
}

func medianOf(list []sample, of func(sample) int) int {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b sample) int { return cmp.Compare(of(a), of(b)) })
	return of(sorted[len(sorted)/2])
}
