package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
)

// spent is one call as the provider saw it.
type spent struct {
	arrived, ended time.Duration
	tokens         int64
}

// TestBudgetIsSettledByWhatWasUsed: 1,000 tokens per second, and calls of which
// each is estimated alike and only its answer says what it used. At the provider,
// over any window, no more was used than the budget gives, plus what the calls
// that were in flight together were underestimated by.
func TestBudgetIsSettledByWhatWasUsed(t *testing.T) {
	const (
		rate, burst, estimate = 1000, 1000, 20
		inFlight, calls       = 64, 200
		most                  = 80
		// A call may reach the provider later than it was admitted, so a window
		// there sees those of a somewhat longer one. Unsettled, these calls would
		// use thousands more.
		late = 400 * time.Millisecond
	)
	var mu sync.Mutex
	var all []spent
	var n atomic.Int64
	began := time.Now()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived := time.Since(began)
		used := n.Add(1)*37%(most-9) + 10 // 10 to 80, on average 45
		select {
		case <-time.After(time.Second): // the call
		case <-r.Context().Done():
		}
		mu.Lock()
		all = append(all, spent{arrived, time.Since(began), used})
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, used)
	}))
	t.Cleanup(provider.Close)
	g := policy.Gate{Endpoint: provider.URL, Name: "one", MaxInFlight: inFlight,
		Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: rate, Per: time.Second, Burst: burst}}}}
	onEachKind(t, server(t), g, func(t *testing.T, b bench) {
		all = nil
		ctx := b.context(t)
		base := http.DefaultTransport.(*http.Transport).Clone()
		base.MaxIdleConnsPerHost = inFlight
		t.Cleanup(base.CloseIdleConnections)
		over := &http.Client{Transport: &activities.Transport{
			Base: base,
			Cost: func(*http.Request) activities.Cost {
				return activities.Cost{Units: map[string]int64{"tokens": estimate}}
			},
			Usage: activities.LLMUsage,
		}}
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL, nil)
				if !assert.NoError(t, err) {
					return
				}
				response, err := over.Do(r)
				if !assert.NoError(t, err) {
					return
				}
				_, err = io.Copy(io.Discard, response.Body)
				assert.NoError(t, err)
				assert.NoError(t, response.Body.Close())
			})
		}
		wg.Wait()
		b.assertFree(t)
		require.Len(t, all, calls)
		together, under := inFlightTogether(all, estimate)
		assert.GreaterOrEqual(t, together, 20)
		assert.LessOrEqual(t, together, inFlight)
		sort.Slice(all, func(i, j int) bool { return all[i].arrived < all[j].arrived })
		for i := range all {
			used := int64(0)
			for _, c := range all[i:] {
				used += c.tokens
				window := c.arrived - all[i].arrived
				allowed := burst + under + int64(rate*(window+late).Seconds())
				if used > allowed {
					t.Fatalf("%d tokens in %v from %v; allowed: %d", used, window, all[i].arrived, allowed)
				}
			}
		}
		t.Logf("at most %d in flight, underestimated by %d together; %v for %d calls", together, under, all[calls-1].arrived-all[0].arrived, calls)
	})
}

// inFlightTogether is how many calls were in flight at once, at most, and how
// much those that were had been underestimated by, at most.
func inFlightTogether(all []spent, estimate int64) (most int, under int64) {
	for _, at := range all {
		n, sum := 0, int64(0)
		for _, c := range all {
			if c.arrived <= at.arrived && at.arrived < c.ended {
				n++
				sum += max(c.tokens-estimate, 0)
			}
		}
		most, under = max(most, n), max(under, sum)
	}
	return most, under
}
