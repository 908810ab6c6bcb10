package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Values of a policy file: string, int64, bool, []any and mapping.

// mapping keeps its keys in order; its JSON has them sorted.
type mapping []pair

type pair struct {
	key   string
	value any
}

// MarshalJSON writes the keys sorted, as encoding/json does for a map.
func (m mapping) MarshalJSON() ([]byte, error) {
	sorted := make(map[string]any, len(m))
	for _, p := range m {
		sorted[p.key] = p.value
	}
	return json.Marshal(sorted)
}

// jsonOf never fails: the values above all have a JSON form.
func jsonOf(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte(strconv.Quote(err.Error()))
	}
	return data
}

// textOf is a value as a message shows it.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "(none)"
	case string:
		return v
	default:
		return string(jsonOf(v))
	}
}

// nodeOf turns a value into the tree that a file with it would give.
func nodeOf(v any) *yaml.Node {
	switch v := v.(type) {
	case mapping:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, p := range v {
			n.Content = append(n.Content, scalarNode("!!str", p.key), nodeOf(p.value))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range v {
			n.Content = append(n.Content, nodeOf(item))
		}
		return n
	case string:
		return scalarNode("!!str", v)
	case int64:
		return scalarNode("!!int", strconv.FormatInt(v, 10))
	case bool:
		return scalarNode("!!bool", strconv.FormatBool(v))
	default:
		return scalarNode("!!null", "")
	}
}

func scalarNode(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

// DecodeGate reads a gate's canonical JSON, or any JSON object with the keys
// of a gate in the policy file, by the same rules: unknown and repeated keys
// are faults, what is absent has its default. The error is a *[FaultError]
// with every fault. At most 1 MiB.
func DecodeGate(data []byte) (Gate, error) {
	if len(data) > maxFileSize {
		return Gate{}, &FaultError{Faults: []Fault{{Message: fmt.Sprintf("%d bytes", len(data)), Allowed: fmt.Sprintf("at most %d", maxFileSize)}}}
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	node, err := jsonNode(decoder, 0)
	if err == nil {
		if _, more := decoder.Token(); more != io.EOF {
			err = errors.New("something stands after the gate")
		}
	}
	if err != nil {
		return Gate{}, &FaultError{Faults: []Fault{{Message: "not the JSON of a gate: " + err.Error()}}}
	}
	r := &reader{}
	read := r.gate(spot{node: node})
	if len(r.faults) > 0 {
		return Gate{}, &FaultError{Faults: r.faults}
	}
	return *read.gate, nil
}

// deepest is how far a gate's JSON may nest; a valid one nests three deep.
const deepest = 16

// jsonNode reads one JSON value as a tree for the reader. Unlike a decoder into
// a map it keeps repeated keys, which are a fault.
func jsonNode(d *json.Decoder, depth int) (*yaml.Node, error) {
	if depth > deepest {
		return nil, errors.New("nested too deep")
	}
	token, err := d.Token()
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		if t == '[' {
			n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		}
		for d.More() {
			child, err := jsonNode(d, depth+1)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err := d.Token() // the closing bracket
		return n, err
	case json.Number:
		if plainInteger(t.String()) {
			return scalarNode("!!int", t.String()), nil
		}
		return scalarNode("!!float", t.String()), nil
	case string:
		return scalarNode("!!str", t), nil
	case bool:
		return scalarNode("!!bool", strconv.FormatBool(t)), nil
	default:
		return scalarNode("!!null", ""), nil
	}
}
