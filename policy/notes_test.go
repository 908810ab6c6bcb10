package policy

import (
	"testing"
	"time"

	"sluice/admission"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNotes(t *testing.T) {
	everyMinute := admission.Rate{Limit: 1, Per: time.Minute}
	for name, c := range map[string]struct {
		gates []Gate
		want  []string
	}{
		"no limits":               {[]Gate{{}}, []string{"p@h: has no cap, no pacing and no budget: only a provider's cooldown holds calls up"}},
		"nothing":                 {[]Gate{{MaxCooldown: Off}}, []string{"p@h: has no cap, no pacing, no budget and no feedback: it limits nothing"}},
		"a cap alone":             {[]Gate{{MaxInFlight: 1}}, nil},
		"no feedback":             {[]Gate{{MaxInFlight: 1, MaxCooldown: Off}}, nil},
		"no fallback":             {[]Gate{{MaxInFlight: 1, FallbackCooldown: 0, Preset: "gemini"}}, nil},
		"fallback, no feedback":   {[]Gate{{MaxInFlight: 1, MaxCooldown: Off, FallbackCooldown: time.Second}}, []string{"p@h: fallback_cooldown has no effect: max_cooldown: 0 switches feedback off"}},
		"learns, no feedback":     {[]Gate{{MaxInFlight: 1, MaxCooldown: Off, Learn: true}}, []string{"p@h: learn only reports lower limits: max_cooldown: 0 switches cooldowns off"}},
		"fallback above the most": {[]Gate{{MaxInFlight: 1, FallbackCooldown: time.Hour}}, []string{"p@h: fallback_cooldown 1h is cut to max_cooldown 5m"}},
		"every 403":               {[]Gate{{MaxInFlight: 1, OverloadStatuses: []int{403, 429}}}, []string{"p@h: every 403 counts as an overload, also where access is forbidden for good"}},
		"GitHub's 403":            {[]Gate{{MaxInFlight: 1, Preset: "github"}}, nil},
		"hold below the spacing":  {[]Gate{{MaxHold: time.Second, Requests: everyMinute}}, []string{"p@h: max_hold 1s is shorter than the spacing 1m"}},
		"hold below the call":     {[]Gate{{MaxInFlight: 1, MaxHold: time.Second, MinCallTime: time.Minute}}, []string{"p@h: max_hold 1s is shorter than min_call_time 1m: a lease may end under its call"}},
		"timeout below spacing": {[]Gate{{Requests: everyMinute, QueueTimeout: time.Second, MaxCooldown: time.Second}},
			[]string{"p@h: queue_timeout 1s is shorter than the spacing 1m: most tickets that have to wait are refused"}},
		"parked below cooldown": {[]Gate{{MaxInFlight: 1, ParkTTL: time.Second}}, []string{"p@h: park_ttl 1s is shorter than max_cooldown 5m: a caller that stays away for a cooldown loses its place"}},
		"a slow budget":         {[]Gate{{Budgets: []admission.Budget{{Unit: "x", Rate: admission.Rate{Limit: 1, Per: time.Hour}}}}}, []string{`p@h: one of budget "x" comes only every 1h`}},
		"every activity":        {[]Gate{{MaxInFlight: 1, Activities: []string{"**"}}}, []string{"p@h: activities names every activity type: each takes a lease, also those that call nobody"}},
		"all named":             {[]Gate{{MaxInFlight: 1, Name: "a"}, {MaxInFlight: 1, Name: "b"}}, []string{"p@h#a: of the 2 gates on this endpoint 0 are without a name: a call that chooses none with WithGate is refused"}},
		"one without a name":    {[]Gate{{MaxInFlight: 1}, {MaxInFlight: 1, Name: "b"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.gates {
				c.gates[i].Provider, c.gates[i].Endpoint = "p", "h"
			}
			p, err := New(c.gates...)
			require.NoError(t, err)
			assert.Equal(t, c.want, p.Notes())
		})
	}
	assert.Empty(t, (*Policy)(nil).Notes())
}

// What is at its default is told apart from what is set.
func TestDefaultsAreTold(t *testing.T) {
	for line, want := range map[string][]string{
		"max_hold: 2h":         {"max_hold"},
		"max_hold: 1h":         nil, // as it would be anyway
		"preset: github":       {"preset"},
		"holder_ttl: 1s":       {"holder_ttl"}, // look_ahead follows it
		"requests: {limit: 0}": nil,
		"min_interval: 1m":     {"requests"}, // start_window follows it
		"look_ahead: 0":        {"look_ahead"},
		"max_cooldown: 0":      {"max_cooldown"},
		"overload_statuses: [429, 503]\n    preset: gemini": {"preset"},
		"overload_statuses: [429]\n    preset: gemini":      {"preset", "overload_statuses"},
		"activities: [A]": {"activities"},
	} {
		p, err := Parse("f", []byte(gateFile(line)))
		require.NoError(t, err)
		g := p.Gates()[0]
		var set []string
		for _, pair := range g.mapping() {
			if g.origin(pair.key) == "" {
				set = append(set, pair.key)
			}
		}
		assert.Equal(t, append([]string{"provider", "endpoint"}, want...), set, line)
		assert.Len(t, g.defaults(), len(g.mapping())-len(set))
	}
	p, err := Parse("f", []byte(gateFile("preset: github")))
	require.NoError(t, err)
	assert.Equal(t, fromPreset, p.Gates()[0].origin("overload_statuses"))

	p, err = Parse("f", []byte(gateFile("max_cooldown: 0")))
	require.NoError(t, err)
	g := p.Gates()[0]
	for name, want := range map[string]string{
		"max_cooldown": "no feedback", "max_in_flight": "default: no cap", "requests": "default: off", "look_ahead": "default", "revision": "default", "provider": "", "learn": "default",
	} {
		assert.Equal(t, want, g.remark(name), name)
	}
}
