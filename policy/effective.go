package policy

import (
	"encoding/json"
	"io"

	"go.yaml.in/yaml/v3"
)

// WriteEffective writes the policy as a policy file with every key at its
// effective value, in the order of the documentation, gate ID, workflow ID and
// hash as comments. Reading it again gives an equal policy. The error is w's.
func (p *Policy) WriteEffective(w io.Writer) error {
	onInvalid := InvalidRefuse
	if p != nil {
		onInvalid = p.OnInvalid
	}
	gates := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, g := range p.Gates() {
		n := styled(g.node())
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
// and of each gate id, workflow_id, hash and policy, the last being what
// [DecodeGate] reads. The same policy always gives the same bytes.
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
		})
	}
	return json.MarshalIndent(mapping{{"on_invalid", string(onInvalid)}, {"warnings", warnings}, {"gates", gates}}, "", "  ")
}
