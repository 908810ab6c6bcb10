package admission

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Schema names a version of the snapshot's layout.
type Schema uint32

// The layouts that this code reads. It writes the one that came with the rules:
// whoever can host them can read it. Rules 3 brought none.
const (
	OldestSchema Schema = 1
	NewestSchema Schema = 2
)

func schemaOf(r Rules) Schema { return min(Schema(r), NewestSchema) }

// Snapshot appends the whole state to buf, compactly: instants relative to the
// latest one, small integers as varints. Equal states give equal bytes.
func (s *Scheduler) Snapshot(buf []byte) []byte { return s.SnapshotUnder(s.rules, buf) }

// SnapshotUnder is Snapshot for a run that keeps other rules than this one, see
// NextRules.
func (s *Scheduler) SnapshotUnder(rules Rules, buf []byte) []byte {
	w := writer{buf: buf, base: s.now, schema: schemaOf(rules)}
	w.uint(uint64(w.schema))
	w.uint(uint64(rules))
	w.int(int64(s.now))
	w.limits(&s.limits)
	w.bool(s.unbounded)
	w.instant(s.learnUntil)
	w.instant(s.armed)
	w.uint(s.arrivals)
	w.uint(s.leases)
	w.uint(s.counter)
	w.uint(s.registered)
	w.instant(s.lastStart)
	w.bool(s.capBlocked)
	w.exact(s.pacing.full)
	for b := range s.limits.Budgets {
		w.budget(&s.budgets[b])
	}
	w.instant(s.cool.until)
	w.int(int64(s.cool.cause.Status))
	w.text(s.cool.cause.Source)
	w.int(int64(s.cool.cause.Asked))
	w.int(int64(s.cool.cause.Applied))
	w.instant(s.cool.cause.At)
	w.int(int64(s.cool.streak))
	w.bool(s.cool.zeroHint)
	w.int(s.cool.ramp)
	w.bool(s.paused)
	w.text(s.pauseCause)
	w.int(int64(s.releaseGap))
	w.instant(s.lastRelease)
	w.int(int64(s.traffic.gap))
	w.int(int64(s.traffic.trip))
	w.instant(s.traffic.lastSlot)
	if w.schema >= 2 {
		w.instant(s.traffic.last)
		w.int(s.traffic.together)
		w.int(s.traffic.usual)
		w.int(s.traffic.wider)
		w.instant(s.traffic.refused)
		w.int(int64(s.traffic.patience))
	}
	for _, c := range s.Counters.all(w.schema) {
		w.uint(*c)
	}

	refs := s.holderOrder()
	index := make(map[int32]int32, len(refs))
	w.uint(uint64(len(refs)))
	for at, i := range refs {
		index[i] = int32(at)
		w.holder(&s.holders[i])
	}
	w.uint(uint64(s.queued))
	for i := s.q.head; i != none; i = s.q.entries[i].next {
		w.entry(s, i, index)
	}
	leased := make([]int32, 0, s.leased())
	for i := range s.q.entries {
		if s.q.entries[i].state == entryLeased {
			leased = append(leased, int32(i))
		}
	}
	slices.SortFunc(leased, func(a, b int32) int { return cmp.Compare(s.q.entries[a].lease, s.q.entries[b].lease) })
	w.uint(uint64(len(leased)))
	for _, i := range leased {
		w.entry(s, i, index)
	}
	return w.buf
}

// holderOrder lists the holders by registration.
func (s *Scheduler) holderOrder() []int32 {
	var refs []int32
	for i := range s.holders {
		if s.holders[i].id != "" {
			refs = append(refs, int32(i))
		}
	}
	slices.SortFunc(refs, func(a, b int32) int { return cmp.Compare(s.holders[a].order, s.holders[b].order) })
	return refs
}

// ErrBadSnapshot says that bytes are no snapshot, or a broken one.
var ErrBadSnapshot = errors.New("not a valid snapshot")

// Restore makes a scheduler from a snapshot. It never panics on broken bytes:
// the error is an [UnknownRulesError], or wraps ErrBadSnapshot.
func Restore(data []byte) (*Scheduler, error) {
	r := reader{buf: data}
	r.schema = Schema(r.uint())
	if r.schema < OldestSchema || r.schema > NewestSchema {
		return nil, fmt.Errorf("%w: layout %d; this program reads %d to %d", ErrBadSnapshot, r.schema, OldestSchema, NewestSchema)
	}
	s := empty()
	s.rules = Rules(r.uint())
	if err := checkRules(s.rules); err != nil {
		return nil, err
	}
	if r.schema != schemaOf(s.rules) {
		return nil, fmt.Errorf("%w: layout %d under rules %d", ErrBadSnapshot, r.schema, s.rules)
	}
	s.now = Instant(r.int())
	r.base = s.now
	s.enforce(r.limits())
	if err := s.limits.Validate(); r.failed || err != nil {
		return nil, fmt.Errorf("%w: limits: %v", ErrBadSnapshot, err)
	}
	s.unbounded = r.bool()
	s.learnUntil = r.instant()
	s.armed = r.instant()
	s.arrivals = r.uint()
	s.leases = r.uint()
	s.counter = r.uint()
	s.registered = r.uint()
	s.lastStart = r.instant()
	s.capBlocked = r.bool()
	s.pacing.full = r.exact(s.limits.Pacing)
	for b := range s.limits.Budgets {
		r.budget(&s.budgets[b], s.limits.Budgets[b].Rate)
	}
	s.cool.until = r.instant()
	s.cool.cause.Status = int32(r.int())
	s.cool.cause.Source = r.text()
	s.cool.cause.Asked = time.Duration(r.int())
	s.cool.cause.Applied = time.Duration(r.int())
	s.cool.cause.At = r.instant()
	s.cool.streak = int32(r.int())
	s.cool.zeroHint = r.bool()
	s.cool.ramp = r.int()
	s.paused = r.bool()
	s.pauseCause = r.text()
	s.releaseGap = time.Duration(r.int())
	s.lastRelease = r.instant()
	s.traffic.gap = time.Duration(r.int())
	s.traffic.trip = time.Duration(r.int())
	s.traffic.lastSlot = r.instant()
	if r.schema >= 2 {
		s.traffic.last = r.instant()
		s.traffic.together = min(max(r.int(), 0), maxTogether)
		s.traffic.usual = min(max(r.int(), 0), 16*maxTogether)
		s.traffic.wider = min(max(r.int(), 0), 16*(maxFlight-crowdFlight))
		s.traffic.refused = r.instant()
		s.traffic.patience = min(max(time.Duration(r.int()), 0), maxPatience)
	}
	for _, c := range s.Counters.all(r.schema) {
		*c = r.uint()
	}
	for range r.count() {
		if h := r.holder(); !r.failed {
			if _, twice := s.holderByID[h.id]; twice || h.id == "" {
				return nil, fmt.Errorf("%w: holder %q", ErrBadSnapshot, h.id)
			}
			s.holderByID[h.id] = int32(len(s.holders))
			s.holders = append(s.holders, h)
			s.notices += len(h.outbox)
		}
	}
	queued := r.count()
	room := min(queued, len(r.buf)/leastEntry, 4*DefaultMaxQueue) // whatever the snapshot says
	s.q.reserve(room)
	s.names = newNames(room)
	for range queued {
		if err := s.restoreEntry(&r, entryQueued); err != nil {
			return nil, err
		}
	}
	for range r.count() {
		if err := s.restoreEntry(&r, entryLeased); err != nil {
			return nil, err
		}
	}
	if r.failed || len(r.buf) > 0 {
		return nil, fmt.Errorf("%w: cut short or too long", ErrBadSnapshot)
	}
	return s, nil
}

// leastEntry is the least that an entry takes, in bytes: its key, and one for each
// of the other fields that every layout has.
const leastEntry = len(Key{}) + 15

func (s *Scheduler) restoreEntry(r *reader, state entryState) error {
	n := r.entry()
	e := n.entry
	if r.failed || !s.plausible(&n, state) {
		return fmt.Errorf("%w: ticket %x", ErrBadSnapshot, e.key)
	}
	i := s.q.alloc()
	e.due, e.next, e.prev, e.waits, e.place, e.weight, e.state = none, none, none, none, none, int32(n.weight), state
	s.q.entries[i], s.q.labels[i], s.q.arrived[i] = e, n.label, n.arrived
	s.q.setCost(i, &n.cost)
	if n.waited != (Waits{}) {
		*s.q.waiting(i) = n.waited
	}
	s.labels += int64(len(n.label))
	if state == entryQueued {
		s.q.enqueue(i)
		s.queued++
		if e.parkedAt != 0 {
			s.parked++
		}
	} else {
		s.names.leases.put(e.lease, 0, i)
		s.inUse += n.weight
	}
	if e.holder != none {
		s.names.numbers.put(e.number, e.holder, i)
		h := &s.holders[e.holder]
		if state == entryQueued {
			h.queued.add(&n.cost, len(s.limits.Budgets))
		} else {
			h.leased++
		}
	}
	if n.owns {
		s.own(i)
	}
	if n.head {
		s.head = i
	}
	s.schedule(i)
	return nil
}

// plausible reports whether an entry could be in the state restored so far.
func (s *Scheduler) plausible(e *carried, state entryState) bool {
	for _, cost := range e.cost {
		if cost < 0 || cost > MaxRateLimit {
			return false
		}
	}
	if e.weight < 1 || e.weight > MaxInFlightBound || len(e.label) > MaxLabel || e.arrival > s.arrivals || e.lease > s.leases ||
		e.holder < none || int(e.holder) >= len(s.holders) || len(s.q.entries) > 2*MaxQueueBound {
		return false
	}
	if e.holder != none && (e.number == 0 || s.byNumber(HolderRef(e.holder), e.number) != none) || e.owns && s.byKey(&e.key) != none {
		return false
	}
	if state == entryLeased {
		return e.holder != none && (e.parkedAt == 0 || e.spent && e.hold == HoldCall) && !e.head && e.lease != 0 && s.byLease(e.lease) == none
	}
	ordered := s.q.tail == none || s.q.entries[s.q.tail].arrival < e.arrival
	return ordered && e.owns && e.lease == 0 && (e.parkedAt != 0) == (e.holder == none) && !(e.head && (s.head != none || e.holder == none))
}

// all lists the counters in the order of the snapshot.
func (c *Counters) all(schema Schema) []*uint64 {
	list := []*uint64{
		&c.Admissions, &c.Releases, &c.Overloads, &c.Cooldowns,
		&c.HandBacks, &c.Expired, &c.LostHolders, &c.Parked,
		&c.StaleReleases, &c.StaleAcquires, &c.StaleCancels,
		&c.Duplicates, &c.Gaps, &c.Resyncs, &c.Malformed, &c.Conflict,
	}
	kinds := len(c.Refusals)
	if schema >= 2 {
		list = append(list, &c.Revoked)
	} else {
		kinds = int(RefusedOperator) // the first layout counts no acts of persons
	}
	for i := range kinds {
		list = append(list, &c.Refusals[i])
	}
	return list
}

type writer struct {
	buf    []byte
	base   Instant
	schema Schema
}

func (w *writer) uint(v uint64) { w.buf = binary.AppendUvarint(w.buf, v) }
func (w *writer) int(v int64)   { w.buf = binary.AppendVarint(w.buf, v) }

func (w *writer) bool(v bool) {
	if v {
		w.buf = append(w.buf, 1)
	} else {
		w.buf = append(w.buf, 0)
	}
}

// flags writes three bools in one byte.
func (w *writer) flags(a, b, c bool) {
	v := byte(0)
	for bit, set := range [...]bool{a, b, c} {
		if set {
			v |= 1 << bit
		}
	}
	w.buf = append(w.buf, v)
}

func (w *writer) text(v string) {
	w.uint(uint64(len(v)))
	w.buf = append(w.buf, v...)
}

// instant writes "none" as 0 and all else relative to the base, zigzag plus one.
func (w *writer) instant(v Instant) {
	if v == 0 {
		w.uint(0)
		return
	}
	diff := int64(v - w.base) // wraps, and wraps back
	w.uint((uint64(diff)<<1 ^ uint64(diff>>63)) + 1)
}

func (w *writer) exact(e exact) {
	w.int(e.ns)
	w.int(e.frac)
}

func (w *writer) budget(b *budget) {
	w.exact(b.full)
	w.uint(uint64(len(b.lows)))
	for _, l := range b.lows {
		w.uint(l.lease)
		w.exact(l.lack)
	}
}

func (w *writer) rate(r Rate) {
	w.int(r.Limit)
	w.int(int64(r.Per))
	w.int(r.Burst)
}

func (w *writer) limits(l *Limits) {
	w.int(l.MaxInFlight)
	w.rate(l.Pacing)
	w.uint(uint64(len(l.Budgets)))
	for _, b := range l.Budgets {
		w.text(b.Unit)
		w.rate(b.Rate)
	}
	for _, d := range l.durations() {
		w.int(int64(*d))
	}
	w.int(int64(l.MaxQueue))
	w.int(l.MaxExchangesPerSecond)
}

// durations lists the durations in the order of the snapshot.
func (l *Limits) durations() []*time.Duration {
	return []*time.Duration{&l.MaxCooldown, &l.FallbackCooldown, &l.MaxHold, &l.HolderTTL, &l.ParkTTL, &l.LookAhead, &l.StartWindow}
}

func (w *writer) holder(h *holder) {
	w.text(h.id)
	w.uint(h.generation)
	w.uint(h.order)
	w.instant(h.lastSeen)
	w.instant(h.comeAgain)
	w.uint(h.seq)
	if w.schema >= 2 {
		w.uint(uint64(h.rules))
	}
	w.int(int64(h.delivery))
	w.uint(h.confirmed)
	w.uint(h.noticed)
	if w.schema >= 2 {
		w.uint(h.loose)
	}
	told := 0
	for i := range h.outbox {
		if w.knows(&h.outbox[i]) {
			told++
		}
	}
	w.uint(uint64(told))
	for i := range h.outbox {
		n := &h.outbox[i]
		if !w.knows(n) {
			continue
		}
		w.uint(n.N)
		w.uint(uint64(n.Kind))
		w.uint(n.Ticket)
		w.uint(n.Lease)
		w.uint(uint64(n.Generation))
		w.instant(n.StartAt)
		w.int(int64(n.Window))
		w.waits(&n.Waits)
		if w.schema >= 2 {
			w.instant(n.Since)
			w.instant(n.Until)
			w.uint(uint64(n.Position))
			w.uint(uint64(n.Depth))
		}
		w.uint(uint64(n.Refusal.Kind))
		w.text(n.Refusal.Field)
		w.int(n.Refusal.Value)
		w.int(n.Refusal.Bound)
		w.instant(n.Refusal.ComeAgain)
		w.uint(uint64(n.Revoked))
	}
}

// knows reports whether the layout has a notice's kind.
func (w *writer) knows(n *Notice) bool { return w.schema >= 2 || n.Kind != NoticeLeft }

// waits writes a mask of what isn't zero, which mostly is little.
func (w *writer) waits(v *Waits) {
	mask := uint64(0)
	for i, d := range v {
		if d != 0 {
			mask |= 1 << i
		}
	}
	w.uint(mask)
	for _, d := range v {
		if d != 0 {
			w.int(int64(d))
		}
	}
}

func (w *writer) entry(s *Scheduler, i int32, index map[int32]int32) {
	e := &s.q.entries[i]
	w.buf = append(w.buf, e.key[:]...)
	w.text(s.q.labels[i])
	w.uint(e.arrival)
	w.int(int64(e.weight))
	for b := range s.limits.Budgets {
		w.int(s.q.costs[i][b])
	}
	w.instant(e.arrivedAt)
	w.instant(e.deadline)
	if w.schema == 1 && e.state == entryLeased {
		w.instant(0) // it doesn't know of kept leases
	} else {
		w.instant(e.parkedAt)
	}
	w.instant(e.accounted)
	waited := s.q.waited(i)
	w.waits(&waited)
	if w.schema >= 2 {
		a := &s.q.arrived[i]
		w.instant(a.at)
		w.uint(uint64(a.position))
		w.uint(uint64(a.depth))
	}
	w.int(int64(e.attempt))
	w.uint(uint64(e.generation))
	w.buf = append(w.buf, e.handBacks, byte(e.hold))
	w.flags(e.place != none, s.head == i, e.spent)
	if e.holder == none {
		w.uint(0)
	} else {
		w.uint(uint64(index[e.holder]) + 1)
		w.uint(e.number)
	}
	if e.state == entryLeased {
		w.uint(e.lease)
		w.instant(e.startAt)
		w.instant(e.expires)
	} else {
		w.uint(0)
	}
}

// reader reads what writer wrote. After a failure it returns zeros.
type reader struct {
	buf     []byte
	base    Instant
	schema  Schema
	failed  bool
	budgets int
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.buf)
	return advance(r, v, n)
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.buf)
	return advance(r, v, n)
}

func advance[T any](r *reader, v T, n int) T {
	if n <= 0 || r.failed {
		var zero T
		r.fail()
		return zero
	}
	r.buf = r.buf[n:]
	return v
}

func (r *reader) fail() { r.failed, r.buf = true, nil }

func (r *reader) bytes(n uint64) []byte {
	if r.failed || n > uint64(len(r.buf)) {
		r.fail()
		return nil
	}
	v := r.buf[:n]
	r.buf = r.buf[n:]
	return v
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) bool() bool { return r.byte() == 1 }
func (r *reader) flags() (a, b, c bool) {
	v := r.byte()
	return v&1 != 0, v&2 != 0, v&4 != 0
}

func (r *reader) text() string { return string(r.bytes(r.uint())) }

// small reads a number that is never negative.
func (r *reader) small() int32 {
	v := r.uint()
	if v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int32(v)
}

// count reads a length; each item takes at least a byte.
func (r *reader) count() int {
	n := r.uint()
	if n > uint64(len(r.buf)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) instant() Instant {
	v := r.uint()
	if v == 0 {
		return 0
	}
	v--
	return r.base + (Instant(v>>1) ^ -Instant(v&1))
}

func (r *reader) exact(rate Rate) exact {
	e := exact{ns: r.int(), frac: r.int()}
	if e.frac < 0 || e.frac > 0 && e.frac >= rate.Limit {
		r.fail()
	}
	return e
}

func (r *reader) budget(b *budget, rate Rate) {
	b.full = r.exact(rate)
	for range r.count() {
		b.lows = append(b.lows, low{lease: r.uint(), lack: r.exact(rate)})
	}
	for i := 1; i < len(b.lows); i++ {
		if x, y := b.lows[i-1], b.lows[i]; x.lease > y.lease || !x.lack.before(y.lack) {
			r.fail()
		}
	}
	if len(b.lows) > maxLows {
		r.fail()
	}
}

func (r *reader) rate() Rate {
	return Rate{Limit: r.int(), Per: time.Duration(r.int()), Burst: r.int()}
}

func (r *reader) limits() Limits {
	var l Limits
	l.MaxInFlight = r.int()
	l.Pacing = r.rate()
	for range r.count() {
		l.Budgets = append(l.Budgets, Budget{Unit: r.text(), Rate: r.rate()})
	}
	for _, d := range l.durations() {
		*d = time.Duration(r.int())
	}
	l.MaxQueue = int(r.int())
	l.MaxExchangesPerSecond = r.int()
	r.budgets = len(l.Budgets)
	return l
}

func (r *reader) holder() holder {
	h := holder{
		id: r.text(), generation: r.uint(), order: r.uint(), lastSeen: r.instant(), comeAgain: r.instant(), seq: r.uint(),
	}
	if r.schema >= 2 {
		h.rules = Rules(min(r.uint(), math.MaxUint32))
	}
	h.delivery, h.confirmed, h.noticed = time.Duration(r.int()), r.uint(), r.uint()
	if r.schema >= 2 {
		h.loose = r.uint()
	}
	for range r.count() {
		n := Notice{
			N: r.uint(), Kind: NoticeKind(r.uint()), Ticket: r.uint(), Lease: r.uint(),
			Generation: uint32(r.uint()), StartAt: r.instant(), Window: time.Duration(r.int()), Account: Account{Waits: r.waits()},
		}
		if r.schema >= 2 {
			n.Since, n.Until, n.Position, n.Depth = r.instant(), r.instant(), r.small(), r.small()
		}
		n.Refusal = Refusal{Kind: RefusalKind(r.uint()), Field: r.text(), Value: r.int(), Bound: r.int(), ComeAgain: r.instant()}
		n.Revoked = RevokeCause(r.uint())
		h.outbox = append(h.outbox, n)
	}
	return h
}

func (r *reader) waits() (v Waits) {
	mask := r.uint()
	for i := range v {
		if mask&(1<<i) != 0 {
			v[i] = time.Duration(r.int())
		}
	}
	return v
}

// carried is an entry and what stands beside it, as the snapshot has them.
type carried struct {
	entry
	weight     int64
	label      string
	cost       costs
	waited     Waits
	arrived    arrival
	owns, head bool
}

func (r *reader) entry() (e carried) {
	copy(e.key[:], r.bytes(uint64(len(e.key))))
	e.label = r.text()
	e.arrival = r.uint()
	e.weight = r.int()
	for b := range r.budgets {
		e.cost[b] = r.int()
	}
	e.arrivedAt, e.deadline, e.parkedAt, e.accounted = r.instant(), r.instant(), r.instant(), r.instant()
	e.waited = r.waits()
	if r.schema >= 2 {
		e.arrived = arrival{r.instant(), r.small(), r.small()}
	}
	e.attempt = int32(r.int())
	e.generation = uint32(r.uint())
	e.handBacks, e.hold = r.byte(), Hold(r.byte())
	e.owns, e.head, e.spent = r.flags() // own sets e.place
	e.holder = none
	if at := r.uint(); at > 0 && at <= 1<<30 {
		e.holder, e.number = int32(at-1), r.uint()
	}
	if e.lease = r.uint(); e.lease != 0 {
		e.startAt, e.expires = r.instant(), r.instant()
	}
	return e
}
