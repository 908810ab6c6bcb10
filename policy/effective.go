package policy

import (
	"encoding/json"
	"io"
	"slices"

	"sluice/admission"

	"go.yaml.in/yaml/v3"
)

// WriteEffective writes the policy as a policy file with every key at its
// effective value, in the order of the documentation. Comments tell each gate's
// ID, workflow ID and hash, and which values are defaults. Reading it again
// gives an equal policy. The error is w's.
func (p *Policy) WriteEffective(w io.Writer) error {
	onInvalid := InvalidRefuse
	if p != nil {
		onInvalid = p.OnInvalid
	}
	gates := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, g := range p.Gates() {
		n := styled(g.node())
		for i := 0; i+1 < len(n.Content); i += 2 {
			n.Content[i+1].LineComment = g.remark(n.Content[i].Value)
		}
		n.HeadComment = "gate " + g.ID() + "\nworkflow " + g.WorkflowID() + "\nhash " + g.Hash()
		gates.Content = append(gates.Content, n)
	}
	if len(gates.Content) == 0 {
		gates.Style = yaml.FlowStyle
	}
	root := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{
		scalarNode("!!str", "on_invalid"), scalarNode("!!str", string(onInvalid)),
		scalarNode("!!str", "gates"), gates,
	}}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return err
	}
	return encoder.Close()
}

// remark tells where the effective value of a key comes from and what a 0 means.
func (g *Gate) remark(name string) string {
	k := keyNamed(name)
	zero := ""
	switch f := k.form.(type) {
	case integerForm:
		zero = f.zero
	case durationForm:
		zero = f.zero
	case mappingForm:
		zero = limitForm.zero // of a rate
	}
	if !slices.Contains([]string{"0", DurationText(0), string(jsonOf(rateMapping(admission.Rate{})))}, textOf(k.value(g))) {
		zero = ""
	}
	switch origin := g.origin(name); {
	case origin == "":
		return zero
	case zero == "":
		return origin
	default:
		return origin + ": " + zero
	}
}

// Where a value comes from, where that is not the gate itself.
const (
	fromDefault = "default"
	fromPreset  = "preset"
)

// origin tells where the effective value of a key comes from: empty where the
// gate has another one than it would have by default.
func (g *Gate) origin(name string) string {
	unset := Gate{Preset: g.Preset, Requests: g.Requests, HolderTTL: g.HolderTTL} // other defaults depend on them
	switch name {
	case formRequests:
		unset.Requests = admission.Rate{}
	case "holder_ttl":
		unset.HolderTTL = 0
	case "preset":
		unset.Preset = ""
	}
	unset.setDefaults()
	k := keyNamed(name)
	switch {
	case string(jsonOf(k.value(g))) != string(jsonOf(k.value(&unset))):
		return ""
	case name == "overload_statuses" && g.Preset != "":
		return fromPreset
	}
	return fromDefault
}

// defaults are the keys whose effective value is the default or the preset's.
func (g *Gate) defaults() []string {
	names := []string{}
	for _, p := range g.mapping() {
		if g.origin(p.key) != "" {
			names = append(names, p.key)
		}
	}
	return names
}

// styled writes what is small on one line, and quotes what a person made up.
func styled(gate *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(gate.Content); i += 2 {
		value := gate.Content[i+1]
		switch gate.Content[i].Value {
		case "budgets", "reset_headers":
			for _, item := range value.Content {
				item.Style = yaml.FlowStyle
			}
			if len(value.Content) == 0 {
				value.Style = yaml.FlowStyle
			}
		case "activities", "exclude":
			for _, item := range value.Content {
				item.Style = yaml.DoubleQuotedStyle
			}
			if len(value.Content) == 0 {
				value.Style = yaml.FlowStyle
			}
		default:
			value.Style = yaml.FlowStyle
		}
		if value.Kind == yaml.ScalarNode {
			value.Style = 0
		}
	}
	return gate
}

// EffectiveJSON is the effective policy for a program: on_invalid, warnings,
// notes (see [Policy.Notes]), and of each gate id, workflow_id, hash, policy and
// defaults: what [DecodeGate] reads, and the keys of it that are at their
// default. The same policy always gives the same bytes.
func (p *Policy) EffectiveJSON() ([]byte, error) {
	onInvalid, warnings := InvalidRefuse, []string{}
	if p != nil {
		onInvalid, warnings = p.OnInvalid, append(warnings, p.Warnings...)
	}
	gates := []any{}
	for _, g := range p.Gates() {
		gates = append(gates, mapping{
			{"id", g.ID()},
			{"workflow_id", g.WorkflowID()},
			{"hash", g.Hash()},
			{"policy", g.mapping()},
			{"defaults", g.defaults()},
		})
	}
	return json.MarshalIndent(mapping{
		{"on_invalid", string(onInvalid)},
		{"warnings", warnings},
		{"notes", append([]string{}, p.Notes()...)},
		{"gates", gates},
	}, "", "  ")
}
