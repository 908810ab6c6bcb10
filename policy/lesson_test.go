package policy

import (
	"net/http"
	"testing"
	"time"

	"sluice/admission"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadLessonCooldown(t *testing.T) {
	now := time.Date(2026, 10, 21, 7, 26, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		header http.Header
		asked  time.Duration
		source string
		faults []string
	}{
		"nothing remains":            {http.Header{"X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"1.5s"}}, 1500 * time.Millisecond, "x-ratelimit-reset-requests", nil},
		"something remains":          {http.Header{"X-Ratelimit-Remaining-Requests": {"1"}, "X-Ratelimit-Reset-Requests": {"1.5s"}}, 0, "", nil},
		"the longest":                {http.Header{"X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"1s"}, "X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {"6m0s"}}, 6 * time.Minute, "x-ratelimit-reset-tokens", nil},
		"only the exhausted one":     {http.Header{"X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"1s"}, "X-Ratelimit-Remaining-Tokens": {"5"}, "X-Ratelimit-Reset-Tokens": {"6m0s"}}, time.Second, "x-ratelimit-reset-requests", nil},
		"reset without remaining":    {http.Header{"X-Ratelimit-Reset-Requests": {"1s"}}, 0, "", nil},
		"remaining without a reset":  {http.Header{"X-Ratelimit-Remaining-Requests": {"0"}}, 0, "", nil},
		"unlimited":                  {http.Header{"X-Ratelimit-Limit-Tokens": {"-1"}, "X-Ratelimit-Remaining-Tokens": {"-1"}, "X-Ratelimit-Reset-Tokens": {"9"}}, 0, "", nil},
		"it resets now":              {http.Header{"X-Ratelimit-Remaining": {"0.0"}, "X-Ratelimit-Reset": {"0"}}, 0, "", nil},
		"an instant":                 {http.Header{"Anthropic-Ratelimit-Tokens-Remaining": {"0"}, "Anthropic-Ratelimit-Tokens-Reset": {"2026-10-21T07:26:30Z"}}, 30 * time.Second, "anthropic-ratelimit-tokens-reset", nil},
		"a past instant":             {http.Header{"Anthropic-Ratelimit-Tokens-Remaining": {"0"}, "Anthropic-Ratelimit-Tokens-Reset": {"2026-10-21T07:25:30Z"}}, 0, "", nil},
		"by the answer's own Date":   {http.Header{"Date": {"Wed, 21 Oct 2026 09:00:00 GMT"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"1792573260"}}, time.Minute, "x-ratelimit-reset", nil},
		"structured":                 {http.Header{"Ratelimit": {`"a";r=0;t=5, "b";r=1;t=9, "c";t=11`}}, 5 * time.Second, "ratelimit", nil},
		"Retry-After is not a limit": {http.Header{"Retry-After": {"30"}, "Retry-After-Ms": {"5"}}, 0, "", nil},
		"rejected over all":          {http.Header{"Anthropic-Ratelimit-Unified-Status": {"rejected"}, "Anthropic-Ratelimit-Unified-Reset": {"9"}}, 9 * time.Second, "anthropic-ratelimit-unified-reset", nil},
		"rejected in a window only":  {http.Header{"Anthropic-Ratelimit-Unified-Status": {"allowed"}, "Anthropic-Ratelimit-Unified-5h-Status": {"rejected"}, "Anthropic-Ratelimit-Unified-5h-Reset": {"9"}}, 0, "", nil},
		"named by the policy":        {http.Header{"My-Left": {"0"}, "My-Reset": {"77"}}, 77 * time.Second, "my-reset", nil},
		"malformed":                  {http.Header{"X-Ratelimit-Remaining": {"lots"}, "X-Ratelimit-Reset": {"9"}, "My-Left": {"0"}, "My-Reset": {"soon"}}, 0, "", []string{"x-ratelimit-remaining", "my-reset"}},
		"beyond the clamp":           {http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"7200"}}, 2 * time.Hour, "x-ratelimit-reset", nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Gate{Learn: true, MaxCooldown: time.Hour, ResetHeaders: []ResetHeader{{Remaining: "My-Left", Reset: "My-Reset"}}}
			assert.Equal(t, Lesson{Asked: c.asked, Applied: min(c.asked, time.Hour), Source: c.source, Malformed: c.faults}, g.ReadLesson(200, c.header, now))

			g.Learn = false
			assert.Equal(t, Lesson{}, g.ReadLesson(200, c.header, now), "it does not learn")
			g.Learn, g.MaxCooldown = true, Off
			assert.Zero(t, g.ReadLesson(200, c.header, now).Applied, "feedback is switched off")
			for _, status := range []int{0, 101, 199, 300, 304, 403, 429, 500} {
				assert.Equal(t, Lesson{}, g.ReadLesson(status, c.header, now), status)
			}
		})
	}
}

func TestReadLessonLower(t *testing.T) {
	now := time.Date(2026, 10, 21, 7, 26, 0, 0, time.UTC)
	perMinute := func(limit int64) admission.Rate { return admission.Rate{Limit: limit, Per: time.Minute, Burst: 1} }
	policy := Gate{Learn: true, Requests: perMinute(500), Budgets: []admission.Budget{{Unit: "tokens", Rate: perMinute(90_000)}, {Unit: "input_tokens", Rate: perMinute(40_000)}}}
	requests := func(header string, limit int64, per time.Duration, ours int64) []LowerLimit {
		return []LowerLimit{{Header: header, Unit: "requests", Limit: limit, Per: per, Policy: ours}}
	}
	for name, c := range map[string]struct {
		preset string
		header http.Header
		want   []LowerLimit
		faults []string
	}{
		"openai, both lower": {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"300"}, "X-Ratelimit-Limit-Tokens": {"80000"}}, []LowerLimit{
			{"x-ratelimit-limit-requests", "requests", 300, time.Minute, 500},
			{"x-ratelimit-limit-tokens", "tokens", 80_000, time.Minute, 90_000}}, nil},
		"openai, equal":                     {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"500"}}, nil, nil},
		"openai, higher":                    {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"501"}}, nil, nil},
		"openai, a day's limit":             {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"200"}, "X-Ratelimit-Reset-Requests": {"23h47m"}}, nil, nil},
		"openai, none":                      {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"-1"}, "X-Ratelimit-Limit-Tokens": {"0"}}, nil, nil},
		"openai, two lines":                 {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"300", "400"}}, requests("x-ratelimit-limit-requests", 400, time.Minute, 500), nil},
		"openai, one line high enough":      {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"300, 500"}}, nil, nil},
		"openai, a fraction":                {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"300.9"}}, requests("x-ratelimit-limit-requests", 300, time.Minute, 500), nil},
		"openai, malformed":                 {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"many"}, "X-Ratelimit-Limit-Tokens": {"-2"}}, nil, []string{"x-ratelimit-limit-requests", "x-ratelimit-limit-tokens"}},
		"openai, huge":                      {"openai", http.Header{"X-Ratelimit-Limit-Requests": {"99999999999999999999999"}}, nil, nil},
		"azure: requests have no window":    {"azure-openai", http.Header{"X-Ratelimit-Limit-Requests": {"50"}, "X-Ratelimit-Limit-Tokens": {"50000"}}, []LowerLimit{{"x-ratelimit-limit-tokens", "tokens", 50_000, time.Minute, 90_000}}, nil},
		"anthropic":                         {"anthropic", http.Header{"Anthropic-Ratelimit-Requests-Limit": {"50"}, "Anthropic-Ratelimit-Input-Tokens-Limit": {"30000"}, "Anthropic-Ratelimit-Output-Tokens-Limit": {"1"}}, []LowerLimit{{"anthropic-ratelimit-requests-limit", "requests", 50, time.Minute, 500}, {"anthropic-ratelimit-input-tokens-limit", "input_tokens", 30_000, time.Minute, 40_000}}, nil},
		"github, per hour":                  {"github", http.Header{"X-Ratelimit-Limit": {"5000"}}, requests("x-ratelimit-limit", 5000, time.Hour, 30_000), nil},
		"github, core":                      {"github", http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Resource": {"core"}}, requests("x-ratelimit-limit", 5000, time.Hour, 30_000), nil},
		"github, another resource":          {"github", http.Header{"X-Ratelimit-Limit": {"30"}, "X-Ratelimit-Resource": {"search"}}, nil, nil},
		"gemini says nothing":               {"gemini", http.Header{"X-Ratelimit-Limit-Requests": {"1"}}, nil, nil},
		"without a preset no window":        {"", http.Header{"X-Ratelimit-Limit-Requests": {"1"}, "X-Ratelimit-Limit": {"1"}}, nil, nil},
		"structured":                        {"", http.Header{"Ratelimit-Policy": {`"burst";q=100;w=60, "daily";q=5000;w=86400`}}, requests("ratelimit-policy", 5000, 24*time.Hour, 720_000), nil},
		"structured, over two lines":        {"", http.Header{"Ratelimit-Policy": {`"a";q=100;w=60`, `"b";q=90;w=60`}}, requests("ratelimit-policy", 90, time.Minute, 500), nil},
		"structured, by an earlier draft":   {"", http.Header{"Ratelimit-Policy": {`100;w=60`}}, requests("ratelimit-policy", 100, time.Minute, 500), nil},
		"structured, of requests":           {"", http.Header{"Ratelimit-Policy": {`"a";q=100;w=60;qu="requests"`}}, requests("ratelimit-policy", 100, time.Minute, 500), nil},
		"structured, of another unit":       {"", http.Header{"Ratelimit-Policy": {`"a";q=100;w=60;qu="content-bytes"`}}, nil, nil},
		"structured, without a window":      {"", http.Header{"Ratelimit-Policy": {`"a";q=100`}}, nil, nil},
		"structured, a window of nothing":   {"", http.Header{"Ratelimit-Policy": {`"a";q=100;w=0, "b";q=0;w=60`}}, nil, nil},
		"structured, an age":                {"", http.Header{"Ratelimit-Policy": {`"a";q=100;w=99999999999999999999`}}, requests("ratelimit-policy", 100, 1<<63-1, 76_861_433_640), nil},
		"structured, malformed":             {"", http.Header{"Ratelimit-Policy": {`"a";q=-1;w=60, "b";q=90;w=60`, `;;`}}, requests("ratelimit-policy", 90, time.Minute, 500), []string{"ratelimit-policy"}},
		"structured, nothing but malformed": {"", http.Header{"Ratelimit-Policy": {`"fixed window";"api";q=2500;w=300`}}, nil, []string{"ratelimit-policy"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := policy
			g.Preset = c.preset
			lesson := g.ReadLesson(200, c.header, now)
			assert.Equal(t, c.want, lesson.Lower)
			assert.Equal(t, c.faults, lesson.Malformed)

			unlimited := Gate{Learn: true, Preset: c.preset, MaxInFlight: 1}
			assert.Empty(t, unlimited.ReadLesson(200, c.header, now).Lower, "a gate without a limit of the unit")
		})
	}
	assert.Equal(t, "x-ratelimit-limit allows 5000 requests per 1h, the policy 30000", requests("x-ratelimit-limit", 5000, time.Hour, 30_000)[0].String())
}

// A limit header is compared with what a gate of any rate enforces, exactly.
func TestLowerIsExact(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	g := Gate{Learn: true, Preset: "openai", Requests: admission.Rate{Limit: admission.MaxRateLimit, Per: 60*time.Second - 1, Burst: 1}}
	lower := g.ReadLesson(200, http.Header{"X-Ratelimit-Limit-Requests": {"1000000000016"}}, now).Lower
	require.Len(t, lower, 1)
	assert.Equal(t, LowerLimit{"x-ratelimit-limit-requests", "requests", 1_000_000_000_016, time.Minute, 1_000_000_000_016}, lower[0], "by less than one request")
	assert.Empty(t, g.ReadLesson(200, http.Header{"X-Ratelimit-Limit-Requests": {"1000000000017"}}, now).Lower)
}
