package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/client"

	"sluice/admission"
	"sluice/cmd/worker/internal/child"
	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/tests/loopback"
)

const (
	pacingProcesses = 2
	pacingWarm      = 2 * time.Second // before anything is counted
	leastCallers    = 20              // else one for each call per second: plenty
	rateBatch       = 50              // activities of one workflow
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

// Cost is what a gate's leases cost the server, from its histories.
type Cost struct {
	Leases    int `json:"leases"`
	Exchanges int `json:"exchanges"`
	Waits     int `json:"waits"`
	Timers    int `json:"timers"`
	Events    int `json:"events"`
	// EventsPerLease are events in its histories. ActionsPer1000 are what Temporal
	// Cloud bills for 1,000 leases: updates, signals, timers, runs.
	EventsPerLease float64 `json:"events_per_lease"`
	ActionsPer1000 float64 `json:"actions_per_1000"`
}

func costOf(t *traffic, leases int) Cost {
	c := Cost{Leases: leases, Exchanges: t.exchanges, Waits: t.waits, Timers: t.timers, Events: t.events}
	if leases > 0 {
		c.EventsPerLease = round(float64(t.events) / float64(leases))
		c.ActionsPer1000 = round(1000 * float64(t.exchanges+t.waits+t.timers+t.runs) / float64(leases))
	}
	return c
}

// PacingResult is what Pacing measured.
type PacingResult struct {
	Rate      int     `json:"rate"` // asked for, per second
	SpacingMS float64 `json:"spacing_ms"`
	PacingFigures
	Cost      Cost          `json:"cost"`       // of the gate
	QueueRate PacingFigures `json:"queue_rate"` // of Temporal's own rate of a task queue
	BareClock PacingFigures `json:"bare_clock"` // of processes that call by the clock, under no gate
}

// Pacing measures a rate over two worker processes with plenty of callers, judged
// at the provider; then Temporal's own rate of a task queue, over as many; and
// processes that call in turn by the clock, which shows what the machine itself does
// to a steady rate.
func Pacing(ctx context.Context, o Options, rate int, lasts time.Duration) (r PacingResult, err error) {
	r = PacingResult{Rate: rate, SpacingMS: milliseconds(time.Second / time.Duration(rate))}
	o.Report("%d per second over %d processes, %v", rate, pacingProcesses, lasts)
	if r.PacingFigures, r.Cost, err = paceByGate(ctx, o, rate, lasts); err != nil {
		return r, err
	}
	o.Report("the same by the rate of a task queue, %v", lasts)
	if r.QueueRate, _, err = paceByQueue(ctx, o, rate, lasts); err != nil {
		return r, err
	}
	o.Report("the same by the clock, %v", lasts)
	r.BareClock, _, err = paceByClock(ctx, o, rate, lasts)
	return r, err
}

func paceByGate(ctx context.Context, o Options, rate int, lasts time.Duration) (PacingFigures, Cost, error) {
	return pace(ctx, o, rate, lasts, func(s *server, url string) ([]order, error) {
		g, err := policy.Gate{Provider: "bench", Endpoint: url, Requests: admission.Rate{Limit: int64(rate), Per: time.Second, Burst: 1}}.Normalize()
		if err != nil {
			return nil, err
		}
		body, err := g.MarshalJSON()
		return forEach(order{Gate: body, Callers: max(rate, leastCallers) / pacingProcesses}), err
	})
}

// forEach gives every process the same order.
func forEach(o order) []order { return slices.Repeat([]order{o}, pacingProcesses) }

func paceByQueue(ctx context.Context, o Options, rate int, lasts time.Duration) (PacingFigures, Cost, error) {
	return pace(ctx, o, rate, lasts, func(s *server, url string) ([]order, error) {
		c, err := s.dial(ctx)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		// More than can be called in the time, so that the queue is never empty.
		calls := int((lasts+2*pacingWarm).Seconds()*float64(rate)) * 5 / 4
		for i := 0; calls > 0; i, calls = i+1, calls-rateBatch {
			if _, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: fmt.Sprint("batch-", i), TaskQueue: queueName}, batchType, batch{URL: url, Calls: min(calls, rateBatch)}); err != nil {
				return nil, err
			}
		}
		return forEach(order{Rate: float64(rate)}), nil
	})
}

func paceByClock(ctx context.Context, o Options, rate int, lasts time.Duration) (PacingFigures, Cost, error) {
	return pace(ctx, o, rate, lasts, func(*server, string) ([]order, error) {
		first, spacing := time.Now().Add(pacingWarm/2), time.Second/time.Duration(rate)
		var orders []order
		for i := range time.Duration(pacingProcesses) {
			orders = append(orders, order{First: first.Add(i * spacing), Every: pacingProcesses * spacing})
		}
		return orders, nil
	})
}

// pace runs a worker process for each order and judges what came at the provider.
func pace(ctx context.Context, o Options, rate int, lasts time.Duration, prepare func(*server, string) ([]order, error)) (f PacingFigures, cost Cost, err error) {
	s, err := startServer(ctx, o, false)
	if err != nil {
		return f, cost, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	process, provider, err := startProvider(ctx, o, providerOrder{ServeTime: 5 * time.Millisecond})
	if err != nil {
		return f, cost, err
	}
	defer stop(process)
	url := provider.CallURL(runName)
	orders, err := prepare(s, url)
	if err != nil {
		return f, cost, err
	}
	var workers []*child.Process
	defer func() { stop(workers...) }()
	for _, work := range orders {
		work.Address, work.URL = s.HostPort(), url
		w, _, err := start(ctx, o, work)
		if err != nil {
			return f, cost, err
		}
		workers = append(workers, w)
	}
	select {
	case <-time.After(pacingWarm + lasts):
	case <-ctx.Done():
		return f, cost, context.Cause(ctx)
	case <-workers[0].Done():
		return f, cost, fmt.Errorf("a worker process ended: %w", workers[0].Ended())
	}
	until := time.Since(provider.Epoch)
	attempts, err := provider.Attempts(ctx, runName)
	if err != nil {
		return f, cost, err
	}
	if gate := orders[0].Gate; len(gate) > 0 {
		if cost, err = s.costOfGate(ctx, gate); err != nil {
			return f, cost, err
		}
	}
	return figuresOf(attempts, until-lasts, until, rate), cost, nil
}

// costOfGate reads what a gate has cost so far.
func (s *server) costOfGate(ctx context.Context, gate json.RawMessage) (Cost, error) {
	g, err := policy.DecodeGate(gate)
	if err != nil {
		return Cost{}, err
	}
	c, err := s.dial(ctx)
	if err != nil {
		return Cost{}, err
	}
	defer c.Close()
	st, err := gateclient.New(c, namespace, queryTimeout).Status(ctx, g.ID())
	if err != nil {
		return Cost{}, err
	}
	t, err := trafficOf(ctx, c, g.WorkflowID())
	return costOf(&t, int(st.Counters.Admissions)), err
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
