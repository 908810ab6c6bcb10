package loopback

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Statuses of an attempt. 499 is never sent: nobody is there to read it.
const (
	statusServing = 0
	statusAborted = 499
)

// Attempt is one request that arrived and was judged. Instants are measured from
// the making of the provider, in monotonic time.
type Attempt struct {
	Run      string        // label of the run
	Seq      int           // 1 for the run's first attempt
	CallID   string        // the header X-Call-Id, cut to MaxLabel bytes; "" if not sent
	Lease    string        // the header X-Sluice-Lease, likewise
	Arrived  time.Duration // when it was judged
	Ended    time.Duration // when its answer was ready or its caller had left; 0 while it is served
	InFlight int           // how many others were being served when it arrived
	Status   int           // 0 while it is served, then 200, 429, what the script says, or 499 if the caller left
	// RetryAfter is the Retry-After header of a refusal, "" if it had none.
	RetryAfter string
}

// Accepted reports whether the attempt was let in, whatever became of it.
func (a *Attempt) Accepted() bool {
	return a.Status == statusServing || a.Status == http.StatusOK || a.Status == statusAborted
}

// Aborted reports whether the attempt was let in and its caller left.
func (a *Attempt) Aborted() bool { return a.Status == statusAborted }

// A verdict is the judgement of an arrival.
type verdict string

const (
	accepted        verdict = ""
	refusedSpacing  verdict = "spacing"
	refusedInFlight verdict = "in_flight"
	refusedByScript verdict = "script"
)

// A callKey stands for a call ID, so that a run's memory doesn't depend on how
// long its callers' IDs are.
type callKey [16]byte

// run is the quota state and the record of one run.
type run struct {
	mu       sync.Mutex // guards all that follows; held for a decision only
	quota    Quota
	script   Script // nil: none
	inFlight int
	accepted time.Duration // arrival of the last accepted attempt
	any      bool          // whether there was one
	last     time.Duration // arrival of the last attempt
	attempts []*Attempt    // the first MaxAttempts, in the order of their arrival
	served   map[callKey]struct{}
	stats    tally
}

// arrive judges an attempt and records it. clock is read under the lock: the
// order of arrivals and the order of decisions are the same. The turn is the
// script's where it has one, else that of the quota.
func (r *run) arrive(clock func() time.Duration, label, callID, lease string) (*Attempt, Turn, verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := clock()
	a := &Attempt{
		Run:      label,
		Seq:      r.stats.attempts + 1,
		CallID:   cut(callID),
		Lease:    cut(lease),
		Arrived:  now,
		InFlight: r.inFlight,
	}
	v := r.judge(now)
	turn := Turn{Status: http.StatusTooManyRequests, RetryAfter: r.quota.RetryAfter, ServeTime: r.quota.ServeTime}
	if v == accepted {
		turn = Turn{ServeTime: r.quota.ServeTime}
		if r.script != nil {
			turn = r.script(a.Seq)
		}
		if turn.Status != 0 && turn.Status != http.StatusOK {
			v = refusedByScript
		}
	}
	if v == accepted {
		r.accepted, r.any = now, true
		r.inFlight++
	} else {
		a.Status, a.RetryAfter, a.Ended = turn.Status, turn.RetryAfter, now
	}
	r.record(a)
	return a, turn, v
}

func (r *run) judge(now time.Duration) verdict {
	if r.any && now-r.accepted < r.quota.Interval {
		return refusedSpacing
	}
	if r.quota.MaxInFlight > 0 && r.inFlight >= r.quota.MaxInFlight {
		return refusedInFlight
	}
	return accepted
}

func (r *run) record(a *Attempt) {
	s := &r.stats
	if s.attempts == 0 {
		s.first = a.Arrived
	} else if gap := a.Arrived - r.last; s.attempts == 1 || gap < s.minGap {
		s.minGap = gap
	}
	r.last = a.Arrived
	s.attempts++
	s.maxInFlight = max(s.maxInFlight, a.InFlight+1)
	s.end = max(s.end, a.Ended)
	if a.Status == http.StatusTooManyRequests {
		s.overloads++
	}
	if len(r.attempts) < MaxAttempts {
		r.attempts = append(r.attempts, a)
	}
}

// finish ends an accepted attempt with the status 200 or 499 and frees its place.
// It returns a copy, which nobody changes any more.
func (r *run) finish(clock func() time.Duration, a *Attempt, callID string, status int) *Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.Ended, a.Status = clock(), status
	r.inFlight--
	s := &r.stats
	s.end = max(s.end, a.Ended)
	if status == http.StatusOK {
		r.complete(callID)
	} else {
		s.aborted++
	}
	ended := *a
	return &ended
}

// complete counts a served call once, however often it is sent again. A call
// without an ID can't be told from another, so each counts.
func (r *run) complete(callID string) {
	if callID == "" {
		r.stats.completed++
		return
	}
	sum := sha256.Sum256([]byte(callID))
	key := callKey(sum[:16])
	if _, again := r.served[key]; again {
		return
	}
	if len(r.served) < MaxAttempts {
		r.served[key] = struct{}{}
	}
	r.stats.completed++
}

// cut bounds a label that is recorded, in memory of its own.
func cut(s string) string {
	if len(s) > MaxLabel {
		s = s[:MaxLabel]
	}
	return strings.Clone(s)
}
