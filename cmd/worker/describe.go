package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/cmd/worker/internal/reading"
	"sluice/policy"
	"sluice/workflows"
)

// rows is how many leases, tickets, holders and acts are shown unless told.
const defaultRows = 10

func (p *program) describeCommand() *cobra.Command {
	var f gateFlags
	var rows int
	c := &cobra.Command{
		Use:   "describe GATE",
		Short: "Show a gate: limits, leases, queue with reasons, cooldown, holders, last acts",
		Long: `Show a gate as it is now: the limits in force and where they differ from the
policy, the cooldown with its cause, leases with age and holder, the head of the
queue with the reason for which each ticket waits, the holders, what operators did
last, and counters.` + gateHelp,
		Example: `  worker describe gpt-4o
  worker describe gpt-4o --rows 50
  worker describe gpt-4o --output json | jq '.queue[0]'`,
		Args: args(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			if rows < 0 {
				return usageError{command: c.CommandPath(), text: fmt.Sprintf("--rows is %d; it may be 0 or more", rows)}
			}
			return p.withGate(c.Context(), &f, args[0], func(gates *gateclient.Client, gate string) error {
				st, err := gates.Status(c.Context(), gate)
				if err != nil {
					return err
				}
				if f.output == "json" {
					return p.printJSON(st)
				}
				_, err = fmt.Fprint(p.stdout, view{&st, time.Now()}.page(rows))
				return err
			})
		},
	}
	f.add(p, c)
	c.Flags().IntVar(&rows, "rows", defaultRows, "how many leases, tickets, holders and acts are shown of each; at most 100")
	c.ValidArgsFunction = p.completeGate(&f, nil)
	return c
}

// view is a status as a person sees it at an instant. The gate's own instant is
// its last step, which may be long ago where nothing happens.
type view struct {
	*workflows.Status
	at time.Time
}

func (v view) reading() reading.Reading         { return reading.Reading{Status: v.Status, At: v.at} }
func (v view) now() time.Time                   { return v.reading().Now() }
func (v view) left(t time.Time) time.Duration   { return v.reading().Left(t) }
func (v view) age(t time.Time) time.Duration    { return v.reading().Age(t) }
func (v view) state() string                    { return v.reading().State() }
func (v view) inUse() string                    { return v.reading().InUse() }
func (v view) pacing() string                   { return v.reading().Pacing() }
func (v view) started() (reserved, started int) { return v.reading().Running() }

// by is who did it and why.
func by(who, why string) string {
	text := ""
	if who != "" {
		text = "by " + who
	}
	if why != "" {
		text = strings.TrimPrefix(text+": "+why, ": ")
	}
	return text
}

// page is the whole gate.
func (v view) page(rows int) string {
	var b strings.Builder
	v.head(&b)
	v.limits(&b)
	v.leases(&b, rows)
	v.queue(&b, rows)
	v.holders(&b, rows)
	v.lower(&b)
	v.acts(&b, rows)
	v.counters(&b)
	return b.String()
}

func (v view) head(b *strings.Builder) {
	fmt.Fprintf(b, "%s\n", v.Gate)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "  %-10s %s\n", name, shorten(fmt.Sprintf(format, args...), tableWidth-13))
	}
	line("workflow", "%s%s, run %d, rules %d", workflows.WorkflowIDPrefix, v.Gate, v.Runs+1, v.Rules)
	state := v.state()
	if v.Paused {
		state += " by " + v.PauseCause
	}
	line("state", "%s", strings.TrimSuffix(state, " by "))
	line("cooldown", "%s", v.reading().CooldownText())
	reserved, started := v.started()
	in := fmt.Sprint(v.InFlight)
	if v.Cap > 0 {
		in += fmt.Sprintf(" of %d", v.Cap)
	}
	line("in use", "%s: %d started, %d reserved", in, started, reserved)
	waited := func(they string, p50, p90, most time.Duration) {
		line("", "%s waited p50 %s, p90 %s, at most %s", they, span(p50), span(p90), span(most))
	}
	if v.Waits.Max > 0 {
		waited("they had", time.Duration(v.Waits.P50), time.Duration(v.Waits.P90), time.Duration(v.Waits.Max))
	}
	line("queue", "%d, of them %d parked", v.Queued, v.Parked)
	if !v.Ages.Oldest.IsZero() {
		waited("they have", v.age(v.Ages.P50), v.age(v.Ages.P90), v.age(v.Ages.Oldest))
	}
	pacing := v.pacing()
	if d := v.left(v.NextStart); d > 0 {
		pacing += ", next start in " + span(d)
	}
	line("pacing", "%s", pacing)
}

// limits shows what is in force, and the policy's where that differs.
func (v view) limits(b *strings.Builder) {
	t := table{head: []string{"LIMIT", "IN FORCE", fmt.Sprintf("POLICY (REVISION %d)", v.Policy.Revision)}, narrow: 2}
	for _, l := range v.reading().Limits() {
		t.add(l.Field, l.Value, l.Policy)
	}
	b.WriteString("\n")
	t.write(b, "")
	for _, o := range v.Overlays {
		until := "until it is reset"
		if !o.Until.IsZero() {
			until = fmt.Sprintf("goes back in %s, at %s", span(v.left(o.Until)), clock(o.Until, v.now()))
		}
		parts := sortedKeys(o.Set)
		parts[len(parts)-1] += ": set " + by(o.Who, o.Why)
		writeList(b, "  ", append(parts, until))
	}
}

// more says how many rows are not shown.
func more(b *strings.Builder, shown, all int) {
	if all > shown {
		fmt.Fprintf(b, "  and %d more\n", all-shown)
	}
}

func (v view) leases(b *strings.Builder, rows int) {
	reserved, started := v.started()
	if reserved+started == 0 {
		return
	}
	t := table{head: []string{"LEASE", "AGE", "WEIGHT", "ATTEMPT", "HOLDER", "CALL"}, right: map[int]bool{1: true, 2: true, 3: true}, narrow: 5}
	shown := v.Leases[:min(rows, len(v.Leases))]
	for _, l := range shown {
		age := span(v.age(l.StartAt))
		if d := v.left(l.StartAt); d > 0 {
			age = "in " + span(d)
		}
		t.add(fmt.Sprint(l.Lease), age, fmt.Sprint(l.Weight), fmt.Sprint(l.Attempt), shorten(l.Holder, holderWidth), l.Label)
	}
	b.WriteString("\n")
	t.write(b, "")
	more(b, len(shown), reserved+started)
}

// holderWidth is what of a holder's ID is shown beside other things.
const holderWidth = 24

func (v view) queue(b *strings.Builder, rows int) {
	if v.Queued == 0 {
		return
	}
	t := table{head: []string{"TICKET", "AGE", "WAITS FOR", "ATTEMPT", "HOLDER", "CALL"}, right: map[int]bool{0: true, 1: true, 3: true}, narrow: 5}
	shown := v.Queue[:min(rows, len(v.Queue))]
	for _, q := range shown {
		reason, holder := q.Reason, q.Holder
		if holder == "" {
			reason, holder = "its caller", "(parked)"
		}
		t.add(fmt.Sprint(q.Ticket), span(v.age(q.ArrivedAt)), reason, fmt.Sprint(q.Attempt), shorten(holder, holderWidth), q.Label)
	}
	b.WriteString("\n")
	t.write(b, "")
	more(b, len(shown), v.Queued)
}

func (v view) holders(b *strings.Builder, rows int) {
	if len(v.Holders) == 0 {
		return
	}
	t := table{head: []string{"HOLDER", "SEEN", "LEASES", "QUEUED", "STATE"}, right: map[int]bool{1: true, 2: true, 3: true}}
	shown := v.Holders[:min(rows, len(v.Holders))]
	for _, h := range shown {
		state := "present"
		switch {
		case h.Waiting:
			state = "waiting for news"
		case !h.Present:
			state = "away"
		}
		t.add(h.ID, span(v.age(h.LastSeen))+" ago", fmt.Sprint(h.Leased), fmt.Sprint(h.Queued), state)
	}
	b.WriteString("\n")
	t.write(b, "")
	more(b, len(shown), len(v.Holders))
}

func (v view) lower(b *strings.Builder) {
	if len(v.LowerLimits) == 0 {
		return
	}
	t := table{head: []string{"LOWER AT THE PROVIDER", "LIMIT", "POLICY", "SEEN", "HEADER"}, narrow: 4}
	for _, l := range v.LowerLimits {
		per := policy.DurationText(time.Duration(l.Per))
		t.add(l.Unit, fmt.Sprintf("%d per %s", l.Limit, per), fmt.Sprintf("%d per %s", l.Policy, per), span(v.age(l.At))+" ago", l.Header)
	}
	b.WriteString("\n")
	t.write(b, "")
}

func (v view) acts(b *strings.Builder, rows int) {
	if len(v.Log) == 0 || rows == 0 {
		return
	}
	b.WriteString("\nLAST ACTS\n")
	for i := len(v.Log) - 1; i >= max(0, len(v.Log)-rows); i-- { // the newest first
		a := v.Log[i]
		line := fmt.Sprintf("%s, %s ago: %s", clock(a.At, v.now()), span(v.age(a.At)), strings.TrimSpace(a.What+" "+by(a.Who, a.Why)))
		b.WriteString("  " + shorten(line, tableWidth-2) + "\n")
		if a.Error != "" {
			writeList(b, "    ", []string{"refused: " + a.Error})
		}
		if len(a.Changes) > 0 {
			writeList(b, "    ", changesOf(a.Changes))
		}
	}
}

func changesOf(changes []policy.Change) []string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return texts
}

func (v view) counters(b *strings.Builder) {
	c := v.Counters
	b.WriteString("\nCOUNTERS\n")
	var parts []string
	note := func(name string, n uint64, always bool) {
		if n > 0 || always {
			parts = append(parts, fmt.Sprintf("%s %d", name, n))
		}
	}
	note("admissions", c.Admissions, true)
	note("releases", c.Releases, true)
	note("overloads", c.Overloads, true)
	note("cooldowns", c.Cooldowns, true)
	for _, n := range []struct {
		name string
		n    uint64
	}{
		{"hand-backs", c.HandBacks}, {"expired leases", c.Expired}, {"revoked leases", c.Revoked}, {"lost holders", c.LostHolders}, {"parked", c.Parked},
		{"resyncs", c.Resyncs}, {"gaps", c.Gaps}, {"duplicates", c.Duplicates}, {"stale releases", c.StaleReleases}, {"stale acquires", c.StaleAcquires},
		{"stale cancels", c.StaleCancels}, {"malformed", c.Malformed}, {"conflicts", c.Conflicts},
	} {
		note(n.name, n.n, false)
	}
	for _, kind := range sortedKeys(c.Refusals) {
		note("refused as "+strings.ReplaceAll(kind, "_", " "), c.Refusals[kind], false)
	}
	writeList(b, "  ", parts)
}
