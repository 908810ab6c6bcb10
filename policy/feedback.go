package policy

import (
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"
)

// Hint is what a response says about when to come again.
type Hint struct {
	// Overload: the status is one by which the provider says "slow down". Where
	// it is false everything else is zero.
	Overload bool
	// HasHint: a header says when. Its answer may be "now": then Asked is 0.
	HasHint bool
	// Asked is the delay that the response asks for, rounded up to a
	// millisecond; never negative.
	Asked time.Duration
	// Applied is Asked, but at most the gate's MaxCooldown; 0 where feedback is
	// switched off.
	Applied time.Duration
	// Source is the header that decided, in lower case, or
	// "body.error.details.retryDelay".
	Source string
	// Malformed are the sources, in lower case and each once, in the order in
	// which they were looked at, that could not be read. A header whose one
	// line is malformed and whose other line counts is in both.
	Malformed []string
}

// ReadHint is [Gate.ReadHintBody] without a body.
func (g *Gate) ReadHint(status int, header http.Header, now time.Time) Hint {
	return g.ReadHintBody(status, header, nil, now)
}

// ReadHintBody reads how long a response asks its caller to stay away. It is
// pure: now is the time of the response's arrival, and messages are never
// parsed.
//
// Sources in order: retry-after-ms, x-ms-retry-after-ms (both milliseconds,
// digits[.digits]), retry-after (RFC 9110, section 10.2.3: seconds or an HTTP
// date; also a duration such as 1m30s), then the reset headers of exhausted
// limits, the longest of them (families: see resetFamilies), then, with a
// preset whose provider says it there, the body's structured delay. The first
// valid one decides and what stands after it is not looked at; a malformed one
// is reported and passed over. A plain number of at least 1e9 in retry-after or
// in a reset is a Unix time in seconds, of at least 1e12 one in milliseconds.
// An instant is measured from the response's own Date plus Age (RFC 9110,
// section 6.6.1; RFC 9111, section 5.1) where there is a Date that parses,
// else from now. A header sent twice, or a comma list of numbers, counts with
// its largest value. Values are ASCII and at most 128 bytes; huge ones
// saturate.
//
// body is the beginning of the body; at most [Gate.BodyHintLimit] bytes of it
// are looked at. nil is a body that nobody kept.
func (g *Gate) ReadHintBody(status int, header http.Header, body []byte, now time.Time) Hint {
	if !slices.Contains(g.overloadStatuses(), status) {
		return Hint{} // most answers: nothing to take apart
	}
	r := newResponse(header, now)
	if !g.isOverload(status, r) {
		return Hint{}
	}
	r.malformed = nil // of what told whether it is one
	h := Hint{Overload: true}
	for _, look := range []source{
		headerSource("retry-after-ms", parseMilliseconds),
		headerSource("x-ms-retry-after-ms", parseMilliseconds),
		headerSource("retry-after", parseRetryAfter),
		g.resetSource,
		g.bodySource(body),
	} {
		if asked, name, ok := look(r); ok {
			h.HasHint, h.Asked, h.Source = true, asked, name
			break
		}
	}
	h.Malformed = r.malformed
	h.Applied = min(h.Asked, g.Limits().MaxCooldown)
	return h
}

// BodyHintLimit is how many bytes from the beginning of an overload's body
// [Gate.ReadHintBody] looks at: 16 KiB with the preset gemini, else 0, and then
// a body need not be kept. The bytes are those of the JSON, decompressed.
func (g *Gate) BodyHintLimit() int { return g.preset().bodyLimit }

// bodySource is the structured delay in the body, where the provider has one.
func (g *Gate) bodySource(body []byte) source {
	return func(r *response) (time.Duration, string, bool) {
		p := g.preset()
		if p.body == nil {
			return 0, "", false
		}
		asked, ok := p.body(r, body[:min(len(body), p.bodyLimit)])
		return asked, p.bodyName, ok
	}
}

// source looks for a delay in one place of a response.
type source func(*response) (asked time.Duration, name string, ok bool)

// response is the headers of a response and what was found wrong with them.
type response struct {
	fields    map[string][]string // by lower-case name
	base      time.Time           // what absolute instants are measured from
	malformed []string
}

func newResponse(header http.Header, now time.Time) *response {
	r := &response{fields: make(map[string][]string, len(header))}
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	sort.Strings(names) // a header under two spellings must not depend on map order
	for _, name := range names {
		lower := lowerASCII(name)
		r.fields[lower] = append(r.fields[lower], header[name]...)
	}
	r.base = now
	for _, line := range r.fields["date"] {
		if date, ok := parseHTTPDate(trimmed(line), now); ok {
			r.base = date.Add(r.age())
			break
		}
	}
	return r
}

// age is how long a cache kept the response; 0 where it does not say.
func (r *response) age() time.Duration {
	for _, line := range r.fields["age"] {
		if s := trimmed(line); len(s) <= longestValue && allDigits(s) {
			return scaled(s, "", time.Second)
		}
	}
	return 0
}

// names reports whether the response has the header.
func (r *response) names(header string) bool { return len(r.fields[header]) > 0 }

// says reports whether every line of the header is the value.
func (r *response) says(header, value string) bool {
	return !slices.ContainsFunc(r.fields[header], func(line string) bool { return lowerASCII(trimmed(line)) != value })
}

// report notes that a source could not be read.
func (r *response) report(name string) {
	if !slices.Contains(r.malformed, name) {
		r.malformed = append(r.malformed, name)
	}
}

// largest is the largest valid value over the lines of a header. Malformed
// lines are reported.
func largest[T any](r *response, name string, parse func(value string, base time.Time) (T, bool), less func(a, b T) bool) (best T, ok bool) {
	for _, line := range r.fields[name] {
		value := trimmed(line)
		v, valid := best, false
		if len(value) <= longestValue && isASCII(value) {
			v, valid = parse(value, r.base)
		}
		switch {
		case !valid:
			r.report(name)
		case !ok || less(best, v):
			best, ok = v, true
		}
	}
	return best, ok
}

func (r *response) delay(name string, parse func(string, time.Time) (time.Duration, bool)) (time.Duration, bool) {
	return largest(r, name, parse, func(a, b time.Duration) bool { return a < b })
}

// headerSource is one header with a delay.
func headerSource(name string, parse func(string, time.Time) (time.Duration, bool)) source {
	return func(r *response) (time.Duration, string, bool) {
		asked, ok := r.delay(name, parse)
		return asked, name, ok
	}
}

// trimmed takes off white space; in ASCII only, as all else is malformed.
func trimmed(s string) string { return strings.Trim(s, " \t\r\n\v\f") }
