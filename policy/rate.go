package policy

import (
	"fmt"
	"math/big"
	"math/bits"
	"time"

	"sluice/admission"
)

// The three ways to pace requests. A gate has at most one of them; all become
// one admission.Rate.
const (
	formPerSecond = "requests_per_second"
	formInterval  = "min_interval"
	formRequests  = "requests"
)

var pacingForms = []string{formPerSecond, formInterval, formRequests}

// onePacingRules are onePacing in JSON Schema.
func onePacingRules() []any {
	var rules []any
	for i, a := range pacingForms {
		for _, b := range pacingForms[i+1:] {
			rules = append(rules, mapping{{"not", mapping{{"required", []any{a, b}}}}})
		}
	}
	return rules
}

// The forms of the keys of a rate.
var (
	perSecondForm = decimalForm{most: admission.MaxRateLimit, digits: 7, zero: "no pacing"}
	intervalForm  = durationForm{least: 0, most: admission.MaxPer, zero: "no pacing"}
	limitForm     = integerForm{least: 0, most: admission.MaxRateLimit, zero: "off"}
	perForm       = durationForm{least: 1, most: admission.MaxPer}
	burstForm     = integerForm{least: 1, most: admission.MaxRateLimit}
	unitForm      = textForm{
		text:    fmt.Sprintf("[a-z][a-z0-9_]*, at most %d bytes", admission.MaxUnitLength),
		valid:   admission.ValidUnit,
		pattern: fmt.Sprintf(`^\s*[a-z][a-z0-9_]{0,%d}\s*$`, admission.MaxUnitLength-1),
	}
)

// requestsForm and budgetsForm are the mappings that have a rate.
var (
	requestsForm = rateForm(field{name: "burst", form: burstForm, unset: "1", example: int64(10),
		doc: "How many may start at once after idleness; 1 is even spacing."})
	budgetForm = rateForm(field{name: "burst", form: burstForm, unset: "the limit", example: int64(10_000),
		doc: "How much may be used at once after idleness. A call that costs more is refused for good."},
		field{name: "unit", form: unitForm, unset: required, example: "tokens",
			doc: "What is counted, such as tokens; each unit once."})
	budgetsForm = listForm{of: "budgets", most: admission.MaxBudgets, item: budgetForm}
)

// rateForm is a mapping with the keys first, limit, per and burst.
func rateForm(burst field, first ...field) mappingForm {
	return mappingForm{
		fields: append(first,
			field{name: "limit", form: limitForm, unset: required, example: int64(500), doc: "How many in `per`."},
			field{name: "per", form: perForm, unset: "required, unless the limit is 0", example: "1m", doc: "The time that `limit` is for."},
			burst),
		rules: []any{mapping{
			{"if", mapping{{"properties", mapping{{"limit", mapping{{"minimum", int64(1)}}}}}}},
			{"then", mapping{{"required", []any{"per"}}}},
		}},
	}
}

// perSecond reads an exact decimal of requests per second as a rational rate:
// 7.5 is 15 per 2 s.
func (r *reader) perSecond(at spot, g *Gate) {
	text, ok := r.decimal(at, perSecondForm)
	if !ok {
		return
	}
	rate, _ := new(big.Rat).SetString(text)
	if rate.Sign() == 0 {
		g.Requests = admission.Rate{}
		return
	}
	limit, seconds := rate.Num(), rate.Denom()
	if limit.Cmp(big.NewInt(admission.MaxRateLimit)) > 0 || seconds.Cmp(big.NewInt(int64(admission.MaxPer/time.Second))) > 0 {
		r.fault(at, perSecondForm.allowed())
		return
	}
	g.Requests = admission.Rate{Limit: limit.Int64(), Per: time.Duration(seconds.Int64()) * time.Second, Burst: 1}
}

// interval reads the least time between two requests.
func (r *reader) interval(at spot, g *Gate) {
	d, ok := r.duration(at, intervalForm)
	if !ok {
		return
	}
	g.Requests = admission.Rate{}
	if d > 0 {
		g.Requests = admission.Rate{Limit: 1, Per: d, Burst: 1}
	}
}

func (r *reader) requests(at spot, g *Gate) {
	values, ok := r.fields(at, namesOf(requestsForm.fields))
	if !ok {
		return
	}
	if rate, ok := r.rate(at, values, 1); ok {
		g.Requests = rate
	}
}

// rate reads {limit, per, burst}. defaultBurst 0 stands for the limit. A limit
// of 0 is the zero Rate, whatever else is given, as long as that is valid.
func (r *reader) rate(at spot, values map[string]spot, defaultBurst int64) (admission.Rate, bool) {
	before := r.found
	var rate admission.Rate
	if v, given := values["limit"]; given {
		rate.Limit, _ = r.integer(v, limitForm)
	} else {
		r.missing(at, "limit", limitForm.allowed())
	}
	if v, given := values["per"]; given {
		rate.Per, _ = r.duration(v, perForm)
	} else if rate.Limit > 0 {
		r.missing(at, "per", perForm.allowed())
	}
	rate.Burst = defaultBurst
	if v, given := values["burst"]; given {
		rate.Burst, _ = r.integer(v, burstForm)
	} else if defaultBurst == 0 {
		rate.Burst = rate.Limit
	}
	if r.found == before && rate.Limit > 0 && refillsTooSlowly(rate) {
		if v, given := values["burst"]; given {
			at = v
		}
		r.fault(at, "what refills in less than "+DurationText(admission.MaxRefill))
	}
	if rate.Limit == 0 {
		rate = admission.Rate{}
	}
	return rate, r.found == before
}

// refillsTooSlowly: an empty bucket would take MaxRefill or longer to fill.
func refillsTooSlowly(r admission.Rate) bool {
	high, low := bits.Mul64(uint64(r.Burst), uint64(r.Per))
	if high >= uint64(r.Limit) {
		return true // the quotient needs more than 64 bits
	}
	whole, _ := bits.Div64(high, low, uint64(r.Limit))
	return whole >= uint64(admission.MaxRefill)
}

func (r *reader) missing(at spot, name, allowed string) {
	r.message(spot{at.node, at.key(name, at.node).path}, "is missing", allowed)
}

// budgets reads every budget on its own: one with a fault does not take the
// others with it.
func (r *reader) budgets(at spot, g *Gate) {
	items, ok := r.list(at, budgetsForm)
	if !ok {
		return
	}
	g.Budgets = nil
	seen := map[string]bool{}
	for _, item := range items {
		before := r.found
		values, ok := r.fields(item, namesOf(budgetForm.fields))
		if !ok {
			continue
		}
		var unit string
		if v, given := values["unit"]; !given {
			r.missing(item, "unit", unitForm.allowed())
		} else if unit, ok = r.text(v, unitForm); ok && seen[unit] {
			r.fault(v, "each unit once")
		}
		seen[unit] = true
		rate, _ := r.rate(item, values, 0)
		if r.found == before && !rate.IsZero() {
			g.Budgets = append(g.Budgets, admission.Budget{Unit: unit, Rate: rate})
		}
	}
}

// reduced is the rate in lowest terms: 60 per minute and 1 per second with the
// same burst are one policy.
func reduced(r admission.Rate) admission.Rate {
	if r.Limit <= 0 || r.Per <= 0 {
		return r
	}
	a, b := r.Limit, int64(r.Per)
	for b != 0 {
		a, b = b, a%b
	}
	return admission.Rate{Limit: r.Limit / a, Per: r.Per / time.Duration(a), Burst: r.Burst}
}
