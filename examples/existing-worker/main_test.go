package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/policy"
)

// TestREADME: what the README shows is what compiles and loads here.
func TestREADME(t *testing.T) {
	readme := read(t, "../../README.md")
	program := read(t, "main.go")
	assert.Contains(t, readme, "```go\n"+program+"```\n", "README.md shows main.go as it is")
	assert.Contains(t, readme, "```yaml\n"+read(t, "sluice.yaml")+"```\n", "README.md shows sluice.yaml as it is")
	assert.Less(t, strings.Count(program, "\n"), 40)
}

func TestPolicyFile(t *testing.T) {
	p, err := policy.Load("sluice.yaml")
	require.NoError(t, err)
	require.Len(t, p.Gates(), 1)
	assert.Equal(t, "example@api.example.com/v1", p.Gates()[0].ID())
	assert.Empty(t, p.Warnings)
	assert.Empty(t, p.Notes())
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(data)
}
