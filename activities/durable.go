package activities

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	querypb "go.temporal.io/api/query/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// Transport of the exchanges of a durable gate.
type ExchangeTransport string

const (
	// TransportUpdate sends updates: the fast path.
	TransportUpdate ExchangeTransport = "update"
	// TransportSignal sends signals and reads grants by query: for servers or
	// quotas where updates are scarce.
	TransportSignal ExchangeTransport = "signal"
	// TransportMixed alternates between the two, and waits by update: for tests.
	TransportMixed ExchangeTransport = "mixed"
)

// DurableOptions say how gates reach their workflows.
type DurableOptions struct {
	Service       workflowservice.WorkflowServiceClient // required
	Namespace     string                                // required
	DataConverter converter.DataConverter               // nil: the default one
	Identity      string                                // as Temporal shows it
	Transport     ExchangeTransport                     // empty: TransportUpdate
	// RunEvents is how long a run of the workflow may grow before it continues
	// as new. 0: workflows.DefaultRunEvents.
	RunEvents int
}

// durableLink carries exchanges to the admission workflow. It goes through the
// raw service: the SDK's own retries hide contention for seconds, and a user's
// interceptors have no business here.
type durableLink struct {
	DurableOptions
	workflowID string
	gate       policy.Gate
	body       []byte
}

// rpcTimeout bounds one try of any call; a try that ran out goes out again
// under the same ID.
const rpcTimeout = 5 * time.Second

func newDurableLink(g policy.Gate, opts DurableOptions) (*durableLink, error) {
	if opts.DataConverter == nil {
		opts.DataConverter = converter.GetDefaultDataConverter()
	}
	switch opts.Transport {
	case "":
		opts.Transport = TransportUpdate
	case TransportUpdate, TransportSignal, TransportMixed:
	default:
		return nil, fmt.Errorf("transport is %q; allowed: %s, %s, %s", opts.Transport, TransportUpdate, TransportSignal, TransportMixed)
	}
	body, err := g.MarshalJSON()
	return &durableLink{DurableOptions: opts, workflowID: g.WorkflowID(), gate: g, body: body}, err
}

func (l *durableLink) exchange(ctx context.Context, x *contract.Exchange) (*contract.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	var a *contract.Answer
	err := l.started(ctx, func() (err error) {
		if l.Transport == TransportSignal || l.Transport == TransportMixed && x.Seq%2 == 0 {
			a, err = l.exchangeBySignal(ctx, x)
		} else {
			a, err = l.update(ctx, workflows.UpdateExchange, exchangeID(x), x)
		}
		return err
	})
	if exhausted(err, enumspb.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT) && l.Transport == TransportUpdate {
		// Too many updates are in flight, and trying again would be one too many
		// again, which may end all the others. There is always room for a signal.
		x.RefusedBefore++
		if a, bySignal := l.exchangeBySignal(ctx, x); bySignal == nil {
			return a, err
		}
	}
	return a, err
}

func exchangeID(x *contract.Exchange) string {
	return fmt.Sprintf("%s-%x-%d", x.Holder.Id, x.Holder.Generation, x.Seq)
}

// started makes a call and, where the workflow doesn't run, starts it and makes
// the call again.
func (l *durableLink) started(ctx context.Context, call func() error) error {
	err := call()
	if _, missing := err.(*serviceerror.NotFound); !missing {
		return classify(err)
	}
	if err := l.start(ctx); err != nil {
		return classify(err)
	}
	return classify(call())
}

// Pauses between tries of a call that a closing run refused.
const (
	firstKnock = 20 * time.Millisecond
	lastKnock  = 200 * time.Millisecond
)

// untilOpen makes a call, and makes it again while the run refuses it because it
// continues as new: the next run takes it. All that were on their way are refused at
// one moment, so they don't come back at one.
func untilOpen(ctx context.Context, call func() error) error {
	for knock := firstKnock; ; knock = min(2*knock, lastKnock) {
		err := call()
		if !exhausted(err, enumspb.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW) || pause(ctx, knock/4+rand.N(knock)) != nil {
			return err
		}
	}
}

// exhausted reports whether the server refused a call for this cause.
func exhausted(err error, cause enumspb.ResourceExhaustedCause) bool {
	var e *serviceerror.ResourceExhausted
	return errors.As(err, &e) && e.Cause == cause
}

// classify marks what the server refused for load.
func classify(err error) error {
	if _, busy := err.(*serviceerror.ResourceExhausted); busy {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

// start starts the admission workflow, unless it runs by now. A gate that ended
// within the last TTL left leases behind: the new one first learns of them.
func (l *durableLink) start(ctx context.Context) error {
	start := workflows.Start{Contract: workflows.ContractVersion, GateID: l.gate.ID(), Policy: l.body, Rules: uint32(admission.NewestRules), RunEvents: l.RunEvents}
	last, err := l.Service.DescribeWorkflowExecution(ctx, &workflowservice.DescribeWorkflowExecutionRequest{
		Namespace: l.Namespace, Execution: &commonpb.WorkflowExecution{WorkflowId: l.workflowID},
	})
	if _, never := err.(*serviceerror.NotFound); err != nil && !never {
		return err
	}
	if closed := last.GetWorkflowExecutionInfo().GetCloseTime(); err == nil && closed != nil && time.Since(closed.AsTime()) < l.gate.HolderTTL {
		start.LearnFor = l.gate.HolderTTL
	}
	input, err := l.DataConverter.ToPayloads(start)
	if err != nil {
		return err
	}
	metadata, memo, err := l.card()
	if err != nil {
		return err
	}
	_, err = l.Service.StartWorkflowExecution(ctx, &workflowservice.StartWorkflowExecutionRequest{
		Namespace: l.Namespace, WorkflowId: l.workflowID, RequestId: uuid.NewString(), Identity: l.Identity,
		WorkflowType: &commonpb.WorkflowType{Name: workflows.WorkflowType},
		TaskQueue:    &taskqueuepb.TaskQueue{Name: workflows.TaskQueue, Kind: enumspb.TASK_QUEUE_KIND_NORMAL},
		Input:        input, WorkflowTaskTimeout: durationpb.New(workflows.TaskTimeout),
		UserMetadata: metadata, Memo: memo,
		WorkflowIdReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		WorkflowIdConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
	})
	return err
}

func (l *durableLink) update(ctx context.Context, name, id string, m proto.Message) (*contract.Answer, error) {
	args, err := l.encode(m)
	if err != nil {
		return nil, err
	}
	request := &workflowservice.UpdateWorkflowExecutionRequest{
		Namespace: l.Namespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: l.workflowID},
		WaitPolicy: &updatepb.WaitPolicy{LifecycleStage: enumspb.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED},
		Request: &updatepb.Request{
			Meta:  &updatepb.Meta{UpdateId: id, Identity: l.Identity},
			Input: &updatepb.Input{Name: name, Args: args},
		},
	}
	for {
		var response *workflowservice.UpdateWorkflowExecutionResponse
		if err := untilOpen(ctx, func() (err error) {
			response, err = l.Service.UpdateWorkflowExecution(ctx, request)
			return err
		}); err != nil {
			return nil, err
		}
		if failure := response.GetOutcome().GetFailure(); failure != nil {
			if failure.GetApplicationFailureInfo().GetType() == workflows.ErrTypeMalformed {
				return nil, fmt.Errorf("%w: %s", errMalformed, failure.GetMessage())
			}
			return nil, fmt.Errorf("update %s failed: %s", name, failure.GetMessage())
		}
		if success := response.GetOutcome().GetSuccess(); success != nil {
			return l.decode(success)
		}
		// The server's long poll ended before the update did: again, under
		// the same ID.
	}
}

// encode makes the arguments of a call. The raw value passes a user's data
// converter unconverted, yet through its codec: encryption applies here too.
func (l *durableLink) encode(m proto.Message) (*commonpb.Payloads, error) {
	raw, err := workflows.Encode(m, false)
	if err != nil {
		return nil, err
	}
	return l.DataConverter.ToPayloads(raw)
}

func (l *durableLink) decode(payloads *commonpb.Payloads) (*contract.Answer, error) {
	var raw converter.RawValue
	if err := l.DataConverter.FromPayloads(payloads, &raw); err != nil {
		return nil, err
	}
	a := &contract.Answer{}
	if _, err := workflows.Decode(raw.Payload(), a); err != nil {
		return nil, err
	}
	return a, nil
}

// Pauses between two looks at whether a signal has been taken in.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// exchangeBySignal sends the exchange as a signal and reads the answer by query
// until the gate has taken it in.
func (l *durableLink) exchangeBySignal(ctx context.Context, x *contract.Exchange) (*contract.Answer, error) {
	x.Policy.Body = l.body // a signal can't be asked for it
	if err := l.signal(ctx, x); err != nil {
		return nil, err
	}
	for look, looks := firstLook, 1; ; look, looks = min(2*look, lastLook), looks+1 {
		a, err := l.read(ctx, x.Holder)
		if _, busy := err.(*serviceerror.ResourceExhausted); err != nil && !busy {
			return nil, err
		}
		if err == nil {
			switch {
			case a.Seq >= x.Seq, len(a.PolicyConflict) > 0, a.Superseded:
				return a, nil
			case looks > 2 && !x.Resync && a.Seq+1 < x.Seq:
				a.Resync = true // an earlier one is missing, and stays so
				return a, nil
			}
		}
		if err := pause(ctx, look); err != nil {
			return nil, err
		}
	}
}

func (l *durableLink) signal(ctx context.Context, x *contract.Exchange) error {
	input, err := l.encode(x)
	if err != nil {
		return err
	}
	return untilOpen(ctx, func() error {
		_, err := l.Service.SignalWorkflowExecution(ctx, &workflowservice.SignalWorkflowExecutionRequest{
			Namespace: l.Namespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: l.workflowID},
			SignalName: workflows.SignalExchange, Input: input, Identity: l.Identity, RequestId: exchangeID(x),
		})
		return err
	})
}

// read asks for what the gate knows of the holder.
func (l *durableLink) read(ctx context.Context, h *contract.Holder) (*contract.Answer, error) {
	args, err := l.encode(&contract.Read{
		Contract: workflows.ContractVersion, Holder: h,
		Policy: &contract.Policy{Revision: l.gate.Revision, Hash: l.gate.Hash(), Body: l.body},
	})
	if err != nil {
		return nil, err
	}
	response, err := l.Service.QueryWorkflow(ctx, &workflowservice.QueryWorkflowRequest{
		Namespace: l.Namespace, Execution: &commonpb.WorkflowExecution{WorkflowId: l.workflowID},
		Query: &querypb.WorkflowQuery{QueryType: workflows.QueryGrants, QueryArgs: args},
	})
	if err != nil {
		return nil, err
	}
	return l.decode(response.GetQueryResult())
}

// waitFor bounds a wait: afterwards the holder may open another one.
const waitFor = 30 * time.Second

func (l *durableLink) wait(ctx context.Context, w *contract.Wait) (*contract.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	if l.Transport != TransportSignal {
		return l.update(ctx, workflows.UpdateWait, uuid.NewString(), w)
	}
	for look := firstLook; ; look = min(2*look, lastLook) {
		a, err := l.read(ctx, w.Holder)
		if _, busy := err.(*serviceerror.ResourceExhausted); err != nil && !busy {
			return nil, err
		}
		if err == nil && (a.Notice > w.Confirmed || a.Resync) {
			return a, nil
		}
		if err := pause(ctx, look); err != nil {
			return nil, err
		}
	}
}

// asks: a wait by signal only looks at the grants.
func (l *durableLink) asks() bool { return l.Transport != TransportSignal }

func (l *durableLink) flush(ctx context.Context, x *contract.Exchange) error {
	err := l.signal(ctx, x)
	if _, gone := err.(*serviceerror.NotFound); gone {
		return nil // no gate: nothing is held there
	}
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
