package demo

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/tests/loopback"
)

const workflowType = "demo.Calls"

// batch is the argument of the workflow.
type batch struct {
	URL   string `json:"url"`
	Calls int    `json:"calls"`
	// Of each call's activity.
	Attempts int32         `json:"attempts"`
	BackOff  time.Duration `json:"back_off"`
}

// outcome is its result.
type outcome struct {
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// makeCalls makes all calls of a batch at once, as activities that know nothing of
// admission. One that fails for good doesn't keep the others from going on.
func makeCalls(ctx workflow.Context, b batch) (outcome, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: rowTimeout, // the time in the gate's queue counts
		HeartbeatTimeout:    10 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: b.BackOff, BackoffCoefficient: 1, MaximumAttempts: b.Attempts},
	})
	id := workflow.GetInfo(ctx).WorkflowExecution.ID
	calls := make([]workflow.Future, b.Calls)
	for i := range calls {
		calls[i] = workflow.ExecuteActivity(ctx, "CallProvider", activities.CallRequest{
			Method: "POST", URL: b.URL, Header: map[string]string{loopback.HeaderCallID: fmt.Sprintf("%s/%d", id, i)},
		})
	}
	var out outcome
	for _, call := range calls {
		if err := call.Get(ctx, nil); err == nil {
			out.Completed++
		} else if temporal.IsCanceledError(err) {
			return out, err
		} else {
			out.Failed++
		}
	}
	return out, nil
}
