package main

import (
	"context"
	"fmt"
	"os"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"sluice/tests/loopback"
	"sluice/workflows"
	"sluice/workflows/contract"
)

var debugEpoch = time.Now()

func debugRow(c client.Client, id string, p *loopback.Provider) {
	ctx := context.Background()
	holders := map[string]string{}
	type g struct {
		h     string
		start int64
		seen  int64
	}
	starts := map[string]g{}
	for events := c.GetWorkflowHistory(ctx, id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); events.HasNext(); {
		e, err := events.Next()
		if err != nil {
			return
		}
		if a := e.GetWorkflowExecutionUpdateAcceptedEventAttributes(); a != nil {
			in := a.AcceptedRequest.GetInput()
			switch in.GetName() {
			case workflows.UpdateExchange:
				x := &contract.Exchange{}
				workflows.Decode(in.GetArgs().GetPayloads()[0], x)
				holders[a.ProtocolInstanceId] = x.Holder.Id
				fmt.Fprintf(os.Stderr, "%s X %s seq %d acq %d rel %d hb %d rtt %v\n", e.EventTime.AsTime().Format("05.000"), x.Holder.Id[len(x.Holder.Id)-3:], x.Seq, len(x.Acquire), len(x.Release), len(x.HandBack), time.Duration(x.RoundTrip))
			case workflows.UpdateWait:
				w := &contract.Wait{}
				workflows.Decode(in.GetArgs().GetPayloads()[0], w)
				holders[a.ProtocolInstanceId] = w.Holder.Id
			}
		}
		if a := e.GetWorkflowExecutionUpdateCompletedEventAttributes(); a != nil {
			answer := &contract.Answer{}
			workflows.Decode(a.Outcome.GetSuccess().GetPayloads()[0], answer)
			for _, x := range answer.Grants {
				k := fmt.Sprintf("%d/%d", x.Lease, x.Generation)
				if _, ok := starts[k]; !ok {
					h := holders[a.Meta.UpdateId]
					starts[k] = g{h[len(h)-3:], x.StartAt, answer.Now}
				}
			}
		}
	}
	var prev time.Duration
	for _, a := range p.Attempts("cap+pacing") {
		s := starts[a.Lease]
		at := debugEpoch.Add(a.Arrived)
		fmt.Fprintf(os.Stderr, "%s lease %s holder %s late %.1f ms gap %.1f status %d granted %.0f ms ahead\n", at.UTC().Format("05.000"), a.Lease, s.h, float64(at.UnixNano()-s.start)/1e6, float64(a.Arrived-prev)/1e6, a.Status, float64(s.start-s.seen)/1e6)
		prev = a.Arrived
	}
}
