package activities

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
	"sluice/policy"
)

// answering is a transport that answers from memory.
type answering func(*http.Request) (*http.Response, error)

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// respond makes a response as a transport would.
func respond(r *http.Request, status int, header http.Header, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

// always answers every request alike.
func always(status int, header http.Header, body string) answering {
	return func(r *http.Request) (*http.Response, error) { return respond(r, status, header.Clone(), body), nil }
}

// get sends a request through a Transport, and returns the response as an error
// where it is one, as client libraries do.
func get(ctx context.Context, base http.RoundTripper, target string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: &Transport{Base: base}}).Do(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewBuffer(body))
	if response.StatusCode >= 400 {
		return &openaiLike{StatusCode: response.StatusCode, Response: response}
	}
	return nil
}

// localStatus is how the gate stands once what was released has reached it.
func localStatus(t *testing.T, gates *Gates, name string) admission.Status {
	t.Helper()
	synctest.Wait()
	st, err := gates.LocalStatus(name)
	require.NoError(t, err)
	return st
}

var retryAfter2 = http.Header{"Retry-After": {"2"}}

// TestFeedbackFromErrors: what the code under a lease returns is read, whoever
// sent the request.
func TestFeedbackFromErrors(t *testing.T) {
	const endpoint = "http://FeedbackFromErrors.test"
	elsewhere := &http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "other.test"}}
	for _, c := range []struct {
		name      string
		returns   func(ctx context.Context) error
		overloads uint64
		asked     time.Duration
		source    string
	}{
		{"a response in the chain", func(context.Context) error {
			return fmt.Errorf("call: %w", &openaiLike{StatusCode: 429, Response: responseOf(429)})
		}, 1, 2 * time.Second, "retry-after"},
		{"status and header", func(context.Context) error { return &googleLike{503, retryAfter2} }, 1, 2 * time.Second, "retry-after"},
		{"status alone", func(context.Context) error { return statusOnly{529} }, 1, 4 * time.Second, ""},
		{"no overload", func(context.Context) error { return &openaiLike{Response: responseOf(500)} }, 0, 0, ""},
		{"no overload around an overload", func(context.Context) error {
			return byMethods{status: 400, inner: githubLike{Response: responseOf(429)}}
		}, 0, 0, ""},
		{"no answer", func(context.Context) error { return errors.New("429") }, 0, 0, ""},
		{"the longest of two", func(context.Context) error {
			return errors.Join(&googleLike{429, http.Header{"Retry-After": {"1"}}}, &googleLike{503, retryAfter2}, statusOnly{400})
		}, 1, 2 * time.Second, "retry-after"},
		{"through Transport and returned", func(ctx context.Context) error {
			return get(ctx, always(429, retryAfter2, "slow down"), endpoint)
		}, 1, 2 * time.Second, "retry-after"},
		{"through Transport and not returned", func(ctx context.Context) error {
			return errors.Join(get(ctx, always(429, retryAfter2, "slow down"), endpoint))
		}, 1, 2 * time.Second, "retry-after"},
		{"overloaded, then served", func(ctx context.Context) error {
			return errors.Join(errors.Unwrap(get(ctx, always(429, retryAfter2, ""), endpoint)), get(ctx, always(200, nil, ""), endpoint))
		}, 1, 2 * time.Second, "retry-after"},
		{"of another gate's URL", func(context.Context) error {
			r := responseOf(429)
			r.Request = elsewhere
			return &openaiLike{StatusCode: 429, Response: r}
		}, 0, 0, ""},
		{"of a URL that no gate has", func(context.Context) error {
			r := responseOf(429)
			r.Request = &http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "proxy.test"}}
			return &openaiLike{StatusCode: 429, Response: r}
		}, 1, 2 * time.Second, "retry-after"},
		{"of another gate, through Transport", func(ctx context.Context) error {
			return get(ctx, always(429, retryAfter2, ""), "http://other.test")
		}, 0, 0, ""},
		{"of another gate, through Do", func(ctx context.Context) error {
			return fmt.Errorf("inner: %w", Do(ctx, "other", Cost{}, func(context.Context) error { return &statusOnly{429} }))
		}, 0, 0, ""},
		{"an overload that is a cancellation, too", func(context.Context) error {
			return errors.Join(context.Canceled, &googleLike{429, retryAfter2})
		}, 1, 2 * time.Second, "retry-after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := policy.New(
					policy.Gate{Provider: "test", Endpoint: endpoint, Name: "one", MaxInFlight: 1, FallbackCooldown: 4 * time.Second},
					policy.Gate{Provider: "test", Endpoint: "http://other.test", Name: "other", MaxInFlight: 1},
				)
				require.NoError(t, err)
				gates := NewLocalGates(p, GatesOptions{})
				ctx, cancel := context.WithCancel(WithGates(t.Context(), gates))
				defer cancel()
				var own error
				err = Do(ctx, "one", Cost{}, func(ctx context.Context) error {
					own = c.returns(ctx)
					cancel() // the caller goes away meanwhile, and the queue is empty
					return own
				})
				assert.Equal(t, own, err, "the call's own error")
				st := localStatus(t, gates, "one")
				assert.Equal(t, c.overloads, st.Counters.Overloads)
				assert.Equal(t, c.asked, st.Cause.Asked)
				assert.Equal(t, c.source, st.Cause.Source)
				assert.Zero(t, st.Reserved+st.Started+st.Queued)
				require.NoError(t, gates.Close(context.Background()))
			})
		})
	}
}

// TestADelayIsNotCountedTwice: what a lease was told early and brings to the gate
// late is asked for as long as is left of it, and the same answer in the code's
// error adds nothing.
func TestADelayIsNotCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1})
		ctx := WithGates(t.Context(), gates)
		told := time.Now()
		err := Do(ctx, "one", Cost{}, func(ctx context.Context) error {
			err := get(ctx, always(429, http.Header{"Retry-After": {"60"}}, ""), gates.policy.Gates()[0].Endpoint)
			time.Sleep(50*time.Second + time.Millisecond) // other work, in the bubble's time
			return err
		})
		require.Error(t, err)
		st := localStatus(t, gates, "one")
		assert.Equal(t, uint64(1), st.Counters.Overloads)
		assert.Equal(t, 10*time.Second, st.Cause.Asked)
		assert.GreaterOrEqual(t, st.Cooldown.Sub(st.Now), time.Until(told.Add(60*time.Second)), "not shorter than what was asked")
		closeAll(t, gates)
	})
}

// TestFeedbackOfEveryAttempt: the streak of overloads without a hint counts
// leases, and an earlier one's delay doesn't outlive a later one's.
func TestFeedbackOfEveryAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{MaxInFlight: 1, FallbackCooldown: time.Second})
		ctx := WithGates(t.Context(), gates)
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			err := Do(ctx, "one", Cost{}, func(ctx context.Context) error {
				return errors.Join(get(ctx, always(429, nil, ""), gates.policy.Gates()[0].Endpoint), statusOnly{429})
			})
			require.Error(t, err)
			st := localStatus(t, gates, "one")
			assert.Equal(t, want, st.Cause.Applied)
			assert.Equal(t, int32(i+1), st.Streak)
		}
		closeAll(t, gates)
	})
}

func TestOutranks(t *testing.T) {
	ranked := []Feedback{
		{Outcome: Success, Asked: -1},
		{Outcome: Failed, Asked: -1},
		{Outcome: Success, Asked: time.Second},
		{Outcome: Overload, Asked: -1},
		{Outcome: Overload, Asked: 0},
		{Outcome: Overload, Asked: time.Second},
		{Outcome: Overload, Asked: time.Minute},
	}
	for i, higher := range ranked {
		for j, lower := range ranked {
			assert.Equal(t, i > j, higher.outranks(lower), "%d over %d", i, j)
		}
	}
	assert.Equal(t, time.Millisecond, Feedback{Asked: time.Second}.after(time.Hour).Asked)
	assert.Equal(t, time.Second, Feedback{Asked: time.Second}.after(99*time.Millisecond).Asked)
	assert.Equal(t, time.Nanosecond, Feedback{Asked: time.Nanosecond}.after(time.Hour).Asked)
	assert.Equal(t, time.Duration(0), Feedback{}.after(time.Hour).Asked, `"now" stays "now"`)
	assert.Equal(t, time.Duration(-1), Feedback{Asked: -1}.after(time.Hour).Asked)
}

const retryInfo = `{"error":{"code":429,"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"3s"}]}}`

// TestABodyThatIsLookedAt: where the provider says in the body when to come
// again, its beginning is read, and the caller misses nothing of it.
func TestABodyThatIsLookedAt(t *testing.T) {
	long := retryInfo + strings.Repeat(" ", 100_000)
	for _, c := range []struct {
		name string
		run  func(ctx context.Context, target string) (body string, err error)
	}{
		{"by Transport", func(ctx context.Context, target string) (string, error) {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
			if err != nil {
				return "", err
			}
			response, err := (&Transport{Base: always(429, http.Header{}, long)}).RoundTrip(r)
			if err != nil {
				return "", err
			}
			body, err := io.ReadAll(response.Body)
			return string(body), errors.Join(err, response.Body.Close())
		}},
		{"in an error, in memory", func(ctx context.Context, _ string) (string, error) {
			body := bytes.NewBufferString(long)
			_ = Do(ctx, "one", Cost{}, func(context.Context) error {
				return &openaiLike{Response: &http.Response{StatusCode: 429, Header: http.Header{}, Body: io.NopCloser(body)}}
			})
			return body.String(), nil
		}},
		{"in an error, one that can seek", func(ctx context.Context, _ string) (string, error) {
			body := seekable{strings.NewReader("x" + long)}
			_, _ = body.Seek(1, io.SeekStart)
			_ = Do(ctx, "one", Cost{}, func(context.Context) error {
				return &openaiLike{Response: &http.Response{StatusCode: 429, Header: http.Header{}, Body: body}}
			})
			left, err := io.ReadAll(body)
			return string(left), err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gates := local(t, policy.Gate{MaxInFlight: 1, Preset: "gemini"})
				body, err := c.run(WithGates(t.Context(), gates), gates.policy.Gates()[0].Endpoint)
				require.NoError(t, err)
				assert.Equal(t, len(long), len(body))
				assert.Equal(t, long, body)
				assert.Equal(t, 3*time.Second, localStatus(t, gates, "one").Cause.Asked)
				closeAll(t, gates)
			})
		})
	}
}

type seekable struct{ *strings.Reader }

func (seekable) Close() error { return nil }

// TestABodyThatIsNotTouched: one on the wire that an error carries.
func TestABodyThatIsNotTouched(t *testing.T) {
	live := io.NopCloser(iotest{t})
	assert.Nil(t, heldBody(&http.Response{Body: live}, 10))
	assert.Nil(t, heldBody(&http.Response{}, 10))
	assert.Nil(t, heldBody(nil, 10))
	packed := &http.Response{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: io.NopCloser(strings.NewReader(retryInfo))}
	assert.Nil(t, heldBody(packed, 10))
	assert.Nil(t, peekBody(packed, 10))
	short := &http.Response{Body: io.NopCloser(strings.NewReader("abc"))}
	assert.Equal(t, "ab", string(heldBody(short, 2)))
	assert.Equal(t, "abc", string(heldBody(short, 20)))
	assert.Equal(t, "abc", string(heldBody(&http.Response{Body: io.NopCloser(bytes.NewReader([]byte("abc")))}, 20)))

	broken := &http.Response{Body: io.NopCloser(io.MultiReader(strings.NewReader("abc"), failing{io.ErrUnexpectedEOF}))}
	assert.Equal(t, "abc", string(peekBody(broken, 20)))
	body, err := io.ReadAll(broken.Body)
	assert.Equal(t, "abc", string(body))
	assert.Equal(t, io.ErrUnexpectedEOF, err, "the caller gets the error that came")
}

// iotest fails the test when it is read.
type iotest struct{ t *testing.T }

func (r iotest) Read([]byte) (int, error) {
	r.t.Error("the body was read")
	return 0, io.EOF
}

// panicking is a log handler that is broken.
type panicking struct{}

func (panicking) Enabled(context.Context, slog.Level) bool  { return true }
func (panicking) Handle(context.Context, slog.Record) error { panic("exporter") }
func (h panicking) WithAttrs([]slog.Attr) slog.Handler      { return h }
func (h panicking) WithGroup(string) slog.Handler           { return h }

// brokenBody panics when it is looked at.
type brokenBody struct{ io.Reader }

func (brokenBody) Close() error                   { return nil }
func (brokenBody) Seek(int64, int) (int64, error) { panic("Seek") }

// TestWhatBreaksChangesNothing: neither the call's own result nor the lease
// depends on parsers, callbacks and exporters.
func TestWhatBreaksChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := policy.Gate{Provider: "test", Name: "one", Endpoint: "http://breaks.test", MaxInFlight: 1, Preset: "gemini"}
		p, err := policy.New(g)
		require.NoError(t, err)
		gates := NewLocalGates(p, GatesOptions{Logger: slog.New(panicking{})})
		ctx := WithGates(t.Context(), gates)

		own := &openaiLike{Response: &http.Response{StatusCode: 429, Header: http.Header{}, Body: brokenBody{}}}
		require.Equal(t, own, Do(ctx, "one", Cost{}, func(context.Context) error { return own }))
		require.Zero(t, localStatus(t, gates, "one").Started)

		r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Endpoint, nil)
		require.NoError(t, err)
		tr := &Transport{Base: always(200, nil, "fine"), Cost: func(*http.Request) Cost { panic("estimate") }}
		response, err := tr.RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, 1, localStatus(t, gates, "one").Started)
		require.NoError(t, response.Body.Close())
		require.Zero(t, localStatus(t, gates, "one").Started)
		closeAll(t, gates)
	})
}

// TestPanicsAreNamed by the runtime's text, or by type alone: their text may
// hold a secret.
func TestPanicsAreNamed(t *testing.T) {
	assert.Equal(t, "string", panicText("sk-secret"))
	assert.Equal(t, "*errors.errorString", panicText(errors.New("sk-secret")))
	defer func() { assert.Contains(t, panicText(recover()), "index out of range") }()
	_ = strings.Fields("sk-secret")[1]
}
