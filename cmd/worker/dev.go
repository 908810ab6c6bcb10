package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"

	"sluice/cmd/worker/internal/dashboard"
	"sluice/cmd/worker/internal/demo"
	"sluice/cmd/worker/internal/tracing"
	"sluice/tests/loopback"
)

const (
	demoWorker    = "demo-worker"
	demoProvider  = "demo-provider"
	devNamespace  = "default"
	dialTimeout   = 10 * time.Second
	temporaryName = "dev.db"
)

type devFlags struct {
	serverFlags
	once          bool
	json          bool
	experiment    string
	dashboardPort int
	telemetry     telemetryFlags
}

func (p *program) devCommand() *cobra.Command {
	var f devFlags
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run everything at once, with a demonstration",
		Long: `Run a Temporal server, its web UI, a page that shows the gates live, a provider with
a real quota and worker processes, and demonstrate what admission does. Then stay up
until Ctrl-C and say where to look.

The demonstration makes 40 calls from 10 workflows over 2 worker processes to a
provider that takes 10 requests/s without burst and 4 in flight, and answers 429
with "Retry-After: 1" to the rest. Activities have 3 attempts, 1 s apart. Three
rows show the same calls without admission, with a cap, and with a cap and pacing
at 8/s. All figures are counted at the provider.

--experiment six makes six calls at once to a provider that takes one request per
250 ms and says nothing when it refuses; activities have 3 attempts, 50 ms apart.
Two rows show a cap of 6 alone, and with a spacing of 275 ms.

With --once it exits after the demonstration: ports are then free ones unless
given, and the database is a temporary file unless --db or --memory is given. If
it is interrupted before that, the exit status is 130.

--otel-console prints the spans of all worker processes, and --metrics-listen serves
their metrics on one page, each with the label "worker".`,
		Example: `  worker dev
  worker dev --memory --port 0 --ui-port 0 --dashboard-port 0
  worker dev --once --json | tail -n 1 | jq '.rows[2]'
  worker dev --once --experiment six`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(f.check(c), f.telemetry.check(c)); err != nil {
				return err
			}
			if f.dashboardPort < 0 || f.dashboardPort > 65535 {
				return portRange(c, "--dashboard-port", f.dashboardPort)
			}
			experiment, err := demo.FindExperiment(f.experiment)
			if err != nil {
				return usageError{command: c.CommandPath(), text: err.Error()}
			}
			return p.dev(c, f, experiment)
		},
	}
	f.add(c)
	c.Flags().IntVar(&f.dashboardPort, "dashboard-port", defaultDashboardPort, "port of the page that shows the gates; 0 for a free one")
	c.Flags().BoolVar(&f.once, "once", false, "exit after the demonstration")
	c.Flags().StringVar(&f.experiment, "experiment", demo.Experiments()[0].Name, "what to demonstrate: "+demo.ExperimentNames())
	c.Flags().BoolVar(&f.json, "json", false, "print one JSON object as the last line of standard output; the table goes to standard error")
	f.telemetry.add(c, "standard output, with --json on standard error")
	return c
}

func (p *program) demoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    demoWorker,
		Short:  "A worker process of the demonstration, started by dev",
		Hidden: true,
		Args:   args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return demo.Work(c.Context(), p.stdin, p.stdout, p.console)
		},
	}
}

func (p *program) demoProviderCommand() *cobra.Command {
	return &cobra.Command{
		Use:    demoProvider,
		Short:  "The provider of the demonstration, started by dev",
		Hidden: true,
		Args:   args(0),
		RunE: func(*cobra.Command, []string) error {
			return demo.ServeProvider(p.stdin, p.stdout)
		},
	}
}

func (p *program) dev(c *cobra.Command, f devFlags, experiment *demo.Experiment) (err error) {
	ctx := c.Context()
	if f.once {
		remove, err := f.forOnce(c)
		if err != nil {
			return err
		}
		defer remove()
	}
	spans := io.Writer(&wholeWrites{w: p.stdout})
	if f.json {
		spans = p.console
	}
	metrics := demo.NewMetrics()
	t, err := p.openTelemetry(ctx, f.telemetry, spans, metrics)
	if err != nil {
		return err
	}
	defer p.closeTelemetry(t)
	e, err := p.startServer(ctx, f.serverFlags)
	if err != nil {
		return p.interrupted(ctx, f, err)
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	p.console.line("Temporal server %s, web UI %s", e.server.HostPort(), e.ui.URL())

	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program can't start processes: %w", err)
	}
	provider, err := demo.StartProvider(ctx, []string{program, demoProvider}, experiment, f.ip, p.console)
	if err != nil {
		return p.interrupted(ctx, f, err)
	}
	defer provider.Close()

	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	o := client.Options{HostPort: e.server.HostPort(), Namespace: devNamespace, Logger: p.sdkLogger()}
	if err := tracing.Add(&o, t); err != nil {
		return err
	}
	temporal, err := client.DialContext(dialing, o)
	if err != nil {
		return p.interrupted(ctx, f, err)
	}
	defer temporal.Close()

	page, err := p.devDashboard(ctx, temporal, f, e)
	if err != nil {
		return p.interrupted(ctx, f, err)
	}
	defer func() { err = errors.Join(err, page.Stop()) }()
	p.console.line("Dashboard %s", page.URL())

	d := demo.New(demo.Options{
		Experiment: experiment,
		Client:     temporal, Address: e.server.HostPort(), Namespace: devNamespace, Provider: provider,
		Program: []string{program, demoWorker}, Stderr: p.console, Verbose: p.verbose, Report: p.progress(experiment),
		Telemetry: demo.Telemetry{Off: f.telemetry.off(), Spans: spans, Console: f.telemetry.console, Metrics: metrics, Page: f.telemetry.listen != ""},
	})
	defer func() {
		if ctx.Err() != nil {
			p.console.line("Stopping: activities drain, leases are given back. Ctrl-C again ends it at once.")
		}
		d.Close()
	}()
	p.console.line("%d calls, %d workflows, %d worker processes; %d rows, about %v",
		experiment.Calls, experiment.Workflows, experiment.Processes, experiment.Rows(), experiment.Lasts)
	rows, err := d.Run(ctx)
	p.console.end()
	if err != nil {
		return p.interrupted(ctx, f, err)
	}
	if err := p.printDemo(experiment, rows, e, page, provider, f); err != nil || f.once {
		return err
	}
	p.console.line("Ctrl-C stops it.")
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.server.Failed():
		return err
	}
}

// wholeWrites lets several write, one at a time.
type wholeWrites struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *wholeWrites) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// forOnce changes what --once means other defaults for, and returns what removes
// the temporary database.
func (f *devFlags) forOnce(c *cobra.Command) (remove func(), err error) {
	if !c.Flags().Changed("port") {
		f.port = 0
	}
	if !c.Flags().Changed("ui-port") {
		f.uiPort = 0
	}
	if !c.Flags().Changed("dashboard-port") {
		f.dashboardPort = 0
	}
	if f.memory || c.Flags().Changed("db") {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "sluice-dev-")
	if err != nil {
		return nil, fmt.Errorf("temporary database: %w; choose a file with --db, or --memory", err)
	}
	f.db = filepath.Join(dir, temporaryName)
	return func() { _ = os.RemoveAll(dir) }, nil // a leftover in the temporary directory is no failure
}

// interrupted is err, unless a person ended it: that is no failure, but of --once
// there is no result.
func (p *program) interrupted(ctx context.Context, f devFlags, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case f.once:
		return fmt.Errorf("%w before the demonstration was over", errInterrupted)
	}
	return nil
}

// progress shows how a row is doing: in a live line on a terminal, else in one line
// when it begins.
func (p *program) progress(e *demo.Experiment) func(string, loopback.Stats) {
	last := ""
	return func(row string, s loopback.Stats) {
		if row != last && !p.console.terminal {
			p.console.line("row %s", row)
		}
		last = row
		p.console.live("%-10s  %2d/%d calls completed, %3d requests, %3d answered 429, %d in flight", row, s.Completed, e.Calls, s.WireAttempts, s.Overloads, s.InFlight)
	}
}

// printDemo prints the table and where to look, or with --json the result.
func (p *program) printDemo(x *demo.Experiment, rows []demo.Row, e *embedded, page *dashboard.Server, provider *demo.Provider, f devFlags) error {
	out := p.stdout
	if f.json {
		out = p.console
	}
	if err := demo.WriteTable(out, x, rows); err != nil {
		return err
	}
	if !f.once {
		fmt.Fprintf(out, "\nWhere to look\n  %-20s %s\n  %-20s %s\n", "dashboard", page.URL(), "Temporal UI", e.ui.URL())
		for _, r := range demo.Gated(rows) {
			fmt.Fprintf(out, "  %-20s %s\n", "gate of "+r.Name, r.WorkflowID)
			fmt.Fprintf(out, "  %-20s %s\n", "", workflowURL(e.ui.URL(), r.WorkflowID))
		}
		fmt.Fprintf(out, "  %-20s %s/stats/cap+pacing\n", "provider's count", provider.URL)
		fmt.Fprintf(out, "  %-20s %s\n", "Temporal server", e.server.HostPort())
		if !f.memory {
			fmt.Fprintf(out, "  %-20s %s\n", "database", f.db)
		}
	}
	if !f.json {
		return nil
	}
	return json.NewEncoder(p.stdout).Encode(demoResult{
		Experiment: x.Name, Rows: rows, Calls: x.Calls, Workflows: x.Workflows, Processes: x.Processes,
		Address: e.server.HostPort(), UI: e.ui.URL(), Dashboard: page.URL(), Namespace: devNamespace, Provider: provider.URL,
	})
}

// demoResult is what --json prints.
type demoResult struct {
	Experiment string     `json:"experiment"`
	Rows       []demo.Row `json:"rows"`
	Calls      int        `json:"calls"`
	Workflows  int        `json:"workflows"`
	Processes  int        `json:"processes"`
	Address    string     `json:"address"` // of the Temporal server
	UI         string     `json:"ui"`
	Dashboard  string     `json:"dashboard"`
	Namespace  string     `json:"namespace"`
	Provider   string     `json:"provider"`
}

func workflowURL(ui, id string) string {
	return ui + "/namespaces/" + devNamespace + "/workflows/" + url.PathEscape(id)
}
