package gateclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice/workflows"
)

// Act is Operate, but what can't be set isn't sent.
func (c *Client) Act(ctx context.Context, gate string, o workflows.Operate) (workflows.Act, error) {
	if o.Do == workflows.DoSet {
		st, err := c.Status(ctx, gate)
		if err != nil {
			return workflows.Act{}, err
		}
		if _, _, err := st.InForce.With(o.Set); err != nil {
			return workflows.Act{}, errors.New(strings.Join(strings.Split(err.Error(), "\n"), "; ")) // one line; a policy has one for each fault
		}
	}
	return c.Operate(ctx, gate, o)
}

// SetValues reads FIELD=VALUE as a policy file would.
func SetValues(assignments []string) (map[string]json.RawMessage, error) {
	set := map[string]json.RawMessage{}
	for _, a := range assignments {
		field, text, ok := strings.Cut(a, "=")
		if !ok || field == "" {
			return nil, fmt.Errorf("%q is not FIELD=VALUE", a)
		}
		if _, twice := set[field]; twice {
			return nil, fmt.Errorf("%s is set twice", field)
		}
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(text), &n); err != nil {
			return nil, fmt.Errorf("%s is %q, which can't be read: %s", field, text, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		value, err := jsonValue(&n)
		if err != nil {
			return nil, fmt.Errorf("%s is %q: %w", field, text, err)
		}
		set[field] = value
	}
	return set, nil
}

// jsonValue is a value of a policy file in JSON. Numbers keep their digits.
func jsonValue(n *yaml.Node) (json.RawMessage, error) {
	switch n.Kind {
	case yaml.DocumentNode:
		return jsonValue(n.Content[0])
	case yaml.MappingNode:
		m := map[string]json.RawMessage{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, err := jsonValue(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			m[n.Content[i].Value] = v
		}
		return json.Marshal(m)
	case yaml.SequenceNode:
		list := []json.RawMessage{}
		for _, item := range n.Content {
			v, err := jsonValue(item)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return json.Marshal(list)
	case yaml.ScalarNode:
		if tag := n.ShortTag(); tag == "!!int" || tag == "!!float" || tag == "!!bool" {
			if json.Valid([]byte(n.Value)) {
				return json.RawMessage(n.Value), nil
			}
		}
		return json.Marshal(n.Value)
	case yaml.AliasNode:
		return nil, fmt.Errorf("aliases are not supported")
	}
	return json.RawMessage(`""`), nil // nothing stands behind the =
}
