package policy

import (
	"slices"
	"time"
)

// DefaultOverloadStatuses are the statuses by which a provider says "slow
// down" where neither the gate nor its preset names others: 429 (RFC 6585,
// section 4), 503 (RFC 9110, section 15.6.4) and 529, which some providers send
// when they are overloaded.
func DefaultOverloadStatuses() []int { return []int{429, 503, 529} }

// preset is what is known of a provider. It adds knowledge and takes none
// away: headers of other families still count, because a gateway in front of
// the provider may speak for itself, and a gate must not be deaf to it.
type preset struct {
	// overloadStatuses stand where the gate names none.
	overloadStatuses []int
	// ambiguous are statuses that the provider also sends for other reasons:
	// they are an overload only with a Retry-After or a limit that is used up.
	ambiguous []int
	// family is that of the provider's own headers: first in the order that
	// decides between limits which reset at the same time.
	family family
	// body reads when to come again from an overload's body, of which the first
	// bodyLimit bytes are worth a look. nil: the provider says it in headers.
	body      func(*response, []byte) (time.Duration, bool)
	bodyName  string
	bodyLimit int
	// windows are the limit headers whose window the provider documents.
	windows []limitWindow
}

// limitWindow says what a limit header counts.
type limitWindow struct {
	limit, reset string // header names, in lower case
	unit         string // "requests", or the unit of a budget
	per          time.Duration
	// only: the window is this one where the header is absent or has the value.
	only struct{ header, value string }
}

// presets is the one table of what is known of providers.
var presets = map[string]preset{
	// Statuses, headers and "requests, input tokens and output tokens per
	// minute": https://docs.claude.com/en/api/rate-limits and
	// https://docs.claude.com/en/api/errors (529).
	"anthropic": {
		overloadStatuses: []int{429, 503, 529},
		family:           anthropicFamily,
		windows: []limitWindow{
			{limit: "anthropic-ratelimit-requests-limit", reset: "anthropic-ratelimit-requests-reset", unit: requestsUnit, per: time.Minute},
			{limit: "anthropic-ratelimit-tokens-limit", reset: "anthropic-ratelimit-tokens-reset", unit: "tokens", per: time.Minute},
			{limit: "anthropic-ratelimit-input-tokens-limit", reset: "anthropic-ratelimit-input-tokens-reset", unit: "input_tokens", per: time.Minute},
			{limit: "anthropic-ratelimit-output-tokens-limit", reset: "anthropic-ratelimit-output-tokens-reset", unit: "output_tokens", per: time.Minute},
		},
	},
	// Tokens per minute, and requests that are judged over 1 or 10 seconds:
	// https://learn.microsoft.com/azure/ai-foundry/openai/how-to/quota. Which of
	// the two x-ratelimit-limit-requests counts is not documented, so it is not
	// compared.
	"azure-openai": {
		overloadStatuses: []int{429, 503},
		family:           openAIFamily,
		windows: []limitWindow{
			{limit: "x-ratelimit-limit-tokens", reset: "x-ratelimit-reset-tokens", unit: "tokens", per: time.Minute},
		},
	},
	// Statuses: https://ai.google.dev/gemini-api/docs/troubleshooting. The delay
	// is in the body: google.rpc.RetryInfo, https://google.aip.dev/193 and
	// https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto.
	"gemini": {
		overloadStatuses: []int{429, 503},
		body:             (*response).googleRetryDelay,
		bodyName:         googleRetryDelayName,
		bodyLimit:        16 << 10,
	},
	// 403 or 429 with Retry-After or x-ratelimit-remaining 0, a limit per hour
	// for the resource "core" and shorter windows for some others:
	// https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
	// and https://docs.github.com/en/rest/rate-limit/rate-limit.
	"github": {
		overloadStatuses: []int{403, 429, 503},
		ambiguous:        []int{403},
		family:           generalFamily,
		windows: []limitWindow{
			{limit: "x-ratelimit-limit", reset: "x-ratelimit-reset", unit: requestsUnit, per: time.Hour,
				only: struct{ header, value string }{"x-ratelimit-resource", "core"}},
		},
	},
	// Limits per minute, some of them per day, and the headers:
	// https://platform.openai.com/docs/guides/rate-limits; statuses:
	// https://platform.openai.com/docs/guides/error-codes. A header does not say
	// which window it counts. The minute is the shortest: a limit that is lower
	// than the policy's per minute is so per day all the more.
	"openai": {
		overloadStatuses: []int{429, 503},
		family:           openAIFamily,
		windows: []limitWindow{
			{limit: "x-ratelimit-limit-requests", reset: "x-ratelimit-reset-requests", unit: requestsUnit, per: time.Minute},
			{limit: "x-ratelimit-limit-tokens", reset: "x-ratelimit-reset-tokens", unit: "tokens", per: time.Minute},
		},
	},
}

// requestsUnit is the unit of a gate's pacing.
const requestsUnit = "requests"

var presetNames = []string{"anthropic", "azure-openai", "gemini", "github", "openai"}

// preset is what is known of the gate's provider; nothing where it names none.
func (g *Gate) preset() preset { return presets[g.Preset] }

func (g *Gate) overloadStatuses() []int {
	if len(g.OverloadStatuses) > 0 {
		return g.OverloadStatuses
	}
	if p := g.preset(); len(p.overloadStatuses) > 0 {
		return p.overloadStatuses
	}
	return DefaultOverloadStatuses()
}

// isOverload reports whether the provider says "slow down".
func (g *Gate) isOverload(status int, r *response) bool {
	if !slices.Contains(g.overloadStatuses(), status) {
		return false
	}
	return !slices.Contains(g.preset().ambiguous, status) || r.names("retry-after") || g.anyUsedUp(r)
}
