package soak

import (
	"context"
	"errors"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"sluice/tests/loopback"
)

// load runs batches until so many attempts have been served.
type load struct {
	client client.Client
	seed   uint64
	url    string
	target int // attempts

	mu      sync.Mutex
	count   loopback.Count // how far the provider is
	begun   int            // batches
	open    int            // batches that have no outcome yet
	calls   []string
	ended   map[string]string
	changed chan struct{} // closed and made anew when count changes
}

func newLoad(c client.Client, seed uint64, url string, target int) *load {
	return &load{client: c, seed: seed, url: url, target: target, ended: map[string]string{}, changed: make(chan struct{})}
}

// note takes down how far the provider is.
func (l *load) note(c loopback.Count) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count = c
	close(l.changed)
	l.changed = make(chan struct{})
}

// next returns the next batch to begin; nil when enough has been served and asked
// for. It waits while what was asked for may be enough.
func (l *load) next(ctx context.Context) *Batch {
	for {
		l.mu.Lock()
		served, changed := l.count.WireAttempts, l.changed
		switch {
		case served >= l.target:
			l.mu.Unlock()
			return nil
		case served+l.open*batchSize < l.target || l.open == 0:
			b := batchOf(l.seed, l.url, l.begun)
			l.begun++
			l.open++
			l.calls = append(l.calls, b.calls()...)
			l.mu.Unlock()
			return &b
		}
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// run runs the load and returns when every batch has its outcome, or with ctx.
func (l *load) run(ctx context.Context) error {
	var all sync.WaitGroup
	failed := make(chan error, batchesAtOnce)
	for range batchesAtOnce {
		all.Go(func() {
			for b := l.next(ctx); b != nil; b = l.next(ctx) {
				if err := l.runBatch(ctx, b); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// runBatch runs one workflow, however often the server is restarted meanwhile. A
// workflow that fails has no outcome: its calls are lost, unless they were served.
func (l *load) runBatch(ctx context.Context, b *Batch) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		out, err := l.try(ctx, b)
		var of *temporal.WorkflowExecutionError
		if err == nil || errors.As(err, &of) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.open--
			for _, e := range out.Ended {
				l.ended[e.Call] = e.Error
			}
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *load) try(ctx context.Context, b *Batch) (out Outcome, err error) {
	run, err := l.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: b.ID, TaskQueue: taskQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
		WorkflowIDReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
	}, workflowType, *b)
	var closed *temporal.WorkflowExecutionError
	if err != nil && !errors.As(err, &closed) && !isAlreadyStarted(err) {
		return out, err
	}
	if run == nil {
		run = l.client.GetWorkflow(ctx, b.ID, "")
	}
	err = run.Get(ctx, &out)
	return out, err
}

func isAlreadyStarted(err error) bool { return temporal.IsWorkflowExecutionAlreadyStartedError(err) }
