package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"sluice/cmd/worker/internal/child"
	"sluice/tests/loopback"
)

const (
	rowTimeout  = time.Minute
	reportEvery = 200 * time.Millisecond
)

// Options of a demonstration. All fields but Report are required.
type Options struct {
	Experiment *Experiment
	// Client of the Temporal server at Address.
	Client    client.Client
	Address   string
	Namespace string
	Provider  *Provider
	// Program starts a worker process: a path and arguments. It must call Work.
	Program []string
	// Stderr gets what worker processes write there. Safe for concurrent use.
	Stderr io.Writer
	// Verbose lets the worker processes tell more.
	Verbose bool
	// Telemetry says what the worker processes tell of themselves.
	Telemetry Telemetry
	// Report is told how a row is doing, a few times per second, from one goroutine.
	// nil: nobody is.
	Report func(row string, soFar loopback.Stats)
}

// Demo runs the demonstration. Not safe for concurrent use.
type Demo struct {
	o         Options
	processes []*child.Process
}

// New makes a demonstration. Close it, whatever Run returned.
func New(o Options) *Demo {
	if o.Report == nil {
		o.Report = func(string, loopback.Stats) {}
	}
	return &Demo{o: o}
}

// Run runs the rows one after the other.
func (d *Demo) Run(ctx context.Context) ([]Row, error) {
	var rows []Row
	for _, p := range d.o.Experiment.plans(d.o.Provider.URL) {
		d.Close() // the previous row's
		row, err := d.run(ctx, p)
		if err != nil {
			return rows, fmt.Errorf("row %s: %w", p.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Close tells the worker processes to drain, and returns when all are gone.
func (d *Demo) Close() {
	for _, p := range d.processes {
		p.AskToStop()
	}
	for _, p := range d.processes {
		p.Wait()
	}
	d.processes = nil
}

func (d *Demo) run(ctx context.Context, p plan) (Row, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rowTimeout, fmt.Errorf("took longer than %v", rowTimeout))
	defer cancel()
	if err := d.startProcesses(ctx, p); err != nil {
		return Row{}, err
	}
	type result struct {
		failed int
		err    error
	}
	done := make(chan result, 1)
	go func() {
		failed, err := d.runWorkflows(ctx, p)
		done <- result{failed, err}
	}()
	died := make(chan error, len(d.processes))
	for i, process := range d.processes {
		go func() {
			select {
			case <-process.Done():
				died <- fmt.Errorf("worker process %d ended by itself: %w", i+1, process.Ended())
			case <-ctx.Done():
			}
		}()
	}
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			if r.err != nil {
				if ctx.Err() != nil {
					r.err = context.Cause(ctx)
				}
				return Row{}, r.err
			}
			stats, err := d.o.Provider.Stats(ctx, p.name)
			return rowOf(p, stats, r.failed), err
		case err := <-died:
			cancel()
			<-done
			return Row{}, err
		case <-tick.C:
			if stats, err := d.o.Provider.Stats(ctx, p.name); err == nil { // the last one counts
				d.o.Report(p.name, stats)
			}
		}
	}
}

// startProcesses returns when all of them take work.
func (d *Demo) startProcesses(ctx context.Context, p plan) error {
	gate, err := p.encoded()
	if err != nil {
		return err
	}
	o := order{
		Address: d.o.Address, Namespace: d.o.Namespace, TaskQueue: d.taskQueue(p), Gate: gate,
		Provider: d.o.Provider.URL, Verbose: d.o.Verbose, Telemetry: d.o.Telemetry.order(),
	}
	for i := range d.o.Experiment.Processes {
		process, err := child.StartHeard(d.o.Program, o, d.o.Stderr, d.o.Telemetry.heard(fmt.Sprintf("%s/%d", p.name, i+1)))
		if err != nil {
			return fmt.Errorf("worker process: %w", err)
		}
		d.processes = append(d.processes, process)
	}
	for i, process := range d.processes {
		if _, err := process.Line(ctx); err != nil {
			return fmt.Errorf("worker process %d: %w", i+1, err)
		}
	}
	return nil
}

// runWorkflows starts the row's workflows and returns how many calls failed.
func (d *Demo) runWorkflows(ctx context.Context, p plan) (failed int, err error) {
	var runs []client.WorkflowRun
	e := d.o.Experiment
	for i := range e.Workflows {
		run, err := d.o.Client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
			ID: fmt.Sprintf("demo/%s/%s/%d", e.Name, p.name, i+1), TaskQueue: d.taskQueue(p),
			// A database that is kept may hold those of an interrupted demonstration.
			WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING,
			WorkflowExecutionTimeout: 2 * rowTimeout,
		}, workflowType, batch{URL: d.o.Provider.CallURL(p.name), Calls: e.Calls / e.Workflows, Attempts: e.attempts, BackOff: e.backOff})
		if err != nil {
			return 0, err
		}
		runs = append(runs, run)
	}
	for _, run := range runs {
		var out outcome
		if err := run.Get(ctx, &out); err != nil {
			return 0, err
		}
		failed += out.Failed
	}
	return failed, nil
}

func (d *Demo) taskQueue(p plan) string { return "demo/" + d.o.Experiment.Name + "/" + p.name }

// Gated returns the rows that have a gate.
func Gated(rows []Row) []Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Gate == "" })
}
