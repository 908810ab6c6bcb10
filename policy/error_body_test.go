package policy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// retryInfo is an error body as Google's APIs send it, with the JSON value as
// the delay.
func retryInfo(delay string) string {
	return `{"error": {"code": 429, "message": "Please retry in 99s.", "status": "RESOURCE_EXHAUSTED", "details": [
		{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute", "quotaValue": "5"}]},
		{"@type": "type.googleapis.com/google.rpc.Help", "links": [{"description": "x", "url": "https://h"}]},
		{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": ` + delay + `}]}}`
}

func TestReadHintBody(t *testing.T) {
	const none = time.Duration(-1)
	const name = "body.error.details.retryDelay"
	for title, c := range map[string]struct {
		body   string
		header http.Header
		asked  time.Duration
		source string
		faults []string
	}{
		"as Gemini sends it":           {retryInfo(`"34.074824224s"`), nil, 34075 * time.Millisecond, name, nil},
		"whole seconds":                {retryInfo(`"22s"`), nil, 22 * time.Second, name, nil},
		"of a stream: a list":          {"[" + retryInfo(`"22s"`) + "\n]", nil, 22 * time.Second, name, nil},
		"white space before it":        {"\r\n\t " + retryInfo(`"22s"`), nil, 22 * time.Second, name, nil},
		"of two the longest":           {"[" + retryInfo(`"22s"`) + "," + retryInfo(`"23s"`) + "]", nil, 23 * time.Second, name, nil},
		"one malformed, one not":       {"[" + retryInfo(`"soon"`) + "," + retryInfo(`"23s"`) + "]", nil, 23 * time.Second, name, []string{name}},
		"zero is now":                  {retryInfo(`"0s"`), nil, 0, name, nil},
		"it saturates":                 {retryInfo(`"` + strings.Repeat("9", 100) + `s"`), nil, longestDelay, name, nil},
		"another prefix of the type":   {strings.Replace(retryInfo(`"22s"`), "type.googleapis.com/google.rpc.RetryInfo", "google.rpc.RetryInfo", 1), nil, 22 * time.Second, name, nil},
		"a header goes before it":      {retryInfo(`"22s"`), http.Header{"Retry-After": {"5"}}, 5 * time.Second, "retry-after", nil},
		"a header that says now, too":  {retryInfo(`"22s"`), http.Header{"Retry-After": {"0"}}, 0, "retry-after", nil},
		"a malformed header does not":  {retryInfo(`"22s"`), http.Header{"Retry-After": {"soon"}}, 22 * time.Second, name, []string{"retry-after"}},
		"an exhausted limit goes, too": {retryInfo(`"22s"`), http.Header{"X-Ratelimit-Reset": {"7"}}, 7 * time.Second, "x-ratelimit-reset", nil},

		"nothing":                        {"", nil, none, "", nil},
		"white space":                    {" \n", nil, none, "", nil},
		"a page of a proxy":              {"<html>retryDelay: 5s</html>", nil, none, "", nil},
		"a text":                         {`"retry in 5s"`, nil, none, "", nil},
		"no error":                       {`{"candidates": []}`, nil, none, "", nil},
		"an empty list":                  {`[]`, nil, none, "", nil},
		"no details":                     {`{"error": {"code": 429, "message": "retryDelay: 5s"}}`, nil, none, "", nil},
		"details are null":               {`{"error": {"details": null}}`, nil, none, "", nil},
		"no RetryInfo":                   {strings.ReplaceAll(retryInfo(`"22s"`), "RetryInfo", "ErrorInfo"), nil, none, "", nil},
		"a longer type name":             {strings.ReplaceAll(retryInfo(`"22s"`), "google.rpc.RetryInfo", "notgoogle.rpc.RetryInfo"), nil, none, "", nil},
		"RetryInfo without a delay":      {`{"error": {"details": [{"@type": "google.rpc.RetryInfo"}]}}`, nil, none, "", nil},
		"deeper than it may be":          {`{"a": ` + retryInfo(`"22s"`) + `}`, nil, none, "", nil},
		"cut off":                        {retryInfo(`"22s"`)[:300], nil, none, "", []string{name}},
		"it begins behind the limit":     {strings.Repeat(" ", 16<<10) + retryInfo(`"22s"`), nil, none, "", nil},
		"cut off by the limit":           {`{"x": "` + strings.Repeat("x", 16<<10) + `", ` + retryInfo(`"22s"`)[1:], nil, none, "", []string{name}},
		"something after it":             {retryInfo(`"22s"`) + "}", nil, none, "", []string{name}},
		"error is a text":                {`{"error": "RESOURCE_EXHAUSTED"}`, nil, none, "", []string{name}},
		"details are an object":          {`{"error": {"details": {"retryDelay": "5s"}}}`, nil, none, "", []string{name}},
		"a detail is a number":           {`{"error": {"details": [5]}}`, nil, none, "", []string{name}},
		"a list of lists":                {`[[` + retryInfo(`"22s"`) + `]]`, nil, none, "", []string{name}},
		"a number":                       {retryInfo(`22`), nil, none, "", []string{name}},
		"null":                           {retryInfo(`null`), nil, none, "", []string{name}},
		"the binary form as an object":   {retryInfo(`{"seconds": 22}`), nil, none, "", []string{name}},
		"no unit":                        {retryInfo(`"22"`), nil, none, "", []string{name}},
		"another unit":                   {retryInfo(`"22ms"`), nil, none, "", []string{name}},
		"two units":                      {retryInfo(`"1m22s"`), nil, none, "", []string{name}},
		"a sign":                         {retryInfo(`"-22s"`), nil, none, "", []string{name}},
		"an exponent":                    {retryInfo(`"1e3s"`), nil, none, "", []string{name}},
		"a bare point":                   {retryInfo(`"22.s"`), nil, none, "", []string{name}},
		"the unit alone":                 {retryInfo(`"s"`), nil, none, "", []string{name}},
		"empty":                          {retryInfo(`""`), nil, none, "", []string{name}},
		"white space in it":              {retryInfo(`" 22s"`), nil, none, "", []string{name}},
		"longer than a value may be":     {retryInfo(`"` + strings.Repeat("1", 128) + `s"`), nil, none, "", []string{name}},
		"nested very deep":               {strings.Repeat("[", 16<<10), nil, none, "", []string{name}},
		"not UTF-8":                      {"{\"\xff\": \xfe}", nil, none, "", []string{name}},
		"compressed":                     {"\x1f\x8b\x08\x00", nil, none, "", nil},
		"a key that differs in its case": {strings.ReplaceAll(retryInfo(`"22s"`), "@type", "@TYPE"), nil, 22 * time.Second, name, nil},
	} {
		t.Run(title, func(t *testing.T) {
			g := &Gate{Preset: "gemini", MaxCooldown: time.Hour}
			hint := g.ReadHintBody(429, c.header, []byte(c.body), time.Unix(1_790_000_000, 0))
			assert.True(t, hint.Overload)
			assert.Equal(t, c.asked != none, hint.HasHint)
			assert.Equal(t, max(0, c.asked), hint.Asked)
			assert.Equal(t, min(max(0, c.asked), time.Hour), hint.Applied)
			assert.Equal(t, c.source, hint.Source)
			assert.Equal(t, c.faults, hint.Malformed)
		})
	}
}

func TestBodyIsLookedAtWhereThePresetSaysSo(t *testing.T) {
	now, body := time.Unix(1_790_000_000, 0), []byte(retryInfo(`"22s"`))
	assert.Equal(t, 16<<10, (&Gate{Preset: "gemini"}).BodyHintLimit())
	assert.False(t, (&Gate{Preset: "gemini"}).ReadHintBody(500, nil, body, now).Overload, "not an overload")
	for _, name := range append([]string{""}, presetNames...) {
		if name == "gemini" {
			continue
		}
		g := &Gate{Provider: "gemini", Preset: name}
		assert.Zero(t, g.BodyHintLimit(), name)
		hint := g.ReadHintBody(429, nil, body, now)
		assert.Equal(t, Hint{Overload: true}, hint, name)
	}
}
