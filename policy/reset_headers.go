package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// family is one provider's way to name limits in headers.
type family int

const (
	noFamily family = iota
	openAIFamily
	anthropicFamily
	generalFamily
)

// limitHeaders names the headers of one limit of a provider. Empty: it has none.
type limitHeaders struct {
	family                                      family
	limit, remaining, status, reset, resetAfter string
	// window: one window of a limit whose overall status stands beside it.
	window bool
}

// resetSource is the longest reset among the limits that an overload shows to
// be exhausted.
func (g *Gate) resetSource(r *response) (asked time.Duration, name string, ok bool) {
	return g.longestReset(r, true)
}

// longestReset is the longest reset among the limits that are exhausted; on a
// tie the first in the order of resetFamilies, the structured list and the
// gate's own. A limit whose headers are malformed is reported and passed over.
//
// overload: something is exhausted, so a limit that has a reset and does not
// say what remains is taken to be. An answer that succeeded must say so.
func (g *Gate) longestReset(r *response, overload bool) (asked time.Duration, name string, ok bool) {
	consider := func(d time.Duration, source string, found bool) {
		if found && (!ok || d > asked) {
			asked, name, ok = d, source, true
		}
	}
	for _, l := range resetFamilies(r, g.preset().family) {
		consider(l.read(r, overload))
	}
	d, found := r.structuredRateLimit(overload)
	consider(d, structuredName, found)
	for _, h := range g.ResetHeaders {
		consider(namedLimit(h).read(r, overload))
	}
	return asked, name, ok
}

// anyUsedUp reports whether a limit has nothing remaining, whatever is said of
// its reset.
func (g *Gate) anyUsedUp(r *response) bool {
	limits := resetFamilies(r, g.preset().family)
	for _, h := range g.ResetHeaders {
		limits = append(limits, namedLimit(h))
	}
	if slices.ContainsFunc(limits, func(l limitHeaders) bool { return l.usedUp(r) }) {
		return true
	}
	_, found := r.structuredRateLimit(false)
	return found
}

func namedLimit(h ResetHeader) limitHeaders {
	return limitHeaders{limit: lowerASCII(h.Limit), remaining: lowerASCII(h.Remaining), reset: lowerASCII(h.Reset)}
}

// resetFamilies are the limits that are known by name, in order: the first
// family, then OpenAI's (also Azure, Groq and others), Anthropic's, the general
// ones of GitHub, Twitter, Discord and Reddit, and those of the IETF draft.
func resetFamilies(r *response, first family) []limitHeaders {
	var limits []limitHeaders
	for _, unit := range openAIUnits(r) {
		limits = append(limits, limitHeaders{
			family:     openAIFamily,
			limit:      openAIPrefix + "limit-" + unit,
			remaining:  openAIPrefix + "remaining-" + unit,
			reset:      openAIPrefix + "reset-" + unit,
			resetAfter: openAIPrefix + "reset-after-" + unit,
		})
	}
	for _, unit := range []string{"requests", "tokens", "input-tokens", "output-tokens"} {
		prefix := "anthropic-ratelimit-" + unit + "-"
		limits = append(limits, limitHeaders{family: anthropicFamily, limit: prefix + "limit", remaining: prefix + "remaining", reset: prefix + "reset", resetAfter: prefix + "reset-after"})
	}
	for _, window := range []string{"", "-5h", "-7d"} {
		prefix := "anthropic-ratelimit-unified" + window + "-"
		limits = append(limits, limitHeaders{family: anthropicFamily, status: prefix + "status", reset: prefix + "reset", resetAfter: prefix + "reset-after", window: window != ""})
	}
	for _, prefix := range []string{"x-ratelimit-", "x-rate-limit-", "ratelimit-"} {
		limits = append(limits, limitHeaders{family: generalFamily, limit: prefix + "limit", remaining: prefix + "remaining", reset: prefix + "reset", resetAfter: prefix + "reset-after"})
	}
	if first != noFamily {
		slices.SortStableFunc(limits, func(a, b limitHeaders) int { return cmp.Compare(rank(a, first), rank(b, first)) })
	}
	return limits
}

func rank(l limitHeaders, first family) int {
	if l.family == first {
		return 0
	}
	return 1
}

const openAIPrefix = "x-ratelimit-"

// maxUnits bounds the units of one response beside requests and tokens.
const maxUnits = 32

// openAIUnits are the units that the response has a reset for: requests and
// tokens, then the first 32 others in order of the alphabet.
func openAIUnits(r *response) []string {
	known := []string{"requests", "tokens"}
	var more []string
	for name := range r.fields {
		unit, isReset := strings.CutPrefix(name, openAIPrefix+"reset-")
		unit = strings.TrimPrefix(unit, "after-")
		if isReset && unit != "" && unit != "after" && !slices.Contains(known, unit) {
			more = append(more, unit)
		}
	}
	slices.Sort(more)
	more = slices.Compact(more)
	return append(known, more[:min(len(more), maxUnits)]...)
}

// read is the delay until the limit resets, where it is exhausted.
func (l limitHeaders) read(r *response, overload bool) (time.Duration, string, bool) {
	if !l.exhausted(r, overload) {
		return 0, "", false
	}
	for _, name := range []string{l.resetAfter, l.reset} {
		if name == "" {
			continue
		}
		if d, ok := r.delay(name, parseReset); ok {
			return d, name, true
		}
	}
	return 0, "", false
}

// exhausted: the status says rejected, or nothing remains, or, of an overload,
// there is a reset and nothing else to go by. Of an answer that succeeded the
// overall status counts alone: a window that is used up did not stop it.
func (l limitHeaders) exhausted(r *response, overload bool) bool {
	if !r.names(l.reset) && !r.names(l.resetAfter) {
		return false // nothing to wait for
	}
	if !overload {
		return !l.window && l.usedUp(r)
	}
	if !r.names(l.status) && !r.names(l.remaining) {
		return true
	}
	return l.usedUp(r)
}

// usedUp: the status says rejected, or what remains is said to be nothing.
func (l limitHeaders) usedUp(r *response) bool {
	if r.names(l.status) {
		return slices.ContainsFunc(r.fields[l.status], func(s string) bool { return lowerASCII(trimmed(s)) == "rejected" })
	}
	if !r.names(l.remaining) {
		return false
	}
	left, ok := largest(r, l.remaining, parseRemaining, lessRemaining)
	if !ok {
		return false // reported
	}
	return left != someLeft && !(left == minusOne && l.unlimited(r))
}

// unlimited: a limit of -1 with -1 remaining is how some servers say "none".
func (l limitHeaders) unlimited(r *response) bool {
	return slices.ContainsFunc(r.fields[l.limit], func(s string) bool { return trimmed(s) == "-1" })
}

// remaining is all that matters of a limit's remaining.
type remaining int

const (
	belowZero remaining = iota
	minusOne
	none
	someLeft
)

func lessRemaining(a, b remaining) bool { return a < b }

// parseRemaining reads [-]digits[.digits], or a comma list of which the largest
// counts.
func parseRemaining(value string, _ time.Time) (remaining, bool) {
	most := belowZero
	for part := range splitList(value) {
		number, negative := strings.CutPrefix(part, "-")
		whole, fraction, ok := splitNumber(number)
		if !ok {
			return 0, false
		}
		left := someLeft
		switch {
		case strings.Trim(whole+fraction, "0") == "":
			left = none
		case part == "-1":
			left = minusOne
		case negative:
			left = belowZero
		}
		most = max(most, left)
	}
	return most, true
}

// structuredName is the RateLimit header of the IETF draft
// (draft-ietf-httpapi-ratelimit-headers), a list of RFC 9651 such as
//
//	"per-minute";r=0;t=12, "per-day";r=98;t=4711
const structuredName = "ratelimit"

// longestList bounds a RateLimit line, in bytes.
const longestList = 1024

// structuredRateLimit is the longest t among the items with nothing remaining;
// of an overload also among those that do not say.
func (r *response) structuredRateLimit(overload bool) (longest time.Duration, found bool) {
	for _, i := range r.items(structuredName) {
		reset, hasReset := i.parameters["t"]
		if !hasReset {
			continue // nothing to wait for
		}
		left, has := i.parameters["r"]
		if !has && !overload {
			continue
		}
		if has {
			n, ok := parseRemaining(left, r.base)
			if !ok {
				r.report(structuredName)
			}
			if !ok || n == someLeft {
				continue
			}
		}
		d, ok := parseSeconds(reset, r.base)
		if !ok || len(reset) > longestValue {
			r.report(structuredName)
			continue
		}
		longest, found = max(longest, d), true
	}
	return longest, found
}

// item is an item of a structured list.
type item struct {
	value      string
	parameters map[string]string
}

// items are those of all lines of a header. Malformed lines are reported.
func (r *response) items(name string) (all []item) {
	for _, line := range r.fields[name] {
		items, ok := parseItems(trimmed(line))
		if !ok {
			r.report(name)
		}
		all = append(all, items...)
	}
	return all
}

// parseItems reads a structured list as far as RateLimit and RateLimit-Policy
// need it: items that are strings, tokens or numbers, with parameters.
func parseItems(s string) ([]item, bool) {
	if s == "" || len(s) > longestList || !isASCII(s) {
		return nil, false
	}
	var items []item
	for {
		value, rest, ok := parseBareItem(s)
		if !ok {
			return nil, false
		}
		parameters := map[string]string{}
		for strings.HasPrefix(rest, ";") {
			rest = strings.TrimLeft(rest[1:], " ")
			n := prefixLength(rest, func(c byte) bool {
				return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' || c == '*'
			})
			key, value := rest[:n], ""
			if rest = rest[n:]; key == "" {
				return nil, false
			}
			if strings.HasPrefix(rest, "=") {
				if value, rest, ok = parseBareItem(rest[1:]); !ok {
					return nil, false
				}
			}
			parameters[key] = value // RFC 9651, section 4.2.3.2: the last one counts
		}
		items = append(items, item{value, parameters})
		if rest = trimmed(rest); rest == "" {
			return items, true
		}
		if rest[0] != ',' {
			return nil, false
		}
		s = trimmed(rest[1:])
	}
}

// parseBareItem reads a string, or a token or number as it stands.
func parseBareItem(s string) (item, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		n := prefixLength(s, func(c byte) bool { return isAlphanumeric(c) || strings.ContainsRune("!#$%&'*+-.^_`|~:/", rune(c)) })
		return s[:n], s[n:], n > 0
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[1:i], s[i+1:], true
		}
	}
	return "", "", false
}
