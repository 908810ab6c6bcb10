package clients

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
)

// bench is a provider behind a local gate.
type bench struct {
	*Provider
	t     *testing.T
	gates *activities.Gates
	ctx   context.Context
}

// newBench makes the gate "llm" for a provider. The budget of tokens doesn't
// refill while a test runs.
func newBench(t *testing.T, c call) *bench {
	t.Helper()
	p := NewProvider()
	t.Cleanup(p.Close)
	pol, err := policy.New(policy.Gate{
		Provider: c.library, Endpoint: p.URL, Name: "llm", Preset: c.library, MaxInFlight: 2,
		Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 1000, Per: 1000 * time.Hour, Burst: 1000}}},
	})
	require.NoError(t, err)
	gates := activities.NewLocalGates(pol, activities.GatesOptions{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithTimeout(activities.WithGates(context.Background(), gates), time.Minute)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, gates.Close(context.Background()))
	})
	return &bench{p, t, gates, ctx}
}

// over is an HTTP client that takes leases, as docs/client-libraries.md has it.
func (b *bench) over() *http.Client {
	return &http.Client{Transport: &activities.Transport{
		Cost:  func(*http.Request) activities.Cost { return activities.Cost{Units: map[string]int64{"tokens": 200}} },
		Usage: activities.LLMUsage,
	}}
}

// status is how the gate stands once all leases have been given back.
func (b *bench) status() (st admission.Status) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var err error
		st, err = b.gates.LocalStatus("llm")
		require.NoError(b.t, err)
		return st.Reserved+st.Started+st.Queued == 0
	}, 10*time.Second, time.Millisecond, "every lease is given back")
	return st
}

// assertLeft takes what should be left of the budget, and finds no more in it.
func (b *bench) assertLeft(tokens int64) {
	b.t.Helper()
	gate, err := b.gates.Gate("llm")
	require.NoError(b.t, err)
	take := func(n int64) error {
		l, err := gate.Acquire(b.ctx, activities.Request{QueueTimeout: time.Minute, Cost: activities.Cost{Units: map[string]int64{"tokens": n}}})
		if err == nil {
			l.Release()
		}
		return err
	}
	require.NoError(b.t, take(tokens), "%d tokens are left", tokens)
	require.ErrorIs(b.t, take(1), activities.ErrTooLate, "no more than %d tokens are left", tokens)
}

func eachCall(t *testing.T, test func(t *testing.T, c call, b *bench)) {
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) { test(t, c, newBench(t, c)) })
	}
}

// TestThroughTransport: one send, one lease, and the tokens that the answer says
// were used settle the budget.
func TestThroughTransport(t *testing.T) {
	eachCall(t, func(t *testing.T, c call, b *bench) {
		text, err := c.run(b.ctx, b.URL, b.over(), 0, nil)
		require.NoError(t, err)
		assert.Equal(t, Text, text)
		st := b.status()
		assert.Equal(t, 1, b.Sends())
		assert.Equal(t, uint64(1), st.Counters.Admissions)
		assert.Equal(t, uint64(1), st.Counters.Releases)
		assert.Zero(t, st.Counters.Overloads)
		b.assertLeft(1000 - c.tokens)
	})
}

// TestAStreamIsInFlightWhileItStreams: its lease ends with its last event, and
// where the caller leaves it, then; what such a stream cost is unknown.
func TestAStreamIsInFlightWhileItStreams(t *testing.T) {
	eachCall(t, func(t *testing.T, c call, b *bench) {
		if !c.streamed {
			t.Skip("no stream")
		}
		started := func() int {
			st, err := b.gates.LocalStatus("llm")
			require.NoError(t, err)
			return st.Started
		}
		resume := b.Hold()
		text, err := c.run(b.ctx, b.URL, b.over(), 0, func() {
			assert.Equal(t, 1, started())
			resume()
		})
		require.NoError(t, err)
		assert.Equal(t, Text, text)
		b.status()

		resume = b.Hold()
		defer resume()
		ctx, leave := context.WithCancel(b.ctx)
		_, err = c.run(ctx, b.URL, b.over(), 0, func() {
			assert.Equal(t, 1, started())
			leave()
		})
		require.ErrorIs(t, err, context.Canceled)
		b.status()
		b.assertLeft(1000 - c.tokens - 200)
	})
}

// overloads are what providers answer in their ways, and what they ask for.
var overloads = map[string]struct {
	status int
	header http.Header
	source string
}{
	"openai": {429, http.Header{
		"x-ratelimit-limit-requests": {"500"}, "x-ratelimit-remaining-requests": {"0"}, "x-ratelimit-reset-requests": {"20s"},
		"x-ratelimit-limit-tokens": {"90000"}, "x-ratelimit-remaining-tokens": {"0"}, "x-ratelimit-reset-tokens": {"1m30s"},
	}, "x-ratelimit-reset-tokens"},
	"anthropic": {529, http.Header{"retry-after": {"90"}, "request-id": {"req_1"}, "x-should-retry": {"true"}}, "retry-after"},
}

// TestOverload: the gate learns of it through Transport and through the error of
// a library on a plain client alike; the library's error stays what it is.
func TestOverload(t *testing.T) {
	for _, through := range []string{"Transport", "error", "both"} {
		t.Run(through, func(t *testing.T) {
			eachCall(t, func(t *testing.T, c call, b *bench) {
				o := overloads[c.library]
				b.Refuse(1, o.status, o.header)
				run := func(ctx context.Context) error {
					over := http.DefaultClient
					if through != "error" {
						over = b.over()
					}
					_, err := c.run(ctx, b.URL, over, 0, nil)
					return err
				}
				var err error
				if through == "Transport" {
					err = run(b.ctx)
				} else {
					err = activities.Do(b.ctx, "llm", activities.Cost{}, run)
				}
				assert.Equal(t, o.status, statusOf(err), "%v", err)
				st := b.status()
				assert.Equal(t, 1, b.Sends())
				assert.Equal(t, uint64(1), st.Counters.Admissions)
				assert.Equal(t, uint64(1), st.Counters.Overloads)
				assert.Equal(t, o.source, st.Cause.Source)
				assert.Equal(t, 90*time.Second, st.Cause.Asked)
				assert.Equal(t, int32(o.status), st.Cause.Status)
				_, ok, err := activities.TryAcquire(b.ctx, "llm", activities.Cost{})
				require.NoError(t, err)
				assert.False(t, ok, "nothing is admitted meanwhile")
			})
		})
	}
}

// TestTheLibrarysOwnRetries each draw a lease through Transport, and wait for the
// cooldown in the gate's queue.
func TestTheLibrarysOwnRetries(t *testing.T) {
	eachCall(t, func(t *testing.T, c call, b *bench) {
		b.Refuse(2, http.StatusTooManyRequests, http.Header{"retry-after-ms": {"20"}})
		text, err := c.run(b.ctx, b.URL, b.over(), 3, nil)
		require.NoError(t, err)
		assert.Equal(t, Text, text)
		st := b.status()
		assert.Equal(t, 3, b.Sends())
		assert.Equal(t, uint64(3), st.Counters.Admissions)
		assert.Equal(t, uint64(3), st.Counters.Releases)
		assert.Equal(t, uint64(2), st.Counters.Overloads)
		assert.Equal(t, 20*time.Millisecond, st.Cause.Asked)
		b.assertLeft(1000 - 2*200 - c.tokens) // nobody knows what a refused request cost
	})
}

// TestRetriesOnAPlainClient are not seen: the gate knows one call, and learns
// what the last answer said. So the library's retries are better off.
func TestRetriesOnAPlainClient(t *testing.T) {
	eachCall(t, func(t *testing.T, c call, b *bench) {
		b.Refuse(2, http.StatusTooManyRequests, http.Header{"retry-after-ms": {"20"}})
		err := activities.Do(b.ctx, "llm", activities.Cost{}, func(ctx context.Context) error {
			_, err := c.run(ctx, b.URL, http.DefaultClient, 1, nil)
			return err
		})
		assert.Equal(t, http.StatusTooManyRequests, statusOf(err))
		st := b.status()
		assert.Equal(t, 2, b.Sends())
		assert.Equal(t, uint64(1), st.Counters.Admissions)
		assert.Equal(t, uint64(1), st.Counters.Overloads)
	})
}

// TestManyAtOnce: the cap holds over libraries, streams and retries.
func TestManyAtOnce(t *testing.T) {
	eachCall(t, func(t *testing.T, c call, b *bench) {
		const n = 12
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				text, err := c.run(b.ctx, b.URL, &http.Client{Transport: &activities.Transport{}}, 2, nil)
				assert.NoError(t, err)
				assert.Equal(t, Text, text)
			})
		}
		wg.Wait()
		st := b.status()
		assert.Equal(t, n, b.Sends())
		assert.Equal(t, uint64(n), st.Counters.Admissions)
	})
}
