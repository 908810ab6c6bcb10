package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
)

// TestACooldownIsShared: one process is told Retry-After: 2 while two others have
// a full queue at 20/s. From 250 ms after the gate took that up until it is over
// nothing starts; then they go on in order and spaced, and nothing is lost. An
// exchange that takes long on a busy machine adds to the 250 ms, so when leases
// start is judged with SLUICE_TIMING=strict: by what their processes tell, and at
// the provider.
func TestACooldownIsShared(t *testing.T) {
	ts := server(t)
	const spacing, calls = 50 * time.Millisecond, 160
	epoch := time.Now() // of what the provider counts, but for microseconds
	p := provider(t, loopback.Quota{ServeTime: 10 * time.Millisecond})
	require.NoError(t, p.SetQuota("told", loopback.Quota{Interval: time.Hour, RetryAfter: "2"})) // the first is served
	pol := policyOf(t, policy.Gate{Provider: "loopback", Endpoint: p.URL(), Requests: admission.Rate{Limit: 1, Per: spacing, Burst: 1}})
	gate := pol.Gates()[0]
	for range 2 {
		spawnWorker(t, ts, pol)
	}
	c := ts.GetDefaultClient()
	told := activities.NewDurableGates(pol, activities.DurableOptions{Service: c.WorkflowService(), Namespace: ts.GetDefaultNamespace()}, activities.GatesOptions{})
	t.Cleanup(func() { _ = told.Close(context.Background()) }) // the server may be gone
	call := func() int {
		c := &http.Client{Transport: &activities.Transport{Gates: told}}
		response, err := c.Post(p.CallURL("told"), "text/plain", nil)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, call())

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var runs []client.WorkflowRun
	for i := range 4 {
		r, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: fmt.Sprint("load-", i), TaskQueue: taskQueue}, fanOut, p.CallURL("load"), calls/4)
		require.NoError(t, err)
		runs = append(runs, r)
	}
	require.Eventually(t, func() bool { return p.Stats("load").WireAttempts >= 20 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, http.StatusTooManyRequests, call())
	for _, r := range runs {
		require.NoError(t, r.Get(ctx, nil))
	}

	require.Eventually(t, func() bool { st := status(t, c, gate); return st.InFlight+int64(st.Queued) == 0 }, 10*time.Second, 20*time.Millisecond)
	st := status(t, c, gate)
	require.NotNil(t, st.Cooldown)
	assert.Equal(t, "retry-after", st.Cooldown.Source)
	assert.Equal(t, 2*time.Second, st.CooldownUntil.Sub(st.Cooldown.At))
	assert.EqualValues(t, 1, st.Counters.Cooldowns)
	assert.EqualValues(t, calls+2, st.Counters.Releases+st.Counters.HandBacks-(st.Counters.Admissions-calls-2), "every lease was released or handed back")
	assert.Zero(t, st.Counters.Expired)
	assert.Positive(t, st.Counters.HandBacks, "of the leases that were granted ahead")

	strict := os.Getenv("SLUICE_TIMING") == "strict" && !raceDetector
	if strict {
		const clocks = 50 * time.Millisecond // what a busy process may not know of the gate's time
		for _, started := range startsIn(t, chain(t, ctx, c, gate.WorkflowID())) {
			late := started.Sub(st.Cooldown.At) - 250*time.Millisecond
			assert.False(t, late > clocks && started.Before(st.CooldownUntil.Add(-clocks)), "a start in the cooldown, %v too late", late)
		}
	}
	attempts := p.Attempts("load")
	require.Len(t, attempts, calls)
	var before, after []loopback.Attempt
	for _, a := range attempts {
		at := epoch.Add(a.Arrived)
		switch {
		case at.After(st.CooldownUntil.Add(-time.Millisecond)):
			after = append(after, a)
		case at.After(st.Cooldown.At.Add(250 * time.Millisecond)):
			assert.False(t, strict, "an arrival in the cooldown, %v after it was taken up", at.Sub(st.Cooldown.At))
		default:
			before = append(before, a)
		}
	}
	assert.GreaterOrEqual(t, len(before), 20)
	require.Greater(t, len(after), 20)
	mean := (after[len(after)-1].Arrived - after[0].Arrived) / time.Duration(len(after)-1)
	assert.GreaterOrEqual(t, mean, spacing-5*time.Millisecond, "spaced")
	if strict {
		assert.Empty(t, outOfOrder(after), "in order")
		assert.GreaterOrEqual(t, gapsOf(after)[len(after)/50], spacing/2)
	}
}

// startsIn are the starts of leases that their holders told the gate.
func startsIn(t *testing.T, histories []*historypb.History) (starts []time.Time) {
	t.Helper()
	for _, x := range exchangesIn(t, histories) {
		for _, r := range x.Release {
			if r.StartedAt != 0 {
				starts = append(starts, admission.Instant(r.StartedAt).Time())
			}
		}
	}
	require.NotEmpty(t, starts)
	return starts
}
