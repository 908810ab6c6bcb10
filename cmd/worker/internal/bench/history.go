package bench

import (
	"context"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/workflows"
)

// traffic is what the histories of a workflow's runs show.
type traffic struct {
	runs      int
	events    int
	exchanges int // taken in, by update and by signal
	waits     int // updates
	timers    int
	taken     []time.Time // when each exchange was taken in
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

// trafficOf reads the histories of a workflow's runs.
func trafficOf(ctx context.Context, c client.Client, id string) (t traffic, err error) {
	histories, err := gateclient.Histories(ctx, c, id)
	if err != nil {
		return t, err
	}
	t.runs = len(histories)
	for _, h := range histories {
		t.events += len(h.Events)
		for _, e := range h.Events {
			t.note(e)
		}
	}
	return t, nil
}

// note counts an event.
func (t *traffic) note(e *historypb.HistoryEvent) {
	name := ""
	switch e.EventType {
	case enumspb.EVENT_TYPE_TIMER_STARTED:
		t.timers++
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
		name = e.GetWorkflowExecutionSignaledEventAttributes().GetSignalName()
	case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
		name = e.GetWorkflowExecutionUpdateAcceptedEventAttributes().GetAcceptedRequest().GetInput().GetName()
	}
	switch name {
	case workflows.UpdateExchange: // the signal has the same name
		t.exchanges++
		t.taken = append(t.taken, e.EventTime.AsTime())
	case workflows.UpdateWait:
		t.waits++
	}
}
