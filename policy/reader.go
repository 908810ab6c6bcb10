package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// reader turns a tree of nodes into gates and collects every fault on the way.
// A policy file, canonical JSON and Go values all come as such a tree, so
// there is one set of rules for the three.
type reader struct {
	lenient  bool   // on_invalid: disable
	without  string // what holds without what is read now; empty: it can't be left out
	found    int    // faults so far, warnings included
	faults   []Fault
	warnings []warning
}

// warning is a fault that does not refuse the policy, and what holds instead.
type warning struct {
	Fault
	without string
}

// spot is a value and how a person finds it.
type spot struct {
	node *yaml.Node
	path string
}

func (s spot) key(name string, node *yaml.Node) spot {
	if s.path == "" {
		return spot{node, name}
	}
	return spot{node, s.path + "." + name}
}

func (s spot) item(i int) spot {
	return spot{s.node.Content[i], fmt.Sprintf("%s[%d]", s.path, i)}
}

// scalar reports whether the value is a scalar with one of the tags.
func (s spot) scalar(tags ...string) bool {
	if s.node.Kind != yaml.ScalarNode {
		return false
	}
	return slices.Contains(tags, s.node.ShortTag())
}

// describe is the value as a message shows it.
func (s spot) describe() string {
	switch {
	case s.node.Kind == yaml.SequenceNode:
		return "a list"
	case s.node.Kind == yaml.MappingNode:
		return "a mapping"
	case s.scalar("!!null"):
		return "empty"
	case s.scalar("!!int", "!!float", "!!bool"):
		return cut(s.node.Value)
	default:
		return quoted(s.node.Value)
	}
}

// fault reports a value that is not allowed. Where that is the value of a
// limit, on_invalid decides whether it refuses the policy.
func (r *reader) fault(at spot, allowed string) {
	if at.node.Kind == yaml.AliasNode {
		r.found++ // reported by plain already
		return
	}
	r.add(at, Fault{Value: at.describe(), Allowed: allowed})
}

func (r *reader) message(at spot, message, allowed string) {
	r.add(at, Fault{Message: message, Allowed: allowed})
}

func (r *reader) add(at spot, f Fault) {
	f.Line, f.Column, f.Path = at.node.Line, at.node.Column, at.path
	r.found++
	if r.without != "" && r.lenient {
		r.warnings = append(r.warnings, warning{f, r.without})
		return
	}
	r.faults = append(r.faults, f)
}

// structure reports a fault of form, which always refuses the policy.
func (r *reader) structure(at spot, message, allowed string) {
	without := r.without
	r.without = ""
	r.message(at, message, allowed)
	r.without = without
}

// plain refuses anchors, aliases and tags wherever they stand: a policy needs
// none, and an alias can make a small file a huge one.
func (r *reader) plain(at spot) {
	n := at.node
	switch {
	case n.Kind == yaml.AliasNode:
		r.structure(at, "aliases are not supported", "write the value out")
		return
	case n.Anchor != "":
		r.structure(at, "anchors are not supported", "write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		r.structure(at, "tags are not supported", "a plain value")
	}
	for i, c := range n.Content {
		child := spot{c, at.path}
		switch {
		case n.Kind == yaml.SequenceNode:
			child = at.item(i)
		case n.Kind == yaml.MappingNode && i%2 == 1:
			child = at.key(shownKey(n.Content[i-1]), c)
		}
		r.plain(child)
	}
}

// fields reads a mapping. Unknown and repeated keys are faults.
func (r *reader) fields(at spot, known []string) (map[string]spot, bool) {
	if at.node.Kind != yaml.MappingNode {
		r.fault(at, "a mapping with the keys "+strings.Join(known, ", "))
		return nil, false
	}
	values := make(map[string]spot, len(known))
	for i := 0; i+1 < len(at.node.Content); i += 2 {
		keyNode, value := at.node.Content[i], at.node.Content[i+1]
		name := keyNode.Value
		place := at.key(shownKey(keyNode), keyNode)
		switch {
		case keyNode.Kind == yaml.AliasNode: // reported by plain
		case keyNode.Kind != yaml.ScalarNode:
			r.structure(place, "a key must be a plain text", "")
		case !slices.Contains(known, name):
			r.structure(place, fmt.Sprintf("unknown key; the nearest known one is %s", nearest(name, known)), "")
		default:
			if first, twice := values[name]; twice {
				r.structure(place, "the key stands here a second time"+lineOf(first.node), "each key once")
				continue
			}
			values[name] = at.key(name, value)
		}
	}
	return values, true
}

func shownKey(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return "(key)"
	}
	for _, c := range []byte(n.Value) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return quoted(n.Value)
		}
	}
	return cut(n.Value)
}

func lineOf(n *yaml.Node) string {
	if n.Line == 0 {
		return ""
	}
	return fmt.Sprintf(" (first in line %d)", n.Line)
}

// list reads a sequence.
func (r *reader) list(at spot, f listForm) ([]spot, bool) {
	if at.node.Kind != yaml.SequenceNode {
		r.fault(at, "a list of "+f.of)
		return nil, false
	}
	if len(at.node.Content) > f.most {
		r.message(at, fmt.Sprintf("%d of them", len(at.node.Content)), fmt.Sprintf("at most %d", f.most))
		return nil, false
	}
	items := make([]spot, len(at.node.Content))
	for i := range items {
		items[i] = at.item(i)
	}
	return items, true
}

func (r *reader) integer(at spot, f integerForm) (int64, bool) {
	n, err := strconv.ParseInt(at.node.Value, 10, 64)
	if !at.scalar("!!int") || !plainInteger(at.node.Value) || err != nil || n < f.least || n > f.most {
		r.fault(at, f.allowed())
		return 0, false
	}
	return n, true
}

func meaning(zero string) string {
	if zero == "" {
		return ""
	}
	return " (" + zero + ")"
}

// plainInteger keeps out what YAML also reads as an integer (0x10, 0o17, 010,
// 1_000, +5, -0): a limit should say what it says.
func plainInteger(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	return s == "0" || allDigits(digits) && digits[0] != '0'
}

func (r *reader) duration(at spot, f durationForm) (time.Duration, bool) {
	d, ok := parseDuration(at)
	if !ok || d < f.least || d > f.most {
		r.fault(at, f.allowed())
		return 0, false
	}
	return d, true
}

func parseDuration(at spot) (time.Duration, bool) {
	text := at.node.Value
	if at.scalar("!!int") && text == "0" {
		return 0, true
	}
	if !at.scalar("!!str") {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	if err != nil || d == 0 && strings.ContainsAny(text, "123456789") {
		return 0, false // less than a nanosecond must not read as 0, which means "off"
	}
	return d, true
}

// DurationText is a duration as a person writes it, and as a policy file may
// have it: 5m, not 5m0s.
func DurationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (r *reader) text(at spot, f textForm) (string, bool) {
	s := strings.TrimSpace(at.node.Value)
	if !at.scalar("!!str") || !f.valid(s) {
		r.fault(at, f.allowed())
		return "", false
	}
	return s, true
}

func (r *reader) word(at spot, f wordForm) (string, bool) {
	s := strings.TrimSpace(at.node.Value)
	if !at.scalar("!!str") || !slices.Contains(f, s) {
		r.fault(at, f.allowed())
		return "", false
	}
	return s, true
}

func (r *reader) boolean(at spot) (value, ok bool) {
	if at.scalar("!!bool") {
		switch at.node.Value {
		case "true":
			return true, true
		case "false":
			return false, true
		}
	}
	r.fault(at, booleanForm{}.allowed())
	return false, false
}

// decimal reads a number as text, digits after the point included.
func (r *reader) decimal(at spot, f decimalForm) (string, bool) {
	s := at.node.Value
	whole, fraction, dotted := strings.Cut(s, ".")
	ok := at.scalar("!!int", "!!float") && len(s) <= 40 && plainInteger(whole) && s[0] != '-' && (!dotted || allDigits(fraction))
	if !ok {
		r.fault(at, f.allowed())
	}
	return s, ok
}

func allDigits(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}
