package policy

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPresetsAreWhole(t *testing.T) {
	assert.Len(t, presetNames, len(presets))
	assert.True(t, slices.IsSorted(presetNames))
	for _, name := range presetNames {
		p := presets[name]
		assert.NotEmpty(t, p.overloadStatuses, name)
		for _, status := range p.ambiguous {
			assert.Contains(t, p.overloadStatuses, status, name)
		}
		assert.Equal(t, p.body != nil, p.bodyLimit > 0, name)
		assert.Equal(t, p.body != nil, p.bodyName != "", name)
		for _, w := range p.windows {
			assert.Equal(t, strings.ToLower(w.limit+w.reset+w.only.header), w.limit+w.reset+w.only.header)
			assert.Positive(t, w.per)
			assert.NotEmpty(t, w.unit)
			assert.NotEmpty(t, w.reset)
		}
	}
}

// GitHub answers 403 also to what is forbidden.
func TestGitHubSaysSlowDownWith403(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	quota := http.Header{"X-Ratelimit-Limit": {"60"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"1800000090"}}
	for name, c := range map[string]struct {
		header http.Header
		want   Hint
	}{
		"forbidden":                   {nil, Hint{}},
		"forbidden, with quota left":  {http.Header{"X-Ratelimit-Limit": {"60"}, "X-Ratelimit-Remaining": {"59"}, "X-Ratelimit-Reset": {"1800000090"}}, Hint{}},
		"forbidden, nothing known":    {http.Header{"X-Ratelimit-Remaining": {"?"}, "X-Ratelimit-Reset": {"1800000090"}}, Hint{}},
		"primary limit":               {quota, Hint{Overload: true, HasHint: true, Asked: 90 * time.Second, Applied: 90 * time.Second, Source: "x-ratelimit-reset"}},
		"used up, without a reset":    {http.Header{"X-Ratelimit-Remaining": {"0"}}, Hint{Overload: true}},
		"secondary limit":             {http.Header{"Retry-After": {"60"}, "X-Ratelimit-Remaining": {"59"}, "X-Ratelimit-Reset": {"1800000090"}}, Hint{Overload: true, HasHint: true, Asked: time.Minute, Applied: time.Minute, Source: "retry-after"}},
		"a Retry-After, malformed":    {http.Header{"Retry-After": {"soon"}}, Hint{Overload: true, Malformed: []string{"retry-after"}}},
		"a limit that the gate names": {http.Header{"My-Left": {"0"}, "My-Reset": {"5"}}, Hint{Overload: true, HasHint: true, Asked: 5 * time.Second, Applied: 5 * time.Second, Source: "my-reset"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Gate{Preset: "github", ResetHeaders: []ResetHeader{{Remaining: "My-Left", Reset: "My-Reset"}}}
			assert.Equal(t, c.want, g.ReadHint(403, c.header, now))
			assert.True(t, g.ReadHint(429, c.header, now).Overload, "429 has no other meaning")

			g.OverloadStatuses = []int{403}
			assert.Equal(t, c.want, g.ReadHint(403, c.header, now), "named by the gate: the preset still knows its meaning")
			assert.True(t, (&Gate{OverloadStatuses: []int{403}}).ReadHint(403, c.header, now).Overload, "without the preset every 403")
		})
	}
	assert.Equal(t, Hint{}, (&Gate{Provider: "github"}).ReadHint(403, quota, now), "a provider's name is no preset")
}

// A preset adds knowledge: what is read without it is read with it, too.
func TestPresetsAreNotDeaf(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, name := range presetNames {
		for _, header := range []string{"X-Ratelimit-Reset-Tokens", "Anthropic-Ratelimit-Tokens-Reset", "X-Ratelimit-Reset", "X-Rate-Limit-Reset", "Ratelimit-Reset"} {
			hint := (&Gate{Preset: name}).ReadHint(429, http.Header{header: {"7"}}, now)
			assert.Equal(t, Hint{Overload: true, HasHint: true, Asked: 7 * time.Second, Applied: 7 * time.Second, Source: strings.ToLower(header)}, hint, name)
		}
	}
}

// Neither does a preset read any case of the table differently.
func TestPresetsReadTheTable(t *testing.T) {
	for _, c := range hintCases(t) {
		plain := (&Gate{MaxCooldown: c.clamp, OverloadStatuses: []int{c.status}}).ReadHint(c.status, c.header, c.now)
		for _, name := range presetNames {
			with := (&Gate{MaxCooldown: c.clamp, OverloadStatuses: []int{c.status}, Preset: name}).ReadHintBody(c.status, c.header, []byte(`{"error": {}}`), c.now)
			assert.ElementsMatch(t, plain.Malformed, with.Malformed, "%s: %s", name, c.id)
			with.Malformed = plain.Malformed // in the order of the families
			assert.Equal(t, plain, with, "%s: %s", name, c.id)
		}
	}
}

func TestPresetNamesTheSourceOfATie(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	header := http.Header{}
	for _, name := range []string{"X-Ratelimit-Reset-Tokens", "Anthropic-Ratelimit-Tokens-Reset", "X-Ratelimit-Reset", "Ratelimit-Reset"} {
		header.Set(name, "7")
	}
	for name, source := range map[string]string{
		"":             "x-ratelimit-reset-tokens",
		"openai":       "x-ratelimit-reset-tokens",
		"azure-openai": "x-ratelimit-reset-tokens",
		"gemini":       "x-ratelimit-reset-tokens",
		"anthropic":    "anthropic-ratelimit-tokens-reset",
		"github":       "x-ratelimit-reset",
	} {
		assert.Equal(t, source, (&Gate{Preset: name}).ReadHint(429, header, now).Source, name)
	}
}

func TestPresetsOverloads(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	header := http.Header{"Retry-After": {"1"}}
	for name, statuses := range map[string][]int{
		"": {429, 503, 529}, "anthropic": {429, 503, 529}, "azure-openai": {429, 503}, "gemini": {429, 503}, "github": {403, 429, 503}, "openai": {429, 503},
	} {
		for status := 100; status < 600; status++ {
			assert.Equal(t, slices.Contains(statuses, status), (&Gate{Preset: name}).ReadHint(status, header, now).Overload, "%s %d", name, status)
		}
	}
}

// What a preset changes is how holders read answers, so they must agree on it.
func TestPresetIsPartOfTheHash(t *testing.T) {
	without := Gate{Provider: "p", Endpoint: "h", OverloadStatuses: []int{429, 503}}
	with := without
	with.Preset = "gemini"
	assert.NotEqual(t, without.Hash(), with.Hash())
	assert.Equal(t, []string{"preset: (none) != gemini"}, without.Diff(with))
}
