package workflows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
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

// onOperate is the handler of the update operate. What an operator asks for and
// can't have is an answer, too: it stands in the log like what was done.
func (g *gate) onOperate(ctx workflow.Context, raw converter.RawValue) (act Act, err error) {
	defer g.survive(&err)
	g.updates++
	g.changed = true
	g.drain(ctx)
	var o Operate
	if !g.read(raw, &o) {
		return act, temporal.NewNonRetryableApplicationError("operate: not the JSON of an act", ErrTypeMalformed, nil)
	}
	if len(o.ID) > MaxActID {
		g.s.Counters.Malformed++
		return act, temporal.NewNonRetryableApplicationError(fmt.Sprintf("operate: id has %d bytes; allowed: at most %d", len(o.ID), MaxActID), ErrTypeMalformed, nil)
	}
	if at := slices.IndexFunc(g.start.Log, func(a Act) bool { return o.ID != "" && a.ID == o.ID }); at >= 0 {
		return g.start.Log[at], nil
	}
	act = Act{ID: o.ID, What: strings.ReplaceAll(bound(string(o.Do)), "_", " "), Who: o.Who, Why: o.Why}
	if err := g.operate(ctx, &o, &act); err != nil {
		act.Error = oneLine(err)
	}
	return g.record(ctx, act), nil
}

func (g *gate) operate(ctx workflow.Context, o *Operate, act *Act) error {
	switch o.Do {
	case DoPause:
		if st := g.s.Snap(); st.Paused {
			act.What = "pause (it was paused)"
		}
		cause := o.Who
		if o.Why != "" {
			cause = strings.TrimPrefix(cause+": "+o.Why, ": ")
		}
		g.s.Pause(g.now(ctx), bound(cause))
	case DoResume:
		if st := g.s.Snap(); !st.Paused {
			act.What = "resume (it was not paused)"
		}
		g.s.Resume(g.now(ctx))
	case DoSet:
		return g.layOver(ctx, o, act)
	case DoReset:
		was := g.effective()
		act.What = fmt.Sprintf("reset (%d overlays)", len(g.overlays))
		g.overlays = nil
		g.enforce(ctx)
		act.Changes = was.Changes(g.effective())
	case DoCancelTicket:
		ticket := o.Ticket
		if ticket == 0 {
			var err error
			if ticket, err = oneOf("ticket in the queue", o.Label, g.s.TicketsLabelled(o.Label)); err != nil {
				return err
			}
		}
		act.What = fmt.Sprintf("cancel ticket %d", ticket)
		if err := g.s.CancelTicket(g.now(ctx), ticket); err != nil {
			return fmt.Errorf("no ticket %d in the queue: it was admitted, or it has gone", ticket)
		}
	case DoRevokeLease:
		lease := o.Lease
		if lease == 0 {
			var err error
			if lease, err = oneOf("lease", o.Label, g.s.LeasesLabelled(o.Label)); err != nil {
				return err
			}
		}
		act.What = fmt.Sprintf("revoke lease %d", lease)
		if err := g.s.RevokeLease(g.now(ctx), lease); err != nil {
			return fmt.Errorf("no lease %d: it has ended", lease)
		}
	default:
		return fmt.Errorf("do is %q; allowed: %s, %s, %s, %s, %s, %s", bound(string(o.Do)), DoPause, DoResume, DoSet, DoReset, DoCancelTicket, DoRevokeLease)
	}
	return nil
}

// oneOf is the only number that a label stands for.
func oneOf(what, label string, numbers []uint64) (uint64, error) {
	switch {
	case label == "":
		return 0, fmt.Errorf("no %s is named", what)
	case len(numbers) == 0:
		return 0, fmt.Errorf("no %s has the label %q", what, bound(label))
	case len(numbers) > 1:
		shown := numbers[:min(len(numbers), 5)]
		return 0, fmt.Errorf("label %q: %d have it; name one by its number: %s", bound(label), len(numbers), strings.Trim(fmt.Sprint(shown), "[]"))
	}
	return numbers[0], nil
}

// layOver lays fields over what is in force, until the time is over or a reset.
func (g *gate) layOver(ctx workflow.Context, o *Operate, act *Act) error {
	act.What = "set " + describeSet(o.Set)
	switch {
	case len(o.Set) == 0:
		return fmt.Errorf("set names no field; allowed: %s", strings.Join(policy.Settable(), ", "))
	case o.For < 0:
		return fmt.Errorf("for is %v; allowed: 0 (until it is reset) or more", time.Duration(o.For))
	}
	was := g.effective()
	_, canonical, err := was.With(o.Set)
	if err != nil {
		return err
	}
	laid := Overlay{Set: canonical, Who: bound(o.Who), Why: bound(o.Why)}
	if o.For > 0 {
		laid.Until = workflow.Now(ctx).Add(time.Duration(o.For))
		act.Until = laid.Until
	}
	overlays := append(uncovered(g.overlays, laid), laid)
	if len(overlays) > maxOverlays {
		return fmt.Errorf("%d overlays are in force; allowed: at most %d; reset takes them away", len(overlays)-1, maxOverlays)
	}
	if _, err := overlaid(g.base, overlays); err != nil {
		return err
	}
	g.overlays = overlays
	g.enforce(ctx)
	act.Changes = was.Changes(g.effective())
	return nil
}

// uncovered is what is left of the overlays under another one: a field that it
// sets, and that goes back no later, is never seen again.
func uncovered(overlays []Overlay, by Overlay) []Overlay {
	var left []Overlay
	for _, o := range overlays {
		if by.Until.IsZero() || !o.Until.IsZero() && !o.Until.After(by.Until) {
			set := map[string]json.RawMessage{}
			//workflowcheck:ignore a map is made of a map
			for field, value := range o.Set {
				if _, covered := by.Set[field]; !covered {
					set[field] = value
				}
			}
			o.Set = set
		}
		if len(o.Set) > 0 {
			left = append(left, o)
		}
	}
	return left
}

// effective is the policy with what is laid over it. enforce has seen to it
// that this has no faults.
func (g *gate) effective() policy.Gate {
	effective, err := overlaid(g.base, g.overlays)
	if err != nil {
		return g.base
	}
	return effective
}

// oneLine is an error on one line; a policy has one for each fault.
func oneLine(err error) string { return strings.Join(strings.Split(err.Error(), "\n"), "; ") }

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
	was := g.overlays
	var over []Overlay
	g.overlays = slices.DeleteFunc(slices.Clone(was), func(o Overlay) bool {
		ends := !o.Until.IsZero() && !o.Until.After(now)
		if ends {
			over = append(over, o)
		}
		return ends
	})
	if len(over) == 0 {
		return
	}
	before, _ := overlaid(g.base, was) // valid, as it is in force
	g.enforce(ctx)
	if g.s.Rules() >= 2 {
		act := Act{What: "end of what was set", Changes: before.Changes(g.effective())}
		for _, o := range over {
			act.Who, act.Why = o.Who, o.Why
		}
		g.record(ctx, act)
	}
	g.changed = false
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

// record notes an act, and returns it as noted.
func (g *gate) record(ctx workflow.Context, a Act) Act {
	g.changed = true
	a.At, a.Who, a.Why, a.Error = workflow.Now(ctx), bound(a.Who), bound(a.Why), bound(a.Error)
	g.start.Log = append(g.start.Log, a)
	if extra := len(g.start.Log) - maxActs; extra > 0 {
		g.start.Log = slices.Delete(g.start.Log, 0, extra)
	}
	return a
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
