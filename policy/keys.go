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
	field
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

const limitIsOff = "this limit is off"

// without says what holds where on_invalid: disable drops the key; empty where
// it can't be dropped.
func (k key) without() string {
	if !k.limit {
		return ""
	}
	d := k.defaultValue()
	switch {
	case d == nil && (k.unset == "off" || k.unset == "none"), d == int64(0), d == DurationText(0):
		return limitIsOff
	case d == nil:
		return "its default holds: " + k.unset
	}
	return "its default holds: " + textOf(d)
}

func keyNamed(name string) key {
	return gateKeys[slices.IndexFunc(gateKeys, func(k key) bool { return k.name == name })]
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

// The forms of the keys that are none of a few simple ones.
var (
	providerForm = textForm{
		text:    "[a-z0-9][a-z0-9._-]*, at most 64 bytes",
		valid:   func(s string) bool { return validProvider(lowerASCII(s)) },
		pattern: `^\s*[A-Za-z0-9][A-Za-z0-9._-]{0,63}\s*$`,
	}
	endpointForm = textForm{
		text:    fmt.Sprintf("an http or https URL such as https://api.openai.com/v1, at most %d bytes", maxEndpointLength),
		valid:   func(s string) bool { _, err := parseEndpoint(s); return err == nil },
		pattern: `^\s*((//|[Hh][Tt][Tt][Pp][Ss]?://)?[^/?#\s]).*$`,
	}
	nameForm = textForm{
		text:    "letters, digits and . _ : / -, at most 128 bytes",
		valid:   validName,
		pattern: `^\s*[A-Za-z0-9._:/-]{1,128}\s*$`,
	}
	headerForm = textForm{
		text:    "the name of a header, at most 128 bytes",
		valid:   validHeaderName,
		pattern: "^\\s*[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}\\s*$",
	}
	activityForm = textForm{
		text:    fmt.Sprintf("the name of an activity type, * as a wildcard, at most %d bytes", maxPatternLength),
		valid:   func(s string) bool { return s != "" && len(s) <= maxPatternLength && printable(s) },
		pattern: `\S`,
	}
	excludeForm = textForm{
		text:    fmt.Sprintf(`a path pattern below the endpoint such as "/models" or "GET /health*", at most %d bytes`, maxPatternLength),
		valid:   validExclude,
		pattern: "^\\s*([A-Za-z0-9!#$%&'*+.^_`|~-]+ +)?/",
	}

	statusesForm     = listForm{of: "HTTP statuses", least: 1, most: 200, item: integerForm{least: 400, most: 599}, once: true}
	resetHeadersForm = listForm{of: "{limit, remaining, reset}", most: 32, item: mappingForm{fields: []field{
		{name: "limit", form: headerForm, unset: "none", example: "x-quota-limit", doc: "The header that names the limit."},
		{name: "remaining", form: headerForm, unset: "none", example: "x-quota-left", doc: "The header that tells what is left of it. Without one a limit is taken to be used up where there is a reset."},
		{name: "reset", form: headerForm, unset: required, example: "x-quota-reset", doc: "The header that tells when it resets: a duration, an RFC 3339 instant, seconds, or an epoch."},
	}}}
	activitiesForm = listForm{of: "activity types", most: maxListed, item: activityForm, once: true}
	excludesForm   = listForm{of: "patterns", most: maxListed, item: excludeForm, once: true}
)

// gateKeys are the keys of a gate in the order of the documentation.
var gateKeys = []key{
	{field: field{name: "provider", form: providerForm, unset: required, example: "openai",
		doc: "Who is called. A name of yours, in lower case; it is no preset."},
		read: func(r *reader, at spot, g *Gate) {
			s, _ := r.text(at, providerForm)
			g.Provider = lowerASCII(s)
		},
		value: func(g *Gate) any { return given(g.Provider) }},
	{field: field{name: "endpoint", form: endpointForm, unset: required, example: "https://api.openai.com/v1",
		doc: "Where calls go. Its spelling doesn't matter: case of the host, default port, trailing slash, dot segments and percent-encoding are normalised; user, query and fragment are dropped."},
		read: func(r *reader, at spot, g *Gate) {
			if !at.scalar("!!str") {
				r.message(at, "is not a text", endpointForm.allowed())
				return
			}
			e, err := parseEndpoint(at.node.Value)
			if err != nil {
				r.message(at, err.Error(), endpointForm.allowed())
				return
			}
			g.Endpoint = e.String()
		},
		value: func(g *Gate) any { return given(g.Endpoint) }},
	textKey(field{name: "name", form: nameForm, unset: "none", example: "gpt-4o",
		doc: "Tells gates on one endpoint apart, such as one per model."},
		func(g *Gate) *string { return &g.Name }),
	wordKey(field{name: "preset", form: wordForm(presetNames), unset: "none", example: "openai",
		doc: "What is known of a provider: its `overload_statuses`, its headers, and with `learn` the windows of its limits."},
		func(g *Gate) *string { return &g.Preset }),

	limit(integerKey(field{name: "max_in_flight", form: integerForm{0, admission.MaxInFlightBound, "no cap"}, example: int64(8),
		doc: "Calls at once, by weight, over all processes."},
		func(g *Gate) *int64 { return &g.MaxInFlight })),
	limit(key{field: field{name: formPerSecond, form: perSecondForm, unset: "off", example: int64(5),
		doc: "Starts per second, spaced evenly. `7.5` is kept as 15 per 2 s and doesn't drift."},
		read: (*reader).perSecond, value: unset}),
	limit(key{field: field{name: formInterval, form: intervalForm, unset: "off", example: "275ms",
		doc: "The least time between two starts: `requests_per_second` said the other way round."},
		read: (*reader).interval, value: unset}),
	limit(key{field: field{name: formRequests, form: requestsForm, unset: "off", example: mapping{{"limit", int64(475)}, {"per", "1m"}},
		doc: "Pacing as `{limit, per, burst}`: `limit` starts per `per`, spaced evenly. `burst` (default 1) lets that many start at once after idleness. At most one of `requests_per_second`, `min_interval` and `requests`."},
		read:  (*reader).requests,
		value: func(g *Gate) any { return rateMapping(g.Requests) }}),
	limit(key{field: field{name: "budgets", form: budgetsForm, unset: "none", example: []any{mapping{{"unit", "tokens"}, {"limit", int64(80_000)}, {"per", "1m"}, {"burst", int64(10_000)}}},
		doc: "Token buckets of other units, as `{unit, limit, per, burst}`, each unit once. `burst` defaults to `limit`; a call that costs more than `burst` is refused for good. `limit: 0` is off."},
		read: (*reader).budgets,
		value: func(g *Gate) any {
			budgets := []any{}
			for _, b := range g.Budgets {
				budgets = append(budgets, append(mapping{{"unit", b.Unit}}, rateMapping(b.Rate)...))
			}
			return budgets
		}}),

	limit(switchKey(field{name: "max_cooldown", form: durationForm{0, admission.MaxDuration, "no feedback"}, example: "2m",
		doc: "The longest time for which one answer can close the gate."},
		func(g *Gate) *time.Duration { return &g.MaxCooldown })),
	limit(durationKey(field{name: "fallback_cooldown", form: durationForm{0, admission.MaxDuration, "none"}, example: "1s",
		doc: "How long an overload without a hint closes the gate; doubled for each further one in a row, up to `max_cooldown`."},
		func(g *Gate) *time.Duration { return &g.FallbackCooldown })),
	{field: field{name: "overload_statuses", form: statusesForm, unset: "429, 503, 529, or the preset's", example: []any{int64(429), int64(503)},
		doc: "The statuses by which this provider says \"slow down\"."},
		read: (*reader).overloadStatuses,
		value: func(g *Gate) any {
			if len(g.OverloadStatuses) == 0 {
				return nil
			}
			return listOf(g.OverloadStatuses, func(n int) any { return int64(n) })
		}},
	{field: field{name: "reset_headers", form: resetHeadersForm, unset: "none", example: []any{mapping{{"remaining", "x-quota-left"}, {"reset", "x-quota-reset"}}},
		doc: "Further headers that tell when a limit that is used up resets, as `{limit, remaining, reset}`; `reset` is required."},
		read: (*reader).resetHeaders,
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
	{field: field{name: "learn", form: booleanForm{}, example: true,
		doc: "Whether successful answers teach, too: a limit that one shows to be used up closes the gate until its reset, and a limit that is lower than the policy's is reported."},
		read:  func(r *reader, at spot, g *Gate) { g.Learn, _ = r.boolean(at) },
		value: func(g *Gate) any { return g.Learn }},

	limit(durationKey(field{name: "queue_timeout", form: durationForm{0, admission.MaxDuration, "none"}, example: "10m",
		doc: "How long a ticket may wait from its first arrival; then `sluice.QueueTimeout`, which is not retried. A ticket that can't make it is refused on arrival with `sluice.TooLate`."},
		func(g *Gate) *time.Duration { return &g.QueueTimeout })),
	limit(integerKey(field{name: "max_queue", form: integerForm{1, admission.MaxQueueBound, ""}, example: int64(1000),
		doc: "Tickets in the queue, those of absent callers included. A durable gate refuses earlier where its state would outgrow a payload."},
		func(g *Gate) *int { return &g.MaxQueue })),
	limit(durationKey(field{name: "min_call_time", form: durationForm{0, admission.MaxDuration, "none"}, example: "35s",
		doc: "What a wait must leave of the attempt's time; a longer wait ends with `sluice.StillQueued`."},
		func(g *Gate) *time.Duration { return &g.MinCallTime })),

	wordKey(field{name: "hold", form: wordForm{string(HoldAttempt), string(HoldCall)}, example: string(HoldCall),
		doc: "How long a lease lasts: each attempt has its own, or all attempts of an activity have one. Between two attempts `call` keeps the place for at most `park_ttl`; each attempt waits for its time and costs what it costs."},
		func(g *Gate) *Hold { return &g.Hold }),
	limit(durationKey(field{name: "max_hold", form: durationForm{time.Millisecond, admission.MaxDuration, ""}, example: "30m",
		doc: "The longest life of a lease, from its start. It must be longer than the longest call or stream."},
		func(g *Gate) *time.Duration { return &g.MaxHold })),
	wordKey(field{name: "on_lease_lost", form: wordForm{string(LeaseLostContinue), string(LeaseLostCancel)}, example: string(LeaseLostCancel),
		doc: "What becomes of a call whose lease ended under it: it goes on, or its context ends."},
		func(g *Gate) *OnLeaseLost { return &g.OnLeaseLost }),
	wordKey(field{name: "on_unavailable", form: wordForm{string(UnavailableWait), string(UnavailableFail), string(UnavailableLocal)}, example: string(UnavailableFail),
		doc: "What callers do while the gate can't be reached, after 5 s: wait on, fail with `sluice.Unavailable`, or go on under a local share, the limits divided by the number of processes that the gate knew last, rounded down; a share of nothing waits."},
		func(g *Gate) *OnUnavailable { return &g.OnUnavailable }),

	limit(durationKey(field{name: "holder_ttl", form: durationForm{time.Second, admission.MaxDuration, ""}, example: "20s",
		doc: "How long a process may be silent before its leases end."},
		func(g *Gate) *time.Duration { return &g.HolderTTL })),
	limit(durationKey(field{name: "park_ttl", form: durationForm{time.Millisecond, admission.MaxDuration, ""}, example: "5m",
		doc: "How long a ticket keeps its place while its caller is away. It must be longer than the back-off between attempts."},
		func(g *Gate) *time.Duration { return &g.ParkTTL })),
	limit(switchKey(field{name: "look_ahead", form: durationForm{0, admission.MaxDuration, "none"}, unset: "1s, or half of `holder_ttl` if that is less", example: "500ms",
		doc: "How far ahead leases are granted; less than `holder_ttl`."},
		func(g *Gate) *time.Duration { return &g.LookAhead })),
	limit(durationKey(field{name: "start_window", form: durationForm{time.Millisecond, admission.MaxDuration, ""}, unset: "one spacing, at least 100ms", example: "200ms",
		doc: "How late a paced lease may start before it is handed back."},
		func(g *Gate) *time.Duration { return &g.StartWindow })),
	limit(integerKey(field{name: "max_exchanges_per_second", form: integerForm{0, maxExchanges, "no bound"}, example: int64(50),
		doc: "Bound on the messages of all processes to the gate together. Every one is a billable action where those are billed."},
		func(g *Gate) *int64 { return &g.MaxExchangesPerSecond })),

	{field: field{name: "activities", form: activitiesForm, unset: "none", example: []any{"Summarize", "Embed*"},
		doc: "Activity types that run under a lease as a whole, each in one gate only; `*` stands for any run of characters. They can't run as local activities."},
		local: true,
		read: func(r *reader, at spot, g *Gate) {
			g.Activities = r.texts(at, activitiesForm, activityForm, strings.TrimSpace)
		},
		value: func(g *Gate) any { return listOf(g.Activities, func(s string) any { return s }) }},
	{field: field{name: "exclude", form: excludesForm, unset: "none", example: []any{"/models", "GET /health*"},
		doc: "Requests below the endpoint that are not gated: a path pattern, optionally behind a method. `*` doesn't match a `/`."},
		local: true,
		read: func(r *reader, at spot, g *Gate) {
			g.Exclude = r.texts(at, excludesForm, excludeForm, normalExclude)
		},
		value: func(g *Gate) any { return listOf(g.Exclude, func(s string) any { return s }) }},
	wordKey(field{name: "retry_hint", form: wordForm{string(RetryHintOn), string(RetryHintOff)}, example: string(RetryHintOff),
		doc: "Whether a failed attempt's error gains the time to come again, where the cooldown lasts longer than the activity's own back-off."},
		func(g *Gate) *RetryHint { return &g.RetryHint }),
	local(integerKey(field{name: "revision", form: integerForm{1, math.MaxInt64, ""}, example: int64(2),
		doc: "Of two processes with different policies for one gate the higher revision wins; equal ones with different content are refused with `sluice.PolicyConflict`, which names the fields."},
		func(g *Gate) *int64 { return &g.Revision })),
}

func limit(k key) key {
	k.limit = true
	return k
}

func local(k key) key {
	k.local = true
	return k
}

// integerKey: a field whose form has no 0 is unset where it is 0.
func integerKey[T int | int64](f field, of func(*Gate) *T) key {
	form := f.form.(integerForm)
	return key{field: f,
		read: func(r *reader, at spot, g *Gate) {
			n, _ := r.integer(at, form)
			*of(g) = T(n)
		},
		value: func(g *Gate) any {
			if n := int64(*of(g)); n != 0 || form.least <= 0 {
				return n
			}
			return nil
		}}
}

// durationKey: a field whose form has no 0 is unset where it is 0.
func durationKey(f field, of func(*Gate) *time.Duration) key {
	form := f.form.(durationForm)
	return key{field: f,
		read: func(r *reader, at spot, g *Gate) { *of(g), _ = r.duration(at, form) },
		value: func(g *Gate) any {
			if d := *of(g); d != 0 || form.least <= 0 {
				return DurationText(d)
			}
			return nil
		}}
}

// switchKey: a file says 0 for off, a Gate says Off, as its zero is the default.
func switchKey(f field, of func(*Gate) *time.Duration) key {
	form := f.form.(durationForm)
	return key{field: f,
		read: func(r *reader, at spot, g *Gate) {
			if d, ok := r.duration(at, form); ok {
				if d == 0 {
					d = Off
				}
				*of(g) = d
			}
		},
		value: func(g *Gate) any {
			if d := *of(g); d != 0 {
				return DurationText(max(0, d))
			}
			return nil
		}}
}

func textKey(f field, of func(*Gate) *string) key {
	form := f.form.(textForm)
	return key{field: f,
		read:  func(r *reader, at spot, g *Gate) { *of(g), _ = r.text(at, form) },
		value: func(g *Gate) any { return given(*of(g)) }}
}

func wordKey[T ~string](f field, of func(*Gate) *T) key {
	form := f.form.(wordForm)
	return key{field: f,
		read: func(r *reader, at spot, g *Gate) {
			s, _ := r.word(at, form)
			*of(g) = T(s)
		},
		value: func(g *Gate) any { return given(string(*of(g))) }}
}

// gateForm is a gate in the file, and fileForm the file.
var (
	gateForm = mappingForm{fields: gateFields(), rules: onePacingRules()}
	listed   = listForm{of: "gates", most: maxGates, item: gateForm}
	words    = wordForm{string(InvalidRefuse), string(InvalidDisable)}
	fileForm = mappingForm{fields: []field{
		{name: "on_invalid", form: words, example: string(InvalidDisable),
			doc: "What becomes of a faulty value of a limit: `refuse` refuses the file; `disable` warns and runs without that limit."},
		{name: "gates", form: listed, unset: "none",
			doc: "The gates, each with an identity of its own: provider, endpoint and name."},
	}}
)

func gateFields() []field {
	fields := make([]field, len(gateKeys))
	for i, k := range gateKeys {
		fields[i] = k.field
	}
	return fields
}

var gateKeyNames = namesOf(gateFields())

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
			r.without = k.without()
			k.read(r, v, g)
			r.without = ""
		}
	}
	for _, name := range []string{"provider", "endpoint"} {
		if _, given := values[name]; !given {
			r.missing(at, name, map[string]form{"provider": providerForm, "endpoint": endpointForm}[name].allowed())
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
	for _, form := range pacingForms {
		if _, ok := values[form]; ok {
			given = append(given, form)
		}
	}
	if len(given) < 2 {
		return
	}
	g.Requests = admission.Rate{}
	r.without = limitIsOff
	r.message(values[given[1]], "stands beside "+given[0]+alsoBeside(given[2:]), "one of "+strings.Join(pacingForms, ", "))
	r.without = ""
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
	r.without = keyNamed("look_ahead").without()
	r.fault(values["look_ahead"], fmt.Sprintf("0 (none) to less than holder_ttl, which is %s", DurationText(ttl)))
	r.without = ""
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
	items, ok := r.list(at, statusesForm)
	if !ok {
		return
	}
	status := statusesForm.item.(integerForm)
	if len(items) == 0 {
		r.message(at, "names no status", "at least one of "+status.allowed()+"; max_cooldown: 0 switches feedback off")
		return
	}
	for _, item := range items {
		n, ok := r.integer(item, status)
		if ok && slices.Contains(g.OverloadStatuses, int(n)) {
			r.fault(item, "each status once")
		} else if ok {
			g.OverloadStatuses = append(g.OverloadStatuses, int(n))
		}
	}
	slices.Sort(g.OverloadStatuses)
}

func (r *reader) resetHeaders(at spot, g *Gate) {
	items, _ := r.list(at, resetHeadersForm)
	for _, item := range items {
		values, ok := r.fields(item, namesOf(resetHeadersForm.item.(mappingForm).fields))
		if !ok {
			continue
		}
		header := func(name string) string {
			v, given := values[name]
			if !given {
				return ""
			}
			s, _ := r.text(v, headerForm)
			return lowerASCII(s)
		}
		h := ResetHeader{Limit: header("limit"), Remaining: header("remaining"), Reset: header("reset")}
		if _, given := values["reset"]; !given {
			r.missing(item, "reset", headerForm.allowed())
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
func (r *reader) texts(at spot, list listForm, each textForm, normal func(string) string) []string {
	items, _ := r.list(at, list)
	var texts []string
	for _, item := range items {
		s, ok := r.text(item, each)
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

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
}

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

func rateMapping(r admission.Rate) mapping {
	m := mapping{{"limit", r.Limit}}
	if r.IsZero() {
		return m
	}
	m = append(m, pair{"per", DurationText(r.Per)})
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
