package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/admission"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hintCase is a row of the table of cases from public bug reports and
// providers' formats.
type hintCase struct {
	id             string
	status         int
	now            time.Time
	clamp          time.Duration
	header         http.Header
	expect, source string
	malformed      []string
}

func hintCases(t *testing.T) []hintCase {
	t.Helper()
	data, err := os.ReadFile("testdata/retry_hints.tsv")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	require.True(t, strings.HasPrefix(lines[0], "id\tstatus\tnow\tmax_cooldown_ms\theaders\texpect\tsource\tmalformed"))
	require.NotEmpty(t, lines[1:])
	var cases []hintCase
	for _, line := range lines[1:] {
		f := strings.Split(line, "\t")
		require.GreaterOrEqual(t, len(f), 8, line)
		c := hintCase{id: f[0], header: http.Header{}, expect: f[5], source: f[6]}
		c.status, err = strconv.Atoi(f[1])
		require.NoError(t, err, line)
		c.now, err = time.Parse(time.RFC3339Nano, f[2])
		require.NoError(t, err, line)
		clamp, err := strconv.ParseInt(f[3], 10, 64)
		require.NoError(t, err, line)
		c.clamp = time.Duration(clamp) * time.Millisecond
		var pairs [][2]string
		require.NoError(t, json.Unmarshal([]byte(f[4]), &pairs), line)
		for _, p := range pairs {
			c.header.Add(p[0], p[1])
		}
		if f[7] != "" {
			c.malformed = strings.Split(f[7], ",")
		}
		cases = append(cases, c)
	}
	return cases
}

func TestRetryHints(t *testing.T) {
	for _, c := range hintCases(t) {
		t.Run(c.id, func(t *testing.T) {
			hint := (&Gate{MaxCooldown: c.clamp}).ReadHint(c.status, c.header, c.now)
			switch c.expect {
			case "none":
				assert.False(t, hint.HasHint, "%+v", hint)
			case "zero":
				assert.True(t, hint.HasHint)
				assert.Zero(t, hint.Applied)
			default:
				ms, err := strconv.ParseInt(c.expect, 10, 64)
				require.NoError(t, err)
				assert.True(t, hint.HasHint)
				assert.Equal(t, time.Duration(ms)*time.Millisecond, hint.Applied)
			}
			assert.Equal(t, c.source, hint.Source)
			assert.ElementsMatch(t, c.malformed, hint.Malformed)
		})
	}
}

func TestReadHintBeyondTheTable(t *testing.T) {
	now := time.Date(2026, 10, 21, 7, 26, 0, 0, time.UTC)
	const none = time.Duration(-1)
	for name, c := range map[string]struct {
		header    http.Header
		asked     time.Duration
		source    string
		malformed []string
	}{
		"no headers":                  {http.Header{}, none, "", nil},
		"two lines, one malformed":    {http.Header{"Retry-After": {"soon", "30"}}, 30 * time.Second, "retry-after", []string{"retry-after"}},
		"ms list":                     {http.Header{"Retry-After-Ms": {"5, 7"}}, 7 * time.Millisecond, "retry-after-ms", nil},
		"list with an empty part":     {http.Header{"Retry-After": {"5,,7"}}, none, "", []string{"retry-after"}},
		"bare point":                  {http.Header{"Retry-After": {"5."}}, none, "", []string{"retry-after"}},
		"leading point":               {http.Header{"Retry-After": {".5"}}, none, "", []string{"retry-after"}},
		"plus sign":                   {http.Header{"Retry-After": {"+5"}}, none, "", []string{"retry-after"}},
		"duration in the ms header":   {http.Header{"Retry-After-Ms": {"5s"}}, none, "", []string{"retry-after-ms"}},
		"Greek micro":                 {http.Header{"Retry-After": {"5µs"}}, none, "", []string{"retry-after"}},
		"all units":                   {http.Header{"Retry-After": {"1h1m1s1ms1us1ns"}}, time.Hour + time.Minute + time.Second + 2*time.Millisecond, "retry-after", nil},
		"unit without number":         {http.Header{"Retry-After": {"s"}}, none, "", []string{"retry-after"}},
		"third of a second":           {http.Header{"Retry-After": {"0." + strings.Repeat("3", 120)}}, 334 * time.Millisecond, "retry-after", nil},
		"129 bytes":                   {http.Header{"Retry-After": {strings.Repeat("9", 129)}}, none, "", []string{"retry-after"}},
		"fraction of a date's second": {http.Header{"Retry-After": {"Wed, 21 Oct 2026 07:28:00.5 GMT"}}, none, "", []string{"retry-after"}},
		"one-digit hour":              {http.Header{"Retry-After": {"Wed, 21 Oct 2026 7:28:00 GMT"}}, none, "", []string{"retry-after"}},
		"no such day":                 {http.Header{"Retry-After": {"Wed, 31 Nov 2026 07:28:00 GMT"}}, none, "", []string{"retry-after"}},
		"no such weekday":             {http.Header{"Retry-After": {"Wen, 21 Oct 2026 07:28:00 GMT"}}, none, "", []string{"retry-after"}},
		"trailing text":               {http.Header{"Retry-After": {"Wed, 21 Oct 2026 07:28:00 GMT!"}}, none, "", []string{"retry-after"}},
		"numeric zone":                {http.Header{"Retry-After": {"Wed, 21 Oct 2026 07:28:00 +0000"}}, 2 * time.Minute, "retry-after", nil},
		"two-digit year, 49 ahead":    {http.Header{"Retry-After": {"Monday, 21-Oct-75 07:26:00 GMT"}}, time.Date(2075, 10, 21, 7, 26, 0, 0, time.UTC).Sub(now), "retry-after", nil},
		"two-digit year, 51 ahead":    {http.Header{"Retry-After": {"Monday, 21-Oct-77 07:26:00 GMT"}}, 0, "retry-after", nil},
		"key not canonical":           {http.Header{"retry-after": {"3"}}, 3 * time.Second, "retry-after", nil},
		"malformed Date":              {http.Header{"Date": {"now"}, "Retry-After": {"Wed, 21 Oct 2026 07:28:00 GMT"}}, 2 * time.Minute, "retry-after", nil},
		"reset-after malformed": {http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset-After": {"x"}, "X-Ratelimit-Reset": {"9"}},
			9 * time.Second, "x-ratelimit-reset", []string{"x-ratelimit-reset-after"}},
		"remaining malformed": {http.Header{"X-Ratelimit-Remaining": {"lots"}, "X-Ratelimit-Reset": {"9"}}, none, "", []string{"x-ratelimit-remaining"}},
		"remaining below zero": {http.Header{"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"-1"}, "X-Ratelimit-Reset": {"9"}},
			9 * time.Second, "x-ratelimit-reset", nil},
		"status allowed": {http.Header{"Anthropic-Ratelimit-Unified-Status": {"allowed"}, "Anthropic-Ratelimit-Unified-Reset": {"9"}}, none, "", nil},
		"another unit": {http.Header{"X-Ratelimit-Remaining-Images": {"0"}, "X-Ratelimit-Reset-Images": {"12s"}},
			12 * time.Second, "x-ratelimit-reset-images", nil},
		"tie: order of the list": {http.Header{"Ratelimit-Remaining": {"0"}, "Ratelimit-Reset": {"12"}, "X-Ratelimit-Reset-Tokens": {"12"}},
			12 * time.Second, "x-ratelimit-reset-tokens", nil},
		"RFC 3339 with an offset": {http.Header{"X-Ratelimit-Reset": {"2026-10-21T09:28:00+02:00"}}, 2 * time.Minute, "x-ratelimit-reset", nil},
		"RFC 3339 with a comma":   {http.Header{"X-Ratelimit-Reset": {"2026-10-21T07:28:00,5Z"}}, none, "", []string{"x-ratelimit-reset"}},
		"HTTP date in a reset":    {http.Header{"X-Ratelimit-Reset": {"Wed, 21 Oct 2026 07:28:00 GMT"}}, none, "", []string{"x-ratelimit-reset"}},
		"structured, malformed":   {http.Header{"Ratelimit": {"limit=10, remaining=0, reset=5"}}, none, "", []string{"ratelimit"}},
		"structured, r malformed": {http.Header{"Ratelimit": {`"a";r=x;t=9, "b";r=0;t=4`}}, 4 * time.Second, "ratelimit", []string{"ratelimit"}},
		"named by the policy":     {http.Header{"My-Left": {"0"}, "My-Reset": {"77"}}, 77 * time.Second, "my-reset", nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Gate{MaxCooldown: time.Hour, ResetHeaders: []ResetHeader{{Remaining: "My-Left", Reset: "My-Reset"}}}
			hint := g.ReadHint(429, c.header, now)
			assert.True(t, hint.Overload)
			assert.Equal(t, c.asked != none, hint.HasHint)
			assert.Equal(t, max(0, c.asked), hint.Asked)
			assert.Equal(t, min(max(0, c.asked), time.Hour), hint.Applied)
			assert.Equal(t, c.source, hint.Source)
			assert.Equal(t, c.malformed, hint.Malformed)
		})
	}
}

func TestReadHintAndThePolicy(t *testing.T) {
	header := http.Header{"Retry-After": {"600"}}
	now := time.Unix(1_800_000_000, 0)

	assert.Equal(t, Hint{}, (&Gate{}).ReadHint(500, header, now), "not an overload")
	assert.Equal(t, 5*time.Minute, (&Gate{}).ReadHint(503, header, now).Applied, "the default clamp")
	assert.Equal(t, 10*time.Minute, (&Gate{}).ReadHint(503, header, now).Asked)

	off := (&Gate{MaxCooldown: Off}).ReadHint(429, header, now)
	assert.True(t, off.Overload)
	assert.Zero(t, off.Applied, "feedback is switched off")

	assert.False(t, (&Gate{OverloadStatuses: []int{418}}).ReadHint(429, header, now).Overload)
}

func FuzzRetryHint(f *testing.F) {
	for _, v := range []string{"30", "1.5", "2m59.56s", "Wed, 21 Oct 2026 07:28:00 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "1771404540",
		"31,120", `"a";r=0;t=55`, "-1", "2024-03-26T20:00:00Z", strings.Repeat("9", 128), "29-Feb-00"} {
		f.Add(v, "0", int64(1_790_000_000), uint64(30), uint64(120))
	}
	f.Fuzz(func(t *testing.T, value, other string, unix int64, a, b uint64) {
		now := time.Unix(unix%(1<<36), 0)
		const clamp = 48 * time.Hour
		g := &Gate{MaxCooldown: clamp}
		read := func(header http.Header) Hint {
			h := g.ReadHint(429, header, now)
			if h.Asked < 0 || h.Applied < 0 || h.Applied > clamp || h.Applied > h.Asked || h.Asked%time.Millisecond != 0 ||
				h.HasHint != (h.Source != "") || !h.HasHint && h.Asked != 0 {
				t.Fatalf("%v: %+v", header, h)
			}
			return h
		}
		for _, name := range []string{"Retry-After-Ms", "X-Ms-Retry-After-Ms", "Retry-After", "X-Ratelimit-Reset", "X-Ratelimit-Reset-Tokens",
			"Anthropic-Ratelimit-Requests-Reset", "Ratelimit", "Ratelimit-Reset", "X-Ratelimit-Reset-After"} {
			read(http.Header{name: {value, other}})
			read(http.Header{name: {value}, "X-Ratelimit-Remaining": {other}, "Date": {other}, "Age": {other}})
		}
		// Within one form a larger value never asks for less.
		if a > b {
			a, b = b, a
		}
		ordered := func(name, less, more string) {
			first, second := read(http.Header{name: {less}}), read(http.Header{name: {more}})
			if !first.HasHint || !second.HasHint || first.Asked > second.Asked {
				t.Fatalf("%s: %q -> %v, %q -> %v", name, less, first, more, second)
			}
		}
		forms := []string{"%dms", "%ds", "%dh", "0.%020ds", "%d.5m", "%dm1s"}
		if b < 1e9 || a >= 1e12 || a >= 1e9 && b < 1e12 { // seconds, epoch milliseconds, epoch seconds
			forms = append(forms, "%d", "%d.25", "0, %d")
		}
		for _, form := range forms {
			ordered("Retry-After", fmt.Sprintf(form, a), fmt.Sprintf(form, b))
		}
		if b < 1e9 || a >= 1e12 || a >= 1e9 && b < 1e12 {
			ordered("X-Ratelimit-Reset", fmt.Sprint(a), fmt.Sprint(b))
			ordered("Ratelimit", fmt.Sprintf(`"x";r=0;t=%d`, a), fmt.Sprintf(`"x";r=0;t=%d`, b))
		}
		ordered("Retry-After-Ms", fmt.Sprint(a), fmt.Sprint(b))
		ordered("X-Ms-Retry-After-Ms", fmt.Sprintf("%d.5", a), fmt.Sprintf("%d.5", b))
		early, late := time.Unix(int64(a%lastSecond), 0).UTC(), time.Unix(int64(b%lastSecond), 0).UTC()
		if early.After(late) {
			early, late = late, early
		}
		for _, layout := range []string{http.TimeFormat, time.ANSIC} {
			ordered("Retry-After", early.Format(layout), late.Format(layout))
		}
		ordered("X-Ratelimit-Reset-Tokens", early.Format(time.RFC3339), late.Format(time.RFC3339))
	})
}

// FuzzAnswer does the same for what FuzzRetryHint leaves out: bodies, answers
// that succeeded, presets.
func FuzzAnswer(f *testing.F) {
	known := append([]string{""}, presetNames...)
	for _, body := range []string{retryInfo(`"34.074824224s"`), "[" + retryInfo(`"1s"`) + "]", `{"error": {"details": [{"@type": 1}]}}`, "[[", ""} {
		for i := range known {
			f.Add(uint8(i), []byte(body), "100", `"a";q=9;w=60`, "0", "30", uint64(30), uint64(120))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte, limit, policy, remaining, reset string, a, b uint64) {
		now := time.Unix(1_790_000_000, 0)
		const clamp = 48 * time.Hour
		rate := admission.Rate{Limit: 500, Per: time.Minute, Burst: 1}
		g := &Gate{Preset: known[int(which)%len(known)], Learn: true, MaxCooldown: clamp, Requests: rate, Budgets: []admission.Budget{{Unit: "tokens", Rate: rate}}}
		for _, header := range []http.Header{
			{"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset}, "X-Ratelimit-Resource": {policy}},
			{"X-Ratelimit-Limit-Tokens": {limit, policy}, "X-Ratelimit-Remaining-Tokens": {remaining}, "X-Ratelimit-Reset-Tokens": {reset}, "Ratelimit-Policy": {policy, limit}},
			{"Anthropic-Ratelimit-Requests-Limit": {limit}, "Anthropic-Ratelimit-Requests-Remaining": {remaining}, "Anthropic-Ratelimit-Requests-Reset": {reset}, "Ratelimit": {policy}},
			nil,
		} {
			for _, status := range []int{200, 403, 429} {
				h := g.ReadHintBody(status, header, body, now)
				if h.Asked < 0 || h.Applied < 0 || h.Applied > clamp || h.Applied > h.Asked || h.Asked%time.Millisecond != 0 ||
					h.HasHint != (h.Source != "") || !h.HasHint && h.Asked != 0 || !h.Overload && h.HasHint {
					t.Fatalf("%s %d %v %q: %+v", g.Preset, status, header, body, h)
				}
				l := g.ReadLesson(status, header, now)
				if l.Asked < 0 || l.Applied < 0 || l.Applied > clamp || l.Applied > l.Asked || l.Asked%time.Millisecond != 0 ||
					(l.Asked > 0) != (l.Source != "") || len(l.Lower) > len(g.preset().windows)+1 || status != 200 && len(l.Lower) > 0 {
					t.Fatalf("%s %d %v: %+v", g.Preset, status, header, l)
				}
				for _, lower := range l.Lower {
					if lower.Limit <= 0 || lower.Per <= 0 || lower.Policy < lower.Limit {
						t.Fatalf("%s %v: %+v", g.Preset, header, lower)
					}
				}
			}
		}
		gemini := &Gate{Preset: "gemini", MaxCooldown: clamp}
		for _, form := range []string{`"%ds"`, `"%d.5s"`, `"0.%020ds"`} {
			less := gemini.ReadHintBody(429, nil, []byte(retryInfo(fmt.Sprintf(form, min(a, b)))), now)
			more := gemini.ReadHintBody(429, nil, []byte(retryInfo(fmt.Sprintf(form, max(a, b)))), now)
			if !less.HasHint || !more.HasHint || less.Asked > more.Asked {
				t.Fatalf(form+" -> %v, "+form+" -> %v", min(a, b), less, max(a, b), more)
			}
		}
	})
}

// A provider with very many limits costs no more than one with a few.
func TestManyUnits(t *testing.T) {
	header := http.Header{"X-Ratelimit-Reset-Tokens": {"7"}}
	for i := range 20_000 {
		header.Set(fmt.Sprintf("X-Ratelimit-Reset-U%05d", i), fmt.Sprint(i))
		header.Set(fmt.Sprintf("X-Ratelimit-Reset-After-U%05d", i), "3")
	}
	hint := (&Gate{}).ReadHint(429, header, time.Unix(1_790_000_000, 0))
	assert.Equal(t, "x-ratelimit-reset-tokens", hint.Source)
	assert.Equal(t, 7*time.Second, hint.Asked)
	assert.Len(t, openAIUnits(newResponse(header, time.Time{})), 2+maxUnits)
}
