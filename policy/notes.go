package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/admission"
)

// Notes are remarks on a policy that is valid but may not mean what its author
// meant; one line each, in the order of the file.
func (p *Policy) Notes() []string {
	var notes []string
	for _, g := range p.Gates() {
		for _, text := range slices.Concat(g.noLimits(), g.deafness(), g.tooShort(), g.tooSlow(), g.surprises(), p.nameless(g)) {
			notes = append(notes, g.ID()+": "+text)
		}
	}
	return notes
}

func noteIf(odd bool, format string, args ...any) []string {
	if !odd {
		return nil
	}
	for i, a := range args {
		if d, ok := a.(time.Duration); ok {
			args[i] = DurationText(d)
		}
	}
	return []string{fmt.Sprintf(format, args...)}
}

func (g *Gate) noLimits() []string {
	if g.MaxInFlight > 0 || !g.Requests.IsZero() || len(g.Budgets) > 0 {
		return nil
	}
	if g.MaxCooldown < 0 {
		return []string{"has no cap, no pacing, no budget and no feedback: it limits nothing"}
	}
	return []string{"has no cap, no pacing and no budget: only a provider's cooldown holds calls up"}
}

// deafness: feedback that does less than it says.
func (g *Gate) deafness() []string {
	off := g.MaxCooldown < 0
	return slices.Concat(
		noteIf(!off && g.FallbackCooldown > g.MaxCooldown, "fallback_cooldown %s is cut to max_cooldown %s", g.FallbackCooldown, g.MaxCooldown),
		noteIf(off && g.FallbackCooldown > 0, "fallback_cooldown has no effect: max_cooldown: 0 switches feedback off"),
		noteIf(off && g.Learn, "learn only reports lower limits: max_cooldown: 0 switches cooldowns off"),
		noteIf(slices.Contains(g.OverloadStatuses, 403) && !slices.Contains(g.preset().ambiguous, 403), "every 403 counts as an overload, also where access is forbidden for good"),
	)
}

// tooShort: times that end before what they are for can be over.
func (g *Gate) tooShort() []string {
	spacing := g.Requests.Spacing()
	return slices.Concat(
		noteIf(g.MaxHold < spacing, "max_hold %s is shorter than the spacing %s", g.MaxHold, spacing),
		noteIf(g.MaxHold < g.MinCallTime, "max_hold %s is shorter than min_call_time %s: a lease may end under its call", g.MaxHold, g.MinCallTime),
		noteIf(g.QueueTimeout > 0 && g.QueueTimeout < spacing, "queue_timeout %s is shorter than the spacing %s: most tickets that have to wait are refused", g.QueueTimeout, spacing),
		noteIf(g.ParkTTL < g.MaxCooldown, "park_ttl %s is shorter than max_cooldown %s: a caller that stays away for a cooldown loses its place", g.ParkTTL, g.MaxCooldown),
	)
}

func (g *Gate) tooSlow() []string {
	var notes []string
	for _, b := range g.Budgets {
		if b.Rate.Spacing() > admission.DefaultMaxCooldown {
			notes = append(notes, fmt.Sprintf("one of budget %q comes only every %s", b.Unit, DurationText(b.Rate.Spacing())))
		}
	}
	return notes
}

// surprises: what has more effect than was likely meant.
func (g *Gate) surprises() []string {
	return slices.Concat(
		noteIf(slices.ContainsFunc(g.Activities, func(s string) bool { return strings.Trim(s, "*") == "" }), "activities names every activity type: each takes a lease, also those that call nobody"),
	)
}

// nameless: of several gates on one endpoint none is for calls that choose none.
// It is said of the first.
func (p *Policy) nameless(g *Gate) []string {
	var beside []*Gate
	for _, other := range p.gates {
		if other.Endpoint == g.Endpoint {
			beside = append(beside, other)
		}
	}
	unnamed := 0
	for _, other := range beside {
		if other.Name == "" {
			unnamed++
		}
	}
	return noteIf(len(beside) > 1 && beside[0] == g && unnamed != 1,
		"of the %d gates on this endpoint %d are without a name: a call that chooses none with WithGate is refused", len(beside), unnamed)
}
