package workflows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/workflow"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// maxActs is how many acts of operators a gate remembers.
const maxActs = 20

// maxOverlays bounds the changes that are in force together.
const maxOverlays = 16

// onConfigure is the handler of the signal configure.
func (g *gate) onConfigure(ctx workflow.Context, raw converter.RawValue) {
	var c Configure
	if !g.read(raw, &c) {
		return
	}
	act := Act{What: "configure", Who: c.Who, Why: c.Why}
	if err := g.configureAs(ctx, &c, &act); err != nil {
		act.Error = err.Error()
	}
	g.record(ctx, act)
}

func (g *gate) configureAs(ctx workflow.Context, c *Configure, act *Act) error {
	if c.For < 0 {
		return fmt.Errorf("for is %v; allowed: 0 (until replaced) or more", time.Duration(c.For))
	}
	switch {
	case len(c.Policy) > 0:
		theirs, err := policy.DecodeGate(c.Policy)
		if err != nil {
			return err
		}
		if theirs.ID() != g.base.ID() {
			return fmt.Errorf("policy is for gate %s; this is %s", theirs.ID(), g.base.ID())
		}
		if theirs.Revision <= g.base.Revision {
			return fmt.Errorf("policy revision is %d; allowed: more than %d", theirs.Revision, g.base.Revision)
		}
		act.What = "policy revision " + fmt.Sprint(theirs.Revision)
		g.base, g.hash = theirs, theirs.Hash()
	case c.Reset:
		act.What = "overlays removed"
		g.overlays = nil
	case len(c.Set) > 0:
		act.What = "set " + describeSet(c.Set)
		o := Overlay{Set: c.Set, Who: bound(c.Who), Why: bound(c.Why)}
		if c.For > 0 {
			o.Until = workflow.Now(ctx).Add(time.Duration(c.For))
		}
		if len(g.overlays) >= maxOverlays {
			return fmt.Errorf("%d overlays are in force; allowed: at most %d", len(g.overlays), maxOverlays)
		}
		if _, err := overlaid(g.base, append(slices.Clone(g.overlays), o)); err != nil {
			return err
		}
		g.overlays = append(g.overlays, o)
	default:
		return fmt.Errorf("configure names nothing; allowed: policy, set, or reset")
	}
	g.enforce(ctx)
	return nil
}

// describeSet names the fields that a change sets, in one order.
func describeSet(set map[string]json.RawMessage) string {
	var fields []string
	//workflowcheck:ignore sorted below
	for field, value := range set {
		fields = append(fields, bound(field+"="+string(value)))
	}
	slices.Sort(fields)
	return bound(strings.Join(fields, ", "))
}

// enforce brings the scheduler in line with the policy and its overlays.
func (g *gate) enforce(ctx workflow.Context) {
	effective, err := overlaid(g.base, g.overlays)
	if err != nil {
		// A new policy may contradict an old overlay: the policy wins.
		g.overlays = nil
		effective = g.base
	}
	if err := g.s.SetLimits(g.now(ctx), effective.Limits()); err != nil {
		g.s.Counters.Malformed++
	}
	g.changed = true
}

// overlaid lays the changes over a policy, in their order, and validates.
func overlaid(base policy.Gate, overlays []Overlay) (policy.Gate, error) {
	if len(overlays) == 0 {
		return base, nil
	}
	body, err := json.Marshal(base)
	if err != nil {
		return base, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &fields); err != nil {
		return base, err
	}
	for _, o := range overlays {
		//workflowcheck:ignore each field is set once, so the order doesn't matter
		for field, value := range o.Set {
			fields[field] = value
		}
	}
	if body, err = json.Marshal(fields); err != nil {
		return base, err
	}
	changed, err := policy.DecodeGate(body)
	if err == nil && changed.ID() != base.ID() {
		err = fmt.Errorf("an overlay can't change the gate's identity (%s != %s)", changed.ID(), base.ID())
	}
	return changed, err
}

// endOverlays takes away the changes whose time is over.
func (g *gate) endOverlays(ctx workflow.Context) {
	now := workflow.Now(ctx)
	before := len(g.overlays)
	g.overlays = slices.DeleteFunc(g.overlays, func(o Overlay) bool { return !o.Until.IsZero() && !o.Until.After(now) })
	if len(g.overlays) != before {
		g.enforce(ctx)
		g.changed = false
	}
}

func (g *gate) nextOverlayEnd() admission.Instant {
	next := admission.Never
	for _, o := range g.overlays {
		if !o.Until.IsZero() {
			next = min(next, admission.InstantOf(o.Until))
		}
	}
	return next
}

// onPause is the handler of the signals pause and resume.
func (g *gate) onPause(ctx workflow.Context, raw converter.RawValue, what string) {
	var p Pause
	if !g.read(raw, &p) {
		return
	}
	if what == "pause" {
		g.s.Pause(g.now(ctx), strings.TrimSpace(bound(p.Who+" "+p.Why)))
	} else {
		g.s.Resume(g.now(ctx))
	}
	g.record(ctx, Act{What: what, Who: p.Who, Why: p.Why})
}

// read decodes what a person sent, in JSON; no argument at all is fine.
func (g *gate) read(raw converter.RawValue, v any) bool {
	data := raw.Payload().GetData()
	if len(data) == 0 {
		return true
	}
	if len(data) > MaxExchangeBytes || json.Unmarshal(data, v) != nil {
		g.s.Counters.Malformed++
		return false
	}
	return true
}

func (g *gate) record(ctx workflow.Context, a Act) {
	g.changed = true
	a.At, a.Who, a.Why, a.Error = workflow.Now(ctx), bound(a.Who), bound(a.Why), bound(a.Error)
	g.start.Log = append(g.start.Log, a)
	if extra := len(g.start.Log) - maxActs; extra > 0 {
		g.start.Log = slices.Delete(g.start.Log, 0, extra)
	}
}

// maxLower bounds the lower limits that a gate remembers.
const maxLower = 16

// noteLower remembers limits that the provider named, the latest of each header
// and unit. Nothing is decided by them.
func (g *gate) noteLower(ctx workflow.Context, lower []*contract.LowerLimit) {
	for _, l := range lower[:min(len(lower), maxLower)] {
		seen := LowerLimit{
			At: workflow.Now(ctx), Header: bound(l.GetHeader()), Unit: bound(l.GetUnit()),
			Limit: l.GetLimit(), Per: Duration(l.GetPer()), Policy: l.GetPolicy(),
		}
		at := slices.IndexFunc(g.start.Lower, func(o LowerLimit) bool { return o.Header == seen.Header && o.Unit == seen.Unit })
		switch {
		case at >= 0:
			g.start.Lower[at] = seen
		case len(g.start.Lower) < maxLower:
			g.start.Lower = append(g.start.Lower, seen)
		}
	}
}

// bound cuts text at a whole character.
func bound(text string) string {
	if len(text) <= MaxTextBytes {
		return text
	}
	return strings.ToValidUTF8(text[:MaxTextBytes], "")
}
