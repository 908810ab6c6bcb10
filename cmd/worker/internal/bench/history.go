package bench

import (
	"context"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"sluice/workflows"
)

// traffic is what the histories of a workflow's runs show.
type traffic struct {
	runs      int
	events    int
	exchanges int // taken in, by update and by signal
	waits     int // updates
	timers    int
	taken     []time.Time // when each exchange was taken in, newest run first
}

// between is how many exchanges were taken in from one instant to another.
func (t *traffic) between(from, to time.Time) (n int) {
	for _, at := range t.taken {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// trafficOf reads the histories of a workflow's runs, from the newest one back.
func trafficOf(ctx context.Context, c client.Client, id string) (t traffic, err error) {
	for run, first := "", true; first || run != ""; first = false {
		t.runs++
		previous := ""
		for events := c.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
			e, err := events.Next()
			if err != nil {
				return t, err
			}
			t.events++
			switch e.EventType {
			case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
				previous = e.GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId()
			case enumspb.EVENT_TYPE_TIMER_STARTED:
				t.timers++
			case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
				if e.GetWorkflowExecutionSignaledEventAttributes().GetSignalName() == workflows.SignalExchange {
					t.exchanges++
					t.taken = append(t.taken, e.EventTime.AsTime())
				}
			case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
				switch e.GetWorkflowExecutionUpdateAcceptedEventAttributes().GetAcceptedRequest().GetInput().GetName() {
				case workflows.UpdateExchange:
					t.exchanges++
					t.taken = append(t.taken, e.EventTime.AsTime())
				case workflows.UpdateWait:
					t.waits++
				}
			}
		}
		run = previous
	}
	return t, nil
}
