package activities

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"

	"sluice/workflows"
	"sluice/workflows/contract"
)

// The kinds of admission errors.
const (
	KindStillQueued     Kind = workflows.ErrTypeStillQueued
	KindQueueTimeout    Kind = workflows.ErrTypeQueueTimeout
	KindQueueFull       Kind = workflows.ErrTypeQueueFull
	KindNeverAdmissible Kind = workflows.ErrTypeNeverAdmissible
	KindTooLate         Kind = workflows.ErrTypeTooLate
	KindUnavailable     Kind = workflows.ErrTypeUnavailable
	KindLeaseLost       Kind = workflows.ErrTypeLeaseLost
	KindPolicyConflict  Kind = workflows.ErrTypePolicyConflict
	KindTicketCancelled Kind = workflows.ErrTypeTicketCancelled
)

// refusalError turns a gate's refusal into the caller's error.
func refusalError(gate string, r *contract.Refusal, comeAgain time.Duration) *Error {
	e := &Error{Gate: gate, ComeAgain: max(comeAgain, 0), Field: r.GetField(), Value: r.GetValue(), Bound: r.GetBound()}
	switch r.GetKind() {
	case contract.RefusalKind_REFUSAL_QUEUE_TIMEOUT:
		e.Kind, e.Detail = KindQueueTimeout, "the ticket's queue deadline passed"
	case contract.RefusalKind_REFUSAL_QUEUE_FULL:
		e.Kind, e.Detail = KindQueueFull, fmt.Sprintf("the queue is full (%d tickets; at most %d)", e.Value, e.Bound)
	case contract.RefusalKind_REFUSAL_NEVER_ADMISSIBLE:
		e.Kind, e.Detail = KindNeverAdmissible, fmt.Sprintf("%s %d can never be admitted; the policy gives at most %d", e.Field, e.Value, e.Bound)
	case contract.RefusalKind_REFUSAL_TOO_LATE:
		e.Kind, e.Detail = KindTooLate, "it could not start before its deadline"
	case contract.RefusalKind_REFUSAL_INVALID:
		e.Kind, e.Detail = KindNeverAdmissible, fmt.Sprintf("%s is %d; allowed: at least %d", e.Field, e.Value, e.Bound)
	case contract.RefusalKind_REFUSAL_SUPERSEDED:
		e.Kind, e.Detail = KindLeaseLost, "a later attempt has taken over this ticket"
	case contract.RefusalKind_REFUSAL_OPERATOR:
		e.Kind, e.Detail = KindTicketCancelled, "an operator took the ticket out of the queue; the gate's log says who and why"
	default:
		e.Kind, e.Detail = KindUnavailable, "refused for a reason that this program doesn't know: "+r.GetKind().String()
	}
	return e
}

func conflictError(gate string, fields []string) *Error {
	return &Error{Kind: KindPolicyConflict, Gate: gate, Detail: "another worker has the same policy revision with other content: " +
		strings.Join(fields, "; ") + "; raise `revision` in the newer file"}
}

// Across returns the error as Temporal shall carry it: of a stable type, with
// retryability and, where known, the delay of the next retry. Other errors stay
// as they are.
func Across(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	o := temporal.ApplicationErrorOptions{NonRetryable: !e.Retryable(), NextRetryDelay: e.ComeAgain, Cause: errors.Unwrap(err)}
	if e.Kind == KindStillQueued {
		o.Category = temporal.ApplicationErrorCategoryBenign // it comes back: nothing to alert on
	}
	return temporal.NewApplicationErrorWithOptions(e.Error(), string(e.Kind), o)
}
