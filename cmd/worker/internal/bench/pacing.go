package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/client"

	"sluice/admission"
	"sluice/cmd/worker/internal/child"
	"sluice/policy"
	"sluice/tests/loopback"
)

const (
	pacingProcesses = 2
	pacingWarm      = 2 * time.Second // before anything is counted
	// pacingCallers are so many for each call per second of the rate: plenty.
	pacingCallers = 1
	leastCallers  = 20
	rateBatch     = 50 // activities of one workflow
)

// PacingFigures are what the provider saw.
type PacingFigures struct {
	Attempts int `json:"attempts"`
	// Utilisation is the achieved rate over the one asked for.
	Utilisation float64 `json:"utilisation"`
	// P1GapMS is the 1st percentile of the distances between arrivals.
	P1GapMS float64 `json:"p1_gap_ms"`
	// MaxInAnySecond is the most arrivals in any second.
	MaxInAnySecond int `json:"max_in_any_second"`
}

// PacingResult is what Pacing measured.
type PacingResult struct {
	Rate      int     `json:"rate"` // asked for, per second
	SpacingMS float64 `json:"spacing_ms"`
	PacingFigures
	QueueRate PacingFigures `json:"queue_rate"` // of Temporal's own rate of a task queue
}

// Pacing measures a rate over two worker processes with plenty of callers, judged
// at the provider; then Temporal's own rate of a task queue, over as many.
func Pacing(ctx context.Context, o Options, rate int, lasts time.Duration) (r PacingResult, err error) {
	r = PacingResult{Rate: rate, SpacingMS: milliseconds(time.Second / time.Duration(rate))}
	o.Report("%d per second over %d processes, %v", rate, pacingProcesses, lasts)
	if r.PacingFigures, err = paceByGate(ctx, o, rate, lasts); err != nil {
		return r, err
	}
	o.Report("the same by the rate of a task queue, %v", lasts)
	r.QueueRate, err = paceByQueue(ctx, o, rate, lasts)
	return r, err
}

func paceByGate(ctx context.Context, o Options, rate int, lasts time.Duration) (f PacingFigures, err error) {
	return pace(ctx, o, rate, lasts, func(s *server, url string) (order, error) {
		g, err := policy.Gate{Provider: "bench", Endpoint: url, Requests: admission.Rate{Limit: int64(rate), Per: time.Second, Burst: 1}}.Normalize()
		if err != nil {
			return order{}, err
		}
		body, err := g.MarshalJSON()
		return order{Gate: body, Callers: max(rate*pacingCallers, leastCallers) / pacingProcesses}, err
	})
}

func paceByQueue(ctx context.Context, o Options, rate int, lasts time.Duration) (f PacingFigures, err error) {
	return pace(ctx, o, rate, lasts, func(s *server, url string) (order, error) {
		c, err := s.dial(ctx)
		if err != nil {
			return order{}, err
		}
		defer c.Close()
		// More than can be called in the time, so that the queue is never empty.
		calls := int((lasts+2*pacingWarm).Seconds()*float64(rate)) * 5 / 4
		for i := 0; calls > 0; i, calls = i+1, calls-rateBatch {
			if _, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: fmt.Sprint("batch-", i), TaskQueue: queueName}, batchType, batch{URL: url, Calls: min(calls, rateBatch)}); err != nil {
				return order{}, err
			}
		}
		return order{Rate: float64(rate)}, nil
	})
}

// pace runs two worker processes of an order and judges what came at the provider.
func pace(ctx context.Context, o Options, rate int, lasts time.Duration, prepare func(*server, string) (order, error)) (f PacingFigures, err error) {
	s, err := startServer(ctx, o, false)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	process, provider, err := startProvider(ctx, o, providerOrder{ServeTime: 5 * time.Millisecond})
	if err != nil {
		return f, err
	}
	defer stop(process)
	url := provider.CallURL(runName)
	work, err := prepare(s, url)
	if err != nil {
		return f, err
	}
	work.Address, work.URL = s.HostPort(), url
	var workers []*child.Process
	defer func() { stop(workers...) }()
	for range pacingProcesses {
		w, _, err := start(ctx, o, work)
		if err != nil {
			return f, err
		}
		workers = append(workers, w)
	}
	select {
	case <-time.After(pacingWarm + lasts):
	case <-ctx.Done():
		return f, context.Cause(ctx)
	case <-workers[0].Done():
		return f, fmt.Errorf("a worker process ended: %w", workers[0].Ended())
	}
	until := time.Since(provider.Epoch)
	attempts, err := provider.Attempts(ctx, runName)
	if err != nil {
		return f, err
	}
	return figuresOf(attempts, until-lasts, until, rate), nil
}

// figuresOf judges the attempts that arrived within from and until.
func figuresOf(attempts []loopback.Attempt, from, until time.Duration, rate int) (f PacingFigures) {
	var at []time.Duration
	for _, a := range attempts {
		if a.Arrived >= from && a.Arrived < until {
			at = append(at, a.Arrived)
		}
	}
	f.Attempts = len(at)
	f.Utilisation = round(float64(len(at)) / (until - from).Seconds() / float64(rate))
	if len(at) < 2 {
		return f
	}
	gaps := make([]time.Duration, len(at)-1)
	first := 0
	for i := range at {
		if i > 0 {
			gaps[i-1] = at[i] - at[i-1]
		}
		for at[i]-at[first] >= time.Second {
			first++
		}
		f.MaxInAnySecond = max(f.MaxInAnySecond, i-first+1)
	}
	slices.Sort(gaps)
	f.P1GapMS = percentile(gaps, 1)
	return f
}
