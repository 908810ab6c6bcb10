package policy

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReference keeps the tables of docs/policy.md as the reader's table says
// them: one row for each key of a gate, wherever it stands.
func TestReference(t *testing.T) {
	const file = "../docs/policy.md"
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(string(data), "\n")
	for _, k := range gateKeys {
		found := 0
		for i, line := range lines {
			if !strings.HasPrefix(line, "| `"+k.name+"`") {
				continue
			}
			found++
			if *update {
				lines[i] = k.row()
			}
			assert.Equal(t, k.row(), lines[i], "the reference has changed: go test ./policy -run TestReference -update")
		}
		assert.Equal(t, 1, found, "rows of %s", k.name)
	}
	for _, name := range presetNames {
		statuses := strings.Trim(strings.ReplaceAll(fmt.Sprint(presets[name].overloadStatuses), " ", ", "), "[]")
		assert.Contains(t, string(data), "| `"+name+"` | "+statuses+" |", "the row of the preset")
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644))
	}
}

// row is the key in the reference.
func (k key) row() string {
	name := "`" + k.name + "`"
	if k.limit {
		name += " °"
	}
	unset := k.unset
	if d := k.defaultValue(); d != nil {
		unset = "`" + textOf(d) + "`"
	}
	meaning := k.doc
	if allowed := k.form.allowed(); allowed != "" {
		meaning += " Allowed: " + allowed + "."
	}
	return fmt.Sprintf("| %s | %s | %s |", name, unset, meaning)
}
