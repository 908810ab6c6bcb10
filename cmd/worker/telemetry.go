package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/cmd/worker/internal/tracing"
	"sluice/worker/telemetry"
)

const (
	telemetryOn  = "on"
	telemetryOff = "off"
	// flushTimeout bounds the export of what is left at the end.
	flushTimeout = 5 * time.Second
)

// telemetryFlags say what of traces and metrics is exported, beside what the
// environment says.
type telemetryFlags struct {
	mode    string
	console bool
	listen  string
}

func (f *telemetryFlags) add(c *cobra.Command, spans string) {
	flags := c.Flags()
	addTelemetry(flags, &f.mode, "export traces and metrics as OTEL_... and the other flags say")
	flags.BoolVar(&f.console, "otel-console", false, "print each span as a line of JSON on "+spans)
	flags.StringVar(&f.listen, "metrics-listen", "", `serve metrics for Prometheus at this address, such as 127.0.0.1:9464; port 0 for a free one (default: don't)`)
}

func (f *telemetryFlags) check(c *cobra.Command) error {
	bad := func(format string, args ...any) error {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf(format, args...)}
	}
	if wrong := checkTelemetry(f.mode); wrong != "" {
		return bad("%s", wrong)
	}
	switch {
	case f.off() && (f.console || f.listen != ""):
		return bad("--telemetry off excludes --otel-console and --metrics-listen")
	case f.listen == "":
		return nil
	}
	_, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return bad("--metrics-listen is %q; it has the form HOST:PORT, such as 127.0.0.1:9464", f.listen)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return bad("--metrics-listen has port %q; it may be 0 to 65535", port)
	}
	return nil
}

// addTelemetry adds the flag that switches all off.
func addTelemetry(flags *pflag.FlagSet, mode *string, on string) {
	flags.StringVar(mode, "telemetry", telemetryOn, "on: "+on+"; off: none")
}

// checkTelemetry says what is wrong with that flag; empty: nothing.
func checkTelemetry(mode string) string {
	if mode == telemetryOn || mode == telemetryOff {
		return ""
	}
	return fmt.Sprintf("--telemetry is %q; it may be on or off", mode)
}

func (f *telemetryFlags) off() bool { return f.mode == telemetryOff }

// open sets telemetry up. spans gets those that --otel-console asks for; page is
// what --metrics-listen shows, nil for what this process counts.
func (p *program) openTelemetry(ctx context.Context, f telemetryFlags, spans io.Writer, page prometheus.Gatherer) (*telemetry.Telemetry, error) {
	if f.off() {
		return telemetry.Off(), nil
	}
	o := telemetry.Options{ServiceName: tracing.ServiceName, MetricsListen: f.listen, Page: page, Output: p.stdout}
	if f.console {
		o.Console = spans
	}
	t, err := telemetry.Setup(ctx, o)
	if err != nil {
		return nil, err
	}
	if t.MetricsAddress != "" {
		p.console.line("Metrics          http://%s/metrics", t.MetricsAddress)
	}
	return t, nil
}

// closeTelemetry exports what is left. That it can't is said, and is no failure of
// what was done.
func (p *program) closeTelemetry(t *telemetry.Telemetry) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		p.console.line("worker: telemetry: %s", oneLine(err.Error()))
	}
}
