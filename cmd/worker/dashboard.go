package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"

	"sluice/cmd/worker/internal/dashboard"
	"sluice/cmd/worker/internal/gateclient"
)

const (
	defaultDashboard     = "127.0.0.1:8088"
	defaultDashboardPort = 8235 // of dev, beside the UI's and the provider's
)

// dashboardFlags say where the page listens and what it may do.
type dashboardFlags struct {
	connection
	listen   string
	control  bool
	who      string
	interval time.Duration
	timeout  time.Duration
}

func (p *program) dashboardCommand() *cobra.Command {
	var f dashboardFlags
	c := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a page that shows the gates live",
		Long: `Serve a page that shows the gates of a namespace live, until Ctrl-C: numbers, plots
over the last ten minutes, and every ticket that waits with its reason.

It changes nothing unless --allow-control is given: then the printed address has a
token, and whoever opens it can pause, resume, set, reset, cancel tickets and revoke
leases. It asks nobody who they are, so by default only this machine reaches it.
While a browser looks at a gate, the gate is asked once per --interval, however many
browsers there are; nobody looking, nothing is asked.` + connectionHelp,
		Example: `  worker dashboard
  worker dashboard --listen 127.0.0.1:0
  worker dashboard --allow-control --who ann`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return p.dashboard(c.Context(), f)
		},
	}
	f.connection.add(c)
	flags := c.Flags()
	flags.StringVar(&f.listen, "listen", defaultDashboard, "host:port to listen on; port 0 for a free one")
	flags.BoolVar(&f.control, "allow-control", false, "let whoever has the printed address change gates")
	flags.StringVar(&f.who, "who", whoami(), "who acts by the page, for a gate's log and history")
	flags.DurationVar(&f.interval, "interval", time.Second, "time between two looks at a gate; each is a query")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long a gate may take to answer")
	return c
}

func (f *dashboardFlags) check(c *cobra.Command) error {
	bad := func(format string, args ...any) error {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf(format, args...)}
	}
	_, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return bad("--listen is %q; it has to be host:port, such as %s", f.listen, defaultDashboard)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return bad("--listen is %q; its port may be 0 (a free one) to 65535", f.listen)
	}
	switch {
	case f.interval < leastInterval:
		return bad("--interval is %v; it may be %v or more", f.interval, leastInterval)
	case f.timeout <= 0:
		return bad("--timeout is %v; it may be more than 0", f.timeout)
	}
	return nil
}

func (p *program) dashboard(ctx context.Context, f dashboardFlags) error {
	c, at, err := p.connect(ctx, f.connection, nil)
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	defer c.Close()
	page, err := dashboard.Start(ctx, dashboard.Options{
		Gates: gateclient.New(c, at.namespace, f.timeout), Address: at.address, Namespace: at.namespace,
		Listen: f.listen, PortFlag: "--listen, or port 0 for a free one", Control: f.control, Who: f.who, Interval: f.interval, Log: p.verboseLog(),
	})
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	p.console.line("Temporal server  %s, namespace %s", at.address, at.namespace)
	p.console.line("Dashboard        %s", page.URL())
	if f.control {
		p.console.line("Control          allowed to whoever has this address, as %s", f.who)
	}
	if !page.Loopback() {
		p.console.line("Warning          others reach this page: it is not encrypted, and shows to everybody who waits for what")
	}
	p.console.line("Ctrl-C stops it.")
	<-ctx.Done()
	p.console.line("Stopping.")
	return page.Stop()
}

// verboseLog is where servers log: nowhere unless --verbose is given.
func (p *program) verboseLog() io.Writer {
	if p.verbose {
		return p.console
	}
	return nil
}

// devDashboard serves the page beside the demonstration; its gates are asked all the
// time, so that there is a past to see.
func (p *program) devDashboard(ctx context.Context, c client.Client, f devFlags, e *embedded) (*dashboard.Server, error) {
	return dashboard.Start(ctx, dashboard.Options{
		Gates: gateclient.New(c, devNamespace, dialTimeout), Address: e.server.HostPort(), Namespace: devNamespace,
		Listen: net.JoinHostPort(f.ip, strconv.Itoa(f.dashboardPort)), PortFlag: "--dashboard-port or 0 for a free one",
		Always: true, TemporalUI: e.ui.URL(), Log: p.verboseLog(),
	})
}
