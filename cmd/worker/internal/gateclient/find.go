package gateclient

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sluice/workflows"
)

// Find returns the ID of the running gate that a person means: by its ID, with
// or without the prefix of its workflow ID, by its name or its provider, or by
// an end of its ID that only it has. The error says what there is.
func (c *Client) Find(ctx context.Context, name string) (string, error) {
	name = strings.TrimPrefix(name, workflows.WorkflowIDPrefix)
	if strings.Contains(name, "@") {
		if is, err := c.runs(ctx, name); err != nil || is {
			return name, err
		}
	}
	gates, err := c.Gates(ctx)
	if err != nil {
		return "", err
	}
	return Match(name, gates, c.namespace)
}

// shown bounds the gates that an error lists.
const shown = 8

// Match finds the gate that is meant among the ones that there are.
func Match(name string, gates []string, namespace string) (string, error) {
	if slices.Contains(gates, name) {
		return name, nil
	}
	var fitting []string
	for _, gate := range gates {
		if means(name, gate) {
			fitting = append(fitting, gate)
		}
	}
	switch {
	case len(fitting) == 1:
		return fitting[0], nil
	case len(fitting) > 1:
		return "", fmt.Errorf("%q may be %s; say more of it", name, list(fitting))
	case len(gates) == 0:
		return "", fmt.Errorf("no gate %q runs in namespace %s, nor any other; one starts with the first call that it admits", name, namespace)
	}
	return "", fmt.Errorf("no gate %q runs in namespace %s; there is %s", name, namespace, list(gates))
}

// means reports whether a gate may be called so.
func means(name, gate string) bool {
	if name == "" {
		return false
	}
	provider, _, _ := strings.Cut(gate, "@")
	_, own, _ := strings.Cut(gate, "#")
	return name == provider || name == own || strings.HasSuffix(gate, name)
}

func list(gates []string) string {
	text := strings.Join(gates[:min(len(gates), shown)], ", ")
	if more := len(gates) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func sorted(set map[string]bool) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
