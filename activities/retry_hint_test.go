package activities

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	sdkworker "go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"sluice/policy"
)

// cooled is a gate that admits nothing for a while.
type cooled struct {
	Gate
	left time.Duration
	hint policy.RetryHint
}

func (g *cooled) Policy() policy.Gate                        { return policy.Gate{RetryHint: g.hint} }
func (g *cooled) cooldownLeft(<-chan struct{}) time.Duration { return g.left }

type typed struct{ inner error }

func (*typed) Error() string   { return "typed" }
func (t *typed) Unwrap() error { return t.inner }

// delayOf is the delay that an error has for Temporal.
func delayOf(err error) time.Duration {
	if e, ok := err.(*temporal.ApplicationError); ok {
		return e.NextRetryDelay()
	}
	return 0
}

// TestRetryHint: when a failed attempt's error gains a delay.
func TestRetryHint(t *testing.T) {
	const left = 10 * time.Second
	short := &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond}
	plain := errors.New("no luck")
	with := func(o temporal.ApplicationErrorOptions) error {
		return temporal.NewApplicationErrorWithOptions("no luck", "Bad", o)
	}
	for _, c := range []struct {
		name  string
		info  activity.Info
		err   error
		gates []Gate
		want  time.Duration // 0: the error stays as it is
	}{
		{"a short back-off", activity.Info{RetryPolicy: short}, plain, nil, left},
		{"no cooldown", activity.Info{RetryPolicy: short}, plain, []Gate{&cooled{}}, 0},
		{"the gate that cools longest", activity.Info{RetryPolicy: short}, plain, []Gate{&cooled{left: time.Second}, &cooled{left: left}, &cooled{left: time.Millisecond}}, left},
		{"a gate that can't tell", activity.Info{RetryPolicy: short}, plain, []Gate{struct{ Gate }{}}, 0},
		{"switched off", activity.Info{RetryPolicy: short}, plain, []Gate{&cooled{left: left, hint: policy.RetryHintOff}}, 0},
		{"the back-off is as long", activity.Info{RetryPolicy: &temporal.RetryPolicy{InitialInterval: left}}, plain, nil, 0},
		{"the back-off is nearly as long", activity.Info{RetryPolicy: &temporal.RetryPolicy{InitialInterval: left - 1}}, plain, nil, left},
		{"the back-off has grown", activity.Info{Attempt: 5, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2}}, plain, nil, 0},
		{"the back-off may grow no more", activity.Info{Attempt: 5, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 3 * time.Second}}, plain, nil, left},
		{"the server's defaults, early", activity.Info{Attempt: 4}, plain, nil, left},
		{"the server's defaults, late", activity.Info{Attempt: 5}, plain, nil, 0},
		{"the maximum interval's default", activity.Info{Attempt: math.MaxInt32, RetryPolicy: short}, plain, nil, left}, // 1 s
		{"the last attempt", activity.Info{Attempt: 3, RetryPolicy: &temporal.RetryPolicy{InitialInterval: 1, MaximumAttempts: 3}}, plain, nil, 0},
		{"the last but one", activity.Info{Attempt: 2, RetryPolicy: &temporal.RetryPolicy{InitialInterval: 1, MaximumAttempts: 3}}, plain, nil, left},
		{"enough time to the end", activity.Info{RetryPolicy: short, ScheduleToCloseTimeout: 20 * time.Second}, plain, nil, left},
		{"past the end", activity.Info{RetryPolicy: short, ScheduleToCloseTimeout: 20 * time.Second, StartedTime: time.Unix(9, 500e6), ScheduledTime: time.Unix(0, 0)}, plain, nil, 0},
		{"an end that is far, by a clock that is wrong", activity.Info{RetryPolicy: short, ScheduleToCloseTimeout: 20 * time.Second, StartedTime: time.Unix(1e6+1, 0), ScheduledTime: time.Unix(1e6, 0)}, plain, nil, left},
		{"StartToClose is of one attempt", activity.Info{RetryPolicy: short, StartToCloseTimeout: time.Second}, plain, nil, left},
		{"typed", activity.Info{RetryPolicy: short}, with(temporal.ApplicationErrorOptions{}), nil, left},
		{"not retryable", activity.Info{RetryPolicy: short}, with(temporal.ApplicationErrorOptions{NonRetryable: true}), nil, 0},
		{"of a type that isn't retried", activity.Info{RetryPolicy: &temporal.RetryPolicy{NonRetryableErrorTypes: []string{"Bad"}}}, with(temporal.ApplicationErrorOptions{}), nil, 0},
		{"of a Go type that isn't retried", activity.Info{RetryPolicy: &temporal.RetryPolicy{NonRetryableErrorTypes: []string{"typed"}}}, &typed{}, nil, 0},
		{"the user's longer delay", activity.Info{RetryPolicy: short}, with(temporal.ApplicationErrorOptions{NextRetryDelay: left + 1}), nil, 0},
		{"the user's shorter delay", activity.Info{RetryPolicy: short}, with(temporal.ApplicationErrorOptions{NextRetryDelay: left - 1}), nil, left},
		{"only the outermost says what is retried", activity.Info{RetryPolicy: short}, fmt.Errorf("outer: %w", with(temporal.ApplicationErrorOptions{NonRetryable: true, NextRetryDelay: time.Hour})), nil, left},
		{"cancelled", activity.Info{RetryPolicy: short}, temporal.NewCanceledError(), nil, 0},
		{"cancelled, wrapped", activity.Info{RetryPolicy: short}, fmt.Errorf("call: %w", temporal.NewCanceledError("details")), nil, 0},
		{"the context's end", activity.Info{RetryPolicy: short}, fmt.Errorf("call: %w", context.Canceled), nil, 0},
		{"completed later", activity.Info{RetryPolicy: short}, activity.ErrResultPending, nil, 0},
		{"completed later, wrapped", activity.Info{RetryPolicy: short}, fmt.Errorf("%w", activity.ErrResultPending), nil, 0},
		{"another kind of the SDK", activity.Info{RetryPolicy: short}, temporal.NewTimeoutError(0, nil), nil, 0},
		{"Sluice's own", activity.Info{RetryPolicy: short}, &Error{Kind: KindStillQueued, ComeAgain: time.Second}, nil, time.Second},
		{"Sluice's own, without a delay", activity.Info{RetryPolicy: short}, fmt.Errorf("%w", &Error{Kind: KindUnavailable}), nil, 0},
		{"of a local activity", activity.Info{RetryPolicy: short, IsLocalActivity: true}, plain, nil, 0},
		{"no error", activity.Info{RetryPolicy: short}, nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &attempt{began: time.Now(), gates: c.gates}
			if c.gates == nil {
				a.gates = []Gate{&cooled{left: left}}
			}
			got := a.outward(context.Background(), c.info, c.err)
			if c.want == 0 {
				if e := (*Error)(nil); !errors.As(c.err, &e) {
					assert.Equal(t, c.err, got)
				}
				assert.Equal(t, delayOf(c.err), delayOf(got))
				return
			}
			assert.Equal(t, c.want, delayOf(got))
		})
	}

	t.Run("an attempt whose time is over", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		a := &attempt{began: time.Now(), gates: []Gate{&cooled{left: left}}}
		assert.Equal(t, plain, a.outward(ctx, activity.Info{}, plain))
	})
	t.Run("the attempt's own time counts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			info := activity.Info{RetryPolicy: short, ScheduleToCloseTimeout: 20 * time.Second}
			a := &attempt{began: time.Now(), gates: []Gate{&cooled{left: left}}}
			time.Sleep(9 * time.Second)
			assert.Equal(t, left, delayOf(a.outward(context.Background(), info, plain)))
			time.Sleep(time.Millisecond) // and a second before the end is the end
			assert.Equal(t, plain, a.outward(context.Background(), info, plain))
		})
	})
}

type (
	byValue     struct{ text string }
	withMessage struct{ *temporal.ApplicationError }
)

func (e byValue) Error() string { return e.text }

// TestAnErrorKeepsWhatItIs: with a delay the SDK makes of an error what it makes
// of it without, but for the delay.
func TestAnErrorKeepsWhatItIs(t *testing.T) {
	const delay = 3 * time.Second
	cause := temporal.NewNonRetryableApplicationError("inner", "Inner", io.ErrUnexpectedEOF, "detail")
	for _, c := range []struct {
		name  string
		err   error
		alone bool // it can't have a delay
	}{
		{"errors.New", errors.New("no luck"), false},
		{"a type of its own", &typed{}, false},
		{"a type by value", byValue{"no luck"}, false},
		{"fmt.Errorf", fmt.Errorf("call: %w", &typed{inner: io.EOF}), false},
		{"fmt.Errorf of two", fmt.Errorf("call: %w, %w", io.EOF, &typed{}), false},
		{"errors.Join", errors.Join(io.EOF, &typed{}), false},
		{"a deadline", context.DeadlineExceeded, false},
		{"a cause of the SDK's", &typed{inner: cause}, false},
		{"an admission error's cause", fmt.Errorf("call: %w", temporal.NewTimeoutError(0, cause)), false},
		{"typed", temporal.NewApplicationError("no luck", "Bad"), false},
		{"typed, of no type", temporal.NewApplicationError("no luck", ""), false},
		{"with a cause", temporal.NewApplicationErrorWithCause("no luck", "Bad", cause), false},
		{"with details", temporal.NewApplicationError("no luck", "Bad", 7, "seven", map[string]any{"n": 7.5}, []byte{7}, struct{ A int }{7}), false},
		{"with 16 details", temporal.NewApplicationError("no luck", "Bad", make16(0)...), false},
		{"with a category", temporal.NewApplicationErrorWithOptions("no luck", "Bad", temporal.ApplicationErrorOptions{Category: temporal.ApplicationErrorCategoryBenign}), false},
		{"with a shorter delay", temporal.NewApplicationErrorWithOptions("no luck", "Bad", temporal.ApplicationErrorOptions{NextRetryDelay: 1}), false},

		{"with more details than are looked at", temporal.NewApplicationError("no luck", "Bad", make16(1)...), true},
		{"with a detail that is nil", temporal.NewApplicationError("no luck", "Bad", nil, 7), true},
		{"decoded from a failure", temporal.GetDefaultFailureConverter().FailureToError(temporal.GetDefaultFailureConverter().ErrorToFailure(temporal.NewApplicationError("x", "Y", 7))), true},
		{"a timeout", temporal.NewTimeoutError(0, cause), true},
		{"an error of the SDK in a struct", withMessage{temporal.NewNonRetryableApplicationError("x", "Y", nil).(*temporal.ApplicationError)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			convert := temporal.GetDefaultFailureConverter()
			before := proto.Clone(convert.ErrorToFailure(c.err)).(*failurepb.Failure)
			got := withDelay(c.err, delay, nil)
			if c.alone {
				require.Equal(t, c.err, got)
				return
			}
			after := proto.Clone(convert.ErrorToFailure(got)).(*failurepb.Failure)
			require.Equal(t, delay, after.GetApplicationFailureInfo().GetNextRetryDelay().AsDuration())
			before.GetApplicationFailureInfo().NextRetryDelay = durationpb.New(delay)
			require.True(t, proto.Equal(before, after), "without:\n%v\nwith:\n%v", before, after)
			assert.Equal(t, convert.FailureToError(before).Error(), convert.FailureToError(after).Error())
		})
	}
}

// make16 is a list of 16 details and some more.
func make16(more int) (details []any) {
	for i := range 16 + more {
		details = append(details, i)
	}
	return details
}

// TestStrangeErrors pass: cycles, trees without end, methods that panic.
func TestStrangeErrors(t *testing.T) {
	circle := &ring{}
	circle.next = circle
	long := wrapped(io.EOF, 150)
	for _, err := range []error{circle, forest{}, breakingUnwrap{}, long, breaking{circle}} {
		a := &attempt{began: time.Now(), gates: []Gate{&cooled{left: time.Hour}}}
		assert.Equal(t, err, a.outward(context.Background(), activity.Info{Attempt: 1}, err))
	}
	assert.True(t, hasEnd(wrapped(io.EOF, 50)))
	assert.True(t, hasEnd(nil))
}

// TestInterceptorGivesTheHint: what an activity's own call was told delays its
// next attempt, as far as the gate follows it.
func TestInterceptorGivesTheHint(t *testing.T) {
	for _, c := range []struct {
		name string
		gate policy.Gate
		hint string // of Retry-After
		want time.Duration
	}{
		{"as asked", policy.Gate{}, "30", 30 * time.Second},
		{"clamped", policy.Gate{MaxCooldown: 20 * time.Second}, "30", 20 * time.Second},
		{"feedback is off", policy.Gate{MaxCooldown: policy.Off}, "30", 0},
		{"no hint, no fallback", policy.Gate{}, "", 0},
		{"fallback", policy.Gate{FallbackCooldown: 15 * time.Second}, "", 15 * time.Second},
		{"now: no sooner than the retry policy says", policy.Gate{FallbackCooldown: 15 * time.Second}, "0", 0},
		{"sooner than the retry policy says", policy.Gate{}, "0.5", 0},
		{"switched off", policy.Gate{RetryHint: policy.RetryHintOff}, "30", 0},
	} {
		for _, way := range []string{"gated", "through Transport"} {
			t.Run(c.name+", "+way, func(t *testing.T) {
				c.gate.Provider, c.gate.Name, c.gate.Endpoint = "test", "one", "http://hint.test/"+strings.ReplaceAll(t.Name(), " ", "-")
				if way == "gated" {
					c.gate.Activities = []string{"Call"}
				}
				p, err := policy.New(c.gate)
				require.NoError(t, err)
				gates := NewLocalGates(p, GatesOptions{})
				header := retryAfter2.Clone()
				header.Set("Retry-After", c.hint)
				if c.hint == "" {
					header.Del("Retry-After")
				}
				var suite testsuite.WorkflowTestSuite
				env := suite.NewTestActivityEnvironment()
				env.SetWorkerOptions(sdkworker.Options{Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(gates)}})
				env.RegisterActivityWithOptions(func(ctx context.Context) error {
					return get(ctx, always(429, header, ""), c.gate.Endpoint)
				}, activity.RegisterOptions{Name: "Call"})
				_, err = env.ExecuteActivity("Call")
				var failed *temporal.ApplicationError
				require.ErrorAs(t, err, &failed)
				assert.Equal(t, "openaiLike", failed.Type())
				assert.Equal(t, "refused", failed.Message())
				assert.LessOrEqual(t, failed.NextRetryDelay(), c.want)
				if c.want > 0 {
					assert.Greater(t, failed.NextRetryDelay(), c.want-5*time.Second)
				}
				closeAll(t, gates)
			})
		}
	}
}

// TestTheHintIsWhatTheGateMadeOfIt, where it answers in time; else the least that
// it can make of it.
func TestTheHintIsWhatTheGateMadeOfIt(t *testing.T) {
	for _, c := range []struct {
		name   string
		slow   time.Duration // of each answer
		second time.Duration // what the attempt that is overloaded again waits for
	}{
		{"an answer in time", answerWait / 2, 20 * time.Second},
		{"no answer in time", 2 * answerWait, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := policy.New(policy.Gate{Provider: "test", Name: "one", Endpoint: "http://made.test", FallbackCooldown: 10 * time.Second})
				require.NoError(t, err)
				slow := &slowLink{delay: func() time.Duration { return c.slow }}
				gates := newGates(p, GatesOptions{}, func(g policy.Gate) (link, error) {
					l, err := openLocal(g)
					slow.link = l
					return slow, err
				})
				a := &attempt{began: time.Now(), gates: []Gate{gateOf(t, gates)}}
				var left time.Duration
				for range 2 {
					require.Error(t, Do(WithGates(t.Context(), gates), "one", Cost{}, func(context.Context) error { return statusOnly{429} }))
					left = a.cooldownLeft(t.Context())
					time.Sleep(time.Minute) // the bubble's
				}
				assert.InDelta(t, c.second, left, float64(2*answerWait), "%v", left) // what passed, and what is known of the gate's time
				assert.Zero(t, a.cooldownLeft(t.Context()))
				require.NoError(t, gates.Close(context.Background()))
				slow.link.(*localLink).close()
			})
		})
	}
}
