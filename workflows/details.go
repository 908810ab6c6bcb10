package workflows

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"sluice/admission"
	"sluice/policy"
)

// Temporal's UI shows a workflow's current details, a text in Markdown that the
// SDK keeps and hands out when somebody looks; it is in no history and decides
// nothing. The text has to be there before anybody asks, so it is written anew
// once a second at most, and when the gate comes to rest or changes its state.
const detailsEvery = time.Second

// detailed is what the current details were written for.
type detailed struct {
	at       admission.Instant // 0: never
	paused   bool
	cooldown admission.Instant
	idle     bool
	admitted uint64
}

// detail renews the current details where it is time.
func (g *gate) detail(ctx workflow.Context) {
	snap := g.s.Snap()
	is := detailed{at: g.now(ctx), paused: snap.Paused, cooldown: snap.CooldownUntil, idle: snap.InFlight == 0 && snap.Depth == 0, admitted: g.s.Counters.Admissions}
	was := &g.detailed
	due := was.at == 0 || is.at.Sub(was.at) >= detailsEvery || is.paused != was.paused || is.cooldown != was.cooldown ||
		is.idle && (!was.idle || is.admitted != was.admitted)
	if !due {
		return
	}
	*was = is
	effective := g.effective()
	st := g.s.Status(0)
	workflow.SetCurrentDetails(ctx, detailsText(g.start.GateID, &effective, len(g.overlays), &st))
}

// detailHolders is how many holders the details name.
const detailHolders = 5

// detailsText is the gate at a glance: a few lines of Markdown, at most some 3 KiB.
// Instants, not ages: nobody knows when it is read.
func detailsText(gate string, inForce *policy.Gate, overlays int, st *admission.Status) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "- **%s**: "+format+"\n", append([]any{name}, args...)...)
	}
	fmt.Fprintf(&b, "### %s\n\n", code(gate))
	switch {
	case st.Paused:
		line("paused", "%s", code(cmp.Or(st.PauseCause, "nobody said why")))
	case st.LearnUntil > st.Now:
		line("learning", "until %s what is in use", instant(st.LearnUntil))
	case st.Cooldown > st.Now:
		line("state", "cooling down until %s", instant(st.Cooldown))
	default:
		line("state", "open")
	}
	limits := inForce.LimitsText()
	if overlays > 0 {
		limits += ", other than the policy's: an operator set them"
	}
	line("limits", "%s", limits)
	used := fmt.Sprint(st.InUse)
	if st.Limits.MaxInFlight > 0 {
		used += fmt.Sprintf(" of %d", st.Limits.MaxInFlight)
	}
	line("in use", "%s; %d started, %d granted ahead", used, st.Started, st.Reserved)
	queue := fmt.Sprintf("%d, %d of them parked", st.Queued, st.Parked)
	if a := st.Ages; a.Present > 0 {
		queue += fmt.Sprintf("; the oldest waits since %s, half of them since %s or longer", instant(a.Oldest), instant(a.P50))
	}
	line("queue", "%s", queue)
	if st.Cause.At != 0 {
		line("last cooldown", "%s", cooldownText(st))
	}
	for i, h := range st.Holders[:min(len(st.Holders), detailHolders)] {
		if i == 0 {
			line("holders", "%d", len(st.Holders))
		}
		fmt.Fprintf(&b, "  - %s: %d in use, %d queued, seen %s\n", code(h.ID), h.Leased, h.Queued, instant(h.LastSeen))
	}
	if more := len(st.Holders) - detailHolders; more > 0 {
		fmt.Fprintf(&b, "  - and %d more\n", more)
	}
	c := &st.Counters
	line("so far", "%d admissions, %d overloads, %d cooldowns, %d hand-backs, %d lost holders", c.Admissions, c.Overloads, c.Cooldowns, c.HandBacks, c.LostHolders)
	fmt.Fprintf(&b, "\nAs of %s. `worker describe %s` and `worker dashboard` show more.\n", instant(st.Now), strings.ReplaceAll(gate, "`", ""))
	return b.String()
}

func cooldownText(st *admission.Status) string {
	c := &st.Cause
	cause := cmp.Or(c.Source, "fallback")
	if c.Status != 0 {
		cause = fmt.Sprintf("%d, %s", c.Status, cause)
	}
	text := fmt.Sprintf("%s to %s; %s, asked for %s", instant(c.At), instant(st.Cooldown), code(cause), policy.DurationText(c.Asked))
	if c.Applied != c.Asked {
		text += ", applied " + policy.DurationText(c.Applied)
	}
	return text
}

// instant is an instant as a person anywhere reads it.
func instant(i admission.Instant) string { return i.Time().UTC().Format("2006-01-02 15:04:05 UTC") }

// code is a text from elsewhere that Markdown takes as it is.
func code(text string) string {
	return "`" + strings.Map(func(r rune) rune {
		switch {
		case r == '`':
			return '\''
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return ' '
		}
		return r
	}, text) + "`"
}
