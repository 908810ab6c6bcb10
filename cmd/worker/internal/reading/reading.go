package reading

import (
	"fmt"
	"time"

	"sluice/policy"
	"sluice/workflows"
)

// Reading is a status as it is read at an instant.
type Reading struct {
	*workflows.Status
	At time.Time
}

// Now is the reader's time, unless the gate is ahead of it.
func (r Reading) Now() time.Time {
	if r.Status.Now.After(r.At) {
		return r.Status.Now
	}
	return r.At
}

// Left is how long it is until t.
func (r Reading) Left(t time.Time) time.Duration { return t.Sub(r.Now()) }

// Age is how long ago t was.
func (r Reading) Age(t time.Time) time.Duration { return r.Now().Sub(t) }

// Kind is why a gate admits nothing, in one word, or open.
type Kind string

// The kinds, in the order in which they are looked at.
const (
	Paused   Kind = "paused"
	Learning Kind = "learning"
	Cooldown Kind = "cooldown"
	Open     Kind = "open"
)

// Kind tells states apart, and until when the gate stays in one that ends by
// itself.
func (r Reading) Kind() (kind Kind, until time.Time) {
	switch {
	case r.Paused:
		return Paused, time.Time{}
	case r.Left(r.LearnUntil) > 0:
		return Learning, r.LearnUntil
	case r.Left(r.CooldownUntil) > 0:
		return Cooldown, r.CooldownUntil
	}
	return Open, time.Time{}
}

// State is the kind for a person, with how long it still lasts.
func (r Reading) State() string {
	kind, until := r.Kind()
	if until.IsZero() {
		return string(kind)
	}
	return string(kind) + " " + Span(r.Left(until))
}

// InUse is what is in flight, and of how much.
func (r Reading) InUse() string {
	if r.Cap == 0 {
		return fmt.Sprint(r.InFlight)
	}
	return fmt.Sprintf("%d/%d", r.InFlight, r.Cap)
}

// Pacing is the rate in force.
func (r Reading) Pacing() string { return policy.RateText(r.InForce.Requests, 1) }

// Running tells leases that are granted ahead from those that have started.
func (r Reading) Running() (reserved, started int) {
	reserved, started = r.Reserved, r.Started
	for _, l := range r.Leases {
		if l.StartAt.After(r.Status.Now) && !l.StartAt.After(r.Now()) {
			reserved, started = reserved-1, started+1
		}
	}
	return reserved, started
}

// CooldownText is the present cooldown or the last one, and what it came from.
func (r Reading) CooldownText() string {
	if r.Status.Cooldown == nil {
		return "none so far"
	}
	c := r.Status.Cooldown
	cause := c.Source
	if c.Status != 0 {
		cause = fmt.Sprintf("%d, %s", c.Status, c.Source)
	}
	cause = fmt.Sprintf("%s, asked for %s", cause, Span(time.Duration(c.Asked)))
	if c.Applied != c.Asked {
		cause += ", applied " + Span(time.Duration(c.Applied))
	}
	if d := r.Left(r.CooldownUntil); d > 0 {
		return fmt.Sprintf("%s left, until %s (%s)", Span(d), Clock(r.CooldownUntil, r.Now()), cause)
	}
	return fmt.Sprintf("over; the last one began %s ago (%s)", Span(r.Age(c.At)), cause)
}

// Limit is a limit in force.
type Limit struct {
	Field  string `json:"field"`
	Value  string `json:"value"`
	Policy string `json:"policy,omitempty"` // the policy's value, where that is another one
}

// Limits are those that people look for, and whatever differs from the policy.
func (r Reading) Limits() []Limit {
	changes := r.Policy.Changes(r.InForce)
	changed := map[string]policy.Change{}
	for _, c := range changes {
		changed[c.Field] = c
	}
	var limits []Limit
	add := func(field, value string) {
		was := ""
		if c, is := changed[field]; is {
			was = c.Old
			delete(changed, field)
		}
		limits = append(limits, Limit{Field: field, Value: value, Policy: was})
	}
	g := r.InForce
	inFlight := fmt.Sprint(g.MaxInFlight)
	if g.MaxInFlight == 0 {
		inFlight = "no cap"
	}
	add("max_in_flight", inFlight)
	add("requests", policy.RateText(g.Requests, 1))
	for _, budget := range g.Budgets {
		add("budgets."+budget.Unit, policy.RateText(budget.Rate, budget.Rate.Limit))
	}
	cooldown := policy.DurationText(max(g.MaxCooldown, 0))
	if g.MaxCooldown < 0 {
		cooldown = "no feedback"
	}
	add("max_cooldown", cooldown)
	add("max_queue", fmt.Sprint(g.MaxQueue))
	add("max_hold", policy.DurationText(g.MaxHold))
	for _, c := range changes {
		if _, left := changed[c.Field]; left {
			add(c.Field, c.New)
		}
	}
	return limits
}

// Span is a duration as a person reads it at a glance: 0.4s, 3.2s, 4m05s, 3h12m,
// 2d03h. Less than nothing is nothing.
func Span(d time.Duration) string {
	switch d = max(d, 0).Round(100 * time.Millisecond); {
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// Clock is an instant as a person reads it: the local time of day, with the day
// where it is another one.
func Clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}
