// Package summaries is an example: an activity that calls a provider through
// Sluice, and the unit tests of it, which need neither a Temporal server nor the
// provider.
package summaries

import (
	"context"

	"sluice/activities"
)

// Summarizer has what its activity needs.
type Summarizer struct {
	// URL of the provider; tests point it to a server of their own.
	URL string
	// Caller makes the call: under a lease of the gate that the policy has for
	// the URL, or plainly where it has none.
	Caller activities.Caller
}

// Summarize is an activity.
func (s *Summarizer) Summarize(ctx context.Context, text string) (string, error) {
	answer, err := s.Caller.CallProvider(ctx, activities.CallRequest{URL: s.URL, Body: []byte(text)})
	return string(answer.Body), err
}
