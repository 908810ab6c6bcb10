package policy

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice/admission"

	"go.yaml.in/yaml/v3"
)

// Bounds of the lists of a gate, and of the texts in them.
const (
	maxListed        = 256
	maxPatternLength = 255
	maxExchanges     = 1_000_000
)

// key is one key of a gate in the file.
type key struct {
	name string
	// limit marks a key that a gate can do without: on_invalid: disable drops
	// it where it has a fault.
	limit bool
	// local marks a key that neither gate nor holders enforce: it is no part
	// of the hash.
	local bool
	// read sets the gate's field, where the value has no fault.
	read func(r *reader, at spot, g *Gate)
	// value is the field as the file would say it; nil where it is unset.
	// A key that is only another form of one has no value.
	value func(g *Gate) any
}

// enforced is the key's part of the hash.
func (k key) enforced(g *Gate) any {
	if k.local {
		return nil
	}
	c := Gate{Requests: reduced(g.Requests)}
	for _, b := range g.Budgets {
		c.Budgets = append(c.Budgets, admission.Budget{Unit: b.Unit, Rate: reduced(b.Rate)})
	}
	switch k.name {
	case formRequests, "budgets":
		return k.value(&c)
	}
	return k.value(g)
}

// gateKeys are the keys of a gate in the order of the documentation.
var gateKeys = []key{
	{name: "provider",
		read: func(r *reader, at spot, g *Gate) {
			if s, ok := r.text(at, providerAllowed, func(s string) bool { return validProvider(lowerASCII(s)) }); ok {
				g.Provider = lowerASCII(s)
			}
		},
		value: func(g *Gate) any { return given(g.Provider) }},
	{name: "endpoint",
		read: func(r *reader, at spot, g *Gate) {
			if !at.scalar("!!str") {
				r.message(at, "is not a text", endpointAllowed)
				return
			}
			e, err := parseEndpoint(at.node.Value)
			if err != nil {
				r.message(at, err.Error(), endpointAllowed)
				return
			}
			g.Endpoint = e.String()
		},
		value: func(g *Gate) any { return given(g.Endpoint) }},
	{name: "name",
		read: func(r *reader, at spot, g *Gate) {
			g.Name, _ = r.text(at, nameAllowed, validName)
		},
		value: func(g *Gate) any { return given(g.Name) }},
	{name: "preset",
		read: func(r *reader, at spot, g *Gate) {
			g.Preset, _ = r.word(at, presetNames...)
		},
		value: func(g *Gate) any { return given(g.Preset) }},

	{name: "max_in_flight", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.MaxInFlight, _ = r.integer(at, 0, admission.MaxInFlightBound, "no cap")
		},
		value: func(g *Gate) any { return g.MaxInFlight }},
	{name: formPerSecond, limit: true, read: (*reader).perSecond, value: unset},
	{name: formInterval, limit: true, read: (*reader).interval, value: unset},
	{name: formRequests, limit: true, read: (*reader).requests,
		value: func(g *Gate) any { return rateMapping(g.Requests) }},
	{name: "budgets", limit: true, read: (*reader).budgets,
		value: func(g *Gate) any {
			budgets := []any{}
			for _, b := range g.Budgets {
				budgets = append(budgets, append(mapping{{"unit", b.Unit}}, rateMapping(b.Rate)...))
			}
			return budgets
		}},

	{name: "max_cooldown", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			if d, ok := r.duration(at, 0, admission.MaxDuration, "no feedback"); ok {
				g.MaxCooldown = zeroIsOff(d)
			}
		},
		value: func(g *Gate) any { return durationOrOff(g.MaxCooldown) }},
	{name: "fallback_cooldown", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.FallbackCooldown, _ = r.duration(at, 0, admission.MaxDuration, "none")
		},
		value: func(g *Gate) any { return durationText(g.FallbackCooldown) }},
	{name: "overload_statuses", read: (*reader).overloadStatuses,
		value: func(g *Gate) any {
			if len(g.OverloadStatuses) == 0 {
				return nil
			}
			return listOf(g.OverloadStatuses, func(n int) any { return int64(n) })
		}},
	{name: "reset_headers", read: (*reader).resetHeaders,
		value: func(g *Gate) any {
			return listOf(g.ResetHeaders, func(h ResetHeader) any {
				var m mapping
				for _, p := range []pair{{"limit", h.Limit}, {"remaining", h.Remaining}, {"reset", h.Reset}} {
					if p.value != "" {
						m = append(m, p)
					}
				}
				return m
			})
		}},
	{name: "learn",
		read:  func(r *reader, at spot, g *Gate) { g.Learn, _ = r.boolean(at) },
		value: func(g *Gate) any { return g.Learn }},

	{name: "queue_timeout", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.QueueTimeout, _ = r.duration(at, 0, admission.MaxDuration, "none")
		},
		value: func(g *Gate) any { return durationText(g.QueueTimeout) }},
	{name: "max_queue", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			n, _ := r.integer(at, 1, admission.MaxQueueBound, "")
			g.MaxQueue = int(n)
		},
		value: func(g *Gate) any { return nonZero(int64(g.MaxQueue)) }},
	{name: "min_call_time", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.MinCallTime, _ = r.duration(at, 0, admission.MaxDuration, "none")
		},
		value: func(g *Gate) any { return durationText(g.MinCallTime) }},

	{name: "hold",
		read: func(r *reader, at spot, g *Gate) {
			s, _ := r.word(at, string(HoldAttempt), string(HoldCall))
			g.Hold = Hold(s)
		},
		value: func(g *Gate) any { return given(string(g.Hold)) }},
	{name: "max_hold", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.MaxHold, _ = r.duration(at, time.Millisecond, admission.MaxDuration, "")
		},
		value: func(g *Gate) any { return nonZeroDuration(g.MaxHold) }},
	{name: "on_lease_lost",
		read: func(r *reader, at spot, g *Gate) {
			s, _ := r.word(at, string(LeaseLostContinue), string(LeaseLostCancel))
			g.OnLeaseLost = OnLeaseLost(s)
		},
		value: func(g *Gate) any { return given(string(g.OnLeaseLost)) }},
	{name: "on_unavailable",
		read: func(r *reader, at spot, g *Gate) {
			s, _ := r.word(at, string(UnavailableWait), string(UnavailableFail), string(UnavailableLocal))
			g.OnUnavailable = OnUnavailable(s)
		},
		value: func(g *Gate) any { return given(string(g.OnUnavailable)) }},

	{name: "holder_ttl", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.HolderTTL, _ = r.duration(at, time.Second, admission.MaxDuration, "")
		},
		value: func(g *Gate) any { return nonZeroDuration(g.HolderTTL) }},
	{name: "park_ttl", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.ParkTTL, _ = r.duration(at, time.Millisecond, admission.MaxDuration, "")
		},
		value: func(g *Gate) any { return nonZeroDuration(g.ParkTTL) }},
	{name: "look_ahead", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			if d, ok := r.duration(at, 0, admission.MaxDuration, "none"); ok {
				g.LookAhead = zeroIsOff(d)
			}
		},
		value: func(g *Gate) any { return durationOrOff(g.LookAhead) }},
	{name: "start_window", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.StartWindow, _ = r.duration(at, time.Millisecond, admission.MaxDuration, "")
		},
		value: func(g *Gate) any { return nonZeroDuration(g.StartWindow) }},
	{name: "max_exchanges_per_second", limit: true,
		read: func(r *reader, at spot, g *Gate) {
			g.MaxExchangesPerSecond, _ = r.integer(at, 0, maxExchanges, "no bound")
		},
		value: func(g *Gate) any { return g.MaxExchangesPerSecond }},

	{name: "activities", local: true,
		read: func(r *reader, at spot, g *Gate) {
			g.Activities = r.texts(at, "activity types", activityAllowed, validActivity, strings.TrimSpace)
		},
		value: func(g *Gate) any { return listOf(g.Activities, func(s string) any { return s }) }},
	{name: "exclude", local: true,
		read: func(r *reader, at spot, g *Gate) {
			g.Exclude = r.texts(at, "patterns", excludeAllowed, validExclude, normalExclude)
		},
		value: func(g *Gate) any { return listOf(g.Exclude, func(s string) any { return s }) }},
	{name: "retry_hint",
		read: func(r *reader, at spot, g *Gate) {
			s, _ := r.word(at, string(RetryHintOn), string(RetryHintOff))
			g.RetryHint = RetryHint(s)
		},
		value: func(g *Gate) any { return given(string(g.RetryHint)) }},
	{name: "revision", local: true,
		read: func(r *reader, at spot, g *Gate) {
			g.Revision, _ = r.integer(at, 1, math.MaxInt64, "")
		},
		value: func(g *Gate) any { return nonZero(g.Revision) }},
}

var gateKeyNames = func() []string {
	names := make([]string, len(gateKeys))
	for i, k := range gateKeys {
		names[i] = k.name
	}
	return names
}()

// gateRead is a gate together with the places it came from.
type gateRead struct {
	gate   *Gate
	at     spot
	values map[string]spot
}

// gate reads one gate: key by key, then what concerns several keys, then the
// defaults.
func (r *reader) gate(at spot) gateRead {
	g := &Gate{}
	values, ok := r.fields(at, gateKeyNames)
	if !ok {
		return gateRead{gate: g, at: at}
	}
	before := len(r.faults)
	for _, k := range gateKeys {
		if v, given := values[k.name]; given {
			r.soft = k.limit
			k.read(r, v, g)
			r.soft = false
		}
	}
	for _, name := range []string{"provider", "endpoint"} {
		if _, given := values[name]; !given {
			r.missing(at, name, map[string]string{"provider": providerAllowed, "endpoint": endpointAllowed}[name])
		}
	}
	r.onePacing(values, g)
	r.lookAheadBelowTTL(at, values, g)
	g.setDefaults()
	if len(r.faults) == before {
		r.limits(at, values, g)
	}
	slices.SortFunc(g.Budgets, func(a, b admission.Budget) int { return strings.Compare(a.Unit, b.Unit) })
	return gateRead{g, at, values}
}

// onePacing refuses two ways to pace at once.
func (r *reader) onePacing(values map[string]spot, g *Gate) {
	var given []string
	for _, form := range []string{formPerSecond, formInterval, formRequests} {
		if _, ok := values[form]; ok {
			given = append(given, form)
		}
	}
	if len(given) < 2 {
		return
	}
	g.Requests = admission.Rate{}
	r.soft = true
	r.message(values[given[1]], "stands beside "+given[0]+alsoBeside(given[2:]), "one of "+strings.Join([]string{formPerSecond, formInterval, formRequests}, ", "))
	r.soft = false
}

func alsoBeside(more []string) string {
	if len(more) == 0 {
		return ""
	}
	return " and " + strings.Join(more, " and ")
}

// lookAheadBelowTTL: a lease granted further ahead than a holder is trusted
// could start after its holder was lost.
func (r *reader) lookAheadBelowTTL(at spot, values map[string]spot, g *Gate) {
	ttl := g.HolderTTL
	if ttl == 0 {
		ttl = admission.DefaultHolderTTL
	}
	if g.LookAhead < ttl {
		return
	}
	g.LookAhead = 0
	r.soft = true
	r.fault(values["look_ahead"], fmt.Sprintf("0 (none) to less than holder_ttl, which is %s", durationText(ttl)))
	r.soft = false
}

// limits asks the scheduler's own validation, which has the last word.
func (r *reader) limits(at spot, values map[string]spot, g *Gate) {
	for _, err := range unjoin(g.Limits().Validate()) {
		var fault *admission.LimitError
		if !errors.As(err, &fault) {
			fault = &admission.LimitError{Field: "limits", Value: "not valid", Allowed: err.Error()}
		}
		name, _, _ := strings.Cut(fault.Field, ".")
		name, _, _ = strings.Cut(name, "[")
		place := spot{at.node, at.key(fault.Field, at.node).path}
		if v, given := values[name]; given {
			place.node = v.node
		}
		r.add(place, Fault{Value: fault.Value, Allowed: fault.Allowed})
	}
}

func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// setDefaults fills in what the file does not say.
func (g *Gate) setDefaults() {
	limits := g.Limits()
	if g.MaxCooldown == 0 {
		g.MaxCooldown = limits.MaxCooldown
	}
	g.MaxQueue = limits.MaxQueue
	g.MaxHold = limits.MaxHold
	g.HolderTTL = limits.HolderTTL
	g.ParkTTL = limits.ParkTTL
	g.LookAhead = limits.LookAhead
	g.StartWindow = limits.StartWindow
	if len(g.OverloadStatuses) == 0 {
		g.OverloadStatuses = slices.Clone(g.overloadStatuses())
	}
	setDefault(&g.Hold, HoldAttempt)
	setDefault(&g.OnLeaseLost, LeaseLostContinue)
	setDefault(&g.OnUnavailable, UnavailableWait)
	setDefault(&g.RetryHint, RetryHintOn)
	setDefault(&g.Revision, 1)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (r *reader) overloadStatuses(at spot, g *Gate) {
	items, ok := r.list(at, 200, "HTTP statuses")
	if !ok {
		return
	}
	if len(items) == 0 {
		r.message(at, "names no status", "at least one of 400 to 599; max_cooldown: 0 switches feedback off")
		return
	}
	for _, item := range items {
		n, ok := r.integer(item, 400, 599, "")
		if ok && slices.Contains(g.OverloadStatuses, int(n)) {
			r.fault(item, "each status once")
		} else if ok {
			g.OverloadStatuses = append(g.OverloadStatuses, int(n))
		}
	}
	slices.Sort(g.OverloadStatuses)
}

func (r *reader) resetHeaders(at spot, g *Gate) {
	items, _ := r.list(at, 32, "{limit, remaining, reset}")
	for _, item := range items {
		values, ok := r.fields(item, []string{"limit", "remaining", "reset"})
		if !ok {
			continue
		}
		header := func(name string) string {
			v, given := values[name]
			if !given {
				return ""
			}
			s, _ := r.text(v, "the name of a header, at most 128 bytes", validHeaderName)
			return lowerASCII(s)
		}
		h := ResetHeader{Limit: header("limit"), Remaining: header("remaining"), Reset: header("reset")}
		if _, given := values["reset"]; !given {
			r.missing(item, "reset", "the name of a header")
		}
		g.ResetHeaders = append(g.ResetHeaders, h)
	}
}

// validHeaderName is the token of RFC 9110, section 5.6.2.
func validHeaderName(s string) bool {
	for _, c := range []byte(s) {
		if !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// texts reads a list of texts, each of them once.
func (r *reader) texts(at spot, of, allowed string, valid func(string) bool, normal func(string) string) []string {
	items, _ := r.list(at, maxListed, of)
	var texts []string
	for _, item := range items {
		s, ok := r.text(item, allowed, valid)
		if !ok {
			continue
		}
		if s = normal(s); slices.Contains(texts, s) {
			r.fault(item, "each one once")
			continue
		}
		texts = append(texts, s)
	}
	return texts
}

const activityAllowed = "the name of an activity type, * as a wildcard, at most 255 bytes"

func validActivity(s string) bool { return s != "" && len(s) <= maxPatternLength && printable(s) }

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
}

const excludeAllowed = `a path pattern below the endpoint such as "/models" or "GET /health*", at most 255 bytes`

func validExclude(s string) bool {
	method, pattern := splitExclude(s)
	if len(s) > maxPatternLength || !printable(s) || !strings.HasPrefix(pattern, "/") || method != "" && !validHeaderName(method) {
		return false
	}
	_, err := path.Match(pattern, "")
	return err == nil
}

// normalExclude writes the method in capitals, a single space after it.
func normalExclude(s string) string {
	method, pattern := splitExclude(s)
	if method == "" {
		return pattern
	}
	return method + " " + pattern
}

// splitExclude takes an exclude pattern apart; method is "" where it names none.
func splitExclude(s string) (method, pattern string) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "/") {
		return "", s
	}
	method, pattern, _ = strings.Cut(s, " ")
	return strings.ToUpper(method), strings.TrimSpace(pattern)
}

// What follows turns fields into the values that a file would have.

func unset(*Gate) any { return nil }

func given(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func nonZero(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func nonZeroDuration(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return durationText(d)
}

// zeroIsOff: a file says 0 for off, a Gate says Off, as its zero is the default.
func zeroIsOff(d time.Duration) time.Duration {
	if d == 0 {
		return Off
	}
	return d
}

func durationOrOff(d time.Duration) any {
	if d < 0 {
		return durationText(0)
	}
	return nonZeroDuration(d)
}

func rateMapping(r admission.Rate) mapping {
	m := mapping{{"limit", r.Limit}}
	if r.IsZero() {
		return m
	}
	m = append(m, pair{"per", durationText(r.Per)})
	if r.Burst != 0 {
		m = append(m, pair{"burst", r.Burst})
	}
	return m
}

func listOf[T any](items []T, value func(T) any) []any {
	list := make([]any, len(items))
	for i, item := range items {
		list[i] = value(item)
	}
	return list
}

// node is the gate as a tree for the reader.
func (g *Gate) node() *yaml.Node { return nodeOf(g.mapping()) }
