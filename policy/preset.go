package policy

// DefaultOverloadStatuses are the statuses by which a provider says "slow
// down" where neither the gate nor its preset names others: 429 (RFC 6585,
// section 4), 503 (RFC 9110, section 15.6.4) and 529, which some providers send
// when they are overloaded.
func DefaultOverloadStatuses() []int { return []int{429, 503, 529} }

// preset is what a provider's name sets where the gate says nothing.
type preset struct {
	overloadStatuses []int
}

// presets is the one table of what is known of a provider.
var presets = map[string]preset{
	"anthropic":    {overloadStatuses: []int{429, 503, 529}},
	"azure-openai": {overloadStatuses: []int{429, 503}},
	"gemini":       {overloadStatuses: []int{429, 503}},
	"github":       {overloadStatuses: []int{403, 429, 503}},
	"openai":       {overloadStatuses: []int{429, 503}},
}

var presetNames = []string{"anthropic", "azure-openai", "gemini", "github", "openai"}
