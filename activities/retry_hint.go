package activities

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"sluice/policy"
)

// cooling is a gate that knows how long it admits nothing.
type cooling interface {
	// cooldownLeft waits until the gate has answered what this process told it,
	// or until enough is closed, and then counts what it is bound to answer.
	cooldownLeft(enough <-chan struct{}) time.Duration
}

// answerWait bounds how long a failed attempt waits for what the gate makes of
// its feedback. An answer takes a few milliseconds; without it the streak of
// overloads is not known.
const answerWait = 100 * time.Millisecond

// delayed gives a failed attempt's error the delay after which another attempt
// can be admitted: an attempt that comes sooner would only stand in the queue,
// with a slot of the worker. The error keeps its type, text, details, category,
// cause and retryability, and stays as it is where
//
//   - the activity's retry policy makes the next attempt come later anyway, or
//     the error's own delay does;
//   - there is no next attempt: the error can't be retried, it was the last one,
//     or the delay would reach past the activity's ScheduleToClose timeout, and
//     then the server would give up at once;
//   - it is a cancellation, or the activity completes later;
//   - the policy of the gate says `retry_hint: off`.
func (a *attempt) delayed(ctx context.Context, info activity.Info, err error) error {
	if err == nil || ctx.Err() != nil || isEnd(err) || a.isLast(info, 0) {
		return err
	}
	delay := a.cooldownLeft(ctx)
	if delay <= nextAttemptIn(info, err) || a.isLast(info, delay) {
		return err
	}
	return withDelay(err, delay, info.RetryPolicy)
}

// isEnd reports whether an error is none that a retry follows.
func isEnd(err error) bool {
	return errors.Is(err, activity.ErrResultPending) || errors.Is(err, context.Canceled) || temporal.IsCanceledError(err)
}

// cooldownLeft is how long the gates that the attempt has used admit nothing:
// its retry needs them all again.
func (a *attempt) cooldownLeft(ctx context.Context) (longest time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	a.mu.Lock()
	gates := slices.Clone(a.gates)
	a.mu.Unlock()
	for _, g := range gates {
		if c, ok := g.(cooling); ok && g.Policy().RetryHint != policy.RetryHintOff {
			longest = max(longest, c.cooldownLeft(ctx.Done()))
		}
	}
	return longest
}

// What the server takes where a retry policy leaves something out.
const (
	defaultInitialInterval = time.Second
	defaultCoefficient     = 2
	defaultMaximumInterval = 100 // initial intervals
)

// nextAttemptIn is the delay of the next attempt as things are: the error's own,
// else the back-off of the activity's retry policy.
func nextAttemptIn(info activity.Info, err error) time.Duration {
	if e, ok := err.(*temporal.ApplicationError); ok && e.NextRetryDelay() > 0 {
		return e.NextRetryDelay()
	}
	var p temporal.RetryPolicy
	if info.RetryPolicy != nil {
		p = *info.RetryPolicy
	}
	if p.InitialInterval <= 0 {
		p.InitialInterval = defaultInitialInterval
	}
	if p.BackoffCoefficient < 1 {
		p.BackoffCoefficient = defaultCoefficient
	}
	if p.MaximumInterval <= 0 {
		p.MaximumInterval = defaultMaximumInterval * p.InitialInterval
	}
	backoff := float64(p.InitialInterval) * math.Pow(p.BackoffCoefficient, float64(max(info.Attempt, 1)-1))
	if backoff >= float64(p.MaximumInterval) {
		return p.MaximumInterval
	}
	return time.Duration(backoff)
}

// isLast reports whether no attempt follows this one if the next has to wait.
// The activity's time is counted as the server counts it: its clock says when
// the attempt began, and from there this process's monotonic one goes on.
func (a *attempt) isLast(info activity.Info, delay time.Duration) bool {
	if p := info.RetryPolicy; p != nil && p.MaximumAttempts > 0 && info.Attempt >= p.MaximumAttempts {
		return true
	}
	total := info.ScheduleToCloseTimeout
	if total <= 0 {
		return false
	}
	passed := info.StartedTime.Sub(info.ScheduledTime) + time.Since(a.began)
	return passed+delay > total-waitMargin(total)
}

// withDelay is the error with a delay, as the SDK itself would convert it but
// for that. An error that can't be had like that is returned as it is: those of
// the SDK that are no application errors, such as a child workflow's, and
// application errors that were decoded from another one's failure.
func withDelay(err error, delay time.Duration, p *temporal.RetryPolicy) (with error) {
	defer func() {
		if recover() != nil {
			with = err // its own code, or a detail that the SDK can't hand out
		}
	}()
	var o temporal.ApplicationErrorOptions
	var text, kind string
	if e, ok := err.(*temporal.ApplicationError); ok {
		details, all := detailsOf(e)
		if e.NonRetryable() || e.Failure() != nil || !all {
			return err
		}
		text, kind = e.Message(), e.Type()
		o.Details, o.Category = details, e.Category()
	} else {
		f := temporal.GetDefaultFailureConverter().ErrorToFailure(err)
		if !isPlain(f) {
			return err
		}
		text, kind = f.GetMessage(), f.GetApplicationFailureInfo().GetType()
	}
	if p != nil && slices.Contains(p.NonRetryableErrorTypes, kind) {
		return err
	}
	o.NextRetryDelay, o.Cause = delay, errors.Unwrap(err)
	return temporal.NewApplicationErrorWithOptions(text, kind, o)
}

// isPlain reports whether a failure is what the SDK makes of an error that it
// doesn't know.
func isPlain(f *failurepb.Failure) bool {
	i := f.GetApplicationFailureInfo()
	return i != nil && f.GetStackTrace() == "" && !i.GetNonRetryable() && i.GetDetails() == nil && i.GetNextRetryDelay() == nil &&
		f.GetEncodedAttributes() == nil && f.GetSource() == "GoSDK"
}

// detailsOf are an application error's details as they were given; false where
// they can't be had. The SDK hands them out by type only.
func detailsOf(e *temporal.ApplicationError) (details []any, all bool) {
	if !e.HasDetails() {
		return nil, true
	}
	for n := 1; n <= maxDetails+1; n++ {
		values, pointers := make([]any, n), make([]any, n)
		for i := range values {
			pointers[i] = &values[i]
		}
		if e.Details(pointers...) != nil { // more than there are
			return details, n > 1
		}
		details = values
	}
	return nil, false
}
