package activities

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
)

// NewInterceptor returns the worker interceptor that puts gates into every
// activity's context, gates the activities that the policy names, keeps the
// user's heartbeat details through a wait, and gives admission errors their
// stable types. The worker plugin installs it; install it yourself only in a
// test environment.
func NewInterceptor(g *Gates) interceptor.WorkerInterceptor {
	return NewLazyInterceptor(func() *Gates { return g })
}

// NewLazyInterceptor is NewInterceptor for gates that are made only when the
// worker starts. Until gates returns any, activities run ungated.
func NewLazyInterceptor(gates func() *Gates) interceptor.WorkerInterceptor {
	return &workerInterceptor{gates: gates}
}

type workerInterceptor struct {
	interceptor.WorkerInterceptorBase
	gates func() *Gates
}

func (w *workerInterceptor) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	i := &activityInbound{gates: w.gates}
	i.Next = next
	return i
}

type activityInbound struct {
	interceptor.ActivityInboundInterceptorBase
	gates    func() *Gates
	outbound *activityOutbound
}

func (i *activityInbound) Init(outbound interceptor.ActivityOutboundInterceptor) error {
	o := &activityOutbound{}
	o.Next = outbound
	i.outbound = o
	return i.Next.Init(o)
}

func (i *activityInbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	gates := i.gates()
	if gates == nil {
		return i.Next.ExecuteActivity(ctx, in)
	}
	info := activity.GetInfo(ctx)
	g, err := gates.ForActivity(info.ActivityType.Name)
	if err != nil {
		return nil, err
	}
	a := &attempt{began: time.Now(), acquires: map[string]int{}, told: ownDetails(ctx, i.outbound.Next)}
	ctx = context.WithValue(WithGates(ctx, gates), attemptKey, a)
	if g == nil {
		return a.run(ctx, info, func() (any, error) { return i.Next.ExecuteActivity(ctx, in) })
	}
	if info.IsLocalActivity {
		return nil, temporal.NewNonRetryableApplicationError("activity "+info.ActivityType.Name+" is gated by "+g.Policy().ID()+
			" and can't be a local activity: waiting would hold the workflow task", ErrTypeLocalActivity, nil)
	}
	return a.run(ctx, info, func() (result any, err error) {
		err = under(ctx, gates, g, Cost{}, func(ctx context.Context) (err error) {
			result, err = i.Next.ExecuteActivity(ctx, in)
			return err
		})
		return result, err
	})
}

// run runs an attempt, and ends what it kept where no other attempt follows. One
// follows a panic, which the worker makes an error of.
func (a *attempt) run(ctx context.Context, info activity.Info, do func() (any, error)) (result any, err error) {
	err = errPanicked
	defer func() { a.giveBackKept(ctx, info, err) }()
	result, err = do()
	err = a.outward(ctx, info, err)
	return result, err
}

// errPanicked stands for the error of an attempt that did not return.
var errPanicked = errors.New("panic")

// outward is an activity's error as Temporal shall see it.
func (a *attempt) outward(ctx context.Context, info activity.Info, err error) (seen error) {
	if !hasEnd(err) {
		return err // errors.Is and errors.As would never come back
	}
	defer func() {
		if recover() != nil {
			seen = err // its own methods panicked
		}
	}()
	var own *Error
	if errors.As(err, &own) || info.IsLocalActivity {
		return a.outermost(err) // it says itself when to come again
	}
	return a.delayed(ctx, info, a.outermost(err))
}

// ErrTypeLocalActivity is the type of the error of a gated local activity.
const ErrTypeLocalActivity = "sluice.LocalActivity"

// outermost brings an admission error to the outside, where Temporal looks for
// type, retryability and delay: an HTTP client wraps what its transport says.
// An error that the user typed stays as it is, as does one that is no error.
func (a *attempt) outermost(err error) error {
	if err == nil || errors.Is(err, activity.ErrResultPending) {
		return err
	}
	a.mu.Lock()
	cancelled := a.cancelled
	a.mu.Unlock()
	if cancelled && errors.Is(err, context.Canceled) {
		return temporal.NewCanceledError() // a cancelled wait, however wrapped, is no failure
	}
	if _, typed := err.(*temporal.ApplicationError); typed {
		return err
	}
	return Across(err)
}

type activityOutbound struct {
	interceptor.ActivityOutboundInterceptorBase
}

// RecordHeartbeat remembers what the user recorded last, so that a wait can
// record it again.
func (o *activityOutbound) RecordHeartbeat(ctx context.Context, details ...any) {
	a := attemptFrom(ctx)
	if a == nil || ctx.Value(beatKey{}) != nil {
		o.Next.RecordHeartbeat(ctx, details...)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.details, a.recorded = details, true
	o.Next.RecordHeartbeat(ctx, details...)
}
