package gateclient

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	querypb "go.temporal.io/api/query/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"sluice/policy"
	"sluice/workflows"
)

// rejecting answers a question as often as there are statuses by rejecting it, as the
// server does where the run that it found has ended; then with a gate's status.
type rejecting struct {
	client.Client
	statuses []enumspb.WorkflowExecutionStatus
}

func (r *rejecting) QueryWorkflowWithOptions(context.Context, *client.QueryWorkflowWithOptionsRequest) (*client.QueryWorkflowWithOptionsResponse, error) {
	if len(r.statuses) > 0 {
		status := r.statuses[0]
		r.statuses = r.statuses[1:]
		return &client.QueryWorkflowWithOptionsResponse{QueryRejected: &querypb.QueryRejected{Status: status}}, nil
	}
	g, err := policy.Gate{Provider: "test", Endpoint: "http://there"}.Normalize()
	if err != nil {
		return nil, err
	}
	p, err := converter.GetDefaultDataConverter().ToPayloads(workflows.Status{Gate: g.ID(), Runs: 3, Policy: g, InForce: g})
	return &client.QueryWorkflowWithOptionsResponse{QueryResult: client.NewValue(p)}, err
}

// TestStatusAsARunEnds: a run that continues as new under the question isn't the end of
// the gate.
func TestStatusAsARunEnds(t *testing.T) {
	const next, done = enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
	synctest.Test(t, func(t *testing.T) {
		ask := func(timeout time.Duration, statuses ...enumspb.WorkflowExecutionStatus) (workflows.Status, error) {
			return New(&rejecting{statuses: statuses}, "default", timeout).Status(t.Context(), "test@there")
		}
		st, err := ask(time.Second, next, next)
		require.NoError(t, err)
		assert.Equal(t, 3, st.Runs)
		_, err = ask(time.Second, done)
		require.ErrorIs(t, err, ErrNotRunning)
		_, err = ask(between, next, next, next)
		require.ErrorIs(t, err, ErrNoHost, "it doesn't ask for ever")
	})
}
