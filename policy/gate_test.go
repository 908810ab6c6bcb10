package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice/admission"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestGateWrittenInGo(t *testing.T) {
	g, err := Gate{Provider: "OpenAI", Endpoint: " https://API.openai.com:443/v1/ ", MaxInFlight: 4,
		Requests: admission.Rate{Limit: 8, Per: time.Second}}.Normalize()
	require.NoError(t, err)
	assert.Equal(t, "openai", g.Provider)
	assert.Equal(t, "https://api.openai.com/v1", g.Endpoint)
	assert.Equal(t, admission.Rate{Limit: 8, Per: time.Second, Burst: 1}, g.Requests)
	assert.Equal(t, 5*time.Minute, g.MaxCooldown)
	assert.Equal(t, HoldAttempt, g.Hold)
	assert.Equal(t, 125*time.Millisecond, g.StartWindow)
	assert.NoError(t, g.Limits().Validate())

	g, err = Gate{Provider: "p", Endpoint: "h", MaxCooldown: -5 * time.Second, LookAhead: -7,
		Budgets: []admission.Budget{{Unit: "b", Rate: admission.Rate{Limit: 3, Per: time.Second}}, {Unit: "a"}}}.Normalize()
	require.NoError(t, err)
	assert.Equal(t, Off, g.MaxCooldown)
	assert.Equal(t, Off, g.LookAhead)
	assert.Equal(t, []admission.Budget{{Unit: "b", Rate: admission.Rate{Limit: 3, Per: time.Second, Burst: 3}}}, g.Budgets)
}

func TestGateWrittenInGoReportsEveryFault(t *testing.T) {
	_, err := Gate{Endpoint: "ftp://h", MaxInFlight: -1, Requests: admission.Rate{Limit: 8}, Hold: "x", MaxHold: -1, MaxQueue: -1, QueueTimeout: -1,
		OverloadStatuses: []int{1}, Revision: -1, Activities: []string{"a", "a"}}.Normalize()
	assert.EqualError(t, err, `endpoint: has neither http nor https as its scheme; allowed: an http or https URL such as https://api.openai.com/v1, at most 512 bytes
max_in_flight is -1; allowed: 0 (no cap) to 1000000
requests.per is "0s"; allowed: 1ns to 8784h, such as 1m30s
overload_statuses[0] is 1; allowed: 400 to 599
queue_timeout is "-1ns"; allowed: 0s (none) to 87840h, such as 1m30s
max_queue is -1; allowed: 1 to 2000000
hold is "x"; allowed: attempt, call
max_hold is "-1ns"; allowed: 1ms to 87840h, such as 1m30s
activities[1] is "a"; allowed: each one once
revision is -1; allowed: 1 to 9223372036854775807
provider: is missing; allowed: [a-z0-9][a-z0-9._-]*, at most 64 bytes`)
}

func TestNew(t *testing.T) {
	_, err := New(
		Gate{Provider: "p", Endpoint: "https://h", Activities: []string{"A"}},
		Gate{Provider: "p", Endpoint: "https://H:443/"},
		Gate{Provider: "q", Endpoint: "h", MaxInFlight: -1, Activities: []string{"A*"}},
	)
	assert.EqualError(t, err, `gates[2].max_in_flight is -1; allowed: 0 (no cap) to 1000000
gates[1]: the same gate as gates[0] (p@h); allowed: each gate once; a name tells gates on one endpoint apart
gates[2].activities[0]: "A*" is gated by gates[0] already, as "A"; allowed: each activity in one gate`)

	activities := []string{"A"}
	p, err := New(Gate{Provider: "p", Endpoint: "h", Activities: activities})
	require.NoError(t, err)
	activities[0] = "B"
	assert.Equal(t, []string{"A"}, p.Gates()[0].Activities, "gates are copied")
}

func TestHashAndDiff(t *testing.T) {
	base := Gate{Provider: "p", Endpoint: "https://h", MaxInFlight: 8, Requests: admission.Rate{Limit: 60, Per: time.Minute, Burst: 1},
		Budgets: []admission.Budget{{Unit: "a", Rate: admission.Rate{Limit: 1, Per: time.Second}}, {Unit: "b", Rate: admission.Rate{Limit: 1, Per: time.Second}}}}
	assert.Regexp(t, "^[0-9a-f]{16}$", base.Hash())

	same := base
	same.Endpoint, same.Requests = "HTTPS://h:443/", admission.Rate{Limit: 1, Per: time.Second}
	same.Budgets = []admission.Budget{base.Budgets[1], base.Budgets[0]}
	same.Revision, same.Activities, same.Exclude, same.MaxQueue = 7, []string{"X"}, []string{"/x"}, admission.DefaultMaxQueue
	assert.Equal(t, base.Hash(), same.Hash())
	assert.Empty(t, base.Diff(same))

	other := base
	other.MaxInFlight, other.MaxCooldown, other.Hold = 4, Off, HoldCall
	other.Requests = admission.Rate{}
	assert.NotEqual(t, base.Hash(), other.Hash())
	assert.Equal(t, []string{
		"max_in_flight: 8 != 4",
		`requests: {"burst":1,"limit":60,"per":"1m"} != {"limit":0}`,
		"max_cooldown: 5m != 0s",
		"hold: attempt != call",
		"start_window: 1s != 100ms",
	}, base.Diff(other))
}

// Whatever a key says counts between workers, but for the few that each process
// may have its own way: the conflict names the key with both values.
func TestEveryKeyCountsInADiff(t *testing.T) {
	own := []string{"activities", "exclude", "revision"}
	read := func(lines ...string) Gate {
		p, err := Parse("f", []byte(gateFile(lines...)))
		require.NoError(t, err)
		return *p.Gates()[0]
	}
	base := read()
	for _, k := range gateKeys {
		if k.name == "provider" || k.name == "endpoint" {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			other := read(k.name + ": " + string(jsonOf(k.example)))
			diff, back := base.Diff(other), other.Diff(base)
			if slices.Contains(own, k.name) {
				assert.Empty(t, diff)
				assert.Equal(t, base.Hash(), other.Hash())
				return
			}
			assert.NotEqual(t, base.Hash(), other.Hash())
			name := k.rateOrName()
			ours, theirs := textOf(keyNamed(name).value(&base)), textOf(keyNamed(name).value(&other))
			assert.Contains(t, diff, name+": "+ours+" != "+theirs)
			assert.Contains(t, back, name+": "+theirs+" != "+ours)
			assert.Empty(t, other.Diff(other))
		})
	}
}

// A faulty limit that on_invalid: disable left out is another policy than the
// limit: two workers notice.
func TestDisabledLimitIsADifference(t *testing.T) {
	given, err := Parse("f", []byte(gateFile("max_in_flight: 8")))
	require.NoError(t, err)
	disabled, err := Parse("f", []byte("on_invalid: disable\n"+gateFile("max_in_flight: -8")))
	require.NoError(t, err)
	assert.Equal(t, []string{"max_in_flight: 8 != 0"}, given.Gates()[0].Diff(*disabled.Gates()[0]))
}

func TestDecodeGate(t *testing.T) {
	g, err := DecodeGate([]byte(`{"provider":"p","endpoint":"https:\/\/h","requests_per_second":7.5,"activities":["\ud83d\ude00"]}`))
	require.NoError(t, err)
	assert.Equal(t, admission.Rate{Limit: 15, Per: 2 * time.Second, Burst: 1}, g.Requests)
	assert.Equal(t, []string{"😀"}, g.Activities)

	for data, want := range map[string]string{
		`{"provider":"p","max_in_flight":-1,"provider":"q","max_inflight":1}`: `provider: the key stands here a second time; allowed: each key once
max_inflight: unknown key; the nearest known one is max_in_flight
max_in_flight is -1; allowed: 0 (no cap) to 1000000
endpoint: is missing; allowed: an http or https URL such as https://api.openai.com/v1, at most 512 bytes`,
		`{"provider":"p","endpoint":"h","max_queue":1e3}`: "max_queue is 1e3; allowed: 1 to 2000000",
		`{"provider":"p","endpoint":"h","learn":"true"}`:  `learn is "true"; allowed: true, false`,
		`{"provider":"p","endpoint":"h","name":null}`:     "name is empty; allowed: letters, digits and . _ : / -, at most 128 bytes",
		`{"provider":"p","endpoint":"h"} {}`:              "the policy: not the JSON of a gate: something stands after the gate",
		`{"provider":`:                                    "the policy: not the JSON of a gate: unexpected EOF",
		``:                                                "the policy: not the JSON of a gate: unexpected EOF",
	} {
		_, err := DecodeGate([]byte(data))
		assert.EqualError(t, err, want, data)
	}
	for _, data := range []string{"null", "[]", "3", `"x"`, "[[[[[[[[[[[[[[[[[[[[", "{]", "\xff"} {
		_, err := DecodeGate([]byte(data))
		var faults *FaultError
		assert.ErrorAs(t, err, &faults, data)
	}
	assert.Error(t, json.Unmarshal([]byte(`{}`), &g))
	_, err = json.Marshal(Gate{})
	assert.Error(t, err)
}

// anyGate draws gates that are valid, most fields set or left to their default.
func anyGate(t *rapid.T) Gate {
	duration := func(name string, least, most time.Duration) time.Duration {
		return rapid.OneOf(rapid.Just(time.Duration(0)), rapid.Map(rapid.Int64Range(int64(least), int64(most)), func(n int64) time.Duration { return time.Duration(n) })).Draw(t, name)
	}
	rate := func(name string) admission.Rate {
		if rapid.Bool().Draw(t, name+" off") {
			return admission.Rate{}
		}
		return admission.Rate{
			Limit: rapid.Int64Range(1, 1_000_000).Draw(t, name+" limit"),
			Per:   time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, name+" per")),
			Burst: rapid.Int64Range(0, 1000).Draw(t, name+" burst"),
		}
	}
	g := Gate{
		Provider:              rapid.StringMatching(`[A-Za-z0-9][a-z0-9._-]{0,20}`).Draw(t, "provider"),
		Endpoint:              rapid.StringMatching(`(https?://)?[a-z0-9]{1,9}(\.[a-z]{2,3})?(:[1-9][0-9]{0,3})?(/[a-zA-Z0-9._~%]{0,0}[a-z0-9.]{0,6}){0,3}`).Draw(t, "endpoint"),
		Name:                  rapid.StringMatching(`([A-Za-z0-9._:/-]{1,20})?`).Draw(t, "name"),
		Preset:                rapid.SampledFrom(append([]string{""}, presetNames...)).Draw(t, "preset"),
		MaxInFlight:           rapid.Int64Range(0, admission.MaxInFlightBound).Draw(t, "max_in_flight"),
		Requests:              rate("requests"),
		MaxCooldown:           duration("max_cooldown", -5, admission.MaxDuration),
		FallbackCooldown:      duration("fallback_cooldown", 0, admission.MaxDuration),
		OverloadStatuses:      rapid.SliceOfDistinct(rapid.IntRange(400, 599), rapid.ID[int]).Draw(t, "statuses"),
		Learn:                 rapid.Bool().Draw(t, "learn"),
		QueueTimeout:          duration("queue_timeout", 0, admission.MaxDuration),
		MaxQueue:              rapid.IntRange(0, admission.MaxQueueBound).Draw(t, "max_queue"),
		MinCallTime:           duration("min_call_time", 0, admission.MaxDuration),
		Hold:                  rapid.SampledFrom([]Hold{"", HoldAttempt, HoldCall}).Draw(t, "hold"),
		MaxHold:               duration("max_hold", time.Millisecond, admission.MaxDuration),
		OnLeaseLost:           rapid.SampledFrom([]OnLeaseLost{"", LeaseLostContinue, LeaseLostCancel}).Draw(t, "lost"),
		OnUnavailable:         rapid.SampledFrom([]OnUnavailable{"", UnavailableWait, UnavailableFail, UnavailableLocal}).Draw(t, "unavailable"),
		HolderTTL:             duration("holder_ttl", time.Second, admission.MaxDuration),
		ParkTTL:               duration("park_ttl", time.Millisecond, admission.MaxDuration),
		LookAhead:             duration("look_ahead", -5, time.Second-1),
		StartWindow:           duration("start_window", time.Millisecond, admission.MaxDuration),
		MaxExchangesPerSecond: rapid.Int64Range(0, maxExchanges).Draw(t, "exchanges"),
		Activities:            rapid.SliceOfDistinct(rapid.StringMatching(`[A-Za-zäß0-9"'#:*\\]{1,9}( [A-Z]{1,90}){0,3}`), rapid.ID[string]).Draw(t, "activities"),
		Exclude:               rapid.SliceOfDistinct(rapid.StringMatching(`((GET|POST) )?/[a-z*?]{0,9}`), rapid.ID[string]).Draw(t, "exclude"),
		RetryHint:             rapid.SampledFrom([]RetryHint{"", RetryHintOn, RetryHintOff}).Draw(t, "retry_hint"),
		Revision:              rapid.Int64Range(0, 1<<62).Draw(t, "revision"),
	}
	for _, unit := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z0-9_]{0,8}`), 0, 4, rapid.ID[string]).Draw(t, "units") {
		g.Budgets = append(g.Budgets, admission.Budget{Unit: unit, Rate: rate("budget " + unit)})
	}
	for _, header := range rapid.SliceOfN(rapid.StringMatching(`[A-Za-z-]{1,9}`), 0, 3).Draw(t, "headers") {
		g.ResetHeaders = append(g.ResetHeaders, ResetHeader{Remaining: header, Reset: "X-" + header})
	}
	return g
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := anyGate(t)
		g, err := raw.Normalize()
		require.NoError(t, err)
		again, err := g.Normalize()
		require.NoError(t, err)
		require.Equal(t, g, again, "a normalised gate stays as it is")
		require.NoError(t, g.Limits().Validate())

		data, err := json.Marshal(raw)
		require.NoError(t, err)
		decoded, err := DecodeGate(data)
		require.NoError(t, err)
		require.Equal(t, g, decoded)
		twice, err := json.Marshal(decoded)
		require.NoError(t, err)
		require.Equal(t, string(data), string(twice))
		require.Equal(t, raw.Hash(), decoded.Hash())
		require.Empty(t, raw.Diff(decoded))
		require.Equal(t, raw.ID(), decoded.ID())

		p, err := New(raw)
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, p.WriteEffective(&b))
		read, err := Parse("effective", b.Bytes())
		require.NoError(t, err, b.String())
		require.Equal(t, g, *read.Gates()[0], b.String())
	})
}

// Two gates have one hash exactly when Diff finds nothing.
func TestHashAgreesWithDiff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyGate(t), anyGate(t)
		b.Provider, b.Endpoint, b.Name = a.Provider, a.Endpoint, a.Name
		if rapid.Bool().Draw(t, "same") {
			revision := b.Revision
			b = a
			b.Revision = revision
		}
		require.Equal(t, a.Hash() == b.Hash(), len(a.Diff(b)) == 0)
	})
}

func ExampleGate_ID() {
	fmt.Println(Gate{Provider: "openai", Endpoint: "https://API.openai.com:443/v1/", Name: "gpt-4o"}.ID())
	fmt.Println(Gate{Provider: "openai", Endpoint: "http://localhost:8080"}.WorkflowID())
	// Output:
	// openai@api.openai.com/v1#gpt-4o
	// sluice/openai@http://localhost:8080
}
