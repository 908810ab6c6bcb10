package activities

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// link carries a holder's messages to its gate. Calls are made one at a time
// for exchange and one at a time for wait, beside each other.
type link interface {
	// exchange sends one exchange and returns the answer. Any error means
	// "unknown": the same exchange is sent again until it is answered. An answer
	// beside errRefused came in another way, after a refusal.
	exchange(ctx context.Context, x *contract.Exchange) (*contract.Answer, error)
	// wait returns when the gate has news for the holder, or at some point.
	wait(ctx context.Context, w *contract.Wait) (*contract.Answer, error)
	// asks reports whether a wait reaches the gate itself, which can then say when to
	// come again, rather than a copy of its state.
	asks() bool
	// flush sends an exchange that nobody waits for, durable without a host.
	flush(ctx context.Context, x *contract.Exchange) error
}

// errRefused wraps an exchange's error where the server refused to take it for
// load: the gate paces its control traffic by how often that happens.
var errRefused = errors.New("refused for load")

// errMalformed wraps the error of an exchange that the gate could not read.
var errMalformed = errors.New("the gate can't read the exchange")

// holder is this process as one gate knows it. It keeps the tickets and leases,
// batches what they have to say, and starts leases at their gate time.
type holder struct {
	gate   policy.Gate
	limits admission.Limits // of the policy
	id     string
	body   []byte // the policy's canonical JSON
	hash   string
	link   link
	clock  *gateClock
	logger *slog.Logger

	telemetry *gateTelemetry // nil: none

	mu       sync.Mutex
	name     contract.Holder
	tickets  map[uint64]*ticket // all that are queued, reserved or started
	reserved []*ticket          // granted and not started, by start
	number   uint64
	seq      uint64
	out      outbox
	flight   *contract.Exchange // sent and not answered

	confirmed   uint64
	firstRun    string
	counter     uint64          // of the newest answer
	applied     uint64          // of the last exchange's answer: a smaller one means that the gate was reset
	rules       admission.Rules // of the gate's run, as last answered
	resync      bool
	sendBody    bool
	conflict    *Error
	cooldown    admission.Instant
	expected    admission.Instant // the cooldown that releases on their way will make
	untold      chan struct{}     // closed when the gate has answered all urgent releases; nil: it has
	paused      bool
	loose       uint64 // what was granted up to this notice is under limits that were tightened since
	spacing     time.Duration
	window      time.Duration
	lastStart   admission.Instant
	lastStarted time.Time // the same, monotonic: estimates of the gate's time may jump
	notBefore   time.Time // monotonic
	comeAgain   time.Time // monotonic; zero: no need
	mayWait     bool
	refused     uint32
	roundTrip   time.Duration
	answered    time.Time // start of the last answered exchange
	arrived     time.Time // of its answer
	gather      int       // calls that the last answer started at once
	gathering   time.Time // monotonic; until when the next exchange waits for their end
	depth       int64
	parked      int64 // of depth
	inFlight    int64
	cap         int64
	lost        uint64               // processes, as the gate counts
	expired     uint64               // leases, likewise
	outages     outages              // for telemetry
	left        map[uint64]*waitSpan // whose callers have left, by ticket; the gate is to say what they waited for
	known       int                  // processes, as the gate said last
	local       *localShare          // while the gate can't be reached; nil: none is needed
	unavailable time.Time            // since when nothing is answered; zero: it is
	distrusted  bool                 // leases were given up for lack of an answer

	lower       []policy.LowerLimit // that the provider has shown, by header and unit
	running     bool
	stopping    bool
	kick        chan struct{}
	idle        chan struct{} // closed when the loop ends
	starter     *time.Timer
	starting    time.Time // monotonic; when the first of reserved is due
	slept       bool      // the system's sleep until then is over
	stop        context.Context
	halt        context.CancelFunc
	waits       sync.WaitGroup
	waiting     bool      // a wait is open
	waitingFrom time.Time // monotonic; since when
	waitFailed  bool      // since an exchange was last answered
}

// outbox is what the next exchange takes along.
type outbox struct {
	acquire  []*contract.Acquire
	cancel   []*contract.Cancel
	handBack []*contract.HandBack
	release  []*contract.Release
	lower    []*contract.LowerLimit // goes along with the others

	since  time.Time // monotonic; of the first of release
	urgent bool      // one of release tells more than that a call is over and well
}

func (o *outbox) empty() bool {
	return len(o.acquire)+len(o.cancel)+len(o.handBack)+len(o.release) == 0
}

// ticket is one request of this holder, from acquire to the lease's end.
type ticket struct {
	acquire *contract.Acquire
	ready   chan struct{} // closed when started or err is set
	err     error
	grant   *contract.Grant
	granted bool
	started bool
	startAt admission.Instant // when it really started
	ended   bool
	kept    bool // its attempt is over, its call is not
	lost    chan struct{}
	isLost  bool
	lostAt  time.Time

	wait    *waitSpan         // while its caller waits; nil: nobody looks
	refusal *contract.Refusal // that ended it
	stopped bool              // its caller left because its worker stops
}

func newHolder(g policy.Gate, holderID string, l link, logger *slog.Logger) (*holder, error) {
	body, err := g.MarshalJSON()
	if err != nil {
		return nil, err
	}
	stop, halt := context.WithCancel(context.Background())
	h := &holder{
		gate: g, limits: g.Limits(), id: g.ID(), body: body, hash: g.Hash(), link: l, clock: newGateClock(), logger: logger,
		name:    contract.Holder{Id: holderID, Generation: uint64(time.Now().UnixNano())},
		tickets: map[uint64]*ticket{}, kick: make(chan struct{}, 1), stop: stop, halt: halt,
	}
	return h, nil
}

// Policy implements Gate.
func (h *holder) Policy() policy.Gate { return h.gate }

// Acquire implements Gate.
func (h *holder) Acquire(ctx context.Context, r Request) (Lease, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	w := h.telemetry.beginWait(ctx, r.Label)
	l, err := h.admitted(ctx, r, w)
	h.endWait(w, l, err)
	switch l := l.(type) {
	case *lease:
		h.beginAttempt(ctx, l, false, w)
	case shareLease:
		h.beginAttempt(ctx, l.lease, true, w)
	}
	return l, err
}

// admitted waits for a lease. w follows the wait.
func (h *holder) admitted(ctx context.Context, r Request, w *waitSpan) (Lease, error) {
	t, err := h.submit(r, w)
	if err != nil {
		return nil, err
	}
	var leave, unavailable <-chan time.Time
	if !r.Leave.IsZero() {
		timer := time.NewTimer(time.Until(r.Leave))
		defer timer.Stop()
		leave = timer.C
	}
	if h.gate.OnUnavailable == policy.UnavailableFail || h.gate.OnUnavailable == policy.UnavailableLocal {
		ticker := time.NewTicker(unavailablePoll)
		defer ticker.Stop()
		unavailable = ticker.C
	}
	var share *shareWait
	shared := false
	defer func() { share.stop() }()
	for {
		select {
		case <-t.ready:
			if t.err != nil {
				return nil, t.err
			}
			return &lease{holder: h, ticket: t}, nil
		case l := <-share.ready():
			if l == nil { // the gate is back, or the share has no place for this
				share = nil
				continue
			}
			share = nil
			if started := h.leave(t, false); started != nil {
				l.ReleaseWith(Feedback{Outcome: Abandoned, Asked: -1})
				return started, nil
			}
			return shareLease{l}, nil
		case <-ctx.Done():
			if l := h.leave(t, false); l != nil {
				l.ReleaseWith(Feedback{Outcome: Abandoned, Asked: -1})
			}
			return nil, context.Cause(ctx)
		case <-leave:
			if l := h.leave(t, true); l != nil {
				return l, nil
			}
			return nil, h.stillQueued("the attempt's time is nearly over")
		case <-r.LeaveOn:
			t.stopped = true
			if l := h.leave(t, true); l != nil {
				return l, nil
			}
			return nil, h.stillQueued("the worker stops")
		case <-unavailable:
			switch {
			case !h.isUnavailable():
				shared = false
				continue
			case h.gate.OnUnavailable == policy.UnavailableLocal:
				if !shared {
					shared = true
					share.stop()
					share = h.waitForShare(ctx, r)
				}
				continue
			}
			if l := h.leave(t, true); l != nil {
				return l, nil
			}
			return nil, &Error{Kind: KindUnavailable, Gate: h.id, Detail: "the gate can't be reached (no host of the admission workflow, or no server)"}
		}
	}
}

const (
	unavailablePoll  = 250 * time.Millisecond
	unavailableAfter = 5 * time.Second
	// batchBytes bounds what one exchange carries.
	batchBytes = 256 << 10
)

// submit makes a ticket and has it sent.
func (h *holder) submit(r Request, w *waitSpan) (*ticket, error) {
	id := r.TicketID
	if id == "" {
		id = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	}
	key := sha256.Sum256([]byte(id))
	a := &contract.Acquire{Ticket: key[:16], Label: r.Label, Attempt: max(r.Attempt, 1), Weight: r.Cost.Weight}
	if h.gate.Hold == policy.HoldCall {
		a.Hold = contract.Hold_HOLD_CALL
	}
	for _, unit := range sortedUnits(r.Cost.Units) {
		a.Cost = append(a.Cost, &contract.Cost{Unit: unit, N: r.Cost.Units[unit]})
	}
	switch {
	case r.QueueTimeout > 0:
		a.Deadline = int64(r.QueueTimeout)
	case r.QueueTimeout == 0:
		a.Deadline = int64(h.gate.QueueTimeout)
	}
	t := &ticket{acquire: a, ready: make(chan struct{}), lost: make(chan struct{}), wait: w}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopping:
		return nil, ErrStopped
	case h.conflict != nil:
		return nil, h.conflict
	}
	h.number++
	a.Number = h.number
	h.tickets[a.Number] = t
	if w != nil {
		w.ticket, w.sent = t, true
	}
	h.out.acquire = append(h.out.acquire, a)
	h.wakeLocked()
	return t, nil
}

func sortedUnits(units map[string]int64) []string {
	names := make([]string, 0, len(units))
	for name := range units {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// leave takes a waiting caller away: for good, or to come back later. Where the
// lease has started meanwhile, it is returned.
func (h *holder) leave(t *ticket, park bool) *lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.started && t.err == nil {
		return &lease{holder: h, ticket: t}
	}
	if t.ended {
		return nil
	}
	h.forgetLocked(t)
	// Not sent yet: nobody needs to know. A gate takes in parkings before acquires,
	// so parked in the same exchange it would stand there as present.
	for i, a := range h.out.acquire {
		if a == t.acquire {
			h.out.acquire = slices.Delete(h.out.acquire, i, i+1)
			if t.wait != nil {
				t.wait.sent = false
			}
			return nil
		}
	}
	c := &contract.Cancel{Number: t.acquire.Number, Attempt: t.acquire.Attempt, Park: park}
	h.leavesLocked(t.wait, c)
	h.out.cancel = append(h.out.cancel, c)
	h.wakeLocked()
	return nil
}

// forgetLocked takes a ticket out of the books.
func (h *holder) forgetLocked(t *ticket) {
	t.ended = true
	delete(h.tickets, t.acquire.Number)
	if i := slices.Index(h.reserved, t); i >= 0 {
		h.reserved = slices.Delete(h.reserved, i, i+1)
	}
}

func (h *holder) stillQueued(why string) *Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &Error{Kind: KindStillQueued, Gate: h.id, Detail: "still queued as " + why + "; the place is kept"}
	if d := h.clock.until(h.cooldown); h.cooldown != 0 && d > 0 {
		e.ComeAgain = d
	} else {
		e.ComeAgain = min(max(h.spacing, 100*time.Millisecond), time.Second)
	}
	return e
}

func (h *holder) isUnavailable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.unavailable.IsZero() && time.Since(h.unavailable) > unavailableAfter
}

// insertReservedLocked keeps reserved in the order of starts.
func (h *holder) insertReservedLocked(t *ticket) {
	i, _ := slices.BinarySearchFunc(h.reserved, t, func(a, b *ticket) int {
		if d := a.grant.StartAt - b.grant.StartAt; d != 0 {
			return int(min(max(d, -1), 1))
		}
		return int(min(max(int64(a.grant.Lease-b.grant.Lease), -1), 1))
	})
	h.reserved = slices.Insert(h.reserved, i, t)
}

// handBackLocked returns a lease that has not started; its ticket waits on.
func (h *holder) handBackLocked(t *ticket, why contract.HandBackReason) {
	if i := slices.Index(h.reserved, t); i >= 0 {
		h.reserved = slices.Delete(h.reserved, i, i+1)
	}
	h.out.handBack = append(h.out.handBack, &contract.HandBack{Lease: t.grant.Lease, Reason: why})
	h.handedBackLocked(t, why)
	t.grant, t.granted = nil, false
	h.wakeLocked()
}

// lease implements FeedbackLease.
type lease struct {
	holder  *holder
	ticket  *ticket
	attempt attemptSpan
}

func (l *lease) Release() { l.ReleaseWith(Feedback{Outcome: Success, Asked: -1}) }

func (l *lease) ReleaseWith(f Feedback) {
	h, t := l.holder, l.ticket
	h.mu.Lock()
	if !t.ended {
		h.forgetLocked(t)
		h.releaseLocked(t, f, false)
	}
	lostAt := t.lostAt
	h.mu.Unlock()
	l.attempt.end(f, lostAt)
}

// keep implements keeper. A gate of older rules keeps nothing.
func (l *lease) keep(f Feedback) {
	h, t := l.holder, l.ticket
	h.mu.Lock()
	switch {
	case t.ended || t.kept:
	case t.isLost || h.rules < 2:
		h.forgetLocked(t)
		h.releaseLocked(t, f, false)
	default:
		t.kept = true
		h.releaseLocked(t, f, true)
	}
	lostAt := t.lostAt
	h.mu.Unlock()
	l.attempt.end(f, lostAt)
}

// releaseLocked tells the gate that an attempt is over.
func (h *holder) releaseLocked(t *ticket, f Feedback, keep bool) {
	r := &contract.Release{
		Keep:  keep,
		Lease: t.grant.Lease, Generation: t.grant.Generation, Outcome: contract.Outcome(f.Outcome), Status: int32(f.Status),
		HintSource: f.Source, StartedAt: int64(t.startAt),
	}
	if f.Asked >= 0 {
		asked := int64(f.Asked)
		r.AskedCooldown = &asked
	}
	for _, unit := range sortedUnits(f.Actual) {
		r.Actual = append(r.Actual, &contract.Cost{Unit: unit, N: f.Actual[unit]})
	}
	h.expectLocked(f)
	h.lowerLocked(f.Lower)
	if keep || f.Outcome != Success || f.Asked >= 0 || len(f.Actual)+len(h.out.lower) > 0 {
		h.out.urgent = true
		if h.untold == nil {
			h.untold = make(chan struct{})
		}
	}
	if len(h.out.release) == 0 {
		h.out.since = time.Now()
	}
	h.out.release = append(h.out.release, r)
	h.wakeLocked()
}

func (l *lease) Info() LeaseInfo {
	g := l.ticket.grant
	info := LeaseInfo{ID: g.Lease, Generation: g.Generation, StartAt: admission.Instant(g.StartAt).Time(), Waited: map[string]time.Duration{}}
	for _, w := range g.Reasons {
		info.Waited[w.Reason] += time.Duration(w.Duration)
	}
	return info
}

// expectLocked foresees the cooldown that the gate will make of feedback, or the
// least that it may be: without a hint a streak makes it longer.
func (h *holder) expectLocked(f Feedback) {
	if applied := appliedOf(&h.limits, f); applied > 0 {
		h.expected = max(h.expected, h.clock.now().Add(applied))
	}
}

// maxLower bounds the limits that are kept: there are a few headers.
const maxLower = 32

// lowerLocked keeps the provider's limits that are lower than the policy's, each
// with its newest numbers, which go to the gate; it says so once for each header.
func (h *holder) lowerLocked(limits []policy.LowerLimit) {
	for _, l := range limits {
		i := slices.IndexFunc(h.lower, func(k policy.LowerLimit) bool { return k.Header == l.Header && k.Unit == l.Unit })
		if i >= 0 && h.lower[i] == l || i < 0 && len(h.lower) >= maxLower {
			continue
		}
		h.out.lower = append(h.out.lower, &contract.LowerLimit{Header: l.Header, Unit: l.Unit, Limit: l.Limit, Per: int64(l.Per), Policy: l.Policy})
		if i >= 0 {
			h.lower[i] = l
			continue
		}
		h.lower = append(h.lower, l)
		h.logger.Warn("sluice: the provider has a lower limit than the policy, which is not changed for it", "gate", h.id, "header", l.Header, "limit", l.String())
	}
}

// cooldownLeft implements cooling.
func (h *holder) cooldownLeft(enough <-chan struct{}) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if untold := h.untold; untold != nil {
		h.mu.Unlock()
		select {
		case <-untold:
		case <-enough:
		}
		h.mu.Lock()
	}
	return max(h.clock.until(max(h.cooldown, h.expected)), 0)
}

// Lost implements FeedbackLease.
func (l *lease) Lost() <-chan struct{} { return l.ticket.lost }

// loseLocked marks a lease that the gate ended, or may have.
func (h *holder) loseLocked(t *ticket, why string) {
	if t.isLost {
		return
	}
	t.isLost, t.lostAt = true, time.Now()
	close(t.lost)
	h.logger.Warn("sluice: lease lost", "gate", h.id, "lease", t.grant.GetLease(), "ticket", t.acquire.Label, "why", why, "on_lease_lost", string(h.gate.OnLeaseLost))
}

// failLocked ends a waiting ticket with an error.
func (h *holder) failLocked(t *ticket, err error) {
	h.forgetLocked(t)
	t.err = err
	close(t.ready)
}

// takeLocked takes in an answer. One of a wait may have been overtaken by one
// of an exchange: then what it says of the gate as a whole is old.
func (h *holder) takeLocked(a *contract.Answer, sent, arrived time.Time, ofWait bool) {
	if a.Now != 0 {
		h.clock.observe(sent, arrived, admission.Instant(a.Now))
	}
	switch {
	case a.Superseded:
		// Somebody uses this holder's name with a newer generation. A new
		// generation of its own makes the gate take what this process has.
		h.name.Generation = max(uint64(time.Now().UnixNano()), h.name.Generation+1)
		h.resync = true
	case a.Resync, h.firstRun != "" && a.FirstRun != "" && a.FirstRun != h.firstRun, !ofWait && a.StateCounter != 0 && a.StateCounter < h.applied:
		h.resync = true
		h.counter = 0
	}
	if a.FirstRun != "" {
		if a.FirstRun != h.firstRun {
			h.confirmed, h.counter, h.applied = 0, 0, 0
		}
		h.firstRun = a.FirstRun
	}
	h.sendBody = a.PolicyNeeded
	if len(a.PolicyConflict) > 0 {
		h.conflictLocked(a.PolicyConflict)
		return
	}
	if a.Resync || a.Superseded || a.StateCounter == 0 {
		return
	}
	if !ofWait {
		h.applied = a.StateCounter
	}
	h.rulesLocked(admission.Rules(a.Rules))
	if a.StateCounter >= h.counter {
		h.counter = a.StateCounter
		h.cooledLocked(a.Cooldown)
		h.cooldown, h.paused, h.loose = admission.Instant(a.Cooldown.GetUntil()), a.Paused, a.HandBackTo
		h.spacing, h.window = time.Duration(a.Spacing), time.Duration(a.StartWindow)
		h.mayWait, h.depth, h.known = a.MayWait, a.Depth, int(a.Holders)
		if !ofWait || a.Rules >= 3 && a.NotBefore != 0 { // the end of a wait that was open names no slot
			h.notBefore = arrived.Add(h.clock.until(admission.Instant(a.NotBefore)))
		}
		h.inFlight, h.cap, h.parked, h.lost, h.expired = a.InFlight, a.Cap, a.Parked, a.LostHolders, a.ExpiredLeases
		h.comeAgain = time.Time{}
		if a.ComeAgain != 0 {
			h.comeAgain = arrived.Add(h.clock.until(admission.Instant(a.ComeAgain)))
		}
	}
	for _, g := range a.Grants {
		if t := h.tickets[g.Number]; g.Notice > h.confirmed && t != nil && !t.started {
			if t.granted {
				h.reserved = slices.DeleteFunc(h.reserved, func(r *ticket) bool { return r == t })
			}
			t.grant, t.granted = g, true
			h.insertReservedLocked(t)
		}
	}
	for _, r := range a.Refusals {
		if t := h.tickets[r.Number]; r.Notice > h.confirmed && t != nil && !t.started {
			var again time.Duration
			if r.ComeAgain != 0 {
				again = h.clock.until(admission.Instant(r.ComeAgain))
			}
			t.refusal = r
			h.refusedLocked(r)
			h.failLocked(t, refusalError(h.id, r, again))
		}
	}
	for _, r := range a.Revoked {
		if t := h.tickets[r.Number]; r.Notice > h.confirmed && t != nil && t.grant.GetLease() == r.Lease {
			switch {
			case t.kept: // the call's next attempt has it, or did not come
				h.forgetLocked(t)
			case t.started:
				h.loseLocked(t, r.Cause.String())
			default:
				h.failLocked(t, &Error{Kind: KindLeaseLost, Gate: h.id, Detail: "the lease was ended before it started: " + r.Cause.String()})
			}
		}
	}
	for _, l := range a.Left {
		if l.Notice > h.confirmed {
			h.toldLocked(l.Number, l.Account)
		}
	}
	h.confirmed = max(h.confirmed, a.Notice)
	for _, t := range slices.Clone(h.reserved) {
		if why, blocked := h.blockedLocked(t, h.clock.now()); blocked {
			h.handBackLocked(t, why)
		}
	}
	h.gatherLocked(h.startDueLocked(), arrived)
}

// rulesLocked takes in the rules of the gate's run. A run of older rules that
// follows one which kept leases has ended what nobody uses.
func (h *holder) rulesLocked(rules admission.Rules) {
	was := h.rules
	h.rules = rules
	if was < 2 || rules >= 2 {
		return
	}
	for _, t := range h.tickets {
		if t.kept {
			h.forgetLocked(t)
			h.releaseLocked(t, Feedback{Outcome: Abandoned, Asked: -1}, false)
		}
	}
}

// conflictLocked ends all that waits: the gate will not mix two policies.
func (h *holder) conflictLocked(fields []string) {
	err := conflictError(h.id, fields)
	h.logger.Error("sluice: policy conflict", "gate", h.id, "differ", fields)
	h.conflict = err
	h.out = outbox{}
	h.flight = nil
	for _, t := range h.tickets {
		if !t.started {
			h.refusedLocked(&contract.Refusal{Kind: contract.RefusalKind_REFUSAL_POLICY_CONFLICT})
			h.failLocked(t, err)
		}
	}
	time.AfterFunc(conflictRetry, func() { // the other worker may be gone by then
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conflict = nil
	})
}

const conflictRetry = 10 * time.Second

// exchangeLocked makes the next exchange of what has come together.
func (h *holder) exchangeLocked() *contract.Exchange {
	h.seq++
	x := &contract.Exchange{
		Contract: workflows.ContractVersion, RulesMax: uint32(admission.NewestRules),
		Holder: &contract.Holder{Id: h.name.Id, Generation: h.name.Generation}, Seq: h.seq, Confirmed: h.confirmed,
		Policy:        &contract.Policy{Revision: h.gate.Revision, Hash: h.hash},
		RefusedBefore: h.refused, RoundTrip: int64(h.roundTrip),
	}
	h.refused = 0
	if h.sendBody {
		x.Policy.Body = h.body
	}
	x.Release, h.out.release, h.out.urgent = h.out.release, nil, false
	x.Cancel, h.out.cancel = h.out.cancel, nil
	x.HandBack, h.out.handBack = h.out.handBack, nil
	x.LowerLimits, h.out.lower = h.out.lower, nil
	if h.resync {
		h.presentLocked(x)
		return x
	}
	size, n := 0, 0
	for n < len(h.out.acquire) && size < batchBytes && n < workflows.MaxExchangeItems/2 {
		size += 64 + len(h.out.acquire[n].Label) + 32*len(h.out.acquire[n].Cost)
		n++
	}
	x.Acquire = h.out.acquire[:n:n]
	h.out.acquire = h.out.acquire[n:]
	if len(h.out.acquire) == 0 {
		h.out.acquire = nil
	}
	return x
}

// presentLocked fills a resync: all that this holder has, in one list.
func (h *holder) presentLocked(x *contract.Exchange) {
	x.Resync, h.resync = true, false
	x.Confirmed, h.confirmed = 0, 0
	x.CooldownUntil, x.LastStart = int64(h.cooldown), int64(h.lastStart)
	x.Cancel = nil // what isn't presented has ended
	h.out.acquire = nil
	numbers := make([]uint64, 0, len(h.tickets))
	for n := range h.tickets {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		t := h.tickets[n]
		if t.kept { // nobody uses it: the next attempt queues anew
			h.forgetLocked(t)
			continue
		}
		p := &contract.Present{Ticket: t.acquire}
		if t.granted {
			p.Lease, p.Generation, p.StartAt = t.grant.Lease, t.grant.Generation, t.grant.StartAt
		}
		x.Present = append(x.Present, p)
	}
}
