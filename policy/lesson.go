package policy

import (
	"fmt"
	"math"
	"math/bits"
	"net/http"
	"time"

	"sluice/admission"
)

// Lesson is what an answer that succeeded says about the provider's limits.
type Lesson struct {
	// Asked is the longest time until a limit that the answer shows to be
	// exhausted resets, rounded up to a millisecond. 0: none is, or it resets
	// now.
	Asked time.Duration
	// Applied is Asked, but at most the gate's MaxCooldown; 0 where feedback is
	// switched off.
	Applied time.Duration
	// Source is the header that Asked comes from, in lower case; empty where
	// Asked is 0.
	Source string
	// Malformed are the headers, in lower case and each once, in the order in
	// which they were looked at, that could not be read.
	Malformed []string
	// Lower are the limits that are lower than the gate's, one for each header
	// and unit. They are to be reported, not followed: a limit of another key,
	// model or resource must not throttle this gate for good.
	Lower []LowerLimit
}

// LowerLimit is a limit of the provider that is lower than the gate's.
type LowerLimit struct {
	Header string        // in lower case
	Unit   string        // "requests", or the unit of a budget
	Limit  int64         // what the provider allows in Per
	Per    time.Duration // more than 0
	Policy int64         // what the gate allows in Per, rounded down; burst not counted
}

// String is the limit on one line, such as
//
//	x-ratelimit-limit-requests allows 300 requests per 1m, the policy 500
func (l LowerLimit) String() string {
	return fmt.Sprintf("%s allows %d %s per %s, the policy %d", l.Header, l.Limit, l.Unit, DurationText(l.Per), l.Policy)
}

// ReadLesson reads what an answer that succeeded says about the provider's
// limits. The zero Lesson for a status outside 200 to 299, and where the gate
// does not learn. It is pure: now is the time of the answer's arrival.
//
// A cooldown comes from the limits of [Gate.ReadHint] that say themselves that
// nothing remains; a reset without a remaining, which an overload is believed,
// says nothing here. Retry-After is not looked at: beside success it is about
// one resource that is not ready yet (RFC 9110, section 15.3.3), not about the
// next request.
//
// A limit is compared where the window that it counts is known: from the page
// of the preset's provider, or from w of RateLimit-Policy
// (draft-ietf-httpapi-ratelimit-headers), and the gate has a limit of the same
// unit: requests, or a budget. A limit of 0 or -1 stands for none. A header
// whose limit resets later than the window ends counts another window and is
// not compared.
func (g *Gate) ReadLesson(status int, header http.Header, now time.Time) Lesson {
	if !g.Learn || status < 200 || status > 299 {
		return Lesson{}
	}
	r := newResponse(header, now)
	l := Lesson{}
	if asked, name, ok := g.longestReset(r, false); ok && asked > 0 {
		l.Asked, l.Source = asked, name
	}
	l.Applied = min(l.Asked, g.Limits().MaxCooldown)
	for _, w := range g.preset().windows {
		if lower, ok := g.lowerThan(r, w); ok {
			l.Lower = append(l.Lower, lower)
		}
	}
	if lower, ok := g.lowestPolicy(r); ok {
		l.Lower = append(l.Lower, lower)
	}
	l.Malformed = r.malformed
	return l
}

// lowerThan compares a limit header with the gate.
func (g *Gate) lowerThan(r *response, w limitWindow) (LowerLimit, bool) {
	if h := w.only.header; r.names(h) && !r.says(h, w.only.value) {
		return LowerLimit{}, false
	}
	limit, ok := largest(r, w.limit, parseLimit, func(a, b int64) bool { return a < b })
	if !ok || limit <= 0 {
		return LowerLimit{}, false
	}
	if reset, ok := r.delay(w.reset, parseReset); ok && reset > w.per {
		return LowerLimit{}, false
	}
	return g.lower(LowerLimit{Header: w.limit, Unit: w.unit, Limit: limit, Per: w.per})
}

// policyName is the header that tells quotas and their windows, such as
//
//	"burst";q=100;w=60, "daily";q=5000;w=86400
//
// or, by earlier drafts, 100;w=60.
const policyName = "ratelimit-policy"

// lowestPolicy is the quota of requests with the lowest rate, where that is
// lower than the gate's.
func (g *Gate) lowestPolicy(r *response) (lowest LowerLimit, found bool) {
	for _, i := range r.items(policyName) {
		window, windowed := i.parameters["w"]
		quota, named := i.parameters["q"]
		if !named && allDigits(i.value) {
			quota, named = i.value, true
		}
		if unit := i.parameters["qu"]; !windowed || !named || unit != "" && unit != requestsUnit {
			continue
		}
		if !allDigits(window) || !allDigits(quota) {
			r.report(policyName)
			continue
		}
		per := scaled(window, "", time.Second)
		l, lower := g.lower(LowerLimit{Header: policyName, Unit: requestsUnit, Limit: saturatingInteger(quota), Per: per})
		if l.Limit <= 0 || per <= 0 || !lower {
			continue
		}
		if !found || slower(l.Limit, l.Per, lowest.Limit, lowest.Per) {
			lowest, found = l, true
		}
	}
	return lowest, found
}

// lower fills in what the gate allows; false where that is not more, or where
// the gate has no limit of the unit.
func (g *Gate) lower(l LowerLimit) (LowerLimit, bool) {
	rate := g.rateOf(l.Unit)
	if rate.Limit <= 0 || rate.Per <= 0 || !slower(l.Limit, l.Per, rate.Limit, rate.Per) {
		return l, false
	}
	l.Policy = within(rate, l.Per)
	return l, true
}

func (g *Gate) rateOf(unit string) admission.Rate {
	if unit == requestsUnit && !g.Requests.IsZero() {
		return g.Requests
	}
	for _, b := range g.Budgets {
		if b.Unit == unit {
			return b.Rate
		}
	}
	return admission.Rate{}
}

// slower reports whether a per p is less than b per q; none is negative.
func slower(a int64, p time.Duration, b int64, q time.Duration) bool {
	aHigh, aLow := bits.Mul64(uint64(a), uint64(q))
	bHigh, bLow := bits.Mul64(uint64(b), uint64(p))
	return aHigh < bHigh || aHigh == bHigh && aLow < bLow
}

// within is how much the rate refills in per, rounded down; it saturates.
func within(rate admission.Rate, per time.Duration) int64 {
	high, low := bits.Mul64(uint64(rate.Limit), uint64(per))
	if high >= uint64(rate.Per) {
		return math.MaxInt64
	}
	whole, _ := bits.Div64(high, low, uint64(rate.Per))
	return int64(min(whole, math.MaxInt64))
}

// parseLimit reads digits[.digits], rounded down, or -1, or a comma list of
// which the largest counts.
func parseLimit(value string, _ time.Time) (int64, bool) {
	most := int64(-1)
	for part := range splitList(value) {
		if part == "-1" {
			continue
		}
		whole, _, ok := splitNumber(part)
		if !ok {
			return 0, false
		}
		most = max(most, saturatingInteger(whole))
	}
	return most, true
}
