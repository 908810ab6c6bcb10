package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/activities"
	"sluice/cmd/worker/internal/tracing"
	"sluice/tests/loopback"
	"sluice/worker"
)

type runFlags struct {
	config      string
	taskQueue   string
	transport   string
	holderID    string
	noHost      bool
	stopTimeout time.Duration
	connection
	telemetry telemetryFlags
}

func (p *program) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run --config POLICY.yaml",
		Short: "Run a worker whose HTTP calls are admitted by gates",
		Long: `Run a worker on any Temporal cluster until Ctrl-C. It has the activity
CallProvider, which makes one HTTP call under a lease of its gate, and it hosts
admission workflows.

It connects as Temporal's own tools do: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
TEMPORAL_API_KEY, TEMPORAL_TLS_... and the profiles of temporal.toml. Flags come
before the environment, and that before the file.

Traces and metrics go where the standard OTEL_... variables say, such as
OTEL_EXPORTER_OTLP_ENDPOINT; nowhere without them.

On Ctrl-C or SIGTERM it takes no more work, lets calls under way end, leaves
queued ones their place, gives leases back and exits with status 0.`,
		Example: `  worker run --config sluice.yaml
  worker run --config sluice.yaml --address 127.0.0.1:7234 --task-queue summaries
  worker run --config sluice.yaml --metrics-listen 127.0.0.1:9464 --otel-console
  TEMPORAL_PROFILE=cloud worker run --config sluice.yaml --transport signal`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return p.run(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.config, "config", "", `policy file; "-" for standard input (required)`)
	flags.StringVar(&f.taskQueue, "task-queue", "calls", "task queue of the activities")
	flags.StringVar(&f.transport, "transport", string(activities.TransportUpdate), "how exchanges reach a gate: update, signal or mixed")
	flags.StringVar(&f.holderID, "holder-id", "", "name of this process at its gates, unique among those that run (default: a new one)")
	flags.BoolVar(&f.noHost, "no-host", false, "don't host admission workflows; another process of the namespace has to")
	flags.DurationVar(&f.stopTimeout, "stop-timeout", 30*time.Second, "how long calls under way may take after Ctrl-C")
	f.connection.add(c)
	f.telemetry.add(c, "standard output")
	return c
}

func (f *runFlags) check(c *cobra.Command) error {
	bad := func(format string, args ...any) error {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf(format, args...)}
	}
	switch activities.ExchangeTransport(f.transport) {
	case activities.TransportUpdate, activities.TransportSignal, activities.TransportMixed:
	default:
		return bad("--transport is %q; it may be update, signal or mixed", f.transport)
	}
	switch {
	case f.config == "":
		return bad("--config names no policy file")
	case f.taskQueue == "":
		return bad("--task-queue is empty")
	case f.stopTimeout < 0:
		return bad("--stop-timeout is %v; it may be 0 or more", f.stopTimeout)
	}
	return f.telemetry.check(c)
}

func (p *program) run(ctx context.Context, f runFlags) error {
	loaded, err := p.loadPolicy(f.config)
	if err != nil {
		return err
	}
	t, err := p.openTelemetry(ctx, f.telemetry, p.stdout, nil)
	if err != nil {
		return err
	}
	defer p.closeTelemetry(t)
	plugin, err := worker.NewPlugin(worker.Options{
		Policy: loaded, HolderID: f.holderID, Transport: activities.ExchangeTransport(f.transport), NoHost: f.noHost,
		TracerProvider: t.TracerProvider, MeterProvider: t.MeterProvider,
	})
	if err != nil {
		return err
	}
	c, at, err := p.connect(ctx, f.connection, func(o *client.Options) error {
		o.Plugins = append(o.Plugins, plugin)
		return tracing.Add(o, t)
	})
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	defer c.Close()

	failed := make(chan error, 1)
	w := sdkworker.New(c, f.taskQueue, sdkworker.Options{
		WorkerStopTimeout: f.stopTimeout,
		OnFatalError: func(err error) {
			select {
			case failed <- err:
			default: // the first one says why
			}
		},
	})
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns // all calls may go to one provider
	w.RegisterActivity((&activities.Caller{Base: transport, LeaseHeader: loopback.HeaderLease}).CallProvider)
	if err := w.Start(); err != nil {
		return unlessInterrupted(ctx, at.explain(err))
	}
	p.console.line("Temporal server  %s, namespace %s", at.address, at.namespace)
	p.console.line("Task queue       %s, activity CallProvider", f.taskQueue)
	for _, g := range loaded.Gates() {
		p.console.line("Gate             %s: %s; workflow %s", g.ID(), g.LimitsText(), g.WorkflowID())
	}
	p.console.line("Ctrl-C stops it.")

	select {
	case <-ctx.Done():
		p.console.line("Stopping: calls under way end, leases are given back. Ctrl-C again ends it at once.")
	case err = <-failed:
		err = at.explain(err)
	}
	w.Stop() // drains, then the plugin says farewell to the gates
	return err
}
