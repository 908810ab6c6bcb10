package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/server/temporaltest"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/worker"
)

// bench is one kind of gate with what a test wants to know of it.
type bench struct {
	gates *activities.Gates
	// inUse is how many leases are reserved or started, and how many queue.
	inUse func() (reserved, started, queued int)
}

// onEachKind runs a test on a durable and on a local gate.
func onEachKind(t *testing.T, ts *temporaltest.TestServer, g policy.Gate, test func(t *testing.T, b bench)) {
	g.Provider = "test"
	t.Run("durable", func(t *testing.T) {
		pol := policyOf(t, g)
		p := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, register)
		test(t, bench{p.plugin.Gates(), func() (int, int, int) {
			st := status(t, p.client, pol.Gates()[0])
			return st.Reserved, st.Started, st.Queued
		}})
	})
	t.Run("local", func(t *testing.T) {
		gates := activities.NewLocalGates(policyOf(t, g), activities.GatesOptions{})
		t.Cleanup(func() { require.NoError(t, gates.Close(context.Background())) })
		id := gates.Policy().Gates()[0].ID()
		test(t, bench{gates, func() (int, int, int) {
			st, err := gates.LocalStatus(id)
			require.NoError(t, err)
			return st.Reserved, st.Started, st.Queued
		}})
	})
}

// assertFree waits until nothing is in use and nothing queues.
func (b bench) assertFree(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		reserved, started, queued := b.inUse()
		return reserved+started+queued == 0
	}, 10*time.Second, 20*time.Millisecond, "the lease ends")
}

func (b bench) context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return activities.WithGates(ctx, b.gates)
}

// TestLeaseEnds: whatever becomes of an attempt, its lease is given back.
func TestLeaseEnds(t *testing.T) {
	ts := server(t)
	refused := httptest.NewServer(nil)
	refused.Close() // its address refuses connections
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/500":
			http.Error(w, "broken", http.StatusInternalServerError)
		case "/429":
			http.Error(w, "slow down", http.StatusTooManyRequests)
		default:
			_, _ = io.WriteString(w, "fine")
		}
	}))
	t.Cleanup(provider.Close)
	get := func(ctx context.Context, url string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := activities.HTTPClient(ctx).Do(r)
		if err != nil {
			return err
		}
		_, err = io.ReadAll(response.Body)
		return errors.Join(err, response.Body.Close())
	}
	errOwn := errors.New("its own error")
	for _, c := range []struct {
		name     string
		endpoint string
		run      func(t *testing.T, ctx context.Context)
	}{
		{"success", provider.URL, func(t *testing.T, ctx context.Context) { require.NoError(t, get(ctx, provider.URL+"/ok")) }},
		{"HTTP error", provider.URL, func(t *testing.T, ctx context.Context) { require.NoError(t, get(ctx, provider.URL+"/500")) }},
		{"overload", provider.URL, func(t *testing.T, ctx context.Context) { require.NoError(t, get(ctx, provider.URL+"/429")) }},
		{"transport error", refused.URL, func(t *testing.T, ctx context.Context) { require.Error(t, get(ctx, refused.URL+"/x")) }},
		{"error of the code", provider.URL, func(t *testing.T, ctx context.Context) {
			err := activities.Do(ctx, "one", activities.Cost{}, func(context.Context) error { return errOwn })
			require.Equal(t, errOwn, err, "the code's own error, unchanged")
		}},
		{"panic", provider.URL, func(t *testing.T, ctx context.Context) {
			require.Panics(t, func() {
				_ = activities.Do(ctx, "one", activities.Cost{}, func(context.Context) error { panic("boom") })
			})
		}},
		{"Goexit", provider.URL, func(t *testing.T, ctx context.Context) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = activities.Do(ctx, "one", activities.Cost{}, func(context.Context) error { runtime.Goexit(); return nil })
			}()
			<-done
		}},
		{"panic of the transport", provider.URL, func(t *testing.T, ctx context.Context) {
			tr := &activities.Transport{Base: roundTripper(func(*http.Request) (*http.Response, error) { panic("boom") })}
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
			require.NoError(t, err)
			require.Panics(t, func() { _, _ = tr.RoundTrip(r) })
		}},
		{"nested sends go under one lease", provider.URL, func(t *testing.T, ctx context.Context) {
			require.NoError(t, activities.Do(ctx, "one", activities.Cost{}, func(ctx context.Context) error {
				return errors.Join(get(ctx, provider.URL+"/a"), get(ctx, provider.URL+"/b"))
			}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEachKind(t, ts, policy.Gate{Endpoint: c.endpoint, Name: "one", MaxInFlight: 1}, func(t *testing.T, b bench) {
				ctx := activities.WithGate(b.context(t), "one")
				c.run(t, ctx)
				b.assertFree(t)
				c.run(t, ctx) // and again: the place is really free
				b.assertFree(t)
			})
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCancelledWhileQueued: a cancelled wait leaves nothing, and is a
// cancellation and not a timeout.
func TestCancelledWhileQueued(t *testing.T) {
	onEachKind(t, server(t), policy.Gate{Endpoint: "http://queued.test", Name: "one", MaxInFlight: 1}, func(t *testing.T, b bench) {
		ctx := b.context(t)
		g, err := b.gates.Gate("one")
		require.NoError(t, err)
		first, err := g.Acquire(ctx, activities.Request{})
		require.NoError(t, err)
		waiting, cancel := context.WithCancel(ctx)
		failed := make(chan error)
		go func() {
			_, err := g.Acquire(waiting, activities.Request{})
			failed <- err
		}()
		require.Eventually(t, func() bool { _, _, queued := b.inUse(); return queued == 1 }, 10*time.Second, 10*time.Millisecond)
		cancel()
		err = <-failed
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		first.Release()
		b.assertFree(t)
	})
}

// TestCancelledBetweenGrantAndStart: a lease granted ahead is given back.
func TestCancelledBetweenGrantAndStart(t *testing.T) {
	g := policy.Gate{Endpoint: "http://granted.test", Name: "one", Requests: admission.Rate{Limit: 1, Per: 20 * time.Second, Burst: 1}, LookAhead: 25 * time.Second}
	onEachKind(t, server(t), g, func(t *testing.T, b bench) {
		ctx := b.context(t)
		gate, err := b.gates.Gate("one")
		require.NoError(t, err)
		first, err := gate.Acquire(ctx, activities.Request{})
		require.NoError(t, err)
		first.Release()
		waiting, cancel := context.WithCancel(ctx)
		failed := make(chan error)
		go func() {
			_, err := gate.Acquire(waiting, activities.Request{})
			failed <- err
		}()
		require.Eventually(t, func() bool { reserved, _, _ := b.inUse(); return reserved == 1 }, 10*time.Second, 10*time.Millisecond)
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		b.assertFree(t)
	})
}

// TestBodyNeverClosed: max_hold ends what nobody gives back.
func TestBodyNeverClosed(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "never read") }))
	t.Cleanup(provider.Close)
	onEachKind(t, server(t), policy.Gate{Endpoint: provider.URL, Name: "one", MaxInFlight: 1, MaxHold: 300 * time.Millisecond}, func(t *testing.T, b bench) {
		ctx := b.context(t)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
		require.NoError(t, err)
		response, err := activities.HTTPClient(ctx).Do(r)
		require.NoError(t, err)
		g, err := b.gates.Gate("one")
		require.NoError(t, err)
		next, err := g.Acquire(ctx, activities.Request{})
		require.NoError(t, err, "the forgotten lease frees its place")
		require.NoError(t, response.Body.Close()) // a late release frees nobody else's lease
		_, started, _ := b.inUse()
		assert.Equal(t, 1, started)
		next.Release()
		b.assertFree(t)
	})
}

// TestNoPolicy: without a gate 50 calls really are in flight at once.
func TestNoPolicy(t *testing.T) {
	const calls = 50
	arrived := make(chan struct{}, calls)
	all := make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-all // nobody is answered before everybody is here
	}))
	t.Cleanup(provider.Close)
	onEachKind(t, server(t), policy.Gate{Endpoint: "http://somewhere.else.test", MaxInFlight: 1}, func(t *testing.T, b bench) {
		all = make(chan struct{})
		ctx := b.context(t)
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
				if assert.NoError(t, err) {
					response, err := activities.HTTPClient(ctx).Do(r)
					if assert.NoError(t, err) {
						_ = response.Body.Close()
					}
				}
			})
		}
		for range calls {
			select {
			case <-arrived:
			case <-ctx.Done():
				t.Error("not all calls were in flight at once")
			}
		}
		close(all)
		wg.Wait()
	})
}

// TestBurst: a bucket of 5 lets 5 start at once, then throttles.
func TestBurst(t *testing.T) {
	const refill = 400 * time.Millisecond
	// A slot that is handed back for lateness is spent: none is, on any machine.
	g := policy.Gate{Endpoint: "http://burst.test", Name: "one", Requests: admission.Rate{Limit: 1, Per: refill, Burst: 5}, StartWindow: time.Hour}
	onEachKind(t, server(t), g, func(t *testing.T, b bench) {
		ctx := b.context(t)
		gate, err := b.gates.Gate("one")
		require.NoError(t, err)
		var mu sync.Mutex
		var starts []time.Time // by the gate
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				l, err := gate.Acquire(ctx, activities.Request{})
				if assert.NoError(t, err) {
					mu.Lock()
					starts = append(starts, l.(activities.FeedbackLease).Info().StartAt)
					mu.Unlock()
					l.Release()
				}
			})
		}
		wg.Wait()
		sortTimes(starts)
		assert.Less(t, starts[4].Sub(starts[0]), refill, "five at once")
		for i := 5; i < 8; i++ {
			assert.GreaterOrEqual(t, starts[i].Sub(starts[0]), time.Duration(i-4)*refill-time.Millisecond, "start %d", i)
		}
		b.assertFree(t)
	})
}
