package gateclient

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
)

// Histories reads the histories of all runs of a workflow, the oldest first.
func Histories(ctx context.Context, c client.Client, workflowID string) (histories []*historypb.History, err error) {
	for run, first := "", true; first || run != ""; first = false {
		h := &historypb.History{}
		for events := c.GetWorkflowHistory(ctx, workflowID, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
			e, err := events.Next()
			if err != nil {
				return nil, fmt.Errorf("history of %s: %w", workflowID, err)
			}
			h.Events = append(h.Events, e)
		}
		histories = append([]*historypb.History{h}, histories...)
		run = h.Events[0].GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId()
	}
	return histories, nil
}
