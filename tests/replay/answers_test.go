package replay

import (
	"errors"
	"fmt"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"sluice/workflows"
	"sluice/workflows/contract"
)

// said is what a run said to the world besides its commands, which the SDK
// compares by itself: the answers to its updates, and what it handed to the
// next run. The SDK's replayer looks at neither, so a change of decisions that
// leaves timers alone would pass it.
type said struct {
	answers map[string]string // by update ID; an answer or a failure, readable
	next    string            // readable; empty: the run did not continue as new
}

// recorded reads what was said from a history.
func recorded(h *historypb.History) said {
	s := said{answers: map[string]string{}}
	for _, e := range h.Events {
		if a := e.GetWorkflowExecutionUpdateCompletedEventAttributes(); a != nil {
			id := a.GetMeta().GetUpdateId()
			if failure := a.GetOutcome().GetFailure(); failure != nil {
				s.answers[id] = "failed: " + failure.GetMessage()
				continue
			}
			for _, p := range a.GetOutcome().GetSuccess().GetPayloads() {
				s.answers[id] = readable(p)
			}
		}
		if a := e.GetWorkflowExecutionContinuedAsNewEventAttributes(); a != nil {
			s.next = handedOver(a.GetInput())
		}
	}
	return s
}

// differences compares what was said then and now; an update that the history
// doesn't complete counts for nothing.
func (s said) differences(now said) []string {
	var list []string
	for id, then := range s.answers {
		if got, ok := now.answers[id]; !ok {
			list = append(list, fmt.Sprintf("update %s is not answered any more; it was\n%s", id, then))
		} else if got != then {
			list = append(list, fmt.Sprintf("update %s is answered\n%s\nand was\n%s", id, got, then))
		}
	}
	if s.next != now.next {
		list = append(list, fmt.Sprintf("the next run gets\n%s\nand got\n%s", now.next, s.next))
	}
	return list
}

// readable is an answer as a person reads it, in one form whatever the encoding.
func readable(p *commonpb.Payload) string {
	a := &contract.Answer{}
	if _, err := workflows.Decode(p, a); err != nil {
		return fmt.Sprintf("%v: %x", err, p.GetData())
	}
	text := protojson.MarshalOptions{Multiline: true}.Format(a)
	return strings.ReplaceAll(text, ":  ", ": ") // protojson varies its spaces on purpose
}

// handedOver is what the next run gets, as a person reads it: its state is
// bytes, and any of them may matter.
func handedOver(input *commonpb.Payloads) string {
	var texts []string
	for _, p := range input.GetPayloads() {
		texts = append(texts, string(p.GetData())) // JSON
	}
	return strings.Join(texts, "\n")
}

// listener hears what the replayed run says.
type listener struct {
	interceptor.WorkerInterceptorBase
	heard said
}

func (l *listener) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	in := &inbound{l: l}
	in.Next = next
	return in
}

type inbound struct {
	interceptor.WorkflowInboundInterceptorBase
	l *listener
}

func (in *inbound) ExecuteWorkflow(ctx workflow.Context, input *interceptor.ExecuteWorkflowInput) (any, error) {
	result, err := in.Next.ExecuteWorkflow(ctx, input)
	if again := (*workflow.ContinueAsNewError)(nil); errors.As(err, &again) {
		in.l.heard.next = handedOver(again.Input)
	}
	return result, err
}

func (in *inbound) ExecuteUpdate(ctx workflow.Context, input *interceptor.UpdateInput) (any, error) {
	id := workflow.GetCurrentUpdateInfo(ctx).ID
	result, err := in.Next.ExecuteUpdate(ctx, input)
	if err != nil {
		in.l.heard.answers[id] = "failed: " + err.Error()
	} else if raw, ok := result.(converter.RawValue); ok {
		in.l.heard.answers[id] = readable(raw.Payload())
	}
	return result, err
}
