package admission

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	modelSteps = flag.Int("steps", 100_000, "steps of TestModel in all")
	modelSeed  = flag.Uint64("seed", 0, "seed of TestModel; 0: a random one, which is printed")
)

// TestModel drives the scheduler and the oracle through the same random steps.
// After each, their effects are equal; what the rule promises holds on its own
// account too; and the state equals its restored snapshot, with which the run
// goes on at random.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	steps := *modelSteps
	if testing.Short() {
		steps = min(steps, 10_000)
	}
	t.Logf("go test ./admission -run TestModel -seed=%d -steps=%d", seed, steps)
	const perRun = 400
	for run := 0; steps > 0; run++ {
		n := min(perRun, steps)
		steps -= n
		if trace := runModel(seed+uint64(run), n); trace != nil {
			// Fewer steps may fail as well: a run that stops earlier is a prefix.
			t.Fatalf("-seed=%d -steps=%d fails:\n%s", seed+uint64(run), len(trace.steps), trace)
		}
	}
}

// trace is what a run did, for a person.
type trace struct {
	start string
	steps []string
	err   error
}

func (t *trace) String() string {
	const most = 40
	from := max(0, len(t.steps)-most)
	return fmt.Sprintf("%s\n… %d steps\n%s\n%v", t.start, from, strings.Join(t.steps[from:], "\n"), t.err)
}

// runModel makes one run; nil: all held.
func runModel(seed uint64, steps int) (failed *trace) {
	rng := rand.New(rand.NewPCG(seed, 1))
	now := Instant(1_750_000_000_000_000_000)
	limits := randomLimits(rng)
	var learnUntil Instant
	if rng.IntN(10) == 0 {
		learnUntil = now + Instant(rng.Int64N(int64(3*time.Second)))
	}
	rules := pick(rng, OldestRules, NewestRules, NewestRules)
	s, err := New(now, limits, Options{Rules: rules, LearnUntil: learnUntil})
	if err != nil {
		return &trace{err: err}
	}
	m := &model{rng: rng, now: now, s: s, o: newOracle(now, limits, learnUntil, rules), log: &trace{start: fmt.Sprintf("rules %d, limits %+v", rules, s.limits)}}
	for _, id := range []string{"a", "b", "c"} {
		m.workers = append(m.workers, &modelWorker{id: id, generation: 1, mine: map[uint64]*modelTicket{}})
	}
	m.forgetHistory()
	defer func() {
		if p := recover(); p != nil {
			m.log.err = fmt.Errorf("panic: %v", p)
			failed = m.log
		}
	}()
	for range steps {
		if err := m.step(); err != nil {
			m.log.err = err
			return m.log
		}
	}
	return nil
}

// model is one run.
type model struct {
	rng     *rand.Rand
	now     Instant
	s       *Scheduler
	o       *oracle
	workers []*modelWorker
	log     *trace

	numbers  uint64
	keys     []uint64
	starts   []Instant             // since the limits last changed
	spent    map[string][]spending // likewise, of each budget
	leases   map[attemptStart]bool // all that were granted
	oldBytes []byte                // an earlier state, for a reset
	old      *oracle
}

// modelWorker is what a worker process believes.
type modelWorker struct {
	id         string
	generation uint64
	seq        uint64
	seen       uint64 // the last notice
	mine       map[uint64]*modelTicket
	last       *Exchange
	lost       bool // the last answer
	resync     bool
	away       bool
	lastStart  Instant
	loose      uint64 // notices up to which unstarted leases are to be handed back
}

type modelTicket struct {
	request    Request
	lease      uint64
	generation uint32
	startAt    Instant
	notice     uint64 // of the grant
}

// attemptStart tells the attempts of a lease apart, of which each has its start.
type attemptStart struct {
	lease uint64
	at    Instant
}

// spending is what was used of a budget by a lease that started at an instant.
type spending struct {
	at Instant
	n  *int64
}

func (m *model) forgetHistory() {
	m.starts, m.spent, m.leases = nil, map[string][]spending{}, map[attemptStart]bool{}
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func randomRate(rng *rand.Rand, burst ...int64) Rate {
	return Rate{
		Limit: pick[int64](rng, 1, 2, 3, 7, 10, 60, 500),
		Per:   pick(rng, time.Second, time.Second, 700*time.Millisecond, 3*time.Second, time.Minute),
		Burst: pick(rng, burst...),
	}
}

func randomLimits(rng *rand.Rand) Limits {
	l := Limits{
		MaxInFlight:      pick[int64](rng, 0, 1, 2, 3, 5),
		MaxCooldown:      pick(rng, 0, 2*time.Second, time.Minute),
		FallbackCooldown: pick(rng, 0, 100*time.Millisecond, time.Second),
		MaxQueue:         pick(rng, 4, 12, 30),
		MaxHold:          pick(rng, 10*time.Second, time.Hour),
		HolderTTL:        pick(rng, 5*time.Second, 30*time.Second),
		ParkTTL:          pick(rng, 3*time.Second, time.Minute),
		LookAhead:        pick(rng, -1, 0, 300*time.Millisecond, 2*time.Second),
	}
	switch rng.IntN(4) {
	case 0, 1:
		l.Pacing = randomRate(rng, 1)
	case 2:
		l.Pacing = randomRate(rng, 1, 2, 5, 20)
	}
	for _, unit := range []string{"tokens", "images"} {
		if rng.IntN(3) == 0 {
			l.Budgets = append(l.Budgets, Budget{Unit: unit, Rate: randomRate(rng, 5, 10, 20)})
		}
	}
	if rng.IntN(2) == 0 {
		slices.Reverse(l.Budgets)
	}
	return l
}

// step makes one random transition and checks everything.
func (m *model) step() error {
	rng := m.rng
	switch d := rng.IntN(100); {
	case d < 35:
	case d < 55:
		m.now += Instant(rng.Int64N(int64(20 * time.Millisecond)))
	case d < 75:
		m.now += Instant(rng.Int64N(int64(2 * time.Second)))
	case d < 90: // exactly when something is due
		if wake := m.s.NextWake(); wake != Never && wake < m.now+Instant(time.Hour) {
			m.now = wake
		}
	case d < 94:
		m.now += Instant(rng.Int64N(int64(20 * time.Second)))
	default: // backwards
		m.now -= Instant(rng.Int64N(int64(3 * time.Second)))
	}
	var err error
	switch d := rng.IntN(100); {
	case d < 12:
		m.note("advance")
		m.s.Advance(m.now)
		m.o.advance(m.now)
	case d < 85:
		err = m.exchange(pick(rng, m.workers...))
	case d < 87:
		m.note("pause")
		m.s.Pause(m.now, "test")
		m.o.observe(m.now)
		m.o.paused = true
	case d < 88:
		rules := pick(rng, OldestRules, NewestRules)
		m.note("the next run keeps rules %d", rules)
		if m.s, err = Restore(m.s.SnapshotUnder(rules, nil)); err != nil {
			return err
		}
		m.o.handOver(rules)
	case d < 92:
		m.note("resume")
		m.s.Resume(m.now)
		m.o.observe(m.now)
		m.o.paused = false
	case d < 94:
		for _, d := range []time.Duration{time.Duration(rng.Int64N(int64(3 * time.Second)))} {
			m.note("cooldown %v", d)
			m.s.Cooldown(m.now, d, Cause{})
			m.o.observe(m.now)
			m.o.cool(d)
		}
	case d < 96:
		l := randomLimits(rng)
		m.note("limits %+v", l)
		if err := m.s.SetLimits(m.now, l); err != nil {
			return err
		}
		m.o.setLimits(m.now, l)
		m.starts, m.spent = nil, map[string][]spending{}
	case d < 97 && rng.IntN(2) == 0:
		err = m.operate()
	case d < 97:
		w := pick(rng, m.workers...)
		m.note("%s restarts", w.id)
		*w = modelWorker{id: w.id, generation: w.generation + 1, mine: map[uint64]*modelTicket{}}
	case d < 98:
		w := pick(rng, m.workers...)
		m.note("%s leaves in good order", w.id)
		if h, ok := m.s.HolderByID(w.id); ok {
			m.o.observe(m.now)
			m.o.lose(m.o.holder(w.id))
			if err := m.s.Unregister(m.now, h); err != nil {
				return err
			}
		}
	case d < 99:
		m.note("snapshot kept")
		m.oldBytes, m.old = m.s.Snapshot(nil), m.o.clone()
	default:
		if m.old == nil {
			return nil
		}
		m.note("reset to the snapshot")
		if m.s, err = Restore(m.oldBytes); err != nil {
			return err
		}
		m.o = m.old.clone()
		m.forgetHistory()
		for _, t := range m.o.leased() {
			m.leases[attemptStart{t.lease, t.startAt}] = true
		}
		for _, h := range m.o.holders {
			for _, n := range h.outbox { // granted then, though it may have ended
				m.leases[attemptStart{n.Lease, n.StartAt}] = true
			}
		}
	}
	if err != nil {
		return err
	}
	m.s.Advance(m.now)
	m.o.advance(m.now)
	return m.check()
}

// operate lets a person cancel a ticket or revoke a lease, there or not.
func (m *model) operate() error {
	var tickets, leases []uint64
	for _, t := range m.o.tickets {
		if t.lease == 0 {
			tickets = append(tickets, t.arrival)
		} else {
			leases = append(leases, t.lease)
		}
	}
	if m.rng.IntN(2) == 0 {
		ticket := pick(m.rng, append(tickets, m.rng.Uint64N(1000))...)
		m.note("a person cancels ticket %d", ticket)
		got, want := m.s.CancelTicket(m.now, ticket), m.o.cancelTicket(m.now, ticket)
		if (got == nil) != want {
			return fmt.Errorf("cancelling ticket %d: %v, want %v", ticket, got, want)
		}
		return nil
	}
	lease := pick(m.rng, append(leases, 0, m.rng.Uint64N(1000))...)
	m.note("a person revokes lease %d", lease)
	got, want := m.s.RevokeLease(m.now, lease), m.o.revokeLease(m.now, lease)
	if (got == nil) != want {
		return fmt.Errorf("revoking lease %d: %v, want %v", lease, got, want)
	}
	return nil
}

func (m *model) note(format string, args ...any) {
	m.log.steps = append(m.log.steps, fmt.Sprintf("%3d %v ", len(m.log.steps), m.now.Time().Format("04:05.000000000"))+fmt.Sprintf(format, args...))
}

func (m *model) request(w *modelWorker) Request {
	rng := m.rng
	m.numbers++
	id := m.numbers
	if len(m.keys) > 0 && rng.IntN(4) == 0 {
		id = m.keys[max(0, len(m.keys)-1-rng.IntN(12))] // a call that is known already
	} else {
		m.keys = append(m.keys, id)
	}
	r := Request{
		Number: m.numbers, Label: fmt.Sprint("call ", id), Attempt: int32(1 + rng.IntN(3)),
		Weight: pick[int64](rng, 0, 1, 1, 1, 2, 3, 6), Hold: pick(rng, HoldAttempt, HoldAttempt, HoldCall),
	}
	binary.BigEndian.PutUint64(r.Key[:], id)
	if rng.IntN(3) == 0 {
		r.Deadline = m.now + Instant(rng.Int64N(int64(5*time.Second)))
	}
	for _, unit := range []string{"tokens", "images", "unknown"} {
		if rng.IntN(2) == 0 {
			r.Cost = append(r.Cost, UnitCost{Unit: unit, N: pick[int64](rng, 1, 1, 2, 5, 7, 11)})
		}
	}
	if rng.IntN(40) == 0 {
		r.Weight = -1
	}
	if rng.IntN(40) == 0 {
		r.Cost = append(r.Cost, UnitCost{Unit: "tokens"})
	}
	return r
}

// exchange lets a worker send one message, good or bad, to both.
func (m *model) exchange(w *modelWorker) error {
	rng := m.rng
	if w.away {
		w.away = rng.IntN(6) > 0
		m.note("%s is away", w.id)
		return nil
	}
	w.away = rng.IntN(40) == 0
	x := &Exchange{
		Holder: w.id, Generation: w.generation, Seq: w.seq + 1, Confirmed: w.seen, Resync: w.resync || rng.IntN(60) == 0,
		RoundTrip: pick(rng, 0, time.Millisecond, 7*time.Millisecond, time.Second), RefusedBefore: uint32(rng.IntN(2)),
	}
	switch d := rng.IntN(50); {
	case w.lost || d < 3 && w.last != nil && !w.resync:
		m.note("%s sends the last exchange again", w.id)
		return m.send(w, w.last)
	case d == 3:
		x.Seq += 2
	case d == 4:
		x.Generation-- // a zombie's
	}
	numbers := make([]uint64, 0, len(w.mine))
	for number := range w.mine {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	if x.Resync {
		x.CooldownUntil, x.LastStart = m.now+Instant(rng.Int64N(int64(time.Second))), w.lastStart
		for _, number := range numbers {
			if t := w.mine[number]; rng.IntN(10) > 0 {
				x.Present = append(x.Present, Present{Request: t.request, Lease: t.lease, Generation: t.generation, StartAt: t.startAt})
			} else {
				delete(w.mine, number)
			}
		}
	}
	for _, number := range numbers {
		t, ok := w.mine[number]
		if !ok {
			continue
		}
		switch d := rng.IntN(20); {
		case t.lease == 0 && d < 2:
			c := Cancel{Ticket: number, Attempt: t.request.Attempt - int32(rng.IntN(2)), Park: d == 0}
			if rng.IntN(2) == 0 {
				c.LeftAt = m.now.Add(time.Duration(rng.IntN(1000)-800) * time.Millisecond)
			}
			x.Cancel = append(x.Cancel, c)
			delete(w.mine, number)
		case t.lease != 0 && (d < 4 || t.notice <= w.loose && t.startAt > m.now):
			x.HandBack = append(x.HandBack, HandBack{Lease: t.lease, Late: d < 3})
			t.lease = 0
		case t.lease != 0 && d < 12:
			x.Release = append(x.Release, Release{Lease: t.lease, Generation: t.generation - uint32(rng.IntN(2)), Keep: rng.IntN(3) == 0, Feedback: m.feedback(t)})
			delete(w.mine, number)
		}
	}
	for range rng.IntN(4) {
		r := m.request(w)
		x.Acquire = append(x.Acquire, r)
		w.mine[r.Number] = &modelTicket{request: r}
	}
	if rng.IntN(30) == 0 {
		x.Release = append(x.Release, Release{Lease: uint64(rng.Int64N(20)), Feedback: Feedback{Outcome: OutcomeOverload, Asked: -1}})
		x.HandBack = append(x.HandBack, HandBack{Lease: uint64(rng.Int64N(20))})
		x.Cancel = append(x.Cancel, Cancel{Ticket: 1 << 40, Park: true})
	}
	return m.send(w, x)
}

func (m *model) feedback(t *modelTicket) Feedback {
	rng := m.rng
	f := Feedback{Outcome: pick(rng, OutcomeSuccess, OutcomeSuccess, OutcomeError, OutcomeOverload, OutcomeAbandoned), Asked: -1}
	if f.Outcome == OutcomeOverload || f.Outcome == OutcomeSuccess && rng.IntN(4) == 0 {
		f.Asked = pick(rng, -1, -1, 0, 300*time.Millisecond, 5*time.Second)
	}
	if rng.IntN(2) == 0 {
		f.StartedAt = t.startAt + Instant(rng.Int64N(int64(time.Second)))
	}
	for _, c := range t.request.Cost {
		if rng.IntN(2) == 0 {
			actual := rng.Int64N(c.N + 1)
			if rng.IntN(20) == 0 {
				actual = c.N + rng.Int64N(5)
			}
			f.Actual = append(f.Actual, UnitCost{Unit: c.Unit, N: actual})
		}
	}
	return f
}

// send brings an exchange to both and compares the answers.
func (m *model) send(w *modelWorker, x *Exchange) error {
	if _, stale := m.s.holderByID[x.Holder]; stale && m.o.holder(x.Holder) == nil {
		return fmt.Errorf("holder %s should be lost", x.Holder)
	}
	m.note("%s: seq %d resync %v confirmed %d\n      present %v\n      cancel %v hand back %v release %v\n      acquire %v", w.id, x.Seq, x.Resync, x.Confirmed, x.Present, x.Cancel, x.HandBack, x.Release, x.Acquire)
	answer := m.s.Apply(m.now, x)
	if ok := m.o.apply(m.now, x); ok == (answer.Resync || answer.Superseded) {
		return fmt.Errorf("the answer is resync %v, superseded %v; the oracle accepts: %v", answer.Resync, answer.Superseded, ok)
	}
	if w.resync = answer.Resync; answer.Resync {
		w.lost = false
		w.seq = x.Seq
	}
	if answer.Resync || answer.Superseded {
		return nil
	}
	m.o.holder(x.Holder).comeAgain = answer.ComeAgain
	w.last, w.lost = x, m.rng.IntN(8) == 0
	if w.lost {
		m.note("  the answer is lost")
		return nil
	}
	w.seq, w.loose = x.Seq, answer.HandBackTo
	for _, n := range answer.Notices {
		if n.N <= w.seen {
			continue
		}
		w.seen = n.N
		t := w.mine[n.Ticket]
		switch {
		case t == nil:
		case n.Kind == NoticeGrant:
			t.lease, t.generation, t.startAt, t.notice = n.Lease, n.Generation, n.StartAt, n.N
			w.lastStart = max(w.lastStart, n.StartAt)
		default:
			delete(w.mine, n.Ticket)
		}
	}
	return nil
}

// check compares the scheduler with the oracle, and both with the promises.
func (m *model) check() error {
	s, o := m.s, m.o
	if got, want := s.inUse, o.inUse(); got != want {
		return fmt.Errorf("in use %d, want %d", got, want)
	}
	if s.cool.until != o.cooldown || s.lastStart != o.lastStart {
		return fmt.Errorf("cooldown %v, last start %v; want %v, %v", s.cool.until, s.lastStart, o.cooldown, o.lastStart)
	}
	for b, budget := range o.limits.Budgets {
		lack := s.budgets[b].lack(o.now, budget.Rate)
		got := new(big.Rat).Add(rat(lack.ns), big.NewRat(lack.frac, budget.Rate.Limit))
		if want := o.lack(budget.Unit, o.now); got.Cmp(want) != 0 {
			return fmt.Errorf("%s are full again after %v ns, want %v", budget.Unit, got, want)
		}
	}
	var queue []string
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		e := &s.q.entries[i]
		queue = append(queue, fmt.Sprint(binary.BigEndian.Uint64(e.key[:]), "/", e.attempt, " parked ", e.holder == none))
	}
	var want []string
	for _, t := range o.queue() {
		want = append(want, fmt.Sprint(binary.BigEndian.Uint64(t.key[:]), "/", t.attempt, " parked ", t.holder == nil))
	}
	if !slices.Equal(queue, want) || s.queued != len(want) {
		return fmt.Errorf("queue\n%v, want\n%v", queue, want)
	}
	if len(s.holderByID) != len(o.holders) {
		return fmt.Errorf("holders %v, want %d", s.holderByID, len(o.holders))
	}
	for _, h := range o.holders {
		if err := m.checkNotices(h); err != nil {
			return err
		}
	}
	if err := m.checkStarts(); err != nil {
		return err
	}
	if err := m.checkTallies(); err != nil {
		return err
	}

	wake := s.NextWake()
	if o.armed = wake; wake == Never {
		o.armed = 0
	}
	if wake <= o.now || wake > o.mustWake() {
		return fmt.Errorf("next wake %v (now %v), must be by %v", wake, o.now, o.mustWake())
	}
	if t := o.head(); t != nil && !o.blocked(t) && o.earliest(t) <= o.now {
		return fmt.Errorf("the head %v can be admitted and is not", t)
	}

	data := s.Snapshot(nil)
	restored, err := Restore(data)
	if err != nil {
		return err
	}
	if again := restored.Snapshot(nil); !bytes.Equal(again, data) {
		return fmt.Errorf("a restored snapshot differs:\n%x\n%x", data, again)
	}
	if m.rng.IntN(4) == 0 {
		m.s = restored
	}
	return nil
}

// checkNotices compares what a holder is told, and notes what is new.
func (m *model) checkNotices(h *oHolder) error {
	ref, ok := m.s.HolderByID(h.id)
	if !ok {
		return fmt.Errorf("no holder %s", h.id)
	}
	got := slices.Clone(m.s.Notices(ref))
	for i := range got {
		n := &got[i]
		for _, d := range n.Waits {
			if d < 0 {
				return fmt.Errorf("negative wait in %+v", n)
			}
		}
		n.Waits = Waits{n.Waits.Total()}
		if n.Kind == NoticeLeft && i < len(h.outbox) {
			// Time that was accounted for before the caller's leaving was heard
			// of is told, too.
			if more := n.Until.Sub(h.outbox[i].Until); more > 0 && n.Until <= m.o.now {
				n.Waits[0], n.Until = n.Waits[0]-more, h.outbox[i].Until
			}
		}
		if n.Refusal.Kind == RefusedQueueFull {
			n.Refusal.ComeAgain = 0 // a guess
		}
	}
	if to := m.s.AnswerFor(ref).HandBackTo; to != h.loose {
		return fmt.Errorf("%s is to hand back up to notice %d, want %d", h.id, to, h.loose)
	}
	if !slices.Equal(got, h.outbox) {
		return fmt.Errorf("notices of %s\n%+v, want\n%+v", h.id, got, h.outbox)
	}
	return nil
}

// checkStarts holds the admissions since the last step against the promises.
func (m *model) checkStarts() error {
	s, o := m.s, m.o
	for _, t := range o.leased() {
		this := attemptStart{t.lease, t.startAt}
		if m.leases[this] {
			continue
		}
		m.leases[this] = true
		if !m.fresh(t) {
			continue // presented, not admitted
		}
		moved := t.generation > 1 && t.spent // it has its place already
		if moved && o.rules < 2 {
			continue // presented and moved on in one step: its start is that of the first attempt
		}
		if t.startAt < o.now || !moved && t.startAt > o.now.Add(max(o.limits.LookAhead, 20*time.Millisecond)) {
			return fmt.Errorf("start %v is not near now %v", t.startAt, o.now)
		}
		if !moved && o.limits.MaxInFlight > 0 && s.inUse > o.limits.MaxInFlight {
			return fmt.Errorf("admitted to %d in use, cap %d", s.inUse, o.limits.MaxInFlight)
		}
		for _, q := range o.queue() {
			if !moved && q.arrival < t.arrival && o.present(q.holder) {
				return fmt.Errorf("%v overtook %v", t, q)
			}
		}
		for unit, n := range t.used {
			if burst := o.buckets()[unit].Burst; moved && *n > burst {
				n = &burst // it was admitted when more was to be had; the rest is a debt
			}
			m.spent[unit] = append(m.spent[unit], spending{t.startAt, n})
		}
		m.starts = append(m.starts, t.startAt)
	}
	if r := o.limits.Pacing; r.Limit > 0 {
		slices.Sort(m.starts)
		for j := max(0, len(m.starts)-30); j < len(m.starts); j++ {
			for i := max(0, j-30); i < j; i++ {
				// j-i starts after the i-th: beyond the burst, each costs Per/Limit.
				least := new(big.Rat).Sub(takes(int64(j-i+1), r), takes(r.Burst, r))
				if gap := rat(int64(m.starts[j]-m.starts[i]) + 1); gap.Cmp(least) < 0 {
					return fmt.Errorf("%d starts within %v", j-i+1, m.starts[j].Sub(m.starts[i]))
				}
			}
		}
	}
	for _, b := range o.limits.Budgets {
		spent := m.spent[b.Unit]
		slices.SortStableFunc(spent, func(a, b spending) int { return int(a.at - b.at) })
		for i := max(0, len(spent)-30); i < len(spent); i++ {
			sum := int64(0)
			for j := i; j < len(spent); j++ {
				sum += *spent[j].n
				least := new(big.Rat).Sub(takes(sum, b.Rate), takes(b.Rate.Burst, b.Rate))
				if gap := rat(int64(spent[j].at-spent[i].at) + 1); gap.Cmp(least) < 0 {
					return fmt.Errorf("%d %s used within %v", sum, b.Unit, spent[j].at.Sub(spent[i].at))
				}
			}
		}
	}
	return nil
}

// fresh reports whether the lease was admitted in this step, by the notice that
// is still on its way.
func (m *model) fresh(t *oTicket) bool {
	return slices.ContainsFunc(t.holder.outbox, func(n Notice) bool {
		return n.Kind == NoticeGrant && n.Lease == t.lease && n.StartAt == t.startAt && n.Generation == t.generation
	})
}

// checkTallies counts anew what the scheduler keeps count of.
func (m *model) checkTallies() error {
	s := m.s
	var queued, leased, parked, chained, ends int
	var labels int64
	tallies := make([]tally, len(s.holders))
	for i := range s.q.entries {
		e := &s.q.entries[i]
		switch e.state {
		case entryFree:
			continue
		case entryQueued:
			queued++
			if e.parkedAt != 0 {
				parked++
			}
			if e.holder != none {
				tallies[e.holder].add(s.q.cost(int32(i)), len(s.limits.Budgets))
			}
		case entryLeased:
			leased++
			if s.byLease(e.lease) != int32(i) {
				return fmt.Errorf("lease %d is not to be found", e.lease)
			}
		}
		if e.holder != none && s.byNumber(HolderRef(e.holder), e.number) != int32(i) {
			return fmt.Errorf("ticket %d of holder %d is not to be found", e.number, e.holder)
		}
		labels += int64(len(s.q.labels[i]))
		if at := s.dueAt(e); at != 0 {
			if e.due == lined {
				ends++
			} else if s.due.heap[e.due] != (dueItem{at, int32(i)}) {
				return fmt.Errorf("ticket %d is not in its place among what is due", e.number)
			} else {
				chained++
			}
		}
	}
	var before dueItem
	for i := s.due.head; i != none; i = s.q.entries[i].next {
		next := dueItem{s.dueAt(&s.q.entries[i]), i}
		if ends--; s.q.entries[i].due != lined || before.at != 0 && !s.before(before, next) {
			return fmt.Errorf("ticket %d is not in its place in the line of ends", s.q.entries[i].number)
		}
		before = next
	}
	notices := 0
	for i := range s.holders {
		if s.holders[i].queued != tallies[i] {
			return fmt.Errorf("tally of holder %d: %v, want %v", i, s.holders[i].queued, tallies[i])
		}
		notices += len(s.holders[i].outbox)
	}
	if queued != s.queued || leased != s.leased() || parked != s.parked || chained != len(s.due.heap) || ends != 0 || labels != s.labels || notices != s.notices {
		return fmt.Errorf("counts: queued %d %d leased %d %d parked %d %d due %d %d ends %d labels %d %d notices %d %d",
			queued, s.queued, leased, s.leased(), parked, s.parked, chained, len(s.due.heap), ends, labels, s.labels, notices, s.notices)
	}
	return nil
}
