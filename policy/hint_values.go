package policy

import (
	"iter"
	"math"
	"strings"
	"time"
)

// longestValue bounds a header value that is read, in bytes.
const longestValue = 128

// longestDelay is the largest whole number of milliseconds in a time.Duration;
// all that is longer saturates there.
const longestDelay = math.MaxInt64 / time.Millisecond * time.Millisecond

// From these on a plain number is a Unix time.
const (
	epochSeconds      = 1e9
	epochMilliseconds = 1e12
)

// parseMilliseconds reads digits[.digits] milliseconds, or a comma list.
func parseMilliseconds(value string, _ time.Time) (time.Duration, bool) {
	return parseList(value, func(number string) (time.Duration, bool) {
		whole, fraction, ok := splitNumber(number)
		return toMilliseconds(scaled(whole, fraction, time.Millisecond)), ok
	})
}

// parseRetryAfter reads a number of seconds, a Unix time, a comma list of such
// numbers, a duration or an HTTP date.
func parseRetryAfter(value string, base time.Time) (time.Duration, bool) {
	if date, ok := parseHTTPDate(value, base); ok {
		return until(date, base), true
	}
	return parseSecondsOrDuration(value, base)
}

// parseReset reads a number as Retry-After has it, a duration or an RFC 3339
// instant.
func parseReset(value string, base time.Time) (time.Duration, bool) {
	if instant, ok := parseRFC3339(value); ok {
		return until(instant, base), true
	}
	return parseSecondsOrDuration(value, base)
}

func parseSecondsOrDuration(value string, base time.Time) (time.Duration, bool) {
	if d, ok := parseUnits(value); ok {
		return toMilliseconds(d), true
	}
	return parseList(value, func(number string) (time.Duration, bool) { return parseSeconds(number, base) })
}

// parseList is the largest of a comma list of numbers; one that is not a number
// spoils it.
func parseList(value string, parse func(string) (time.Duration, bool)) (time.Duration, bool) {
	longest := time.Duration(0)
	for part := range splitList(value) {
		d, ok := parse(part)
		if !ok {
			return 0, false
		}
		longest = max(longest, d)
	}
	return longest, true
}

// splitList is the parts of a comma list, without the space around them.
func splitList(value string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(value, ",") {
			if !yield(trimmed(part)) {
				return
			}
		}
	}
}

// parseSeconds reads digits[.digits]: seconds, or a Unix time where the number
// is that large.
func parseSeconds(number string, base time.Time) (time.Duration, bool) {
	whole, fraction, ok := splitNumber(number)
	if !ok {
		return 0, false
	}
	switch n := saturatingInteger(whole); {
	case n >= epochMilliseconds:
		return until(unixTime(n/1000, n%1000*int64(time.Millisecond)+int64(scaled("", fraction, time.Millisecond))), base), true
	case n >= epochSeconds:
		return until(unixTime(n, int64(scaled("", fraction, time.Second))), base), true
	}
	return toMilliseconds(scaled(whole, fraction, time.Second)), true
}

// splitNumber takes digits[.digits] apart.
func splitNumber(s string) (whole, fraction string, ok bool) {
	whole, fraction, dotted := strings.Cut(s, ".")
	return whole, fraction, allDigits(whole) && (!dotted || allDigits(fraction))
}

// parseUnits reads a duration such as 2m59.56s: numbers with the units h, m,
// s, ms, us, ns. Unlike time.ParseDuration it knows no sign, no bare point and
// no Greek letter, and saturates.
func parseUnits(s string) (time.Duration, bool) {
	total := time.Duration(0)
	if s == "" {
		return 0, false
	}
	for s != "" {
		number := s[:prefixLength(s, func(c byte) bool { return c >= '0' && c <= '9' || c == '.' })]
		s = s[len(number):]
		name := s[:prefixLength(s, func(c byte) bool { return c >= 'a' && c <= 'z' })]
		s = s[len(name):]
		whole, fraction, ok := splitNumber(number)
		unit, known := units[name]
		if !ok || !known {
			return 0, false
		}
		total = saturatingSum(total, scaled(whole, fraction, unit))
	}
	return total, true
}

var units = map[string]time.Duration{
	"h": time.Hour, "m": time.Minute, "s": time.Second,
	"ms": time.Millisecond, "us": time.Microsecond, "ns": time.Nanosecond,
}

func prefixLength(s string, in func(byte) bool) int {
	for i := range len(s) {
		if !in(s[i]) {
			return i
		}
	}
	return len(s)
}

// scaled is whole.fraction units, exact but for rounding up to a nanosecond and
// saturating. Both are digits or empty.
func scaled(whole, fraction string, unit time.Duration) time.Duration {
	n := saturatingInteger(whole)
	total := time.Duration(math.MaxInt64)
	if n <= math.MaxInt64/int64(unit) {
		total = time.Duration(n) * unit
	}
	// From the last digit to the first: what is carried stays below one unit.
	part, rest := int64(0), false
	for i := len(fraction) - 1; i >= 0; i-- {
		part += int64(fraction[i]-'0') * int64(unit)
		rest = rest || part%10 != 0
		part /= 10
	}
	if rest {
		part++
	}
	return saturatingSum(total, time.Duration(part))
}

func saturatingInteger(digits string) int64 {
	n := int64(0)
	for i := range len(digits) {
		d := int64(digits[i] - '0')
		if n > (math.MaxInt64-d)/10 {
			return math.MaxInt64
		}
		n = n*10 + d
	}
	return n
}

// saturatingSum adds two durations that are not negative.
func saturatingSum(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// toMilliseconds rounds up.
func toMilliseconds(d time.Duration) time.Duration {
	if d > longestDelay {
		return longestDelay
	}
	if rest := d % time.Millisecond; rest > 0 {
		return d - rest + time.Millisecond
	}
	return d
}

// lastSecond is the end of the year 9999; later Unix times saturate there.
const lastSecond = 253402300799

func unixTime(seconds, nanoseconds int64) time.Time {
	if seconds > lastSecond {
		return time.Unix(lastSecond, 0)
	}
	return time.Unix(seconds, nanoseconds)
}

// until is the delay to an instant: 0 where it is past. time.Time.Sub saturates.
func until(instant, base time.Time) time.Duration {
	return toMilliseconds(max(0, instant.Round(0).Sub(base.Round(0))))
}

// parseRFC3339 is strict, where time.Parse lets a comma stand for the point and
// an hour have one digit. Offset and fraction are allowed.
func parseRFC3339(s string) (time.Time, bool) {
	const shape = "0000-00-00T00:00:00"
	if len(s) <= len(shape) {
		return time.Time{}, false
	}
	for i := range len(shape) {
		if digit := s[i] >= '0' && s[i] <= '9'; digit != (shape[i] == '0') || !digit && s[i] != shape[i] {
			return time.Time{}, false
		}
	}
	if strings.Contains(s, ",") {
		return time.Time{}, false
	}
	instant, err := time.Parse(time.RFC3339, s)
	return instant, err == nil
}

// parseHTTPDate reads the three forms of RFC 9110, section 5.6.7, and tolerates
// a one-digit day, UTC and +0000 for GMT, and a wrong weekday. base decides the
// century of a two-digit year.
func parseHTTPDate(s string, base time.Time) (time.Time, bool) {
	if len(s) > longestValue {
		return time.Time{}, false
	}
	weekday, rest, comma := strings.Cut(s, ", ")
	if !comma {
		return parseASCTime(s)
	}
	if !isWeekday(weekday) {
		return time.Time{}, false
	}
	switch f := strings.Split(rest, " "); {
	case len(f) == 5 && len(f[2]) == 4 && isGMT(f[4]): // 06 Nov 1994 08:49:37 GMT
		return dateOf(f[2], f[1], f[0], f[3])
	case len(f) == 3 && isGMT(f[2]): // 06-Nov-94 08:49:37 GMT
		d := strings.Split(f[0], "-")
		if len(d) != 3 || len(d[2]) != 2 {
			return time.Time{}, false
		}
		return inNearCentury(d[2], d[1], d[0], f[1], base)
	}
	return time.Time{}, false
}

// parseASCTime reads "Sun Nov  6 08:49:37 1994", which is in GMT by definition.
func parseASCTime(s string) (time.Time, bool) {
	weekday, rest, _ := strings.Cut(s, " ")
	month, rest, _ := strings.Cut(rest, " ")
	f := strings.Split(strings.TrimPrefix(rest, " "), " ") // the day is padded with a space
	if !isWeekday(weekday) || len(f) != 3 || len(f[2]) != 4 {
		return time.Time{}, false
	}
	return dateOf(f[2], month, f[0], f[1])
}

// inNearCentury: the latest year with these last two digits that is not more
// than 50 years ahead of base.
func inNearCentury(yy, month, day, clock string, base time.Time) (time.Time, bool) {
	if !allDigits(yy) {
		return time.Time{}, false
	}
	base = base.UTC()
	limit := base.AddDate(50, 0, 0)
	year := int64(limit.Year()/100*100) + saturatingInteger(yy)
	for range 2 {
		if date, ok := dateIn(year, month, day, clock); ok && !date.After(limit) {
			return date, true
		}
		year -= 100 // also where 29 February is in the other century only
	}
	return time.Time{}, false
}

func dateOf(year, month, day, clock string) (time.Time, bool) {
	if !allDigits(year) {
		return time.Time{}, false
	}
	return dateIn(saturatingInteger(year), month, day, clock)
}

func dateIn(year int64, month, day, clock string) (time.Time, bool) {
	m := monthOf(month)
	if m == 0 || !allDigits(day) || len(day) > 2 || len(clock) != 8 || clock[2] != ':' || clock[5] != ':' {
		return time.Time{}, false
	}
	hour, minute, second := clock[:2], clock[3:5], clock[6:]
	if !allDigits(hour) || !allDigits(minute) || !allDigits(second) {
		return time.Time{}, false
	}
	dd, h, min, s := int(saturatingInteger(day)), int(saturatingInteger(hour)), int(saturatingInteger(minute)), int(saturatingInteger(second))
	if h > 23 || min > 59 || s > 60 { // 60 is a leap second
		return time.Time{}, false
	}
	midnight := time.Date(int(year), m, dd, 0, 0, 0, 0, time.UTC)
	if midnight.Day() != dd || midnight.Month() != m {
		return time.Time{}, false // no such day
	}
	return time.Date(int(year), m, dd, h, min, s, 0, time.UTC), true
}

func monthOf(s string) time.Month {
	for m := time.January; m <= time.December; m++ {
		if s == m.String()[:3] {
			return m
		}
	}
	return 0
}

func isWeekday(s string) bool {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if s == d.String() || s == d.String()[:3] {
			return true
		}
	}
	return false
}

func isGMT(s string) bool { return s == "GMT" || s == "UTC" || s == "+0000" }
