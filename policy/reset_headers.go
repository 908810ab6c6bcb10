package policy

import (
	"slices"
	"strings"
	"time"
)

// limitHeaders names the headers of one limit of a provider. Empty: it has none.
type limitHeaders struct {
	limit, remaining, status, reset, resetAfter string
}

// resetSource is the longest reset among the limits that are exhausted; on a
// tie the first in the order of resetFamilies. A limit whose headers are
// malformed is reported and passed over.
func (g *Gate) resetSource(r *response) (asked time.Duration, name string, ok bool) {
	consider := func(d time.Duration, source string) {
		if !ok || d > asked {
			asked, name, ok = d, source, true
		}
	}
	for _, l := range resetFamilies(r) {
		if d, source, found := l.read(r); found {
			consider(d, source)
		}
	}
	if d, found := r.structuredRateLimit(); found {
		consider(d, structuredName)
	}
	for _, h := range g.ResetHeaders {
		l := limitHeaders{limit: lowerASCII(h.Limit), remaining: lowerASCII(h.Remaining), reset: lowerASCII(h.Reset)}
		if d, source, found := l.read(r); found {
			consider(d, source)
		}
	}
	return asked, name, ok
}

// resetFamilies are the limits that are known by name, in order: OpenAI's (also
// Azure, Groq and others), Anthropic's, the general ones of GitHub, Twitter,
// Discord and Reddit, and those of the IETF draft.
func resetFamilies(r *response) []limitHeaders {
	var limits []limitHeaders
	for _, unit := range openAIUnits(r) {
		limits = append(limits, limitHeaders{
			limit:      openAIPrefix + "limit-" + unit,
			remaining:  openAIPrefix + "remaining-" + unit,
			reset:      openAIPrefix + "reset-" + unit,
			resetAfter: openAIPrefix + "reset-after-" + unit,
		})
	}
	for _, unit := range []string{"requests", "tokens", "input-tokens", "output-tokens"} {
		prefix := "anthropic-ratelimit-" + unit + "-"
		limits = append(limits, limitHeaders{limit: prefix + "limit", remaining: prefix + "remaining", reset: prefix + "reset", resetAfter: prefix + "reset-after"})
	}
	for _, window := range []string{"", "-5h", "-7d"} {
		prefix := "anthropic-ratelimit-unified" + window + "-"
		limits = append(limits, limitHeaders{status: prefix + "status", reset: prefix + "reset", resetAfter: prefix + "reset-after"})
	}
	for _, prefix := range []string{"x-ratelimit-", "x-rate-limit-", "ratelimit-"} {
		limits = append(limits, limitHeaders{limit: prefix + "limit", remaining: prefix + "remaining", reset: prefix + "reset", resetAfter: prefix + "reset-after"})
	}
	return limits
}

const openAIPrefix = "x-ratelimit-"

// openAIUnits are the units that the response has a reset for, requests and
// tokens first.
func openAIUnits(r *response) []string {
	units := []string{"requests", "tokens"}
	var more []string
	for name := range r.fields {
		unit, isReset := strings.CutPrefix(name, openAIPrefix+"reset-")
		unit = strings.TrimPrefix(unit, "after-")
		if isReset && unit != "" && unit != "after" && !slices.Contains(units, unit) && !slices.Contains(more, unit) {
			more = append(more, unit)
		}
	}
	slices.Sort(more)
	return append(units, more...)
}

// read is the delay until the limit resets, where it is exhausted.
func (l limitHeaders) read(r *response) (time.Duration, string, bool) {
	if !l.exhausted(r) {
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

// exhausted: the status says rejected, or nothing remains, or there is a reset
// and nothing else to go by.
func (l limitHeaders) exhausted(r *response) bool {
	if len(r.fields[l.reset]) == 0 && len(r.fields[l.resetAfter]) == 0 {
		return false // nothing to wait for
	}
	if lines := r.fields[l.status]; len(lines) > 0 {
		return slices.ContainsFunc(lines, func(s string) bool { return lowerASCII(trimmed(s)) == "rejected" })
	}
	if len(r.fields[l.remaining]) == 0 {
		return true
	}
	remaining, ok := largest(r, l.remaining, parseRemaining, lessRemaining)
	if !ok {
		return false // reported
	}
	return remaining != someLeft && !(remaining == minusOne && l.unlimited(r))
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
	for part := range strings.SplitSeq(value, ",") {
		part = trimmed(part)
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

// structuredRateLimit is the longest t among the items with nothing remaining.
func (r *response) structuredRateLimit() (longest time.Duration, found bool) {
	for _, line := range r.fields[structuredName] {
		items, ok := parseItems(trimmed(line))
		if !ok {
			r.report(structuredName)
			continue
		}
		for _, parameters := range items {
			reset, hasReset := parameters["t"]
			if !hasReset {
				continue // nothing to wait for
			}
			if left, has := parameters["r"]; has {
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
	}
	return longest, found
}

// parseItems reads a structured list as far as RateLimit needs it: items that
// are strings or tokens, with parameters. It gives the parameters of each.
func parseItems(s string) ([]map[string]string, bool) {
	if s == "" || len(s) > longestList || !isASCII(s) {
		return nil, false
	}
	var items []map[string]string
	for {
		_, rest, ok := parseBareItem(s)
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
		items = append(items, parameters)
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
