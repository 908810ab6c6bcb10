package main

import (
	"context"
	"fmt"
	"testing"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"sluice/workflows"
	"sluice/workflows/contract"
)

func dumpGate(t *testing.T, c client.Client, id string) {
	for events := c.GetWorkflowHistory(context.Background(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		if err != nil {
			return
		}
		at := e.EventTime.AsTime().Format("05.000")
		show := func(kind string, x *contract.Exchange) {
			s := fmt.Sprintf("%d %s %s %s seq %d conf %d acq %d present %d", e.EventId, at, kind, x.Holder.Id, x.Seq, x.Confirmed, len(x.Acquire), len(x.Present))
			for _, r := range x.Release {
				s += fmt.Sprintf(" REL %d/%d", r.Lease, r.Generation)
			}
			for _, r := range x.Cancel {
				s += fmt.Sprintf(" CAN #%d park=%v", r.Number, r.Park)
			}
			for _, r := range x.HandBack {
				s += fmt.Sprintf(" HB %d", r.Lease)
			}
			t.Log(s)
		}
		if a := e.GetWorkflowExecutionUpdateAcceptedEventAttributes(); a != nil && a.AcceptedRequest.GetInput().GetName() == workflows.UpdateExchange {
			x := &contract.Exchange{}
			workflows.Decode(a.AcceptedRequest.GetInput().GetArgs().GetPayloads()[0], x)
			show("update", x)
		} else if a := e.GetWorkflowExecutionSignaledEventAttributes(); a != nil {
			x := &contract.Exchange{}
			workflows.Decode(a.Input.GetPayloads()[0], x)
			show("signal "+a.SignalName, x)
		} else if a := e.GetWorkflowExecutionUpdateCompletedEventAttributes(); a != nil {
			x := &contract.Answer{}
			workflows.Decode(a.Outcome.GetSuccess().GetPayloads()[0], x)
			s := ""
			for _, g := range x.Grants {
				s += fmt.Sprintf(" GRANT #%d %d/%d", g.Number, g.Lease, g.Generation)
			}
			t.Log(e.EventId, at, "answer", "resync", x.Resync, s)
		} else {
			t.Log(e.EventId, at, e.EventType)
		}
	}
}
