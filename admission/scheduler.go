package admission

import (
	"errors"
	"fmt"
	"time"
)

// Rules names a version of the scheduler's decisions. A running gate keeps the
// rules that it began with, so that its history replays.
type Rules uint32

// The rules that this code knows. Since 2: a successful answer can ask for a
// cooldown; a call with HoldCall keeps its lease between attempts, and each of
// them waits for its time; what a lost holder had not started costs nothing;
// leases that have not started are handed back where limits become tighter; a
// ticket that ends without a lease is told what it waited for, too. Since 3: a
// holder may ask for a wait, and is told when to come again; a run of the workflow
// ends when what its updates make each task write outweighs a new run.
const (
	OldestRules Rules = 1
	NewestRules Rules = 3
)

// PresenceGrace is how long after its promised return a holder still counts as
// present.
const PresenceGrace = 2 * time.Second

// MaxDelivery bounds the allowance for bringing a grant to its holder.
const MaxDelivery = 20 * time.Millisecond

// MaxLabel bounds Request.Label, in bytes; longer ones are cut.
const MaxLabel = 96

// asleepAfter is how late a due step must be for the host to count as having
// slept, rather than the holders as having died.
const asleepAfter = time.Second

// Options of a new scheduler.
type Options struct {
	// Rules of the run; 0: NewestRules.
	Rules Rules
	// LearnUntil is set where an earlier run was lost: until then the gate
	// takes what holders present and admits nothing new.
	LearnUntil Instant
	// Unbounded lifts the bound on the size of the state, for a gate whose
	// state is never carried over.
	Unbounded bool
}

// Counters count what a gate did and what it refused to do.
type Counters struct {
	Admissions, Releases, Overloads, Cooldowns     uint64
	HandBacks, Expired, Revoked                    uint64 // Revoked: by a person
	LostHolders, Parked                            uint64
	StaleReleases, StaleAcquires, StaleCancels     uint64
	Duplicates, Gaps, Resyncs, Malformed, Conflict uint64
	Refusals                                       [numRefusals]uint64
}

// Scheduler is the state of one gate. Make one with New or Restore. It is not
// safe for concurrent use.
type Scheduler struct {
	rules      Rules
	limits     Limits
	unbounded  bool
	now        Instant // the latest instant seen; time never goes back
	armed      Instant // when the next step is due, as last computed
	learnUntil Instant

	q        slab
	due      due
	names    names
	arrivals uint64
	leases   uint64 // the last lease ID given out
	counter  uint64 // state counter: transitions of exchanges
	queued   int
	parked   int
	labels   int64 // bytes of all labels, for the bound on the state
	notices  int   // in all outboxes, likewise

	holders    []holder // by index; free ones have an empty id
	holderByID map[string]int32
	registered uint64 // holders ever registered

	inUse      int64 // sum of weights
	lastStart  Instant
	head       int32 // the ticket that was last seen first in line, or none
	capBlocked bool  // the cap held the head back when the scheduler last ran
	pacing     pacer
	budgets    [MaxBudgets]budget

	cool        cooldown
	paused      bool
	pauseCause  string
	releaseGap  time.Duration // smoothed time between releases
	lastRelease Instant
	traffic     traffic

	Counters Counters
	woken    []string // holders with news since TakeWoken
}

// New returns an empty scheduler. limits gets its defaults and is validated.
func New(now Instant, limits Limits, opts Options) (*Scheduler, error) {
	limits = limits.WithDefaults()
	if err := limits.Validate(); err != nil {
		return nil, err
	}
	if opts.Rules == 0 {
		opts.Rules = NewestRules
	}
	if err := checkRules(opts.Rules); err != nil {
		return nil, err
	}
	s := empty()
	s.rules, s.unbounded = opts.Rules, opts.Unbounded
	s.enforce(limits)
	s.now, s.learnUntil = now, opts.LearnUntil
	s.leases = freshLeases(now)
	s.counter = 1
	return s, nil
}

func empty() *Scheduler {
	return &Scheduler{q: newSlab(), due: due{line: emptyLine}, names: newNames(0), head: none, holderByID: map[string]int32{}}
}

// enforce takes limits over, for all that is still to come; see SetLimits for what
// is there already.
func (s *Scheduler) enforce(l Limits) { s.limits, s.q.costly = l, len(l.Budgets) > 0 }

// freshLeases is a lease ID that no earlier run of the gate has come to: no
// gate admits a million times a second for its whole life.
func freshLeases(now Instant) uint64 { return uint64(max(now, 0) / 1000) }

// UnknownRulesError says that a state was written under rules that this code
// doesn't know.
type UnknownRulesError struct{ Rules Rules }

func (e *UnknownRulesError) Error() string {
	return fmt.Sprintf("scheduler rules %d; this program knows %d to %d", e.Rules, OldestRules, NewestRules)
}

func checkRules(r Rules) error {
	if r < OldestRules || r > NewestRules {
		return &UnknownRulesError{r}
	}
	return nil
}

// Rules returns the rules of this run.
func (s *Scheduler) Rules() Rules { return s.rules }

// since reports whether the run's decisions are those of r or newer.
func (s *Scheduler) since(r Rules) bool { return s.rules >= r }

// NextRules returns what the next run is to keep: the newest rules that this
// program and every live holder can host, be they older than this run's. A
// holder that never said is taken to know the oldest.
func (s *Scheduler) NextRules() Rules {
	next := NewestRules
	for i := range s.holders {
		if h := &s.holders[i]; h.id != "" {
			next = min(next, max(h.rules, OldestRules))
		}
	}
	return next
}

// Limits returns what the scheduler enforces, defaults filled in.
func (s *Scheduler) Limits() Limits { return s.limits }

// Tickets counts the tickets in the queue, parked ones included, and the leases.
func (s *Scheduler) Tickets() int { return s.queued + s.leased() }

// Counter returns the state counter: it grows with each exchange applied, so a
// holder sees from a smaller one that the gate was reset.
func (s *Scheduler) Counter() uint64 { return s.counter }

// observe takes in the time of an event. Time that goes backwards stands still.
func (s *Scheduler) observe(now Instant) Instant {
	if now <= s.now {
		return s.now
	}
	s.now = now
	if s.armed != 0 && now > s.armed.Add(asleepAfter) {
		// The host slept. Silence in that time proves nothing about the
		// holders: each gets one fresh TTL, from now.
		for i := range s.holders {
			h := &s.holders[i]
			if h.id != "" {
				h.lastSeen = now
				if h.comeAgain != 0 {
					h.comeAgain = now
				}
			}
		}
		s.armed = 0
	}
	return now
}

// Pause stops admissions until Resume. cause is for people.
func (s *Scheduler) Pause(now Instant, cause string) {
	s.accountHead(s.observe(now))
	s.paused, s.pauseCause = true, cut(cause)
	s.wakeAll()
}

// Resume ends a pause.
func (s *Scheduler) Resume(now Instant) {
	s.accountHead(s.observe(now))
	s.paused, s.pauseCause = false, ""
	s.wakeAll()
}

// Errors of misuse. The state has not changed when one is returned.
var (
	ErrUnknownHolder  = errors.New("unknown holder")
	ErrOldGeneration  = errors.New("a newer generation of this holder is known")
	ErrNumberTaken    = errors.New("ticket number 0, or in use by this holder")
	ErrHolderID       = errors.New("holder ID empty or longer than MaxHolderID")
	ErrTooManyHolders = errors.New("more than MaxHolders holders")
	ErrUnconfirmed    = errors.New("too many notices that this holder has not confirmed")
	ErrNoTicket       = errors.New("no such ticket in the queue")
	ErrNoLease        = errors.New("no such lease")
)

func (s *Scheduler) check(h HolderRef) error {
	if h < 0 || int(h) >= len(s.holders) || s.holders[h].id == "" {
		return ErrUnknownHolder
	}
	return nil
}

// cut bounds text that people read, at a whole character.
func cut(text string) string {
	if len(text) <= MaxLabel {
		return text
	}
	end := MaxLabel
	for end > 0 && text[end]&0xC0 == 0x80 {
		end--
	}
	return text[:end]
}
