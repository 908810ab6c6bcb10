package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"sluice/policy"
)

const oddPolicy = `on_invalid: disable
gates:
  - provider: github
    preset: github
    endpoint: https://user:secret@API.github.com:443/?token=secret
    max_in_flight: -8
    min_interval: 1s
    park_ttl: 1m
  - provider: example
    endpoint: https://api.example.com
`

// What a file comes to, what of it is left out, and what may not be meant.
func TestValidateExplainsAPolicy(t *testing.T) {
	r := command(t, oddPolicy, "validate", "-")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, `warning: stdin:6:20: gates[0].max_in_flight is -8; allowed: 0 (no cap) to 1000000; this limit is off
warning: github@api.github.com: park_ttl 1m is shorter than max_cooldown 5m: a caller that stays away for a cooldown loses its place
warning: example@api.example.com: has no cap, no pacing and no budget: only a provider's cooldown holds calls up
`, r.stderr)
	for _, line := range []string{
		"  # gate github@api.github.com\n",
		"  # workflow sluice/github@api.github.com\n",
		"    max_in_flight: 0 # default: no cap\n",
		"    requests: {limit: 1, per: 1s, burst: 1}\n",
		"    overload_statuses: [403, 429, 503] # preset\n",
		"    overload_statuses: [429, 503, 529] # default\n",
		"    max_hold: 1h # default\n",
		"    park_ttl: 1m\n",
	} {
		require.Contains(t, r.stdout, line)
	}
	require.NotContains(t, r.stdout+r.stderr, "secret")
}

func TestValidateForAProgram(t *testing.T) {
	r := command(t, oddPolicy, "validate", "--json", "-")
	require.Equal(t, 0, r.code, r.stderr)
	var out struct {
		OnInvalid string   `json:"on_invalid"`
		Warnings  []string `json:"warnings"`
		Notes     []string `json:"notes"`
		Gates     []struct {
			ID         string          `json:"id"`
			WorkflowID string          `json:"workflow_id"`
			Hash       string          `json:"hash"`
			Policy     json.RawMessage `json:"policy"`
			Defaults   []string        `json:"defaults"`
		} `json:"gates"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &out))
	require.Equal(t, "disable", out.OnInvalid)
	require.Len(t, out.Warnings, 1)
	require.Len(t, out.Notes, 2)
	require.Len(t, out.Gates, 2)
	g := out.Gates[0]
	require.Equal(t, "sluice/"+g.ID, g.WorkflowID)
	decoded, err := policy.DecodeGate(g.Policy)
	require.NoError(t, err)
	require.Equal(t, g.Hash, decoded.Hash())
	require.Contains(t, g.Defaults, "max_hold")
	require.NotContains(t, g.Defaults, "park_ttl")
	require.NotContains(t, r.stdout, "secret")
}

func TestSchemaCommand(t *testing.T) {
	r := command(t, "", "schema")
	require.Equal(t, 0, r.code, r.stderr)
	require.Empty(t, r.stderr)
	require.Equal(t, string(policy.Schema()), r.stdout)
	requireOneLine(t, exitUsage, command(t, "", "schema", "x"), `unexpected argument "x"`, "--help")
}
