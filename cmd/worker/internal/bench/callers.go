package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"sluice/activities"
)

// callers are goroutines in a loop of acquire and release.
type callers struct {
	leases  int
	elapsed time.Duration
	waits   []time.Duration // for each lease, sorted
}

// callersPause lets the callers come to an even pace before anything is counted.
const callersPause = time.Second

// runCallers has n callers, spread over the gates, take leases for as long as
// lasts, after a second that isn't counted. Tickets have IDs and labels as long
// as those of activities are.
func runCallers(ctx context.Context, gates []activities.Gate, n int, lasts time.Duration) (callers, error) {
	return loop(ctx, n, lasts, func(ctx context.Context, i int) func(k int, got func()) error {
		gate := gates[i%len(gates)]
		workflow := fmt.Sprintf("summarise-orders-2026-11-%05d", i)
		run := uuid.NewString()
		label := fmt.Sprintf("CallProvider %s/%d", workflow, i)
		return func(k int, got func()) error {
			l, err := gate.Acquire(ctx, activities.Request{
				TicketID: fmt.Sprintf("%s/%s/%s/%d/%s/%d", namespace, workflow, run, i, gate.Policy().ID(), k), Label: label,
			})
			if err != nil {
				return err
			}
			got()
			l.Release()
			return nil
		}
	})
}

// loop has n callers, each a function that caller makes of its number, take and give
// back, for as long as lasts after a second that isn't counted. A call is told its
// number and calls got when it has what it waited for. The first error ends all.
func loop(ctx context.Context, n int, lasts time.Duration, caller func(ctx context.Context, i int) func(k int, got func()) error) (c callers, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin := time.Now().Add(callersPause)
	end := begin.Add(lasts)
	waits := make([][]time.Duration, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			call := caller(ctx, i)
			for k := 0; ; k++ {
				at := time.Now()
				if at.After(end) {
					return
				}
				if err := call(k, func() {
					if got := time.Now(); got.After(begin) && got.Before(end) {
						waits[i] = append(waits[i], got.Sub(at))
					}
				}); err != nil {
					cancel(err) // the first one says why
					return
				}
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return c, err
	}
	c.waits, c.elapsed = sorted(waits...), lasts
	c.leases = len(c.waits)
	return c, nil
}

// pause waits for so long, or until ctx ends, whose cause is the error.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// perSecond is how many leases came in a second.
func (c *callers) perSecond() float64 { return round(float64(c.leases) / c.elapsed.Seconds()) }
