package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/admission"
	"sluice/policy"
)

// Gate admits calls. Durable and local gates are made by [Gates]; any other
// implementation will do for tests. Implementations are safe for concurrent use.
type Gate interface {
	// Policy is what the gate enforces, as this process knows it.
	Policy() policy.Gate
	// Acquire waits until the request is admitted and its start has come. It
	// returns an [Error] or the context's cause. A wait that ends with its
	// context leaves nothing behind.
	Acquire(ctx context.Context, r Request) (Lease, error)
}

// Lease is the right to make one attempt. Exactly one Release counts; further
// ones do nothing. Safe for concurrent use.
type Lease interface {
	// Release gives the lease back. It doesn't block.
	Release()
}

// FeedbackLease is a lease whose gate also learns from the attempt. A gate that
// only acquires and releases need not have it.
type FeedbackLease interface {
	Lease
	// ReleaseWith gives the lease back with what the attempt learned: the
	// gate applies the feedback before it frees the place.
	ReleaseWith(Feedback)
	// Info describes the lease.
	Info() LeaseInfo
	// Lost is closed when the gate ended the lease, or may have.
	Lost() <-chan struct{}
}

// LeaseInfo says what a lease is and what its ticket waited for.
type LeaseInfo struct {
	ID         uint64 // grows in the order of the gate's grants
	Generation uint32
	StartAt    time.Time                // gate time
	Waited     map[string]time.Duration // by reason
	// Local says that the lease is of the share that the process may use while
	// its gate can't be reached: the gate doesn't know it.
	Local bool
}

// Cost is what an attempt takes. The zero Cost is one place and no units.
type Cost struct {
	Weight int64            // places in the cap; 0 means 1
	Units  map[string]int64 // of the policy's budgets; each at least 1
}

// Request asks for admission.
type Request struct {
	// TicketID names the request: presented again, it continues where it
	// stood. Empty: a random one.
	TicketID string
	// Label is what a person reads, at most 96 bytes.
	Label   string
	Attempt int32 // the highest attempt owns the ticket; from 1
	Cost    Cost
	// QueueTimeout bounds the time in the queue from the ticket's first
	// arrival. 0: the policy's; negative: none.
	QueueTimeout time.Duration
	// Leave is when the caller has to go though it wants to come back: the
	// ticket is parked and keeps its place, and Acquire returns StillQueued.
	// Zero: never.
	Leave time.Time
	// LeaveOn makes the caller go in the same way when it is closed. nil: never.
	LeaveOn <-chan struct{}
}

// Feedback is what an attempt learned.
type Feedback struct {
	Outcome Outcome
	Status  int // of HTTP; 0: none
	// Asked is the delay that the provider asked for; negative: it gave no
	// hint; 0: "now". With Success: how long a limit stays exhausted that the
	// answer shows, where the policy learns from such.
	Asked  time.Duration
	Source string           // header that the hint stood in
	Actual map[string]int64 // units really used, each at least 0; those not named cost the estimate
	// Lower are the provider's limits that are lower than the policy's. They
	// are reported and not followed.
	Lower []policy.LowerLimit
}

// Outcome is how an attempt ended.
type Outcome = admission.Outcome

// The outcomes.
const (
	Success   = admission.OutcomeSuccess
	Failed    = admission.OutcomeError
	Overload  = admission.OutcomeOverload
	Abandoned = admission.OutcomeAbandoned
)

// Kind tells admission errors apart; it is also their type across Temporal.
type Kind string

// Error is why a request ended without a lease. Use errors.As, or errors.Is
// with the sentinels below.
type Error struct {
	Kind      Kind
	Gate      string
	ComeAgain time.Duration // when another try may do better; 0: unknown
	Field     string        // NeverAdmissible: weight, or the unit
	Value     int64
	Bound     int64
	Detail    string // for people
}

func (e *Error) Error() string {
	text := fmt.Sprintf("gate %s: %s", e.Gate, e.Detail)
	if e.ComeAgain > 0 {
		text += fmt.Sprintf("; come again in %v", e.ComeAgain.Round(time.Millisecond))
	}
	return text
}

// Is makes errors.Is match on the kind.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Kind == e.Kind && other.Gate == ""
}

// Retryable reports whether a later attempt may succeed.
func (e *Error) Retryable() bool {
	switch e.Kind {
	case KindQueueTimeout, KindNeverAdmissible, KindPolicyConflict, KindTicketCancelled:
		return false
	}
	return true
}

// Sentinels for errors.Is.
var (
	ErrStillQueued     = &Error{Kind: KindStillQueued}
	ErrQueueTimeout    = &Error{Kind: KindQueueTimeout}
	ErrQueueFull       = &Error{Kind: KindQueueFull}
	ErrNeverAdmissible = &Error{Kind: KindNeverAdmissible}
	ErrTooLate         = &Error{Kind: KindTooLate}
	ErrUnavailable     = &Error{Kind: KindUnavailable}
	ErrLeaseLost       = &Error{Kind: KindLeaseLost}
	ErrPolicyConflict  = &Error{Kind: KindPolicyConflict}
	ErrTicketCancelled = &Error{Kind: KindTicketCancelled}
)

// ErrStopped says that the process stops: no further lease is to be had here.
var ErrStopped = errors.New("sluice: stopped")
