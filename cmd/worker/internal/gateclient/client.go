package gateclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"sluice/workflows"
)

// Client talks to the gates of one namespace. It is safe for concurrent use.
type Client struct {
	temporal  client.Client
	namespace string
	timeout   time.Duration
}

// New returns a client. timeout bounds each question and each act.
func New(c client.Client, namespace string, timeout time.Duration) *Client {
	return &Client{temporal: c, namespace: namespace, timeout: timeout}
}

// Errors, for errors.Is.
var (
	// ErrNotRunning says that a gate has no running workflow.
	ErrNotRunning = errors.New("the gate is not running")
	// ErrNoHost says that the gate's workflow runs and nobody answers for it.
	ErrNoHost = errors.New("no worker answers for the gate")
)

// Status asks a gate how it is.
func (c *Client) Status(ctx context.Context, gate string) (workflows.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var st workflows.Status
	for {
		response, err := c.temporal.QueryWorkflowWithOptions(ctx, &client.QueryWorkflowWithOptionsRequest{
			WorkflowID: workflows.WorkflowIDPrefix + gate, QueryType: workflows.QueryStatus,
			QueryRejectCondition: enumspb.QUERY_REJECT_CONDITION_NOT_OPEN,
		})
		switch {
		case err != nil:
			return st, c.explain(gate, err)
		case response.QueryRejected == nil:
			if err := response.QueryResult.Get(&st); err != nil {
				return st, fmt.Errorf("gate %s: its status can't be read: %w", gate, err)
			}
			return st, nil
		case response.QueryRejected.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
			return st, fmt.Errorf("gate %s: %w", gate, ErrNotRunning)
		}
		// The run ended under the question; the next one has begun.
		if !mayTryAgain(ctx) {
			return st, c.explain(gate, ctx.Err())
		}
	}
}

// between is the pause before a question that no run answered is asked again, or an act
// whose outcome is unknown is made again.
const between = 100 * time.Millisecond

// mayTryAgain waits for the time between. false: the time for the whole is over.
func mayTryAgain(ctx context.Context) bool {
	select {
	case <-time.After(between):
		return true
	case <-ctx.Done():
		return false
	}
}

// Operate makes an act and returns what it came to. An act that the gate
// refused is an error as well.
func (c *Client) Operate(ctx context.Context, gate string, o workflows.Operate) (workflows.Act, error) {
	if o.ID == "" {
		o.ID = uuid.NewString()
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for {
		act, err := c.operate(ctx, gate, &o)
		var application *temporal.ApplicationError
		var missing *serviceerror.NotFound
		var denied *serviceerror.PermissionDenied
		switch {
		case err == nil && act.Error != "":
			return act, fmt.Errorf("gate %s: %s", gate, act.Error)
		case err == nil:
			return act, nil
		case errors.As(err, &application), errors.As(err, &missing), errors.As(err, &denied):
			return act, c.explain(gate, err)
		}
		// The answer is lost, or the run continued as new under it.
		if !mayTryAgain(ctx) {
			return act, c.explain(gate, err)
		}
	}
}

func (c *Client) operate(ctx context.Context, gate string, o *workflows.Operate) (act workflows.Act, err error) {
	handle, err := c.temporal.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		UpdateID: o.ID, WorkflowID: workflows.WorkflowIDPrefix + gate, UpdateName: workflows.UpdateOperate,
		Args: []any{o}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return act, err
	}
	return act, handle.Get(ctx, &act)
}

// explain says in a person's words what became of a call.
func (c *Client) explain(gate string, err error) error {
	var missing *serviceerror.NotFound
	var namespace *serviceerror.NamespaceNotFound
	var deadline *serviceerror.DeadlineExceeded
	var notReady *serviceerror.WorkflowNotReady
	var canceled *serviceerror.Canceled
	var update *client.WorkflowUpdateServiceTimeoutOrCanceledError
	switch {
	case errors.As(err, &namespace):
		return err
	case errors.As(err, &missing):
		return fmt.Errorf("gate %s: %w", gate, ErrNotRunning)
	case errors.As(err, &canceled), errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &deadline), errors.As(err, &notReady), errors.As(err, &update), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("gate %s: %w within %v; is a worker with the plugin running in namespace %s?", gate, ErrNoHost, c.timeout, c.namespace)
	}
	return fmt.Errorf("gate %s: %w", gate, err)
}

// Found is one running gate and its status, or why there is none.
type Found struct {
	Gate   string
	Status workflows.Status
	Err    error
}

// asked bounds the gates that are asked at once.
const asked = 8

// Statuses asks gates how they are, several at once. The order is kept.
func (c *Client) Statuses(ctx context.Context, gates []string) []Found {
	found := make([]Found, len(gates))
	places := make(chan struct{}, asked)
	var all sync.WaitGroup
	for i, gate := range gates {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			st, err := c.Status(ctx, gate)
			found[i] = Found{Gate: gate, Status: st, Err: err}
		})
	}
	all.Wait()
	return found
}

// running is visibility's query for gates.
const running = "WorkflowType = '" + workflows.WorkflowType + "' AND ExecutionStatus = 'Running'"

// Gates lists the IDs of the gates that run, sorted. Visibility may be a moment
// behind.
func (c *Client) Gates(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	seen := map[string]bool{}
	request := &workflowservice.ListWorkflowExecutionsRequest{Namespace: c.namespace, Query: running}
	for {
		response, err := c.temporal.ListWorkflow(ctx, request)
		if err != nil {
			return nil, fmt.Errorf("the gates that run can't be listed: %w", err)
		}
		for _, e := range response.GetExecutions() {
			if gate, ok := strings.CutPrefix(e.GetExecution().GetWorkflowId(), workflows.WorkflowIDPrefix); ok {
				seen[gate] = true // twice, while it continues as new
			}
		}
		if request.NextPageToken = response.GetNextPageToken(); len(request.NextPageToken) == 0 {
			return sorted(seen), nil
		}
	}
}

// runs reports whether a gate with this very ID runs, which visibility may not
// know yet.
func (c *Client) runs(ctx context.Context, gate string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	response, err := c.temporal.DescribeWorkflowExecution(ctx, workflows.WorkflowIDPrefix+gate, "")
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return false, nil
	}
	return response.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, err
}
