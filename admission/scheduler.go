package admission

import (
	"errors"
	"fmt"

	"time"
)

// Rules names a version of the scheduler's decisions. A running gate keeps the
// rules that it began with, so that its history replays.
type Rules uint32

// The rules that this code knows.
const (
	OldestRules Rules = 1
	NewestRules Rules = 1
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

// stateBudget bounds the estimated size of a snapshot, well below Temporal's
// 2 MiB limit on a payload even if it doesn't compress.
const stateBudget = 1_600_000

// Hold says what happens to a lease between the attempts of one activity.
type Hold uint8

const (
	HoldAttempt Hold = iota // each attempt has its own lease
	HoldCall                // one lease over all attempts
)

// UnitCost is what an attempt costs of one budget.
type UnitCost struct {
	Unit string
	N    int64 // at least 1 in a request; at least 0 as an actual cost
}

// Request asks for admission.
type Request struct {
	Key      Key
	Number   uint64 // the holder's own small integer, unique within its generation
	Label    string // what a person reads; cut at MaxLabel bytes
	Attempt  int32  // the highest attempt owns a ticket
	Weight   int64  // 0 means 1
	Cost     []UnitCost
	Deadline Instant // of the queue; 0: none
	Hold     Hold
}

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
	HandBacks, Expired, LostHolders, Parked        uint64
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
	byKey    map[Key]int32       // the ticket that owns a key
	byNumber map[numberKey]int32 // a holder's ticket or lease
	byLease  map[uint64]int32
	arrivals uint64
	leases   uint64 // the last lease ID given out
	counter  uint64 // state counter: transitions of exchanges
	queued   int
	parked   int
	labels   int64 // bytes of all labels, for the bound on the state

	holders    []holder // by index; free ones have an empty id
	holderByID map[string]int32
	registered uint64 // holders ever registered

	inUse      int64 // sum of weights
	lastStart  Instant
	headGone   Instant // when the last head left: its successor waits for its own reasons from then on
	capBlocked bool    // the cap held the head back when the scheduler last ran
	pacing     pacer
	budgets    [MaxBudgets]pacer

	cool        cooldown
	paused      bool
	pauseCause  string
	releaseGap  time.Duration // smoothed time between releases
	lastRelease Instant
	traffic     traffic

	Counters Counters
	woken    []int32 // holders with news since TakeWoken
}

type numberKey struct {
	number uint64
	holder int32
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
	s.rules, s.limits, s.unbounded = opts.Rules, limits, opts.Unbounded
	s.now, s.learnUntil = now, opts.LearnUntil
	// A gate that replaces a lost one must not give out IDs that the lost one
	// gave out: no gate admits a million times a second for its whole life.
	s.leases = uint64(max(now, 0) / 1000)
	s.counter = 1
	return s, nil
}

func empty() *Scheduler {
	return &Scheduler{
		q:          newSlab(),
		byKey:      map[Key]int32{},
		byNumber:   map[numberKey]int32{},
		byLease:    map[uint64]int32{},
		holderByID: map[string]int32{},
	}
}

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

// Limits returns what the scheduler enforces, defaults filled in.
func (s *Scheduler) Limits() Limits { return s.limits }

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

// Acquire puts a ticket into the queue, or continues the one with the same key:
// a queued ticket keeps its place; a leased one gets a new ticket beside it or,
// with HoldCall, hands its lease on. A refusal becomes a notice to the holder.
// The error tells of misuse; the state has not changed then.
func (s *Scheduler) Acquire(now Instant, h HolderRef, r Request) error {
	now = s.observe(now)
	if err := s.check(h); err != nil {
		return err
	}
	if r.Weight == 0 {
		r.Weight = 1
	}
	number := numberKey{r.Number, int32(h)}
	if _, taken := s.byNumber[number]; taken || r.Number == 0 {
		s.Counters.StaleAcquires++
		return ErrNumberTaken
	}
	if i, known := s.byKey[r.Key]; known {
		e := &s.q.entries[i]
		if e.attempt > r.Attempt || e.attempt == r.Attempt && e.holder != none && e.holder != int32(h) {
			s.Counters.StaleAcquires++
			s.refuse(h, r.Number, Refusal{Kind: RefusedSuperseded})
			return nil
		}
		if e.state == entryQueued {
			s.resume(now, i, h, r)
			return nil
		}
		if e.hold == HoldCall && r.Hold == HoldCall {
			s.move(i, h, r)
			return nil
		}
		delete(s.byKey, r.Key) // the lease goes on beside the new ticket
	}
	cost, refusal := s.costs(r)
	if refusal.Kind == 0 {
		refusal = s.admissibleAtAll(r.Weight, &cost)
	}
	if refusal.Kind == 0 && s.full(len(r.Label)) {
		refusal = Refusal{Kind: RefusedQueueFull, Value: int64(s.queued), Bound: int64(s.limits.MaxQueue), ComeAgain: now.Add(s.drainTime())}
	}
	if refusal.Kind == 0 && r.Deadline != 0 {
		if at := s.lowerBound(now, &cost); at >= r.Deadline {
			refusal = Refusal{Kind: RefusedTooLate, ComeAgain: at}
		}
	}
	if refusal.Kind != 0 {
		s.refuse(h, r.Number, refusal)
		return nil
	}
	i := s.q.alloc()
	s.arrivals++
	e := &s.q.entries[i]
	*e = entry{
		key: r.Key, label: cut(r.Label), number: r.Number, arrival: s.arrivals,
		weight: r.Weight, cost: cost, arrivedAt: now, accounted: now, deadline: r.Deadline,
		attempt: r.Attempt, hold: r.Hold, holder: int32(h), due: none, next: none, prev: none,
	}
	s.q.enqueue(i)
	s.own(i)
	s.queued++
	s.labels += int64(len(e.label))
	s.holders[h].queued.add(e)
	s.schedule(i)
	return nil
}

// own makes the entry the one that its key and number stand for.
func (s *Scheduler) own(i int32) {
	e := &s.q.entries[i]
	s.byKey[e.key] = i
	s.byNumber[numberKey{e.number, e.holder}] = i
}

// disown takes the entry from its holder and leaves its key.
func (s *Scheduler) disown(i int32) {
	e := &s.q.entries[i]
	if e.holder == none {
		return
	}
	delete(s.byNumber, numberKey{e.number, e.holder})
	h := &s.holders[e.holder]
	if e.state == entryLeased {
		h.leased--
	} else {
		h.queued.remove(e)
	}
	e.holder, e.number = none, 0
}

// resume gives a queued ticket, parked or not, to the attempt that presents it
// again: it stands where it stood.
func (s *Scheduler) resume(now Instant, i int32, h HolderRef, r Request) {
	s.account(i, now)
	s.disown(i)
	e := &s.q.entries[i]
	if e.parkedAt != 0 {
		e.parkedAt = 0
		s.parked--
	}
	e.holder, e.number, e.attempt, e.hold = int32(h), r.Number, r.Attempt, r.Hold
	if e.deadline == 0 {
		e.deadline = r.Deadline
	}
	s.holders[h].queued.add(e)
	s.own(i)
	s.schedule(i)
}

// move hands a lease on to the next attempt of the same call, and fences the
// attempt that had it.
func (s *Scheduler) move(i int32, h HolderRef, r Request) {
	e := &s.q.entries[i]
	if e.holder != none {
		s.revoke(i, RevokedMoved)
	}
	s.disown(i)
	e.holder, e.number, e.attempt = int32(h), r.Number, r.Attempt
	e.generation++
	s.holders[h].leased++
	s.own(i)
	s.grantNotice(i)
}

// Cancel ends a queued ticket. One that was admitted meanwhile gives its lease
// back; one that is unknown or owned by a higher attempt is a counted no-op.
func (s *Scheduler) Cancel(now Instant, h HolderRef, number uint64, attempt int32) {
	now = s.observe(now)
	i, ok := s.byNumber[numberKey{number, int32(h)}]
	if !ok || s.q.entries[i].attempt > attempt {
		s.Counters.StaleCancels++
		return
	}
	if s.q.entries[i].state == entryLeased {
		s.endLease(i, now, nil)
		return
	}
	s.drop(i)
}

// Park sets a queued ticket aside: its caller is away for now, it keeps its
// place and holds nobody up. A lease that it got meanwhile is handed back.
func (s *Scheduler) Park(now Instant, h HolderRef, number uint64, attempt int32) {
	now = s.observe(now)
	i, ok := s.byNumber[numberKey{number, int32(h)}]
	if !ok || s.q.entries[i].attempt > attempt {
		s.Counters.StaleCancels++
		return
	}
	if s.q.entries[i].state == entryLeased {
		s.unlease(i, now)
	}
	s.park(i, now)
}

func (s *Scheduler) park(i int32, now Instant) {
	s.account(i, now)
	if i == s.first() {
		s.headGone = max(s.headGone, now)
	}
	s.disown(i)
	e := &s.q.entries[i]
	e.parkedAt = now
	s.parked++
	s.Counters.Parked++
	s.schedule(i)
}

// drop removes a queued ticket without a word.
func (s *Scheduler) drop(i int32) {
	if i == s.first() {
		s.headGone = max(s.headGone, s.now)
	}
	s.q.dequeue(i)
	s.forget(i)
}

// forget takes an entry that is no longer in the queue out of all indexes.
func (s *Scheduler) forget(i int32) {
	s.unschedule(i)
	e := &s.q.entries[i]
	if e.parkedAt != 0 {
		s.parked--
	}
	if e.state == entryQueued {
		s.queued--
	} else {
		delete(s.byLease, e.lease)
		s.inUse -= e.weight
	}
	s.labels -= int64(len(e.label))
	s.disown(i)
	if s.byKey[e.key] == i {
		delete(s.byKey, e.key)
	}
	s.q.release(i)
}

// Outcome is how an attempt ended.
type Outcome uint8

const (
	OutcomeSuccess   Outcome = iota
	OutcomeError             // failed, but not for overload
	OutcomeOverload          // the provider said "slow down"
	OutcomeAbandoned         // never called, or nobody knows
	numOutcomes
)

// Feedback is what an attempt learned.
type Feedback struct {
	Outcome Outcome
	Status  int32 // HTTP status, for people
	// Asked is the delay that the provider asked for; negative: no hint.
	Asked     time.Duration
	Source    string     // where the hint stood, for people
	Actual    []UnitCost // units not named cost what was reserved
	StartedAt Instant    // gate time; 0: start_at
}

// Release ends a lease. Its feedback is applied first. An unknown lease, one of
// another holder or an older generation of it (0: any) is a counted no-op.
func (s *Scheduler) Release(now Instant, h HolderRef, lease uint64, generation uint32, f Feedback) {
	now = s.observe(now)
	i, ok := s.byLease[lease]
	if ok {
		e := &s.q.entries[i]
		ok = e.holder == int32(h) && (generation == 0 || generation == e.generation)
	}
	if !ok {
		// The place is gone, but what the provider said is still worth knowing.
		s.Counters.StaleReleases++
		s.learn(now, &f, f.StartedAt)
		return
	}
	s.endLease(i, now, &f)
}

// endLease frees a lease's place after taking in its feedback; without any,
// the attempt was never made and costs nothing but its spacing.
func (s *Scheduler) endLease(i int32, now Instant, f *Feedback) {
	e := &s.q.entries[i]
	if f == nil {
		f = &Feedback{Outcome: OutcomeAbandoned, Asked: -1}
		s.refund(i)
	} else {
		started := f.StartedAt
		if started == 0 {
			started = e.startAt
		}
		s.learn(now, f, started)
		s.settle(i, now, f.Actual)
	}
	s.Counters.Releases++
	if s.lastRelease != 0 {
		s.releaseGap += (min(now.Sub(s.lastRelease), time.Minute) - s.releaseGap) / 8
	}
	s.lastRelease = now
	s.forget(i)
}

// settle replaces what was reserved by what was used.
func (s *Scheduler) settle(i int32, now Instant, actual []UnitCost) {
	e := &s.q.entries[i]
	for _, a := range actual {
		b := s.unit(a.Unit)
		if b < 0 || a.N < 0 {
			continue
		}
		rate := s.limits.Budgets[b].Rate
		switch diff := a.N - e.cost[b]; {
		case diff < 0:
			s.budgets[b].give(-diff, rate)
		case diff > 0:
			s.budgets[b].owe(now, min(diff, MaxRateLimit), rate)
		}
	}
}

func (s *Scheduler) refund(i int32) {
	e := &s.q.entries[i]
	for b := range s.limits.Budgets {
		if e.cost[b] > 0 {
			s.budgets[b].give(e.cost[b], s.limits.Budgets[b].Rate)
		}
	}
}

// HandBack returns a lease that was not started. Its ticket stands where it
// stood. late says that the start window was missed: the second such hand-back
// doubles the ticket's window, the third lifts it.
func (s *Scheduler) HandBack(now Instant, h HolderRef, lease uint64, late bool) {
	now = s.observe(now)
	i, ok := s.byLease[lease]
	if !ok || s.q.entries[i].holder != int32(h) {
		s.Counters.StaleReleases++
		return
	}
	s.unlease(i, now)
	e := &s.q.entries[i]
	if late && e.handBacks < 3 {
		e.handBacks++
	}
}

// unlease puts a lease's ticket back into the queue.
func (s *Scheduler) unlease(i int32, now Instant) {
	s.refund(i)
	e := &s.q.entries[i]
	s.Counters.HandBacks++
	delete(s.byLease, e.lease)
	s.inUse -= e.weight
	e.lease, e.startAt, e.expires = 0, 0, 0
	e.accounted = max(now, e.accounted)
	s.q.enqueue(i)
	s.queued++
	if e.holder != none {
		s.holders[e.holder].leased--
		s.holders[e.holder].queued.add(e)
	}
	if other, taken := s.byKey[e.key]; taken && other != i {
		// A later attempt stands in the queue for the same call already.
		s.drop(i)
		return
	}
	s.byKey[e.key] = i
	s.schedule(i)
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

// SetLimits changes what is enforced, from the next admission on. Leases stay
// as they are; tickets that can never be admitted now are refused. On an error
// nothing has changed.
func (s *Scheduler) SetLimits(now Instant, limits Limits) error {
	limits = limits.WithDefaults()
	if err := limits.Validate(); err != nil {
		return err
	}
	now = s.observe(now)
	s.accountHead(now)
	old := s.limits
	s.limits = limits
	s.rebase(now, old)
	for i := s.q.head; i != none; {
		next := s.q.entries[i].next
		e := &s.q.entries[i]
		if refusal := s.admissibleAtAll(e.weight, &e.cost); refusal.Kind != 0 {
			if e.holder != none {
				s.refuse(HolderRef(e.holder), e.number, refusal)
			}
			s.drop(i)
		}
		i = next
	}
	for at := len(s.q.heap) - 1; at >= 0; at-- { // park_ttl may have changed
		s.siftDown(int32(at))
	}
	if s.cool.until > now.Add(limits.MaxCooldown) && limits.MaxCooldown > 0 {
		s.cool.until = now.Add(limits.MaxCooldown)
	}
	s.wakeAll()
	return nil
}

// rebase carries pacing, budgets and costs over from the old limits.
func (s *Scheduler) rebase(now Instant, old Limits) {
	s.pacing.rescale(now, old.Pacing, s.limits.Pacing)
	if r := s.limits.Pacing; r.Spaced() && s.lastStart != 0 {
		floor := exact{ns: int64(s.lastStart)}.plus(scale(1, r), r.Limit)
		if s.pacing.tat.ns < floor.ns {
			s.pacing.tat = floor // never closer than the new spacing to what is granted
		}
	}
	var budgets [MaxBudgets]pacer
	var from [MaxBudgets]int
	for b, budget := range s.limits.Budgets {
		from[b] = -1
		for o, was := range old.Budgets {
			if was.Unit == budget.Unit {
				from[b] = o
				budgets[b] = s.budgets[o]
				budgets[b].rescale(now, was.Rate, budget.Rate)
			}
		}
	}
	s.budgets = budgets
	for i := range s.holders {
		s.holders[i].queued = tally{}
	}
	for i := range s.q.entries {
		e := &s.q.entries[i]
		if e.state == entryFree {
			continue
		}
		was := e.cost
		e.cost = [MaxBudgets]int64{}
		for b := range s.limits.Budgets {
			if from[b] >= 0 {
				e.cost[b] = was[from[b]]
			}
		}
		if e.state == entryQueued && e.holder != none {
			s.holders[e.holder].queued.add(e)
		}
	}
}

// costs puts a request's costs into the order of the budgets. Units that the
// policy has no budget for cost nothing.
func (s *Scheduler) costs(r Request) (cost [MaxBudgets]int64, refusal Refusal) {
	if r.Weight < 1 {
		return cost, Refusal{Kind: RefusedInvalid, Field: "weight", Value: r.Weight, Bound: 1}
	}
	for _, c := range r.Cost {
		if c.N < 1 {
			return cost, Refusal{Kind: RefusedInvalid, Field: c.Unit, Value: c.N, Bound: 1}
		}
		if b := s.unit(c.Unit); b >= 0 {
			cost[b] = saturatingAdd(cost[b], c.N)
		}
	}
	return cost, Refusal{}
}

func (s *Scheduler) unit(name string) int {
	for b := range s.limits.Budgets {
		if s.limits.Budgets[b].Unit == name {
			return b
		}
	}
	return -1
}

// admissibleAtAll refuses what the limits can never give, with both numbers.
func (s *Scheduler) admissibleAtAll(weight int64, cost *[MaxBudgets]int64) Refusal {
	if most := s.limits.MaxInFlight; most > 0 && weight > most || weight > MaxInFlightBound {
		if most == 0 {
			most = MaxInFlightBound
		}
		return Refusal{Kind: RefusedNeverAdmissible, Field: "weight", Value: weight, Bound: most}
	}
	for b, budget := range s.limits.Budgets {
		if cost[b] > budget.Rate.Burst {
			return Refusal{Kind: RefusedNeverAdmissible, Field: budget.Unit, Value: cost[b], Bound: budget.Rate.Burst}
		}
	}
	return Refusal{}
}

// full reports whether one more ticket would exceed the queue's or the state's bound.
func (s *Scheduler) full(label int) bool {
	if s.queued >= s.limits.MaxQueue {
		return true
	}
	const perEntry = 72
	size := s.labels + int64(min(label, MaxLabel)) + perEntry*int64(s.queued+len(s.byLease)+1)
	return !s.unbounded && size > stateBudget
}

// drainTime guesses when a full queue has a place again.
func (s *Scheduler) drainTime() time.Duration {
	return min(max(s.limits.Pacing.Spacing(), s.releaseGap, 100*time.Millisecond), 30*time.Second)
}

// lowerBound is the first instant at which a ticket that arrived now could be
// admitted if every place in the cap were free: cooldown, spacing and budgets
// alone, with all present tickets before it.
func (s *Scheduler) lowerBound(now Instant, cost *[MaxBudgets]int64) Instant {
	at := max(now, s.cool.until)
	var ahead tally // parked tickets and those of absent holders hold nobody up
	for i := range s.holders {
		if h := &s.holders[i]; h.queued.tickets > 0 && s.present(int32(i), now) {
			ahead.merge(&h.queued)
		}
	}
	if r := s.limits.Pacing; !r.IsZero() {
		last := s.pacing.admissible(1, r).plus(scale(ahead.tickets, r), r.Limit)
		at = max(at, Instant(last.ceil()))
	}
	for b, budget := range s.limits.Budgets {
		if cost[b] == 0 {
			continue
		}
		first := s.budgets[b].admissible(cost[b], budget.Rate)
		at = max(at, Instant(first.plus(scale(ahead.cost[b], budget.Rate), budget.Rate.Limit).ceil()))
	}
	return at
}

// Errors of misuse. The state has not changed when one is returned.
var (
	ErrUnknownHolder = errors.New("unknown holder")
	ErrOldGeneration = errors.New("a newer generation of this holder is known")
	ErrNumberTaken   = errors.New("ticket number 0, or in use by this holder")
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

// NextWake returns when Advance is due by itself; Never while nothing is.
func (s *Scheduler) NextWake() Instant {
	s.armed = s.nextWake()
	if s.armed == Never {
		s.armed = 0
		return Never
	}
	return s.armed
}
