package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Fault is one thing that is wrong with a policy: where it stands, what it is
// and what it may be.
type Fault struct {
	// Line and Column count from 1; both are 0 where the policy did not come
	// from a file.
	Line, Column int
	// Path names the field as the file does, such as gates[0].max_in_flight.
	Path string
	// Value is what the field is, as a person reads it. Empty where it would
	// say nothing or where it may hold a secret.
	Value string
	// Allowed is what the field may be.
	Allowed string
	// Message stands in for Value and Allowed where a fault is not about one
	// value, such as an unknown key.
	Message string
}

// String is the fault on one line, without the file.
func (f Fault) String() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", f.Line, f.Column)
	}
	subject := f.Path
	if subject == "" {
		subject = "the policy"
	}
	if f.Message != "" {
		b.WriteString(subject + ": " + f.Message)
	} else {
		b.WriteString(subject + " is " + f.Value)
	}
	if f.Allowed != "" {
		b.WriteString("; allowed: " + f.Allowed)
	}
	return b.String()
}

// FaultError is every fault of a policy, in order of place.
type FaultError struct {
	File   string // empty where the policy did not come from a file
	Faults []Fault
}

// Error is one line per fault, such as
//
//	sluice.yaml:4:20: gates[0].max_in_flight is -3; allowed: 0 (no cap) to 1000000
func (e *FaultError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = withFile(e.File, f)
	}
	return strings.Join(lines, "\n")
}

func withFile(file string, f Fault) string {
	switch {
	case file == "":
		return f.String()
	case f.Line > 0:
		return file + ":" + f.String()
	default:
		return file + ": " + f.String()
	}
}

// byPlace puts faults in the order in which a person meets them in the file.
func byPlace(faults []Fault) {
	slices.SortStableFunc(faults, comparePlaces)
}

func comparePlaces(a, b Fault) int {
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

// longestShown bounds what a fault repeats of a value.
const longestShown = 80

// quoted shows a text in a message: cut, quoted, and withheld where it looks
// like a URL or an address, which may carry a password.
func quoted(s string) string {
	if strings.Contains(s, "://") || strings.Contains(s, "@") {
		return `a text with "://" or "@" in it (not shown)`
	}
	return strconv.Quote(cut(s))
}

func cut(s string) string {
	if len(s) <= longestShown {
		return s
	}
	end := longestShown
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// nearest is the known key with the smallest edit distance to s.
func nearest(s string, known []string) string {
	s = strings.ToLower(cut(s))
	best, least := "", -1
	for _, k := range known {
		if d := editDistance(s, k); least < 0 || d < least {
			best, least = k, d
		}
	}
	return best
}

// editDistance is Levenshtein's, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
