package activities

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"sluice/policy"
)

// keeper is a lease that its gate can keep between the attempts of a call.
type keeper interface {
	FeedbackLease
	// keep ends the attempt and not the lease: the next attempt takes it over.
	// ReleaseWith ends it still.
	keep(Feedback)
}

// callLease is a lease under `hold: call`: one for all attempts of an activity,
// given back once. It ends with success. After a failure it is kept, for the
// next acquire of this attempt or for the next attempt of the activity.
type callLease struct {
	keeper
	attempt *attempt
	use     acquireUse
	ended   atomic.Bool
}

// acquireUse names an acquire of a gate in an activity.
type acquireUse struct {
	gate string // its ID
	n    int    // from 1
}

func (l *callLease) Release() { l.ReleaseWith(Feedback{Outcome: Success, Asked: -1}) }

func (l *callLease) ReleaseWith(f Feedback) {
	if l.ended.Swap(true) {
		return
	}
	defer l.attempt.ends(l.use)
	if f.Outcome == Success || f.Outcome == Abandoned {
		l.keeper.ReleaseWith(f)
		return
	}
	l.keeper.keep(f)
	l.attempt.mu.Lock()
	defer l.attempt.mu.Unlock()
	if l.attempt.kept == nil {
		l.attempt.kept = map[acquireUse]keeper{}
	}
	l.attempt.kept[l.use] = l.keeper // one that was there has moved on to this
}

// begins names an acquire. Under `hold: attempt` it is the n-th of the attempt.
// Under `hold: call` n is the lowest number that isn't in use: an acquire after
// a failed one continues with its lease.
func (a *attempt) begins(gate string, hold policy.Hold) acquireUse {
	a.mu.Lock()
	defer a.mu.Unlock()
	if hold != policy.HoldCall {
		a.acquires[gate]++
		return acquireUse{gate, a.acquires[gate]}
	}
	u := acquireUse{gate, 1}
	for a.inUse[u] {
		u.n++
	}
	if a.inUse == nil {
		a.inUse = map[acquireUse]bool{}
	}
	a.inUse[u] = true
	return u
}

// ends frees an acquire's number.
func (a *attempt) ends(u acquireUse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.inUse, u)
}

// giveBackKept ends the leases that were kept for another attempt where none
// comes. err is the activity's, as Temporal sees it.
func (a *attempt) giveBackKept(ctx context.Context, info activity.Info, err error) {
	a.mu.Lock()
	kept := a.kept
	a.kept = nil
	a.mu.Unlock()
	if len(kept) == 0 || a.comesBack(ctx, info, err) {
		return
	}
	for _, l := range kept {
		l.ReleaseWith(Feedback{Outcome: Failed, Asked: -1}) // what it learned has been said
	}
}

// comesBack reports whether another attempt of the activity follows.
func (a *attempt) comesBack(ctx context.Context, info activity.Info, err error) bool {
	switch {
	case err == nil, errors.Is(context.Cause(ctx), context.Canceled):
		return false
	case a.isLast(info, nextAttemptIn(info, err)):
		return false
	}
	return !isEnd(err) && isRetried(err, info.RetryPolicy)
}

// isRetried reports whether the server retries after an error, attempts and time
// apart.
func isRetried(err error, p *temporal.RetryPolicy) bool {
	f := temporal.GetDefaultFailureConverter().ErrorToFailure(err)
	info := f.GetApplicationFailureInfo()
	if info.GetNonRetryable() || f.GetTerminatedFailureInfo() != nil || f.GetServerFailureInfo().GetNonRetryable() {
		return false
	}
	return p == nil || info == nil || !slices.Contains(p.NonRetryableErrorTypes, info.GetType())
}
