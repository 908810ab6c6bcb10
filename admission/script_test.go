package admission

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// TestScripts runs the golden scripts of testdata: one behaviour each, told by
// what goes in and what comes out. Rewrite them with -rewrite, and read the
// difference.
//
// The language, where times count from the script's beginning:
//
//	gate cap=3 pacing=7/1s budget=tokens:60/1m:60 …   a new gate (see limits)
//	at 1.5s                 what happens then, a line each; Advance follows. Until
//	                        then the gate is woken whenever it asks to be, unless
//	                        it is "asleep"
//	a: acquire 1 weight=2 cost=tokens:5 deadline=9s attempt=2 call=x hold=call
//	a: acquire 1..20        many
//	a: release 1 overload asked=5s actual=tokens:3   or: error, abandoned
//	a: handback 1 late      a: cancel 2 attempt=1      a: park 2
//	a: confirm 7            a: leave
//	a: exchange seq=2 acquire=4,5 release=1 …        one message (see exchange)
//	pause | resume | cooldown 5s | restore | limits cap=2 …
//	cancel-ticket 3 | revoke 1   a person's acts; tickets in their order of arrival
//	run 10s                 time passes
//	status                  the whole gate, for a person
//
// Tickets and their calls are named by number, leases by the number of their
// ticket. Effects are printed first, then in use/cap, the queue and the next
// wake-up. "last" as an argument of at or run prints only each holder's last
// notice.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "fuzz") {
			return
		}
		sc := &script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			sc.t, sc.out = t, strings.Builder{}
			switch d.Cmd {
			case "gate":
				sc.gate(d)
			case "at", "run":
				sc.last = d.HasArg("last")
				until := sc.instant(d.CmdArgs[0].Key)
				if d.Cmd == "run" || until > sc.now && !d.HasArg("asleep") {
					sc.run(until)
				}
				if d.Cmd == "at" {
					sc.now = until
					for line := range strings.Lines(d.Input) {
						sc.line(strings.TrimSpace(line))
					}
					sc.s.Advance(sc.now)
				}
				sc.effects("")
				sc.state()
			case "status":
				sc.status()
			default:
				d.Fatalf(t, "unknown directive %s", d.Cmd)
			}
			return sc.out.String()
		})
	})
}

type script struct {
	t     *testing.T
	s     *Scheduler
	now   Instant
	out   strings.Builder
	last  bool
	shown map[string]uint64 // the last notice printed
	lease map[uint64]uint64 // of a ticket
}

func (sc *script) printf(format string, args ...any) { fmt.Fprintf(&sc.out, format, args...) }

func (sc *script) gate(d *datadriven.TestData) {
	sc.now, sc.shown, sc.lease = testEpoch, map[string]uint64{}, map[uint64]uint64{}
	var opts Options
	args := make([]string, 0, len(d.CmdArgs))
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "learn":
			opts.LearnUntil = sc.instant(a.Vals[0])
			continue
		case "rules":
			opts.Rules = Rules(sc.int(a.Vals[0]))
			continue
		}
		args = append(args, a.Key+"="+strings.Join(a.Vals, ""))
	}
	s, err := New(sc.now, sc.limits(args), opts)
	if err != nil {
		sc.printf("%v\n", err)
		return
	}
	sc.s = s
}

// limits reads cap=3 pacing=7/1s[:burst] budget=tokens:60/1m[:burst]
// max-queue=2 max-cooldown=5m fallback=1s max-hold= ttl= park= ahead= window=.
// By default holders are not lost, and nothing is granted ahead.
func (sc *script) limits(args []string) Limits {
	l := Limits{MaxCooldown: DefaultMaxCooldown, LookAhead: -1, HolderTTL: 24 * time.Hour}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "cap":
			l.MaxInFlight = sc.int(value)
		case "max-queue":
			l.MaxQueue = int(sc.int(value))
		case "pacing":
			l.Pacing = sc.rate(value, 1)
		case "budget":
			unit, rate, _ := strings.Cut(value, ":")
			l.Budgets = append(l.Budgets, Budget{Unit: unit, Rate: sc.rate(rate, 0)})
		default:
			field := map[string]*time.Duration{
				"max-cooldown": &l.MaxCooldown, "fallback": &l.FallbackCooldown, "max-hold": &l.MaxHold, "ttl": &l.HolderTTL,
				"park": &l.ParkTTL, "ahead": &l.LookAhead, "window": &l.StartWindow,
			}[key]
			require.NotNil(sc.t, field, "limit %q", key)
			*field = sc.duration(value)
		}
	}
	return l
}

// rate reads limit/per[:burst].
func (sc *script) rate(text string, burst int64) Rate {
	limit, rest, _ := strings.Cut(text, "/")
	per, more, _ := strings.Cut(rest, ":")
	r := Rate{Limit: sc.int(limit), Per: sc.duration(per), Burst: burst}
	if more != "" {
		r.Burst = sc.int(more)
	} else if burst == 0 {
		r.Burst = r.Limit
	}
	return r
}

func (sc *script) int(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(sc.t, err)
	return n
}

func (sc *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(sc.t, err)
	return d
}

func (sc *script) instant(text string) Instant { return testEpoch.Add(sc.duration(text)) }

func (sc *script) holder(id string) HolderRef {
	if h, ok := sc.s.HolderByID(id); ok {
		return h
	}
	h, err := sc.s.Register(sc.now, id, 1)
	require.NoError(sc.t, err)
	return h
}

// line makes one transition.
func (sc *script) line(line string) {
	if id, rest, ok := strings.Cut(line, ": "); ok {
		words := strings.Fields(rest)
		sc.command(id, words[0], words[1:])
		return
	}
	words := strings.Fields(line)
	switch words[0] {
	case "pause":
		sc.s.Pause(sc.now, "by hand")
	case "resume":
		sc.s.Resume(sc.now)
	case "cooldown":
		sc.s.Cooldown(sc.now, sc.duration(words[1]), Cause{})
	case "limits":
		if err := sc.s.SetLimits(sc.now, sc.limits(words[1:])); err != nil {
			sc.printf("%v\n", err)
		}
	case "cancel-ticket":
		if err := sc.s.CancelTicket(sc.now, uint64(sc.int(words[1]))); err != nil {
			sc.printf("%v\n", err)
		}
	case "revoke":
		if err := sc.s.RevokeLease(sc.now, sc.lease[uint64(sc.int(words[1]))]); err != nil {
			sc.printf("%v\n", err)
		}
	case "restore":
		restored, err := Restore(sc.s.Snapshot(nil))
		require.NoError(sc.t, err)
		sc.s = restored
	default:
		sc.t.Fatalf("unknown line %q", line)
	}
}

func (sc *script) command(id, verb string, args []string) {
	if verb == "exchange" {
		sc.exchange(id, args)
		return
	}
	h := sc.holder(id)
	first, last, options := sc.operand(args)
	for n := first; n <= last; n++ {
		switch verb {
		case "acquire":
			if err := sc.s.Acquire(sc.now, h, sc.request(n, options)); err != nil {
				sc.printf("error: %v\n", err)
			}
		case "release":
			sc.s.Release(sc.now, h, sc.lease[n], sc.generation(options), sc.feedback(options))
		case "keep":
			sc.s.Keep(sc.now, h, sc.lease[n], sc.generation(options), sc.feedback(options))
		case "handback":
			sc.s.HandBack(sc.now, h, sc.lease[n], len(options) > 0 && options[0] == "late")
		case "cancel", "park":
			attempt := int32(1)
			for _, o := range options {
				attempt = int32(sc.int(strings.TrimPrefix(o, "attempt=")))
			}
			if verb == "cancel" {
				sc.s.Cancel(sc.now, h, n, attempt)
			} else {
				sc.s.Park(sc.now, h, n, attempt)
			}
		case "confirm":
			sc.s.Confirm(h, n)
		case "leave":
			require.NoError(sc.t, sc.s.Unregister(sc.now, h))
		default:
			sc.t.Fatalf("unknown verb %q", verb)
		}
	}
}

// operand reads 3 or 3..7 and returns the rest.
func (sc *script) operand(args []string) (first, last uint64, options []string) {
	if len(args) == 0 {
		return 0, 0, nil
	}
	from, to, many := strings.Cut(args[0], "..")
	first = uint64(sc.int(from))
	last = first
	if many {
		last = uint64(sc.int(to))
	}
	return first, last, args[1:]
}

func (sc *script) generation(options []string) uint32 {
	for _, o := range options {
		if value, ok := strings.CutPrefix(o, "generation="); ok {
			return uint32(sc.int(value))
		}
	}
	return 0
}

func (sc *script) request(n uint64, options []string) Request {
	r := Request{Number: n, Label: fmt.Sprint(n), Attempt: 1}
	call := n
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "weight":
			r.Weight = sc.int(value)
		case "cost":
			r.Cost = append(r.Cost, sc.cost(value))
		case "deadline":
			r.Deadline = sc.instant(value)
		case "attempt":
			r.Attempt = int32(sc.int(value))
		case "call":
			call = uint64(sc.int(value))
		case "hold":
			r.Hold = map[string]Hold{"call": HoldCall, "attempt": HoldAttempt}[value]
		default:
			sc.t.Fatalf("unknown option %q", o)
		}
	}
	r.Label = fmt.Sprint(call)
	binary.BigEndian.PutUint64(r.Key[:], call)
	return r
}

func (sc *script) cost(text string) UnitCost {
	unit, n, _ := strings.Cut(text, ":")
	return UnitCost{Unit: unit, N: sc.int(n)}
}

func (sc *script) feedback(options []string) Feedback {
	f := Feedback{Asked: -1}
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "overload":
			f.Outcome, f.Status = OutcomeOverload, 429
		case "error":
			f.Outcome = OutcomeError
		case "abandoned":
			f.Outcome = OutcomeAbandoned
		case "asked":
			f.Asked, f.Source = sc.duration(value), "retry-after"
		case "actual":
			f.Actual = append(f.Actual, sc.cost(value))
		case "started":
			f.StartedAt = sc.instant(value)
		case "generation":
		default:
			sc.t.Fatalf("unknown option %q", o)
		}
	}
	return f
}

// exchange reads generation= seq= confirmed= trip= resync acquire=1,2 cancel=3
// park=4 handback=5 release=6 present=7 holds=8@1s (a lease and its start) ask=9
// cooldown= last-start=.
func (sc *script) exchange(id string, args []string) {
	x := &Exchange{Holder: id, Generation: 1}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		each := func(do func(n uint64)) {
			for _, v := range strings.Split(value, ",") {
				do(uint64(sc.int(v)))
			}
		}
		switch key {
		case "generation":
			x.Generation = uint64(sc.int(value))
		case "seq":
			x.Seq = uint64(sc.int(value))
		case "confirmed":
			x.Confirmed = uint64(sc.int(value))
		case "trip":
			x.RoundTrip = sc.duration(value)
		case "resync":
			x.Resync = true
		case "cooldown":
			x.CooldownUntil = sc.instant(value)
		case "last-start":
			x.LastStart = sc.instant(value)
		case "acquire":
			each(func(n uint64) { x.Acquire = append(x.Acquire, sc.request(n, nil)) })
		case "cancel":
			each(func(n uint64) { x.Cancel = append(x.Cancel, Cancel{Ticket: n, Attempt: 1}) })
		case "park":
			each(func(n uint64) { x.Cancel = append(x.Cancel, Cancel{Ticket: n, Attempt: 1, Park: true}) })
		case "handback":
			each(func(n uint64) { x.HandBack = append(x.HandBack, HandBack{Lease: sc.lease[n]}) })
		case "release":
			each(func(n uint64) {
				x.Release = append(x.Release, Release{Lease: sc.lease[n], Feedback: Feedback{Asked: -1}})
			})
		case "present":
			each(func(n uint64) { x.Present = append(x.Present, Present{Request: sc.request(n, nil)}) })
		case "holds":
			for _, v := range strings.Split(value, ",") {
				ticket, start, _ := strings.Cut(v, "@")
				n := uint64(sc.int(ticket))
				if sc.lease[n] == 0 {
					sc.lease[n] = n // of a run that was lost
				}
				x.Present = append(x.Present, Present{Request: sc.request(n, nil), Lease: sc.lease[n], Generation: 1, StartAt: sc.instant(start)})
			}
		case "ask":
			each(func(n uint64) { x.Ask = append(x.Ask, n) })
		default:
			sc.t.Fatalf("unknown option %q", arg)
		}
	}
	a := sc.s.Apply(sc.now, x)
	sc.printf("%s: answer seq %d", id, a.Seq)
	switch {
	case a.Resync:
		sc.printf(", present everything")
	case a.Superseded:
		sc.printf(", superseded")
	default:
		sc.printf(", come again %s", sc.when(a.ComeAgain))
	}
	if len(a.Positions) > 0 {
		sc.printf(", positions %v", a.Positions)
	}
	if a.HandBackTo > 0 {
		sc.printf(", hand back up to notice %d", a.HandBackTo)
	}
	if len(a.Notices) > 0 {
		sc.printf(", notices %d to %d", a.Notices[0].N, a.Notices[len(a.Notices)-1].N)
	}
	sc.printf("\n")
}

// run lets the time pass, waking the gate whenever it asks to be.
func (sc *script) run(until Instant) {
	for {
		wake := sc.s.NextWake()
		if wake > until {
			break
		}
		require.Greater(sc.t, wake, sc.s.now, "the next wake-up must be later")
		sc.now = wake
		sc.s.Advance(wake)
		if !sc.last {
			sc.effects(fmt.Sprintf("%s ", sc.when(wake)))
		}
	}
	sc.now = until
	sc.s.Advance(until)
}

func (sc *script) when(i Instant) string {
	switch i {
	case 0:
		return "any time"
	case Never:
		return "never"
	}
	return i.Sub(testEpoch).String()
}

// effects prints the notices that are new.
func (sc *script) effects(prefix string) {
	for _, i := range sc.s.holderOrder() {
		id := sc.s.holders[i].id
		notices := sc.s.Notices(HolderRef(i))
		for at, n := range notices {
			if n.N <= sc.shown[id] {
				continue
			}
			sc.shown[id] = n.N
			if n.Kind == NoticeGrant {
				sc.lease[n.Ticket] = n.Lease
			}
			if sc.last && at < len(notices)-1 {
				continue
			}
			sc.printf("%s%s: %s\n", prefix, id, sc.notice(&n))
		}
		if len(notices) == 0 {
			sc.shown[id] = min(sc.shown[id], sc.s.holders[i].noticed)
		}
	}
}

func (sc *script) notice(n *Notice) string {
	switch n.Kind {
	case NoticeGrant:
		text := fmt.Sprintf("granted %d, start %s", n.Ticket, sc.when(n.StartAt))
		switch {
		case n.Window < 0:
			text += ", no window"
		case n.Window > 0:
			text += fmt.Sprintf(", window %v", n.Window)
		}
		if n.Generation > 1 {
			text += fmt.Sprintf(", generation %d", n.Generation)
		}
		limits := sc.s.Limits()
		for w, d := range n.Waits {
			if d != 0 {
				text += fmt.Sprintf(", %s %v", Wait(w).Name(&limits), d)
			}
		}
		return text
	case NoticeRevoked:
		return fmt.Sprintf("revoked %d: %s", n.Ticket, map[RevokeCause]string{RevokedMaxHold: "max_hold", RevokedMoved: "moved on", RevokedAway: "its call did not come back", RevokedOperator: "by a person"}[n.Revoked])
	}
	text := fmt.Sprintf("refused %d: ", n.Ticket) + map[RefusalKind]string{
		RefusedQueueTimeout: "queue timeout", RefusedQueueFull: "queue full", RefusedNeverAdmissible: "never admissible",
		RefusedTooLate: "too late", RefusedInvalid: "invalid", RefusedSuperseded: "superseded", RefusedOperator: "by a person",
	}[n.Refusal.Kind]
	if n.Refusal.Field != "" {
		text += fmt.Sprintf(", %s %d, bound %d", n.Refusal.Field, n.Refusal.Value, n.Refusal.Bound)
	} else if n.Refusal.Bound != 0 {
		text += fmt.Sprintf(", %d of %d", n.Refusal.Value, n.Refusal.Bound)
	}
	if n.Refusal.ComeAgain != 0 {
		text += ", come again " + sc.when(n.Refusal.ComeAgain)
	}
	return text
}

// state prints what is in use, who waits and when the gate wakes up.
func (sc *script) state() {
	in := fmt.Sprint("in use ", sc.s.inUse)
	if most := sc.s.limits.MaxInFlight; most > 0 {
		in += fmt.Sprint("/", most)
	}
	var queue []string
	for i := sc.s.q.head; i != none; i = sc.s.q.entries[i].next {
		e := &sc.s.q.entries[i]
		owner := sc.s.holderName(e.holder)
		if e.holder == none {
			owner = "parked "
		}
		queue = append(queue, owner+sc.s.q.labels[i])
	}
	if len(queue) > 12 {
		queue = append(queue[:12], fmt.Sprint("and ", len(queue)-12, " more"))
	}
	sc.printf("%s, queue [%s], wake %s\n", in, strings.Join(queue, " "), sc.when(sc.s.NextWake()))
}

func (sc *script) status() {
	st := sc.s.Status(10)
	sc.printf("reserved %d, started %d, queued %d (%d parked)\n", st.Reserved, st.Started, st.Queued, st.Parked)
	for _, h := range st.Holders {
		sc.printf("holder %s: present %v, queued %d, leased %d\n", h.ID, h.Present, h.Queued, h.Leased)
	}
	for _, l := range st.Leases {
		sc.printf("lease %s of %s, weight %d, start %s, expires %s\n", l.Label, l.Holder, l.Weight, sc.when(l.StartAt), sc.when(l.Expires))
	}
	limits := st.Limits
	for _, q := range st.Queue {
		sc.printf("ticket %s of %q waits for %s\n", q.Label, q.Holder, q.Reason.Name(&limits))
	}
	c := st.Counters
	sc.printf("admissions %d, releases %d, cooldowns %d, hand-backs %d, stale %d/%d/%d, duplicates %d, gaps %d\n",
		c.Admissions, c.Releases, c.Cooldowns, c.HandBacks, c.StaleAcquires, c.StaleCancels, c.StaleReleases, c.Duplicates, c.Gaps)
}
