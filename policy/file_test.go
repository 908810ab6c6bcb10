package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/admission"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const designExample = `gates:
  - provider: openai
    endpoint: https://api.openai.com/v1
    max_in_flight: 8
    requests_per_second: 5
    budgets:
      - {unit: tokens, limit: 90000, per: 1m, burst: 90000}
    max_cooldown: 2m
    activities: [CallOpenAI]        # gated without a change to their code
`

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	require.NoError(t, os.WriteFile(file, []byte(designExample), 0o600))
	p, err := Load(file)
	require.NoError(t, err)
	require.Len(t, p.Gates(), 1)
	assert.Equal(t, Gate{
		Provider: "openai", Endpoint: "https://api.openai.com/v1",
		MaxInFlight: 8, Requests: admission.Rate{Limit: 5, Per: time.Second, Burst: 1},
		Budgets:          []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 90000, Per: time.Minute, Burst: 90000}}},
		MaxCooldown:      2 * time.Minute,
		OverloadStatuses: []int{429, 503, 529},
		MaxQueue:         10_000, Hold: HoldAttempt, MaxHold: time.Hour, OnLeaseLost: LeaseLostContinue, OnUnavailable: UnavailableWait,
		HolderTTL: 30 * time.Second, ParkTTL: 10 * time.Minute, LookAhead: time.Second, StartWindow: 200 * time.Millisecond,
		Activities: []string{"CallOpenAI"}, RetryHint: RetryHintOn, Revision: 1,
	}, *p.Gates()[0])
	assert.Empty(t, p.Warnings)
	assert.Same(t, p.Gates()[0], p.ByActivity("CallOpenAI"))

	_, err = Load(filepath.Join(t.TempDir(), "absent.yaml"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// gateFile is a file with one gate; the lines begin in line 4, column 5.
func gateFile(lines ...string) string {
	return "gates:\n  - provider: p\n    endpoint: https://h/v1\n    " + strings.Join(lines, "\n    ") + "\n"
}

// faultyLines are lines of a gate with one fault each, and the fault.
var faultyLines = []struct{ line, want string }{
	{"max_in_flight: -3", "4:20: gates[0].max_in_flight is -3; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: 1000001", "4:20: gates[0].max_in_flight is 1000001; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: 99999999999999999999", "4:20: gates[0].max_in_flight is 99999999999999999999; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: many", `4:20: gates[0].max_in_flight is "many"; allowed: 0 (no cap) to 1000000`},
	{`max_in_flight: "4"`, `4:20: gates[0].max_in_flight is "4"; allowed: 0 (no cap) to 1000000`},
	{"max_in_flight: 0x10", "4:20: gates[0].max_in_flight is 0x10; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: 010", "4:20: gates[0].max_in_flight is 010; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: 1.5", "4:20: gates[0].max_in_flight is 1.5; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: [4]", "4:20: gates[0].max_in_flight is a list; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: {a: 1}", "4:20: gates[0].max_in_flight is a mapping; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight:", "4:19: gates[0].max_in_flight is empty; allowed: 0 (no cap) to 1000000"},
	{"max_in_flight: true", "4:20: gates[0].max_in_flight is true; allowed: 0 (no cap) to 1000000"},
	{"max_inflight: 3", "4:5: gates[0].max_inflight: unknown key; the nearest known one is max_in_flight"},
	{"maxQueue: 3", "4:5: gates[0].maxQueue: unknown key; the nearest known one is max_queue"},
	{"https://user:pw@h: 3", `4:5: gates[0].a text with "://" or "@" in it (not shown): unknown key; the nearest known one is`},
	{"<<: {a: b}", `4:5: gates[0]."<<": unknown key; the nearest known one is name`},
	{"[a]: 3", "4:5: gates[0].(key): a key must be a plain text"},
	{"provider: q", "4:5: gates[0].provider: the key stands here a second time (first in line 2); allowed: each key once"},
	{"name: a b", `4:11: gates[0].name is "a b"; allowed: letters, digits and . _ : / -, at most 128 bytes`},
	{"name: 4", "4:11: gates[0].name is 4; allowed: letters"},
	{"preset: opnai", `4:13: gates[0].preset is "opnai"; allowed: anthropic, azure-openai, gemini, github, openai`},

	{"requests_per_second: -1", "4:26: gates[0].requests_per_second is -1; allowed: 0 (no pacing) to 1000000000000, a plain decimal with at most 7 digits after the point"},
	{"requests_per_second: 1e3", "4:26: gates[0].requests_per_second is 1e3; allowed: 0"},
	{"requests_per_second: .5", "4:26: gates[0].requests_per_second is .5; allowed: 0"},
	{"requests_per_second: 5.", "4:26: gates[0].requests_per_second is 5.; allowed: 0"},
	{"requests_per_second: .inf", "4:26: gates[0].requests_per_second is .inf; allowed: 0"},
	{"requests_per_second: 0.12345678", "4:26: gates[0].requests_per_second is 0.12345678; allowed: 0"},
	{"requests_per_second: 1000000000001", "4:26: gates[0].requests_per_second is 1000000000001; allowed: 0"},
	{"requests_per_second: 5s", `4:26: gates[0].requests_per_second is "5s"; allowed: 0`},
	{"min_interval: 275", "4:19: gates[0].min_interval is 275; allowed: 0s (no pacing) to 8784h, such as 1m30s"},
	{"min_interval: -1s", `4:19: gates[0].min_interval is "-1s"; allowed: 0s`},
	{"min_interval: 0.1ns", `4:19: gates[0].min_interval is "0.1ns"; allowed: 0s`},
	{"min_interval: 9000h", `4:19: gates[0].min_interval is "9000h"; allowed: 0s`},
	{"requests: 5", "4:15: gates[0].requests is 5; allowed: a mapping with the keys limit, per, burst"},
	{"requests: {limit: 5}", "4:15: gates[0].requests.per: is missing; allowed: 1ns to 8784h, such as 1m30s"},
	{"requests: {per: 1s}", "4:15: gates[0].requests.limit: is missing; allowed: 0 (off) to 1000000000000"},
	{"requests: {limit: 5, per: 0}", "4:31: gates[0].requests.per is 0; allowed: 1ns to 8784h, such as 1m30s"},
	{"requests: {limit: 5, per: 1s, burst: 0}", "4:42: gates[0].requests.burst is 0; allowed: 1 to 1000000000000"},
	{"requests: {limit: 5, per: 1s, brust: 1}", "4:35: gates[0].requests.brust: unknown key; the nearest known one is burst"},
	{"requests: {limit: 1, per: 8784h, burst: 10}", "4:45: gates[0].requests.burst is 10; allowed: what refills in less than 87840h"},
	{"requests: {limit: 1, per: 8784h, burst: 11}", "4:45: gates[0].requests.burst is 11; allowed: what refills in less than 87840h"},
	{"requests: {limit: 1, per: 8784h, burst: 1000000000000}", "4:45: gates[0].requests.burst is 1000000000000; allowed: what refills in less than 87840h"},

	{"budgets: {unit: a}", "4:14: gates[0].budgets is a mapping; allowed: a list of budgets"},
	{"budgets: [a]", `4:15: gates[0].budgets[0] is "a"; allowed: a mapping with the keys unit, limit, per, burst`},
	{"budgets: [{limit: 1, per: 1s}]", "4:15: gates[0].budgets[0].unit: is missing; allowed: [a-z][a-z0-9_]*, at most 32 bytes"},
	{"budgets: [{unit: Tokens, limit: 1, per: 1s}]", `4:22: gates[0].budgets[0].unit is "Tokens"; allowed: [a-z][a-z0-9_]*`},
	{"budgets: [{unit: a, limit: 1, per: 1s}, {unit: a, limit: 1, per: 1s}]", `4:52: gates[0].budgets[1].unit is "a"; allowed: each unit once`},
	{"budgets: [a, a, a, a, a, a, a, a, a]", "4:14: gates[0].budgets: 9 of them; allowed: at most 8"},

	{"max_cooldown: -1s", `4:19: gates[0].max_cooldown is "-1s"; allowed: 0s (no feedback) to 87840h, such as 1m30s`},
	{"fallback_cooldown: soon", `4:24: gates[0].fallback_cooldown is "soon"; allowed: 0s (none) to 87840h`},
	{"overload_statuses: 429", "4:24: gates[0].overload_statuses is 429; allowed: a list of HTTP statuses"},
	{"overload_statuses: []", "4:24: gates[0].overload_statuses: names no status; allowed: at least one of 400 to 599"},
	{"overload_statuses: [200]", "4:25: gates[0].overload_statuses[0] is 200; allowed: 400 to 599"},
	{"overload_statuses: [429, 429]", "4:30: gates[0].overload_statuses[1] is 429; allowed: each status once"},
	{"reset_headers: [{reset: a b}]", `4:29: gates[0].reset_headers[0].reset is "a b"; allowed: the name of a header`},
	{"reset_headers: [{limit: a}]", "4:21: gates[0].reset_headers[0].reset: is missing; allowed: the name of a header"},
	{"learn: yes", `4:12: gates[0].learn is "yes"; allowed: true, false`},
	{"queue_timeout: -1s", `4:20: gates[0].queue_timeout is "-1s"; allowed: 0s (none) to 87840h`},
	{"max_queue: 0", "4:16: gates[0].max_queue is 0; allowed: 1 to 2000000"},
	{"min_call_time: 5", "4:20: gates[0].min_call_time is 5; allowed: 0s (none) to"},
	{"hold: forever", `4:11: gates[0].hold is "forever"; allowed: attempt, call`},
	{"max_hold: 0", "4:15: gates[0].max_hold is 0; allowed: 1ms to 87840h"},
	{"on_lease_lost: panic", `4:20: gates[0].on_lease_lost is "panic"; allowed: continue, cancel`},
	{"on_unavailable: go", `4:21: gates[0].on_unavailable is "go"; allowed: wait, fail, local`},
	{"holder_ttl: 10ms", `4:17: gates[0].holder_ttl is "10ms"; allowed: 1s to 87840h`},
	{"park_ttl: 0", "4:15: gates[0].park_ttl is 0; allowed: 1ms to 87840h"},
	{"look_ahead: 30s", `4:17: gates[0].look_ahead is "30s"; allowed: 0 (none) to less than holder_ttl, which is 30s`},
	{"start_window: 0", "4:19: gates[0].start_window is 0; allowed: 1ms to 87840h"},
	{"max_exchanges_per_second: 1000001", "4:31: gates[0].max_exchanges_per_second is 1000001; allowed: 0 (no bound) to 1000000"},
	{"activities: CallOpenAI", `4:17: gates[0].activities is "CallOpenAI"; allowed: a list of activity types`},
	{"activities: [A, A]", `4:21: gates[0].activities[1] is "A"; allowed: each one once`},
	{`activities: [""]`, `4:18: gates[0].activities[0] is ""; allowed: the name of an activity type`},
	{"exclude: [models]", `4:15: gates[0].exclude[0] is "models"; allowed: a path pattern below the endpoint such as "/models" or "GET /health*", at most 255 bytes`},
	{"exclude: ['/a[']", `4:15: gates[0].exclude[0] is "/a["; allowed: a path pattern`},
	{"retry_hint: maybe", `4:17: gates[0].retry_hint is "maybe"; allowed: on, off`},
	{"revision: 0", "4:15: gates[0].revision is 0; allowed: 1 to 9223372036854775807"},

	{"name: &a x", "4:11: gates[0].name: anchors are not supported; allowed: write the value out"},
	{"name: !!str x", "4:11: gates[0].name: tags are not supported; allowed: a plain value"},
}

func TestFaultsOfOneGate(t *testing.T) {
	for _, c := range faultyLines {
		t.Run(c.line, func(t *testing.T) {
			_, err := Parse("sluice.yaml", []byte(gateFile(c.line)))
			var faults *FaultError
			require.ErrorAs(t, err, &faults)
			assert.Len(t, faults.Faults, 1, err.Error())
			assert.True(t, strings.HasPrefix(err.Error(), "sluice.yaml:"+c.want), "%s\n%s", err, c.want)
		})
	}
}

func TestFaultsAreReportedAtOnceInOrderOfPlace(t *testing.T) {
	_, err := Parse("sluice.yaml", []byte(`gates:
  - revision: 0
    max_in_flight: -3
    requests_per_second: 5
    min_interval: 1s
    endpoint: ftp://user:secret@h/v1?key=secret
    provider: Open AI
    budgets:
      - {unit: tokens, limit: -1, per: 1m}
      - {unit: bytes, limit: 1, per: 0, burst: 0}
    look_ahead: 1m
  - provider: p
  - []
  - {provider: a, endpoint: h, activities: [One, Call*]}
  - {provider: a, endpoint: "https://h:443/", activities: [Two]}
  - {provider: b, endpoint: h, activities: [Two, CallMe]}
gate: 5
on_invalid: maybe
`))
	require.Error(t, err)
	assert.Equal(t, `sluice.yaml:2:15: gates[0].revision is 0; allowed: 1 to 9223372036854775807
sluice.yaml:3:20: gates[0].max_in_flight is -3; allowed: 0 (no cap) to 1000000
sluice.yaml:5:19: gates[0].min_interval: stands beside requests_per_second; allowed: one of requests_per_second, min_interval, requests
sluice.yaml:6:15: gates[0].endpoint: has neither http nor https as its scheme; allowed: an http or https URL such as https://api.openai.com/v1, at most 512 bytes
sluice.yaml:7:15: gates[0].provider is "Open AI"; allowed: [a-z0-9][a-z0-9._-]*, at most 64 bytes
sluice.yaml:9:31: gates[0].budgets[0].limit is -1; allowed: 0 (off) to 1000000000000
sluice.yaml:10:38: gates[0].budgets[1].per is 0; allowed: 1ns to 8784h, such as 1m30s
sluice.yaml:10:48: gates[0].budgets[1].burst is 0; allowed: 1 to 1000000000000
sluice.yaml:11:17: gates[0].look_ahead is "1m"; allowed: 0 (none) to less than holder_ttl, which is 30s
sluice.yaml:12:5: gates[1].endpoint: is missing; allowed: an http or https URL such as https://api.openai.com/v1, at most 512 bytes
sluice.yaml:13:5: gates[2] is a list; allowed: a mapping with the keys `+strings.Join(gateKeyNames, ", ")+`
sluice.yaml:15:5: gates[4]: the same gate as gates[3] (a@h); allowed: each gate once; a name tells gates on one endpoint apart
sluice.yaml:16:45: gates[5].activities[0]: "Two" is gated by gates[4] already, as "Two"; allowed: each activity in one gate
sluice.yaml:16:50: gates[5].activities[1]: "CallMe" is gated by gates[3] already, as "Call*"; allowed: each activity in one gate
sluice.yaml:17:1: gate: unknown key; the nearest known one is gates
sluice.yaml:18:13: on_invalid is "maybe"; allowed: refuse, disable`, err.Error())
}

func TestThreeRequestForms(t *testing.T) {
	_, err := Parse("f", []byte(gateFile("min_interval: 0", "requests_per_second: 0", "requests: {limit: 1, per: 1s}")))
	assert.EqualError(t, err, "f:4:19: gates[0].min_interval: stands beside requests_per_second and requests; allowed: one of requests_per_second, min_interval, requests")
}

func TestFilesThatAreNoPolicy(t *testing.T) {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	for name, c := range map[string]struct{ data, want string }{
		"empty":            {"", "f: the policy: the file is empty"},
		"comments only":    {"# nothing\n", "f: the policy: the file is empty"},
		"null":             {"---\n", "the policy is empty; allowed: a mapping with the keys on_invalid, gates"},
		"a text":           {"hello", `f:1:1: the policy is "hello"; allowed: a mapping`},
		"a list":           {"- a\n", "f:1:1: the policy is a list; allowed: a mapping"},
		"gates a mapping":  {"gates: {a: b}\n", "f:1:8: gates is a mapping; allowed: a list of gates"},
		"gates missing":    {"gates:\n", "gates is empty; allowed: a list of gates"},
		"two documents":    {"gates: []\n---\ngates: []\n", "a second document begins here; allowed: one document"},
		"broken second":    {"gates: []\n---\n\t[", "not valid YAML"},
		"bad syntax":       {"gates:\n  - a: b\n c: [\n", "not valid YAML"},
		"tab":              {"gates:\n\t- a\n", "not valid YAML"},
		"not UTF-8":        {"gates: \xff\xfe\n", "not valid YAML"},
		"too large":        {"# " + strings.Repeat("x", 1<<20), "f: the policy: too large; allowed: at most 1048576 bytes"},
		"unknown alias":    {"gates: *a\n", "not valid YAML"},
		"top-level twice":  {"gates: []\ngates: []\n", "f:2:1: gates: the key stands here a second time (first in line 1)"},
		"alias":            {"on_invalid: &a refuse\ngates: *a\n", "f:2:8: gates: aliases are not supported"},
		"alias bomb":       {"a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\ngates: *c\n", "aliases are not supported"},
		"alias of itself":  {"gates: &a [*a]\n", "aliases are not supported"},
		"alias as a key":   {"on_invalid: &a gates\n*a : []\n", "anchors are not supported"},
		"nested very deep": {"gates: " + deep, "not valid YAML"},
		"too many gates":   {"gates: [" + strings.Repeat("a,", 300) + "]", "gates: 300 of them; allowed: at most 256"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f", []byte(c.data))
			var faults *FaultError
			require.ErrorAs(t, err, &faults)
			assert.Contains(t, err.Error(), c.want)
		})
	}
}

func TestNothingGated(t *testing.T) {
	for _, data := range []string{"gates: []\n", "on_invalid: disable\n"} {
		p, err := Parse("f", []byte(data))
		require.NoError(t, err)
		assert.Empty(t, p.Gates())
	}
}

func TestOnInvalidDisable(t *testing.T) {
	p, err := Parse("f", []byte(gateFile(
		"max_in_flight: -3",
		"requests: {limit: 5}",
		"budgets: [{unit: a, limit: 1, per: 1s}, {unit: b, limit: 1, per: 0}]",
		"max_cooldown: never", "max_queue: 0", "look_ahead: 1h", "holder_ttl: 20s",
	)+"on_invalid: disable\n"))
	require.NoError(t, err)
	g := p.Gates()[0]
	assert.Zero(t, g.MaxInFlight)
	assert.True(t, g.Requests.IsZero())
	assert.Equal(t, []admission.Budget{{Unit: "a", Rate: admission.Rate{Limit: 1, Per: time.Second, Burst: 1}}}, g.Budgets)
	assert.Equal(t, 5*time.Minute, g.MaxCooldown)
	assert.Equal(t, 10_000, g.MaxQueue)
	assert.Equal(t, time.Second, g.LookAhead)
	assert.Equal(t, []string{
		"f:4:20: gates[0].max_in_flight is -3; allowed: 0 (no cap) to 1000000; this limit is off",
		"f:5:15: gates[0].requests.per: is missing; allowed: 1ns to 8784h, such as 1m30s; this limit is off",
		"f:6:70: gates[0].budgets[1].per is 0; allowed: 1ns to 8784h, such as 1m30s; this limit is off",
		`f:7:19: gates[0].max_cooldown is "never"; allowed: 0s (no feedback) to 87840h, such as 1m30s; its default holds: 5m`,
		"f:8:16: gates[0].max_queue is 0; allowed: 1 to 2000000; its default holds: 10000",
		"f:9:17: gates[0].look_ahead is \"1h\"; allowed: 0 (none) to less than holder_ttl, which is 20s; its default holds: 1s, or half of `holder_ttl` if that is less",
	}, p.Warnings)

	for _, line := range []string{"max_inflight: 3", "max_in_flight: 1\n    max_in_flight: 2", "hold: x", "name: a b", "requests: {limit: 1, per: 1s, brust: 2}", "max_in_flight: &a 1"} {
		_, err := Parse("f", []byte("on_invalid: disable\n"+gateFile(line)))
		var faults *FaultError
		require.ErrorAs(t, err, &faults, line)
		assert.Len(t, faults.Faults, 1, line)
	}

	p, err = Parse("f", []byte("on_invalid: disable\n"+gateFile("min_interval: 1s", "requests_per_second: 3")))
	require.NoError(t, err)
	assert.True(t, p.Gates()[0].Requests.IsZero())
	assert.Len(t, p.Warnings, 1)
}

func TestRequestForms(t *testing.T) {
	second := time.Second
	for line, want := range map[string]admission.Rate{
		"requests_per_second: 8":                   {Limit: 8, Per: second, Burst: 1},
		"requests_per_second: 7.5":                 {Limit: 15, Per: 2 * second, Burst: 1},
		"requests_per_second: 7.50":                {Limit: 15, Per: 2 * second, Burst: 1},
		"requests_per_second: 0.1":                 {Limit: 1, Per: 10 * second, Burst: 1},
		"requests_per_second: 0.0000001":           {Limit: 1, Per: 10_000_000 * second, Burst: 1},
		"requests_per_second: 33.3333333":          {Limit: 333333333, Per: 10_000_000 * second, Burst: 1},
		"requests_per_second: 0":                   {},
		"requests_per_second: 0.0":                 {},
		"min_interval: 275ms":                      {Limit: 1, Per: 275 * time.Millisecond, Burst: 1},
		"min_interval: 0":                          {},
		"min_interval: 0s":                         {},
		"requests: {limit: 500, per: 1m}":          {Limit: 500, Per: time.Minute, Burst: 1},
		"requests: {limit: 60, per: 1m, burst: 9}": {Limit: 60, Per: time.Minute, Burst: 9},
		"requests: {limit: 0}":                     {},
		"requests: {limit: 0, per: 1s, burst: 5}":  {},
	} {
		p, err := Parse("f", []byte(gateFile(line)))
		require.NoError(t, err, line)
		assert.Equal(t, want, p.Gates()[0].Requests, line)
	}
}

func TestExplicitZeroes(t *testing.T) {
	p, err := Parse("f", []byte(gateFile("max_cooldown: 0", "look_ahead: 0s", "budgets: [{unit: a, limit: 0}]", "queue_timeout: 0")))
	require.NoError(t, err)
	g := p.Gates()[0]
	assert.Equal(t, Off, g.MaxCooldown)
	assert.Equal(t, Off, g.LookAhead)
	assert.Empty(t, g.Budgets)
	assert.Zero(t, g.Limits().MaxCooldown)
	assert.Negative(t, g.Limits().LookAhead)
}

func TestPresetGivesWayToTheFile(t *testing.T) {
	p, err := Parse("f", []byte(gateFile("preset: github")))
	require.NoError(t, err)
	assert.Equal(t, []int{403, 429, 503}, p.Gates()[0].OverloadStatuses)
	p, err = Parse("f", []byte(gateFile("overload_statuses: [503, 418]", "preset: github")))
	require.NoError(t, err)
	assert.Equal(t, []int{418, 503}, p.Gates()[0].OverloadStatuses)
	assert.Len(t, presetNames, len(presets))
}

func TestWriteEffective(t *testing.T) {
	p, err := Parse("f", []byte(designExample))
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, p.WriteEffective(&b))
	assert.Equal(t, `on_invalid: refuse
gates:
  # gate openai@api.openai.com/v1
  # workflow sluice/openai@api.openai.com/v1
  # hash `+p.Gates()[0].Hash()+`
  - provider: openai
    endpoint: https://api.openai.com/v1
    max_in_flight: 8
    requests: {limit: 5, per: 1s, burst: 1}
    budgets:
      - {unit: tokens, limit: 90000, per: 1m, burst: 90000}
    max_cooldown: 2m
    fallback_cooldown: 0s # default: none
    overload_statuses: [429, 503, 529] # default
    reset_headers: [] # default
    learn: false # default
    queue_timeout: 0s # default: none
    max_queue: 10000 # default
    min_call_time: 0s # default: none
    hold: attempt # default
    max_hold: 1h # default
    on_lease_lost: continue # default
    on_unavailable: wait # default
    holder_ttl: 30s # default
    park_ttl: 10m # default
    look_ahead: 1s # default
    start_window: 200ms # default
    max_exchanges_per_second: 0 # default: no bound
    activities:
      - "CallOpenAI"
    exclude: [] # default
    retry_hint: on # default
    revision: 1 # default
`, b.String())

	data, err := p.EffectiveJSON()
	require.NoError(t, err)
	assert.Contains(t, string(data), `"workflow_id": "sluice/openai@api.openai.com/v1"`)

	var none *Policy
	b.Reset()
	require.NoError(t, none.WriteEffective(&b))
	assert.Equal(t, "on_invalid: refuse\ngates: []\n", b.String())
	assert.Error(t, p.WriteEffective(failingWriter{}))
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

func FuzzParse(f *testing.F) {
	f.Add([]byte(designExample))
	f.Add([]byte(gateFile("max_in_flight: -3", "name: x", "exclude: [GET /a*]", "reset_headers: [{reset: a}]") + "on_invalid: disable\n"))
	f.Add([]byte(gateFile("requests_per_second: 7.5", `activities: ["a b", 'on', "\u00e4 *"]`, "look_ahead: 0", "max_cooldown: 0")))
	f.Add([]byte("gates: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("f", data)
		if err != nil {
			var faults *FaultError
			if !errors.As(err, &faults) || len(faults.Faults) == 0 {
				t.Fatal(err)
			}
			_ = err.Error()
			return
		}
		var b bytes.Buffer
		if err := p.WriteEffective(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Parse("effective", b.Bytes())
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if len(again.Warnings) > 0 || again.OnInvalid != p.OnInvalid || fmt.Sprint(values(again)) != fmt.Sprint(values(p)) {
			t.Fatalf("%v\n%v\n%s", values(p), values(again), b.String())
		}
		_, _ = p.Notes(), p.UnmatchedActivities(nil)
	})
}

func values(p *Policy) []Gate {
	var gates []Gate
	for _, g := range p.Gates() {
		gates = append(gates, *g)
	}
	return gates
}
