package activities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
	"sluice/policy"
)

// exchanges are how many the holder has sent by now.
func (l *farLink) exchanges() int {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// taken takes a lease of a gate and returns it once its exchange is over.
func taken(t *testing.T, h *holder) FeedbackLease {
	t.Helper()
	l, err := h.Acquire(t.Context(), Request{})
	require.NoError(t, err)
	synctest.Wait()
	return l.(FeedbackLease)
}

var twentyPerSecond = policy.Gate{Requests: admission.Rate{Limit: 20, Per: time.Second, Burst: 1}}

// TestTheEndOfACallWaitsForCompany: nobody waits for it where calls aren't counted.
// So one call after the other costs an exchange each, not two.
func TestTheEndOfACallWaitsForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, link := far(t, twentyPerSecond)
		const calls = 40
		for range calls {
			l := taken(t, h)
			time.Sleep(80 * time.Millisecond) // the call: the gate has long answered by then
			l.Release()
			time.Sleep(10 * time.Millisecond) // before the next one
		}
		assert.Equal(t, calls, link.exchanges())
		time.Sleep(maxCompany - 10*time.Millisecond)
		assert.Equal(t, calls+1, link.exchanges(), "the last one goes alone, but it goes")
		time.Sleep(time.Minute)
		assert.Equal(t, calls+1, link.exchanges(), "an idle holder says nothing")
		require.NoError(t, h.close(t.Context()))
	})
}

// TestWhatSomebodyWaitsForGoesAtOnce: a place where places are counted, feedback
// anywhere, and what a call has really cost.
func TestWhatSomebodyWaitsForGoesAtOnce(t *testing.T) {
	capped := twentyPerSecond
	capped.MaxInFlight = 2
	plain := Feedback{Outcome: Success, Asked: -1}
	for name, c := range map[string]struct {
		gate policy.Gate
		says Feedback
		now  bool
	}{
		"a call that went well": {twentyPerSecond, plain, false},
		"a place":               {capped, plain, true},
		"an overload":           {twentyPerSecond, Feedback{Outcome: Overload, Status: 429, Asked: time.Second}, true},
		"a failure":             {twentyPerSecond, Feedback{Outcome: Failed, Status: 500, Asked: -1}, true},
		"an exhausted limit":    {twentyPerSecond, Feedback{Outcome: Success, Asked: time.Second}, true},
		"what it has cost":      {twentyPerSecond, Feedback{Outcome: Success, Asked: -1, Actual: map[string]int64{"tokens": 7}}, true},
		"a lower limit":         {twentyPerSecond, Feedback{Outcome: Success, Asked: -1, Lower: []policy.LowerLimit{{Header: "x-limit", Limit: 3, Per: time.Second}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, link := far(t, c.gate)
				l := taken(t, h)
				before := link.exchanges()
				l.ReleaseWith(c.says)
				assert.Equal(t, c.now, link.exchanges() > before)
				require.NoError(t, h.close(t.Context()), "what waits for company is told at the latest now")
				if !c.now {
					assert.Equal(t, before, link.exchanges(), "by the last message, which isn't an exchange")
				}
				st := link.gate.s.Status(1)
				assert.Zero(t, st.InUse)
			})
		})
	}
}
