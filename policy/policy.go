package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// OnInvalid says what becomes of a policy file with faults.
type OnInvalid string

const (
	// InvalidRefuse refuses the file; the default.
	InvalidRefuse OnInvalid = "refuse"
	// InvalidDisable leaves out each limit that has a fault and warns. Faults
	// of structure (unknown and repeated keys, identities, words) still refuse.
	InvalidDisable OnInvalid = "disable"
)

const maxGates = 256

// maxPatterns bounds the activity patterns with a wildcard: each is held
// against each other one.
const maxPatterns = 512

// Policy is the gates of a process. It does not change once it is made, so
// concurrent use is safe; neither may the gates it hands out be changed. A nil
// *Policy gates nothing.
type Policy struct {
	// OnInvalid is what the file said; [InvalidRefuse] if it said nothing.
	OnInvalid OnInvalid
	// Warnings are the faults that on_invalid: disable passed over, one line
	// each with its place and what holds instead: the limit is off, or at its
	// default (max_cooldown, max_queue, max_hold, the TTLs, look_ahead,
	// start_window).
	Warnings []string

	gates      []*Gate // in file order
	ids        map[string]*Gate
	sites      map[authority][]site
	activities map[string]*Gate
	patterns   []activityPattern
}

type activityPattern struct {
	pattern string
	gate    *Gate
}

// New makes a policy of gates that are written in Go, by the rules of the file.
// The gates are copied. The error is a *[FaultError] with every fault.
func New(gates ...Gate) (*Policy, error) {
	list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for i := range gates {
		list.Content = append(list.Content, gates[i].node())
	}
	root := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{scalarNode("!!str", "gates"), list}}
	return readPolicy("", root)
}

// readPolicy reads the tree of a policy file.
func readPolicy(file string, root *yaml.Node) (*Policy, error) {
	r := &reader{}
	p := r.policy(spot{node: root})
	if len(r.faults) > 0 {
		byPlace(r.faults)
		return nil, &FaultError{File: file, Faults: r.faults}
	}
	slices.SortStableFunc(r.warnings, func(a, b warning) int { return comparePlaces(a.Fault, b.Fault) })
	for _, w := range r.warnings {
		p.Warnings = append(p.Warnings, withFile(file, w.Fault)+"; "+w.without)
	}
	return p, nil
}

func (r *reader) policy(at spot) *Policy {
	p := &Policy{
		OnInvalid:  InvalidRefuse,
		ids:        map[string]*Gate{},
		sites:      map[authority][]site{},
		activities: map[string]*Gate{},
	}
	r.plain(at)
	values, ok := r.fields(at, namesOf(fileForm.fields))
	if !ok {
		return p
	}
	if v, given := values["on_invalid"]; given { // wherever it stands: it rules how the gates are read
		if word, ok := r.word(v, words); ok {
			p.OnInvalid = OnInvalid(word)
		}
	}
	r.lenient = p.OnInvalid == InvalidDisable
	gates, given := values["gates"]
	if !given {
		return p
	}
	items, _ := r.list(gates, listed)
	reads := make([]gateRead, len(items))
	for i, item := range items {
		reads[i] = r.gate(item)
		p.gates = append(p.gates, reads[i].gate)
	}
	r.distinctGates(p, reads)
	r.distinctActivities(p, reads)
	p.buildSites()
	return p
}

func (r *reader) distinctGates(p *Policy, reads []gateRead) {
	first := map[string]int{}
	for i, read := range reads {
		id := read.gate.ID()
		if id == "" {
			continue // its identity has a fault
		}
		if j, twice := first[id]; twice {
			r.structure(read.at, fmt.Sprintf("the same gate as %s (%s)", reads[j].at.path, id), "each gate once; a name tells gates on one endpoint apart")
			continue
		}
		first[id] = i
		p.ids[id] = read.gate
	}
}

// distinctActivities refuses an activity that two gates name, be it by a
// pattern. A gate's own patterns may overlap.
func (r *reader) distinctActivities(p *Policy, reads []gateRead) {
	type named struct {
		name string
		gate int
		at   spot
	}
	var exact, patterns []named
	for i, read := range reads {
		for _, name := range read.gate.Activities {
			n := named{name, i, activitySpot(read, name)}
			if isPattern(name) {
				patterns = append(patterns, n)
			} else {
				exact = append(exact, n)
			}
		}
	}
	if len(patterns) > maxPatterns {
		r.structure(patterns[maxPatterns].at, fmt.Sprintf("%d activity patterns in all", len(patterns)), fmt.Sprintf("at most %d", maxPatterns))
		return
	}
	conflict := func(a, b named) {
		r.structure(a.at, fmt.Sprintf("%s is gated by %s already, as %s", quoted(a.name), reads[b.gate].at.path, quoted(b.name)), "each activity in one gate")
	}
	first := map[string]named{}
	for _, e := range exact {
		if other, twice := first[e.name]; twice {
			if other.gate != e.gate {
				conflict(e, other)
			}
			continue
		}
		first[e.name] = e
		p.activities[e.name] = reads[e.gate].gate
		for _, pattern := range patterns {
			if pattern.gate != e.gate && matches(pattern.name, e.name) {
				if pattern.gate > e.gate {
					conflict(pattern, e)
				} else {
					conflict(e, pattern)
				}
			}
		}
	}
	for i, a := range patterns {
		for _, b := range patterns[:i] {
			if a.gate != b.gate && overlap(a.name, b.name) {
				conflict(a, b)
				break
			}
		}
		p.patterns = append(p.patterns, activityPattern{a.name, reads[a.gate].gate})
	}
}

// activitySpot finds an activity's place in the file again.
func activitySpot(read gateRead, name string) spot {
	list := read.values["activities"]
	for i, n := range list.node.Content {
		if strings.TrimSpace(n.Value) == name {
			return list.item(i)
		}
	}
	return list
}

// Gates are the gates in file order. They must not be changed.
func (p *Policy) Gates() []*Gate {
	if p == nil {
		return nil
	}
	return slices.Clone(p.gates)
}

// ByID is the gate with the ID; nil if there is none.
func (p *Policy) ByID(id string) *Gate {
	if p == nil {
		return nil
	}
	return p.ids[id]
}

// ByActivity is the gate that names the activity type; nil if none does.
func (p *Policy) ByActivity(name string) *Gate {
	if p == nil {
		return nil
	}
	if g := p.activities[name]; g != nil {
		return g
	}
	for _, a := range p.patterns {
		if matches(a.pattern, name) {
			return a.gate
		}
	}
	return nil
}

// UnmatchedActivities are the activities and patterns of all gates that match
// none of the registered activity types, as "pattern (gate ID)": most likely
// misspelt, and worth a warning.
func (p *Policy) UnmatchedActivities(registered []string) []string {
	var unmatched []string
	for _, g := range p.Gates() {
		for _, pattern := range g.Activities {
			if !slices.ContainsFunc(registered, func(name string) bool { return matches(pattern, name) }) {
				unmatched = append(unmatched, fmt.Sprintf("%s (%s)", pattern, g.ID()))
			}
		}
	}
	return unmatched
}

// isPattern reports whether an activity's name has a wildcard.
func isPattern(s string) bool { return strings.Contains(s, "*") }

// matches reports whether a name fits a pattern, in which * is any run of
// characters.
func matches(pattern, name string) bool {
	star, resume := -1, 0
	i, j := 0, 0
	for j < len(name) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, resume = i, j
			i++
		case i < len(pattern) && pattern[i] == name[j]:
			i++
			j++
		case star >= 0: // let the last * take one more
			resume++
			i, j = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[i:], "*") == ""
}

// overlap reports whether some name fits both patterns.
func overlap(a, b string) bool {
	// reach[j]: some text fits both a[:i] and b[:j].
	reach := make([]bool, len(b)+1)
	reach[0] = true
	for j := range len(b) {
		reach[j+1] = reach[j] && b[j] == '*'
	}
	for i := range len(a) {
		diagonal := reach[0]
		reach[0] = reach[0] && a[i] == '*'
		for j := range len(b) {
			above := reach[j+1]
			if a[i] == '*' || b[j] == '*' {
				// A star ends here, or goes on over what the other one has.
				reach[j+1] = above || reach[j]
			} else {
				reach[j+1] = diagonal && a[i] == b[j]
			}
			diagonal = above
		}
	}
	return reach[len(b)]
}

// byLongestPath puts the most specific site first.
func byLongestPath(a, b site) int { return cmp.Compare(len(b.path), len(a.path)) }
