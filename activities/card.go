package activities

import (
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
)

// maxSummary bounds the summary, in bytes; the server takes 400.
const maxSummary = 200

// card is what Temporal's list of workflows shows of a gate: a summary and details,
// which are those of its first run, and a memo, which each run hands on to the next.
// None of them is renewed: what is in force now is in the current details.
func (l *durableLink) card() (*sdkpb.UserMetadata, *commonpb.Memo, error) {
	g := &l.gate
	summary := "Gate of " + g.Provider + ": " + g.LimitsText()
	if len(summary) > maxSummary {
		summary = strings.ToValidUTF8(summary[:maxSummary], "")
	}
	details := "Sluice's admission control of `" + g.ID() + "`: the queue, the leases and the cooldown of all workers of this namespace that call it. " +
		"It began with " + g.LimitsText() + ". It runs for good and continues as new; terminated, it forgets its queue."
	meta := &sdkpb.UserMetadata{}
	var err error
	if meta.Summary, err = l.DataConverter.ToPayload(summary); err != nil {
		return nil, nil, err
	}
	if meta.Details, err = l.DataConverter.ToPayload(details); err != nil {
		return nil, nil, err
	}
	memo := &commonpb.Memo{Fields: map[string]*commonpb.Payload{}}
	for key, value := range map[string]string{"provider": g.Provider, "endpoint": g.Endpoint, "name": g.Name, "limits_at_start": g.LimitsText()} {
		if value == "" {
			continue
		}
		if memo.Fields[key], err = l.DataConverter.ToPayload(value); err != nil {
			return nil, nil, err
		}
	}
	return meta, memo, nil
}
