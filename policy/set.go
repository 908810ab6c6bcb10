package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/admission"
)

// settable are the keys that only the gate itself enforces. All others its
// holders follow, who read them from their file: set at the gate they would
// mean nothing, or something else on each side.
var settable = []string{
	"max_in_flight", formPerSecond, formInterval, formRequests, "budgets", "max_cooldown", "fallback_cooldown",
	"max_queue", "max_hold", "park_ttl", "look_ahead", "start_window", "max_exchanges_per_second",
}

// Settable are the keys that [Gate.With] takes, in the order of the file.
func Settable() []string { return slices.Clone(settable) }

// With returns the gate with keys set otherwise, as an operator does while it
// runs: each of [Settable], with a value as in the policy's JSON. Besides whole
// keys it takes requests.limit, requests.per, requests.burst, and
// budgets.UNIT.limit, .per and .burst; a burst that was the limit follows it.
// Any way to pace takes the place of the one before.
//
// canonical is what was set, under keys of the canonical JSON. The error is a
// *[FaultError] with every fault.
func (g Gate) With(set map[string]json.RawMessage) (changed Gate, canonical map[string]json.RawMessage, err error) {
	g, err = g.Normalize()
	if err != nil {
		return g, nil, err
	}
	fields := map[string]json.RawMessage{}
	for _, p := range g.mapping() {
		fields[p.key] = jsonOf(p.value)
	}
	names := make([]string, 0, len(set))
	//workflowcheck:ignore sorted below
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	var faults []Fault
	touched := map[string]bool{}
	for _, name := range names {
		key, err := lay(fields, name, set[name])
		if err != nil {
			faults = append(faults, Fault{Path: cut(name), Message: err.Error()})
			continue
		}
		if touched[key] && key == formRequests && !strings.Contains(name, ".") {
			faults = append(faults, Fault{Path: name, Message: "pacing is set twice", Allowed: "one of " + strings.Join(pacingForms, ", ")})
		}
		touched[key] = true
	}
	if len(faults) > 0 {
		return g, nil, &FaultError{Faults: faults}
	}
	if touched[formRequests] && !touched["start_window"] && g.StartWindow == defaultWindow(g.Requests) {
		delete(fields, "start_window") // the default is another one now
		touched["start_window"] = true
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return g, nil, &FaultError{Faults: []Fault{{Message: "a value is not JSON: " + err.Error()}}}
	}
	if changed, err = DecodeGate(body); err != nil {
		return g, nil, err
	}
	canonical = map[string]json.RawMessage{}
	for _, k := range gateKeys {
		if touched[k.name] {
			canonical[k.name] = jsonOf(k.value(&changed))
		}
	}
	return changed, canonical, nil
}

func defaultWindow(r admission.Rate) time.Duration { return max(r.Spacing(), admission.MinStartWindow) }

// lay sets one key in a gate's canonical fields, and says which of them that is.
func lay(fields map[string]json.RawMessage, name string, value json.RawMessage) (string, error) {
	key, rest, nested := strings.Cut(name, ".")
	switch {
	case !slices.Contains(gateKeyNames, key):
		return "", fmt.Errorf("unknown key; the nearest that can be set is %s", nearest(key, settable))
	case !slices.Contains(settable, key):
		return "", fmt.Errorf("it can't be set while the gate runs: workers read it from their policy file; allowed: %s", strings.Join(settable, ", "))
	case nested && key == formRequests:
		rate := map[string]json.RawMessage{}
		if err := json.Unmarshal(fields[formRequests], &rate); err != nil {
			return "", err
		}
		if err := layRate(rate, rest, value, "1s"); err != nil {
			return "", err
		}
		fields[formRequests] = jsonOf(rate)
		return key, nil
	case nested && key == "budgets":
		return key, layBudget(fields, rest, value)
	case nested:
		return "", fmt.Errorf("%s has no parts", key)
	case slices.Contains(pacingForms, key):
		for _, form := range pacingForms {
			delete(fields, form)
		}
		fields[key] = value
		return formRequests, nil
	}
	fields[key] = value
	return key, nil
}

// layBudget sets one part of one budget; one that is not there begins with
// nothing.
func layBudget(fields map[string]json.RawMessage, name string, value json.RawMessage) error {
	unit, part, ok := strings.Cut(name, ".")
	if !ok {
		return errors.New("which part of the budget is meant? allowed: budgets.UNIT.limit, .per, .burst")
	}
	var budgets []map[string]json.RawMessage
	if err := json.Unmarshal(fields["budgets"], &budgets); err != nil {
		return err
	}
	at := slices.IndexFunc(budgets, func(b map[string]json.RawMessage) bool { return string(b["unit"]) == string(jsonOf(unit)) })
	if at < 0 {
		at = len(budgets)
		budgets = append(budgets, map[string]json.RawMessage{"unit": jsonOf(unit)})
	}
	if err := layRate(budgets[at], part, value, ""); err != nil {
		return err
	}
	fields["budgets"] = jsonOf(budgets)
	return nil
}

// layRate sets one part of a rate. A burst that is the limit by default follows
// it. per is what stands where pacing was off.
func layRate(rate map[string]json.RawMessage, part string, value json.RawMessage, per string) error {
	switch part {
	case "limit":
		if _, budget := rate["unit"]; budget && string(rate["burst"]) == string(rate["limit"]) {
			delete(rate, "burst")
		}
		if _, given := rate["per"]; !given && per != "" {
			rate["per"] = jsonOf(per)
		}
	case "per", "burst":
	default:
		return fmt.Errorf("unknown part %q; allowed: limit, per, burst", part)
	}
	rate[part] = value
	return nil
}

// Change is one field that differs between two policies of a gate, for a
// person.
type Change struct {
	Field string `json:"field"` // a key of the file; budgets.UNIT of a budget
	Old   string `json:"old"`
	New   string `json:"new"`
}

// String is "max_in_flight: 8 -> 4".
func (c Change) String() string { return c.Field + ": " + c.Old + " -> " + c.New }

// Changes lists what another policy of the gate changes in this one, in the
// order of the file. Unlike [Gate.Diff] it looks at every key.
func (g Gate) Changes(other Gate) []Change {
	g, other = g.canonical(), other.canonical()
	var changes []Change
	note := func(field, old, now string) {
		if old != now {
			changes = append(changes, Change{Field: field, Old: old, New: now})
		}
	}
	for _, k := range gateKeys {
		switch k.name {
		case formRequests:
			note(k.name, RateText(g.Requests, 1), RateText(other.Requests, 1))
		case "budgets":
			for _, unit := range unitsOf(g, other) {
				a, b := g.budget(unit), other.budget(unit)
				note("budgets."+unit, RateText(a, a.Limit), RateText(b, b.Limit))
			}
		default:
			note(k.name, k.text(&g), k.text(&other))
		}
	}
	return changes
}

func unitsOf(gates ...Gate) []string {
	var units []string
	for _, g := range gates {
		for _, b := range g.Budgets {
			units = append(units, b.Unit)
		}
	}
	slices.Sort(units)
	return slices.Compact(units)
}

// budget is the rate of a unit's budget; the zero Rate where there is none.
func (g *Gate) budget(unit string) admission.Rate {
	for _, b := range g.Budgets {
		if b.Unit == unit {
			return b.Rate
		}
	}
	return admission.Rate{}
}

// RateText is a rate as a person says it, such as "500 per 1m, burst 10", or
// "off". burst is the one that goes without saying.
func RateText(r admission.Rate, burst int64) string {
	if r.IsZero() {
		return "off"
	}
	text := fmt.Sprintf("%d per %s", r.Limit, DurationText(r.Per))
	if r.Burst != burst {
		text += fmt.Sprintf(", burst %d", r.Burst)
	}
	return text
}

// LimitsText is what a gate enforces, in a few words: "8 in flight, 5 requests
// per 1s". It is never empty.
func (g *Gate) LimitsText() string {
	var parts []string
	if g.MaxInFlight > 0 {
		parts = append(parts, fmt.Sprintf("%d in flight", g.MaxInFlight))
	}
	rate := func(unit string, r admission.Rate, burst int64) {
		if r.Limit > 0 {
			parts = append(parts, strings.Replace(RateText(r, burst), " per", " "+unit+" per", 1))
		}
	}
	rate("requests", g.Requests, 1)
	for _, b := range g.Budgets {
		rate(b.Unit, b.Rate, b.Rate.Limit)
	}
	if len(parts) == 0 {
		return "no limits"
	}
	return strings.Join(parts, ", ")
}

// text is the key's value as a person reads it, with what 0 stands for.
func (k key) text(g *Gate) string {
	v := k.value(g)
	var zero string
	switch form := k.form.(type) {
	case integerForm:
		if v == int64(0) {
			zero = form.zero
		}
	case durationForm:
		if v == DurationText(0) {
			zero = form.zero
		}
	}
	return textOf(v) + meaning(zero)
}
