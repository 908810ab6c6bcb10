package admission

import (
	"maps"
	"math/big"
	"slices"
	"time"
)

// oracle is a second implementation of the rule, written to be obviously right
// and not to be fast: plain slices, linear scans, rational numbers. It is told
// what no rule fixes: when a holder is asked to come again, and when the host
// said it would wake up.
type oracle struct {
	limits     Limits
	now, armed Instant
	learnUntil Instant
	paused     bool
	rules      Rules

	tickets  []*oTicket // in the queue or leased, by arrival
	holders  []*oHolder
	arrivals uint64
	leases   uint64

	lastStart Instant
	full      map[string]*big.Rat // when each bucket is full again; "" is the pacing
	log       map[string][]taken  // what was taken from it, to tell it anew when less was used

	cooldown Instant
	streak   int
	zeroHint bool
	ramped   int // admissions since the cooldown's end
}

// taken is one entry of a bucket's log: it was full at base or later, and then
// units were taken.
type taken struct {
	base  *big.Rat
	units int64
	lease *oTicket // nil: not to be given back
}

type oTicket struct {
	key       Key
	number    uint64
	arrival   uint64
	attempt   int32
	hold      Hold
	weight    int64
	cost      map[string]int64
	deadline  Instant
	parkedAt  Instant  // of a lease: since when it is kept
	holder    *oHolder // nil: parked
	owner     bool     // its key stands for it
	handBacks int
	counted   Instant // up to where waited is known
	waited    time.Duration
	since     Instant // when the present attempt came
	position  int32   // and how it found the queue
	depth     int32

	lease      uint64 // 0: queued
	generation uint32
	startAt    Instant
	expires    Instant
	spent      bool              // nothing is given back
	used       map[string]*int64 // of each budget, as far as is known
}

type oHolder struct {
	id         string
	generation uint64
	seq        uint64
	lastSeen   Instant
	comeAgain  Instant
	delivery   time.Duration
	outbox     []Notice // Waits holds only their sum, as WaitOrder
	noticed    uint64
	loose      uint64 // what was granted up to this notice is to be handed back
}

func newOracle(now Instant, l Limits, learnUntil Instant, rules Rules) *oracle {
	return &oracle{limits: l.WithDefaults(), now: now, rules: rules, learnUntil: learnUntil, leases: uint64(now) / 1000,
		full: map[string]*big.Rat{}, log: map[string][]taken{}}
}

// clone copies the whole state.
func (o *oracle) clone() *oracle {
	c := *o
	c.full = maps.Clone(o.full) // the numbers are never changed in place
	c.holders = nil
	to, as := map[*oHolder]*oHolder{}, map[*oTicket]*oTicket{}
	for _, h := range o.holders {
		copied := *h
		copied.outbox = slices.Clone(h.outbox)
		to[h] = &copied
		c.holders = append(c.holders, &copied)
	}
	c.tickets = nil
	for _, t := range o.tickets {
		copied := *t
		copied.cost, copied.holder = maps.Clone(t.cost), to[t.holder]
		copied.used = map[string]*int64{}
		for unit, n := range t.used {
			n := *n
			copied.used[unit] = &n
		}
		c.tickets = append(c.tickets, &copied)
		as[t] = &copied
	}
	c.log = map[string][]taken{}
	for unit, log := range o.log {
		for _, was := range log {
			c.log[unit] = append(c.log[unit], taken{was.base, was.units, as[was.lease]})
		}
	}
	return &c
}

// --- time and numbers

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func ratMax(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) >= 0 {
		return a
	}
	return b
}

func ceilRat(r *big.Rat) Instant {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return Instant(q.Int64())
}

// roundUp rounds to a multiple of 1/n.
func roundUp(r *big.Rat, n int64) *big.Rat {
	x := new(big.Rat).Mul(r, rat(n))
	q, m := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return new(big.Rat).SetFrac(q, big.NewInt(n))
}

// takes is how long the rate takes for n units.
func takes(n int64, r Rate) *big.Rat {
	return new(big.Rat).Mul(rat(n), big.NewRat(int64(r.Per), r.Limit))
}

func (o *oracle) observe(now Instant) {
	if now <= o.now {
		return
	}
	o.now = now
	if o.armed != 0 && now > o.armed+Instant(time.Second) {
		for _, h := range o.holders {
			h.lastSeen = now
			if h.comeAgain != 0 {
				h.comeAgain = now
			}
		}
		o.armed = 0
	}
}

// --- buckets

func (o *oracle) buckets() map[string]Rate {
	all := map[string]Rate{}
	if o.limits.Pacing.Limit > 0 {
		all[""] = o.limits.Pacing
	}
	for _, b := range o.limits.Budgets {
		all[b.Unit] = b.Rate
	}
	return all
}

func (o *oracle) fullAt(unit string) *big.Rat {
	if f := o.full[unit]; f != nil {
		return f
	}
	return rat(0)
}

func (o *oracle) lack(unit string, at Instant) *big.Rat {
	return ratMax(rat(0), new(big.Rat).Sub(o.fullAt(unit), rat(int64(at))))
}

// ready is the first nanosecond at which a bucket, full at the given instant,
// has so many units.
func ready(full *big.Rat, units int64, r Rate) Instant {
	return ceilRat(new(big.Rat).Sub(full, takes(r.Burst-units, r)))
}

func (o *oracle) take(unit string, t *oTicket, units int64, r Rate) {
	base := rat(int64(t.startAt))
	if full := o.fullAt(unit); units == r.Burst && ceilRat(full) == t.startAt {
		base = full // the exact instant, not the nanosecond after it
	}
	if t.spent {
		t = nil // what else was used since is unknown
	}
	o.log[unit] = append(o.log[unit], taken{base, units, t})
	o.retell(unit, r)
}

// give tells the bucket's story anew, the lease having used less.
func (o *oracle) give(t *oTicket, unit string, units int64, r Rate) {
	if t.spent {
		return
	}
	for i, was := range o.log[unit] {
		if was.lease == t {
			*t.used[unit] -= units
			o.log[unit][i].units -= units
		}
	}
	o.log[unit] = append(o.log[unit], taken{base: rat(int64(o.now))})
	o.retell(unit, r)
}

func (o *oracle) owe(unit string, units int64, r Rate) {
	o.log[unit] = append(o.log[unit], taken{rat(int64(o.now)), units, nil})
	o.retell(unit, r)
}

func (o *oracle) retell(unit string, r Rate) {
	full := rat(0)
	for _, was := range o.log[unit] {
		full = new(big.Rat).Add(ratMax(was.base, full), takes(was.units, r))
	}
	o.full[unit] = full
}

// restart begins the bucket's log with what it lacks now.
func (o *oracle) restart(unit string, full *big.Rat) {
	o.full[unit], o.log[unit] = full, []taken{{base: full}}
}

// --- holders and notices

func (o *oracle) holder(id string) *oHolder {
	for _, h := range o.holders {
		if h.id == id {
			return h
		}
	}
	return nil
}

func (o *oracle) register(now Instant, id string, generation uint64) *oHolder {
	o.observe(now)
	if h := o.holder(id); h != nil {
		if h.generation == generation {
			h.lastSeen = o.now
			return h
		}
		o.lose(h)
	}
	h := &oHolder{id: id, generation: generation, lastSeen: o.now}
	o.holders = append(o.holders, h)
	return h
}

func (o *oracle) lose(h *oHolder) {
	for _, t := range slices.Clone(o.tickets) {
		if t.holder == h && t.lease != 0 {
			if o.rules >= 2 && t.startAt > o.now {
				o.refund(t)
			}
			o.remove(t)
		} else if t.holder == h {
			o.park(t)
		}
	}
	o.holders = slices.DeleteFunc(o.holders, func(x *oHolder) bool { return x == h })
}

func (o *oracle) present(h *oHolder) bool {
	return h != nil && (h.comeAgain == 0 || o.now < h.comeAgain+Instant(2*time.Second))
}

func (o *oracle) tell(h *oHolder, n Notice) {
	h.noticed++
	n.N = h.noticed
	h.outbox = append(h.outbox, n)
}

func (o *oracle) refuse(h *oHolder, number uint64, r Refusal) {
	n := Notice{Kind: NoticeRefusal, Ticket: number, Refusal: r}
	if o.rules >= 2 {
		n.Since, n.Until, n.Depth = o.now, o.now, int32(len(o.queue()))
	}
	o.tell(h, n)
}

// refuseQueued refuses the holder of a queued ticket.
func (o *oracle) refuseQueued(t *oTicket, r Refusal) {
	n := Notice{Kind: NoticeRefusal, Ticket: t.number, Refusal: r}
	if o.rules >= 2 {
		o.count(t, o.now)
		n.Account = t.account()
	}
	o.tell(t.holder, n)
}

// count counts a ticket's wait up to an instant.
func (o *oracle) count(t *oTicket, to Instant) {
	if to > t.counted {
		t.waited += to.Sub(t.counted)
		t.counted = to
	}
}

// account is what the ticket is told; the reasons in one sum.
func (t *oTicket) account() Account {
	return Account{Waits: Waits{t.waited}, Since: t.since, Until: t.counted, Position: t.position, Depth: t.depth}
}

// inLine counts the tickets in the queue that aren't parked.
func (o *oracle) inLine() (n int32) {
	for _, t := range o.queue() {
		if t.holder != nil {
			n++
		}
	}
	return n
}

// left tells what a ticket waited for whose caller leaves.
func (o *oracle) left(h *oHolder, c Cancel) {
	t := o.byNumber(h, c.Ticket)
	if c.LeftAt == 0 || o.rules < 2 || t == nil || t.attempt > c.Attempt {
		return
	}
	if t.lease == 0 {
		o.count(t, min(max(c.LeftAt, t.since), o.now))
	}
	o.tell(h, Notice{Kind: NoticeLeft, Ticket: c.Ticket, Account: t.account()})
}

func (o *oracle) grant(t *oTicket) {
	window := time.Duration(0)
	if t.handBacks == 2 {
		window = 2 * o.limits.StartWindow
	} else if t.handBacks > 2 {
		window = -1
	}
	n := Notice{Kind: NoticeGrant, Ticket: t.number, Lease: t.lease, Generation: t.generation, StartAt: t.startAt, Window: window}
	n.Waits = Waits{t.waited}
	if o.rules >= 2 {
		n.Since, n.Position, n.Depth = t.since, t.position, t.depth
	}
	o.tell(t.holder, n)
}

func (o *oracle) confirm(h *oHolder, n uint64) {
	if n <= h.noticed {
		h.outbox = slices.DeleteFunc(h.outbox, func(x Notice) bool { return x.N <= n })
	}
}

// --- tickets

func (o *oracle) find(match func(*oTicket) bool) *oTicket {
	for _, t := range o.tickets {
		if match(t) {
			return t
		}
	}
	return nil
}

func (o *oracle) byNumber(h *oHolder, number uint64) *oTicket {
	return o.find(func(t *oTicket) bool { return t.holder == h && t.number == number })
}

func (o *oracle) queue() []*oTicket {
	return slices.DeleteFunc(slices.Clone(o.tickets), func(t *oTicket) bool { return t.lease != 0 })
}

func (o *oracle) leased() []*oTicket {
	return slices.DeleteFunc(slices.Clone(o.tickets), func(t *oTicket) bool { return t.lease == 0 })
}

func (o *oracle) inUse() (sum int64) {
	for _, t := range o.leased() {
		sum += t.weight
	}
	return sum
}

func (o *oracle) remove(t *oTicket) {
	o.tickets = slices.DeleteFunc(o.tickets, func(x *oTicket) bool { return x == t })
}

func (o *oracle) park(t *oTicket) {
	o.count(t, o.now)
	t.holder, t.number, t.parkedAt = nil, 0, o.now
}

func (o *oracle) priced(r *Request) map[string]int64 {
	cost := map[string]int64{}
	if slices.ContainsFunc(r.Cost, func(c UnitCost) bool { return c.N < 1 }) {
		return cost // of a presented lease; a request is refused
	}
	for _, c := range r.Cost {
		for _, b := range o.limits.Budgets {
			if b.Unit == c.Unit {
				cost[c.Unit] += c.N
			}
		}
	}
	return cost
}

func (o *oracle) never(weight int64, cost map[string]int64) (Refusal, bool) {
	if o.limits.MaxInFlight > 0 && weight > o.limits.MaxInFlight {
		return Refusal{Kind: RefusedNeverAdmissible, Field: "weight", Value: weight, Bound: o.limits.MaxInFlight}, true
	}
	for _, b := range o.limits.Budgets {
		if cost[b.Unit] > b.Rate.Burst {
			return Refusal{Kind: RefusedNeverAdmissible, Field: b.Unit, Value: cost[b.Unit], Bound: b.Rate.Burst}, true
		}
	}
	return Refusal{}, false
}

// soonest is when a ticket at the end of the queue could be admitted if places
// were free.
func (o *oracle) soonest(cost map[string]int64) Instant {
	at := max(o.now, o.cooldown, o.lastStart)
	start := rat(int64(at))
	for unit, r := range o.buckets() {
		units, before := cost[unit], int64(0)
		for _, t := range o.queue() {
			if o.present(t.holder) {
				if unit == "" {
					before++
				} else {
					before += t.cost[unit]
				}
			}
		}
		if unit == "" {
			units = 1
		}
		if units == 0 {
			continue
		}
		full := new(big.Rat).Add(ratMax(start, o.fullAt(unit)), takes(before, r))
		at = max(at, ready(full, units, r))
	}
	return at
}

func (o *oracle) acquire(h *oHolder, r Request) {
	if r.Number == 0 || o.byNumber(h, r.Number) != nil {
		return
	}
	old := o.find(func(t *oTicket) bool { return t.owner && t.key == r.Key })
	if old != nil {
		switch {
		case old.attempt > r.Attempt, old.attempt == r.Attempt && old.holder != nil && old.holder != h:
			o.refuse(h, r.Number, Refusal{Kind: RefusedSuperseded})
			return
		case old.lease == 0:
			if old.holder != nil && o.now > old.counted {
				old.waited += o.now.Sub(old.counted)
			}
			old.counted = max(old.counted, o.now)
			if old.holder != nil {
				o.refuseQueued(old, Refusal{Kind: RefusedSuperseded})
			}
			old.holder, old.number, old.attempt, old.hold, old.parkedAt = h, r.Number, r.Attempt, r.Hold, 0
			if o.rules >= 2 {
				old.waited = 0
				// It stands behind no more than came before it and are not gone.
				least := o.queue()[0].arrival
				old.since, old.position, old.depth = o.now, int32(min(old.arrival-least+1, uint64(o.inLine()))), int32(len(o.queue()))
			}
			if old.deadline == 0 {
				old.deadline = r.Deadline
			}
			return
		case old.hold == HoldCall && r.Hold == HoldCall:
			o.tell(old.holder, Notice{Kind: NoticeRevoked, Ticket: old.number, Lease: old.lease, Generation: old.generation, Revoked: RevokedMoved})
			old.holder, old.number, old.attempt = h, r.Number, r.Attempt
			old.generation++
			if o.rules >= 2 {
				// One more request to the provider, before all that queue.
				old.parkedAt, old.spent = 0, true
				old.startAt = o.earliest(old)
				if o.limits.Pacing.Spaced() {
					old.startAt = max(old.startAt, o.now.Add(h.delivery))
				}
				old.waited, old.counted = old.startAt.Sub(o.now), old.startAt
				old.since, old.position, old.depth = o.now, 1, int32(len(o.queue()))+1
				o.start(old)
			}
			o.grant(old)
			return
		}
	}
	if r.Weight == 0 {
		r.Weight = 1
	}
	if r.Weight < 0 {
		o.refuse(h, r.Number, Refusal{Kind: RefusedInvalid, Field: "weight", Value: r.Weight, Bound: 1})
		return
	}
	for _, c := range r.Cost {
		if c.N < 1 {
			o.refuse(h, r.Number, Refusal{Kind: RefusedInvalid, Field: c.Unit, Value: c.N, Bound: 1})
			return
		}
	}
	cost := o.priced(&r)
	if refusal, is := o.never(r.Weight, cost); is {
		o.refuse(h, r.Number, refusal)
		return
	}
	if n := len(o.queue()); n >= o.limits.MaxQueue {
		o.refuse(h, r.Number, Refusal{Kind: RefusedQueueFull, Value: int64(n), Bound: int64(o.limits.MaxQueue)})
		return
	}
	if at := o.soonest(cost); r.Deadline != 0 && at >= r.Deadline {
		o.refuse(h, r.Number, Refusal{Kind: RefusedTooLate, ComeAgain: at})
		return
	}
	if old != nil {
		old.owner = false
	}
	o.arrivals++
	o.tickets = append(o.tickets, &oTicket{
		key: r.Key, number: r.Number, arrival: o.arrivals, attempt: r.Attempt, hold: r.Hold, weight: r.Weight, cost: cost,
		deadline: r.Deadline, holder: h, owner: true, counted: o.now,
	})
	if t := o.tickets[len(o.tickets)-1]; o.rules >= 2 {
		t.since, t.position, t.depth = o.now, o.inLine(), int32(len(o.queue()))
	}
}

func (o *oracle) cancel(h *oHolder, c Cancel) {
	t := o.byNumber(h, c.Ticket)
	switch {
	case t == nil || t.attempt > c.Attempt:
	case c.Park:
		if t.lease == 0 || o.handBack(t) {
			o.park(t)
		}
	case t.lease != 0:
		o.refund(t)
		o.remove(t)
	default:
		o.remove(t)
	}
}

func (o *oracle) refund(t *oTicket) {
	for _, b := range o.limits.Budgets {
		if t.cost[b.Unit] > 0 {
			o.give(t, b.Unit, t.cost[b.Unit], b.Rate)
		}
	}
}

// handBack puts the ticket where it stood; false: it can't stand there.
func (o *oracle) handBack(t *oTicket) bool {
	o.refund(t)
	for _, log := range o.log {
		for i := range log {
			if log[i].lease == t {
				log[i].lease = nil // the ticket's next lease has entries of its own
			}
		}
	}
	t.lease, t.startAt, t.expires, t.parkedAt, t.spent = 0, 0, 0, 0, false
	t.counted = max(t.counted, o.now)
	if o.find(func(x *oTicket) bool { return x != t && x.owner && x.key == t.key }) != nil {
		o.refuseQueued(t, Refusal{Kind: RefusedSuperseded})
		o.remove(t)
		return false
	}
	if refusal, never := o.never(t.weight, t.cost); never {
		o.refuseQueued(t, refusal)
		o.remove(t)
		return false
	}
	t.owner = true
	return true
}

func (o *oracle) release(h *oHolder, r Release) {
	t := o.find(func(t *oTicket) bool { return t.lease == r.Lease && t.lease != 0 })
	f := r.Feedback
	if t == nil || t.holder != h || r.Generation != 0 && r.Generation != t.generation {
		if f.Outcome == OutcomeOverload {
			o.feedback(f, min(f.StartedAt, o.now))
		}
		return
	}
	o.feedback(f, min(max(f.StartedAt, t.startAt), o.now))
	for _, b := range o.limits.Budgets {
		used, named := int64(0), false
		for _, a := range f.Actual {
			if a.Unit == b.Unit && a.N >= 0 {
				used, named = used+a.N, true
			}
		}
		if named && used < t.cost[b.Unit] {
			o.give(t, b.Unit, t.cost[b.Unit]-used, b.Rate)
		} else if named && used > t.cost[b.Unit] {
			o.owe(b.Unit, min(used-t.cost[b.Unit], 10*b.Rate.Burst), b.Rate)
		}
	}
	if r.Keep && o.rules >= 2 && t.hold == HoldCall {
		t.parkedAt, t.spent = o.now, true
		return
	}
	o.remove(t)
}

// --- cooldown

func (o *oracle) feedback(f Feedback, started Instant) {
	if f.Outcome == OutcomeSuccess && started >= o.cooldown {
		o.streak, o.zeroHint = 0, false
	}
	if f.Outcome == OutcomeSuccess && o.rules >= 2 {
		o.cool(f.Asked)
	}
	if f.Outcome != OutcomeOverload || o.limits.MaxCooldown == 0 {
		return
	}
	switch {
	case f.Asked > 0:
		o.zeroHint = false
		o.cool(f.Asked)
		return
	case f.Asked == 0 && !o.zeroHint:
		o.zeroHint = true
		return
	}
	if o.limits.FallbackCooldown == 0 {
		return
	}
	if started >= o.cooldown {
		o.streak++
	}
	d := o.limits.FallbackCooldown
	for i := 1; i < o.streak && d < o.limits.MaxCooldown; i++ {
		d *= 2
	}
	o.cool(d)
}

func (o *oracle) cool(d time.Duration) {
	if d = min(d, o.limits.MaxCooldown); d > 0 && o.now.Add(d) > o.cooldown {
		o.cooldown, o.ramped = o.now.Add(d), 0
	}
}

// ramp is when the next admission after a cooldown may be: one, two, four, …
// in each eighth of a second, for a second.
func (o *oracle) ramp() Instant {
	if o.cooldown == 0 || o.limits.Pacing.Spaced() {
		return 0
	}
	step, allowed := 0, 1
	for o.ramped >= allowed && step < 8 {
		step++
		allowed += 1 << step
	}
	return o.cooldown + Instant(step)*Instant(125*time.Millisecond)
}

// --- limits

func (o *oracle) setLimits(now Instant, l Limits) {
	o.observe(now)
	was, before, places := o.buckets(), o.limits.Pacing, o.limits.MaxInFlight
	o.limits = l.WithDefaults()
	is := o.buckets()
	if o.rules >= 2 && (l.MaxInFlight > 0 && (places == 0 || l.MaxInFlight < places) || tighter(was, is)) {
		for _, h := range o.holders {
			h.loose = h.noticed
		}
	}
	for unit := range was {
		if _, kept := is[unit]; !kept {
			o.restart(unit, rat(0))
		}
	}
	for unit, to := range is {
		from, kept := was[unit]
		switch {
		case from == to:
		case unit == "" && to.Spaced() && before.Spaced():
			last := new(big.Rat).Sub(o.fullAt(""), takes(1, from))
			o.restart("", new(big.Rat).Add(roundUp(last, to.Limit), takes(1, to)))
		case unit == "" && to.Spaced() && o.lastStart != 0:
			o.restart("", new(big.Rat).Add(rat(int64(o.lastStart)), takes(1, to)))
		case unit == "" && (to.Spaced() || !kept):
			o.restart("", rat(0))
		case kept:
			units := new(big.Rat).Quo(o.lack(unit, o.now), takes(1, from))
			lack := roundUp(new(big.Rat).Mul(units, takes(1, to)), to.Limit)
			o.restart(unit, new(big.Rat).Add(rat(int64(o.now)), lack))
		}
	}
	for _, t := range slices.Clone(o.tickets) {
		maps.DeleteFunc(t.cost, func(unit string, _ int64) bool { _, kept := is[unit]; return !kept })
		if refusal, never := o.never(t.weight, t.cost); never && t.lease == 0 {
			if t.holder != nil {
				o.refuseQueued(t, refusal)
			}
			o.remove(t)
		}
	}
}

// tighter reports whether any bucket gives less than it did, at once or in the
// long run.
func tighter(was, is map[string]Rate) bool {
	for unit, to := range is {
		from, had := was[unit]
		if !had || to.Burst < from.Burst || big.NewRat(to.Limit, int64(to.Per)).Cmp(big.NewRat(from.Limit, int64(from.Per))) < 0 {
			return true
		}
	}
	return false
}

// --- a person's acts

func (o *oracle) cancelTicket(now Instant, ticket uint64) bool {
	o.observe(now)
	t := o.find(func(t *oTicket) bool { return t.arrival == ticket && t.lease == 0 })
	if t == nil {
		return false
	}
	if t.holder != nil {
		o.refuseQueued(t, Refusal{Kind: RefusedOperator})
	}
	o.remove(t)
	return true
}

func (o *oracle) revokeLease(now Instant, lease uint64) bool {
	o.observe(now)
	t := o.find(func(t *oTicket) bool { return t.lease == lease && lease != 0 })
	if t == nil {
		return false
	}
	o.tell(t.holder, Notice{Kind: NoticeRevoked, Ticket: t.number, Lease: t.lease, Generation: t.generation, Revoked: RevokedOperator})
	o.remove(t)
	return true
}

// handOver begins a run under other rules. The oldest know no kept leases.
func (o *oracle) handOver(rules Rules) {
	o.rules = rules
	if rules >= 2 {
		return
	}
	for _, t := range o.tickets {
		if t.since, t.position, t.depth = 0, 0, 0; t.lease != 0 {
			t.parkedAt = 0
		}
	}
	for _, h := range o.holders {
		h.loose = 0
		h.outbox = slices.DeleteFunc(h.outbox, func(n Notice) bool { return n.Kind == NoticeLeft })
		for i := range h.outbox {
			h.outbox[i].Account = Account{Waits: h.outbox[i].Waits}
		}
	}
}

// --- exchanges

// apply takes in an exchange; false: the holder is to present everything, or is
// superseded.
func (o *oracle) apply(now Instant, x *Exchange) bool {
	o.observe(now)
	ok := o.exchange(x)
	o.advance(now)
	return ok
}

func (o *oracle) exchange(x *Exchange) bool {
	h := o.holder(x.Holder)
	if h != nil && x.Generation < h.generation {
		return false
	}
	if (h == nil || x.Generation > h.generation) && x.Seq != 1 && !x.Resync {
		return false
	}
	h = o.register(o.now, x.Holder, x.Generation)
	h.comeAgain = 0
	o.confirm(h, x.Confirmed)
	if x.Seq <= h.seq {
		return true
	}
	if !x.Resync && x.Seq != h.seq+1 {
		return false
	}
	h.seq = x.Seq
	if x.RoundTrip > 0 {
		h.delivery = min(x.RoundTrip, 20*time.Millisecond)
	}
	for _, r := range x.Release {
		o.release(h, r)
	}
	for _, b := range x.HandBack {
		if t := o.find(func(t *oTicket) bool { return t.lease == b.Lease && t.lease != 0 && t.holder == h }); t != nil {
			if b.Late {
				t.handBacks++
			}
			o.handBack(t)
		}
	}
	if x.Resync {
		o.resync(h, x)
	}
	for _, c := range x.Cancel {
		o.left(h, c)
		o.cancel(h, c)
	}
	for _, r := range x.Acquire {
		o.acquire(h, r)
	}
	return true
}

func (o *oracle) resync(h *oHolder, x *Exchange) {
	if x.Confirmed > h.noticed {
		h.noticed = x.Confirmed
		for i := range h.outbox {
			h.noticed++
			h.outbox[i].N = h.noticed
		}
	}
	o.leases = max(o.leases, uint64(o.now)/1000)
	o.cool(x.CooldownUntil.Sub(o.now))
	if r := o.limits.Pacing; r.Spaced() && x.LastStart > o.lastStart {
		o.lastStart = min(x.LastStart, o.now.Add(max(o.limits.LookAhead, 0)))
		o.restart("", ratMax(o.fullAt(""), new(big.Rat).Add(rat(int64(o.lastStart)), takes(1, r))))
	}
	for _, t := range slices.Clone(o.tickets) {
		if t.holder == h && !slices.ContainsFunc(x.Present, func(p Present) bool { return p.Number == t.number }) {
			o.vanished(t)
		}
	}
	for _, p := range x.Present {
		t := o.byNumber(h, p.Number)
		if p.Lease == 0 {
			if t == nil {
				o.acquire(h, p.Request)
			} else if t.lease != 0 && !slices.ContainsFunc(h.outbox, func(n Notice) bool { return n.Kind == NoticeGrant && n.Lease == t.lease }) {
				o.grant(t)
			}
			continue
		}
		taken := o.find(func(t *oTicket) bool { return t.lease == p.Lease }) != nil
		revoked := slices.ContainsFunc(h.outbox, func(n Notice) bool { return n.Revoked == RevokedOperator && n.Lease == p.Lease })
		if taken || revoked || p.Weight < 0 || p.Lease > uint64(o.now)/1000+MaxInFlightBound || p.StartAt.Add(o.limits.MaxHold) <= o.now || p.Number == 0 {
			continue
		}
		if t != nil {
			o.vanished(t)
		}
		if q := o.find(func(t *oTicket) bool { return t.owner && t.key == p.Key && t.lease == 0 && t.attempt <= p.Attempt }); q != nil {
			if q.holder != nil {
				o.refuseQueued(q, Refusal{Kind: RefusedSuperseded})
			}
			o.remove(q)
		}
		o.arrivals++
		o.leases = max(o.leases, p.Lease)
		n := &oTicket{
			key: p.Key, number: p.Number, arrival: o.arrivals, attempt: p.Attempt, hold: p.Hold, weight: max(p.Weight, 1),
			cost: o.priced(&p.Request), holder: h, counted: o.now, lease: p.Lease, generation: max(p.Generation, 1),
			startAt: min(p.StartAt, o.now.Add(max(o.limits.LookAhead, 0))), spent: true, used: map[string]*int64{},
			owner: o.find(func(t *oTicket) bool { return t.owner && t.key == p.Key }) == nil,
		}
		n.expires = n.startAt.Add(o.limits.MaxHold)
		if o.rules >= 2 {
			n.since = o.now
		}
		o.tickets = append(o.tickets, n)
		for _, b := range o.limits.Budgets { // a stranger's word makes no debt
			if c := n.cost[b.Unit]; c > b.Rate.Burst {
				n.cost[b.Unit] = b.Rate.Burst
			}
		}
		o.charge(n)
	}
	h.outbox = slices.DeleteFunc(h.outbox, func(n Notice) bool {
		live := o.find(func(t *oTicket) bool { return t.holder == h && t.lease == n.Lease && t.generation == n.Generation })
		return n.Kind == NoticeGrant && live == nil
	})
}

func (o *oracle) vanished(t *oTicket) {
	if t.lease != 0 && t.startAt > o.now {
		o.refund(t)
	}
	o.remove(t)
}

// charge takes the lease's cost from the budgets at its start. It is more than a burst
// where a call goes on whose unit's burst was lowered: then it is a debt.
func (o *oracle) charge(t *oTicket) {
	for _, b := range o.limits.Budgets {
		if c := t.cost[b.Unit]; c > 0 {
			t.used[b.Unit] = &c
			o.take(b.Unit, t, c, b.Rate)
		}
	}
}

// --- the passing of time

// ends is when a ticket or lease ends by itself; 0: never.
func (o *oracle) ends(t *oTicket) Instant {
	if t.lease != 0 && t.parkedAt != 0 {
		return min(t.expires, t.parkedAt.Add(o.limits.ParkTTL))
	}
	if t.lease != 0 {
		return t.expires
	}
	at := t.deadline
	if t.holder == nil {
		if at == 0 || t.parkedAt.Add(o.limits.ParkTTL) < at {
			at = t.parkedAt.Add(o.limits.ParkTTL)
		}
	}
	return at
}

func (o *oracle) advance(now Instant) {
	o.observe(now)
	for {
		var first *oTicket
		for _, t := range o.tickets {
			if at := o.ends(t); at != 0 && at <= o.now && (first == nil || at < o.ends(first)) {
				first = t
			}
		}
		if first == nil {
			break
		}
		if first.lease != 0 {
			cause := RevokedMaxHold
			if o.now < first.expires {
				cause = RevokedAway
			}
			o.tell(first.holder, Notice{Kind: NoticeRevoked, Ticket: first.number, Lease: first.lease, Generation: first.generation, Revoked: cause})
		} else if first.holder != nil {
			o.refuseQueued(first, Refusal{Kind: RefusedQueueTimeout})
		}
		o.remove(first)
	}
	for _, h := range slices.Clone(o.holders) {
		if h.lastSeen.Add(o.limits.HolderTTL) <= o.now {
			o.lose(h)
		}
	}
	for o.admitOne() {
	}
}

func (o *oracle) head() *oTicket {
	for _, t := range o.queue() {
		if o.present(t.holder) {
			return t
		}
	}
	return nil
}

// earliest is when time lets the ticket pass.
func (o *oracle) earliest(t *oTicket) Instant {
	at := max(o.now, o.lastStart, o.cooldown, o.ramp())
	for unit, r := range o.buckets() {
		if unit == "" {
			at = max(at, ready(o.fullAt(unit), 1, r))
		} else if t.cost[unit] > 0 {
			at = max(at, ready(o.fullAt(unit), t.cost[unit], r))
		}
	}
	return at
}

func (o *oracle) blocked(t *oTicket) bool {
	return o.paused || o.learnUntil > o.now || o.limits.MaxInFlight > 0 && o.inUse()+t.weight > o.limits.MaxInFlight
}

func (o *oracle) admitOne() bool {
	t := o.head()
	if t == nil {
		return false
	}
	at := o.earliest(t)
	start := at
	if o.limits.Pacing.Spaced() {
		start = max(at, o.now.Add(t.holder.delivery))
	}
	if t.deadline != 0 && start >= t.deadline {
		o.refuseQueued(t, Refusal{Kind: RefusedTooLate, ComeAgain: start})
		o.remove(t)
		return true
	}
	if o.blocked(t) || at > o.now.Add(max(o.limits.LookAhead, 0)) {
		return false
	}
	t.startAt, t.expires = start, start.Add(o.limits.MaxHold)
	o.start(t)
	o.leases++
	t.lease = o.leases
	t.generation++
	t.waited += start.Sub(t.counted)
	t.counted = start
	o.grant(t)
	return true
}

// start takes what the attempt costs at its start.
func (o *oracle) start(t *oTicket) {
	if o.cooldown != 0 && t.startAt >= o.cooldown {
		o.ramped++
	}
	o.lastStart = t.startAt
	t.used = map[string]*int64{}
	if o.limits.Pacing.Limit > 0 {
		o.take("", t, 1, o.limits.Pacing)
	}
	o.charge(t)
}

// mustWake is the last instant at which the gate may be woken without missing
// anything.
func (o *oracle) mustWake() Instant {
	at := Never
	for _, t := range o.tickets {
		if end := o.ends(t); end != 0 {
			at = min(at, end)
		}
		if t.holder != nil {
			at = min(at, t.holder.lastSeen.Add(o.limits.HolderTTL))
		}
	}
	if t := o.head(); t != nil {
		if t.holder.comeAgain != 0 {
			at = min(at, t.holder.comeAgain.Add(2*time.Second))
		}
		if o.learnUntil > o.now {
			at = min(at, o.learnUntil)
		} else if !o.blocked(t) {
			at = min(at, o.earliest(t))
		}
	}
	return at
}
