package activities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"

	"sluice/policy"
	"sluice/workflows"
	"sluice/workflows/contract"
)

// refusingService refuses updates, or signals, so many times before it takes one.
type refusingService struct {
	workflowservice.WorkflowServiceClient // nil: nothing else is called
	cause                                 enumspb.ResourceExhaustedCause
	times                                 int
	updates, signals, queries             int
	seq                                   uint64 // of the exchange
}

func (s *refusingService) refuse() error {
	if s.times == 0 {
		return nil
	}
	s.times--
	return &serviceerror.ResourceExhausted{Cause: s.cause, Message: "not now"}
}

// answer is the gate's, in the encoding of a workflow's result.
func (s *refusingService) answer() (*commonpb.Payloads, error) {
	raw, err := workflows.Encode(&contract.Answer{Contract: workflows.ContractVersion, Seq: s.seq}, false)
	if err != nil {
		return nil, err
	}
	return &commonpb.Payloads{Payloads: []*commonpb.Payload{raw.Payload()}}, nil
}

func (s *refusingService) UpdateWorkflowExecution(context.Context, *workflowservice.UpdateWorkflowExecutionRequest, ...grpc.CallOption) (*workflowservice.UpdateWorkflowExecutionResponse, error) {
	s.updates++
	if err := s.refuse(); err != nil {
		return nil, err
	}
	a, err := s.answer()
	return &workflowservice.UpdateWorkflowExecutionResponse{Outcome: &updatepb.Outcome{Value: &updatepb.Outcome_Success{Success: a}}}, err
}

func (s *refusingService) SignalWorkflowExecution(context.Context, *workflowservice.SignalWorkflowExecutionRequest, ...grpc.CallOption) (*workflowservice.SignalWorkflowExecutionResponse, error) {
	s.signals++
	return &workflowservice.SignalWorkflowExecutionResponse{}, s.refuse()
}

func (s *refusingService) QueryWorkflow(context.Context, *workflowservice.QueryWorkflowRequest, ...grpc.CallOption) (*workflowservice.QueryWorkflowResponse, error) {
	s.queries++
	a, err := s.answer()
	return &workflowservice.QueryWorkflowResponse{QueryResult: a}, err
}

func linkTo(t *testing.T, s *refusingService, transport ExchangeTransport) *durableLink {
	t.Helper()
	g, err := policy.Gate{Provider: "test", Endpoint: "http://refusing.test"}.Normalize()
	require.NoError(t, err)
	l, err := newDurableLink(g, DurableOptions{Service: s, Namespace: "default", Transport: transport})
	require.NoError(t, err)
	return l
}

const (
	closing = enumspb.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW
	crowded = enumspb.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT
	limited = enumspb.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT
)

// TestRefusedExchanges: a run that continues as new refuses what is on its way to it
// (server v1.32.1, consts.ErrWorkflowClosing). That is not for load: the same update
// goes to the next run within milliseconds. By signal and query it took the holders of
// a crowd seconds, each time.
func TestRefusedExchanges(t *testing.T) {
	for name, c := range map[string]struct {
		transport                 ExchangeTransport
		cause                     enumspb.ResourceExhaustedCause
		times                     int
		updates, signals, queries int
		refused                   bool // for load
		within                    time.Duration
	}{
		"the run ends":                   {TransportUpdate, closing, 2, 3, 0, 0, false, 100 * time.Millisecond},
		"the run ends, by signal":        {TransportSignal, closing, 2, 0, 3, 1, false, 100 * time.Millisecond},
		"too many updates are in flight": {TransportUpdate, crowded, 1, 1, 1, 1, true, time.Millisecond},
		"the namespace's rate":           {TransportUpdate, limited, 1, 1, 0, 0, true, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &refusingService{cause: c.cause, times: c.times, seq: 7}
				x := &contract.Exchange{Holder: &contract.Holder{Id: "h", Generation: 1}, Seq: 7, Policy: &contract.Policy{}}
				began := time.Now()
				a, err := linkTo(t, s, c.transport).exchange(t.Context(), x)
				assert.LessOrEqual(t, time.Since(began), c.within)
				assert.Equal(t, []int{c.updates, c.signals, c.queries}, []int{s.updates, s.signals, s.queries}, "updates, signals, queries")
				if c.refused {
					require.ErrorIs(t, err, errRefused)
				} else {
					require.NoError(t, err)
				}
				if c.cause == crowded {
					assert.EqualValues(t, 1, x.RefusedBefore)
				} else {
					assert.Zero(t, x.RefusedBefore)
				}
				if c.cause != limited {
					assert.EqualValues(t, 7, a.GetSeq())
				}
			})
		})
	}
	t.Run("it never ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &refusingService{cause: closing, times: -1}
			began := time.Now()
			_, err := linkTo(t, s, TransportUpdate).exchange(t.Context(), &contract.Exchange{Holder: &contract.Holder{}, Policy: &contract.Policy{}})
			require.ErrorIs(t, err, errRefused)
			assert.Equal(t, rpcTimeout, time.Since(began))
			assert.Less(t, s.updates, 60, "it knocks less and less often")
		})
	})
	t.Run("the farewell", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &refusingService{cause: closing, times: 3}
			require.NoError(t, linkTo(t, s, TransportUpdate).flush(t.Context(), &contract.Exchange{Holder: &contract.Holder{}, Policy: &contract.Policy{}}))
			assert.Equal(t, 4, s.signals, "what it holds isn't left to its TTL")
		})
	})
}
