// Package telemetry makes OpenTelemetry providers as the standard OTEL_ environment
// says, for a worker that has none yet:
//
//	t, err := telemetry.Setup(ctx, telemetry.Options{})
//	...
//	defer t.Shutdown(context.Background())
//	plugin, err := worker.NewPlugin(worker.Options{
//		PolicyFile: "sluice.yaml", TracerProvider: t.TracerProvider, MeterProvider: t.MeterProvider,
//	})
//
// It has authority over the providers that it makes and over nothing else: it sets
// no global ones. Nothing is exported unless the environment or an option asks for
// it. Package worker doesn't import it, so who brings providers of their own doesn't
// compile any exporter.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Options of Setup. The zero Options do what the environment says.
type Options struct {
	// ServiceName is what traces and metrics are said to come from, unless
	// OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has a name. Empty:
	// unknown_service and the program's name, as the specification wants it.
	ServiceName string
	// Console gets a line of JSON for each span. nil: none; what
	// OTEL_TRACES_EXPORTER=console asks for goes to Output.
	Console io.Writer
	// Output is where the console exporters of the environment write. nil:
	// standard output.
	Output io.Writer
	// MetricsListen is the address, such as 127.0.0.1:9464, of an HTTP server
	// whose page /metrics has the metrics in Prometheus' text form. Port 0: a
	// free one. Empty: none.
	MetricsListen string
	// Gather makes Telemetry.Gatherer, for who serves or sends the metrics
	// in their own way.
	Gather bool
	// Page is what the page shows instead of this process's own metrics. nil:
	// those.
	Page prometheus.Gatherer
}

// Telemetry is what Setup made. Shut it down when the workers have stopped.
type Telemetry struct {
	// TracerProvider and MeterProvider are never nil; those that export nothing
	// cost next to nothing.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// MetricsAddress is where the page is served, with its port. Empty: nowhere.
	MetricsAddress string
	// Gatherer has this process's metrics. nil: neither a page nor Gather was
	// asked for.
	Gatherer prometheus.Gatherer

	traces   bool
	shutdown []func(context.Context) error
}

// Off returns providers that export nothing, whatever the environment says.
func Off() *Telemetry {
	return &Telemetry{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()}
}

// Setup makes providers. Traces are exported where OTEL_TRACES_EXPORTER says so or an
// OTLP endpoint is named (OTEL_EXPORTER_OTLP_ENDPOINT, or its form for traces), or
// Options.Console; metrics likewise with OTEL_METRICS_EXPORTER, or on the page.
// OTEL_SDK_DISABLED=true makes it [Off]. All else of the OTEL_ environment counts as
// the specification says: OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on.
//
// The error is one line: a value of the environment that isn't known, or an address
// that can't be listened on. What was made until then is shut down.
func Setup(ctx context.Context, o Options) (_ *Telemetry, err error) {
	t := Off()
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return t, nil
	}
	if o.ServiceName == "" {
		o.ServiceName = "unknown_service:" + filepath.Base(os.Args[0])
	}
	if o.Output == nil {
		o.Output = os.Stdout
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Shutdown(ctx))
		}
	}()
	// An error tells of a part that could not be found out: the rest counts.
	about, _ := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", o.ServiceName)),
		resource.WithTelemetrySDK(), resource.WithProcessPID(), resource.WithFromEnv())
	if err := t.exportTraces(ctx, o, about); err != nil {
		return nil, fmt.Errorf("telemetry: traces: %w", err)
	}
	if err := t.exportMetrics(ctx, o, about); err != nil {
		return nil, fmt.Errorf("telemetry: metrics: %w", err)
	}
	return t, nil
}

// Traces reports whether spans are exported.
func (t *Telemetry) Traces() bool { return t.traces }

// Shutdown exports what is left and ends the providers and the page. ctx bounds it.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var failed error
	for _, end := range slices.Backward(t.shutdown) {
		failed = errors.Join(failed, end(ctx))
	}
	t.shutdown = nil
	return failed
}

// asked reports whether the environment asks for an export of a signal, TRACES or
// METRICS. The specification's default, an OTLP endpoint on this machine, would have
// every worker without a collector complain.
func asked(signal string) bool {
	for _, name := range []string{"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		if os.Getenv(name) != "" {
			return os.Getenv("OTEL_"+signal+"_EXPORTER") != "none"
		}
	}
	return false
}

func (t *Telemetry) exportTraces(ctx context.Context, o Options, about *resource.Resource) error {
	var exporters []sdktrace.SpanExporter
	console := func(w io.Writer) error {
		e, err := stdouttrace.New(stdouttrace.WithWriter(w))
		exporters = append(exporters, e)
		return err
	}
	switch {
	case os.Getenv("OTEL_TRACES_EXPORTER") == "console":
		if o.Console == nil {
			o.Console = o.Output
		}
	case asked("TRACES"):
		e, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return fmt.Errorf("OTEL_TRACES_EXPORTER is %q: %w", os.Getenv("OTEL_TRACES_EXPORTER"), err)
		}
		exporters = append(exporters, e)
	}
	if o.Console != nil {
		if err := console(o.Console); err != nil {
			return err
		}
	}
	if len(exporters) == 0 {
		return nil
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(about)}
	for _, e := range exporters {
		options = append(options, sdktrace.WithBatcher(e))
	}
	p := sdktrace.NewTracerProvider(options...)
	t.TracerProvider, t.traces = p, true
	t.shutdown = append(t.shutdown, p.Shutdown)
	return nil
}

func (t *Telemetry) exportMetrics(ctx context.Context, o Options, about *resource.Resource) error {
	var readers []sdkmetric.Reader
	if asked("METRICS") {
		r, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return fmt.Errorf("OTEL_METRICS_EXPORTER is %q: %w", os.Getenv("OTEL_METRICS_EXPORTER"), err)
		}
		readers = append(readers, r)
	}
	if o.MetricsListen != "" || o.Gather {
		registry := prometheus.NewRegistry()
		e, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
		if err != nil {
			return err
		}
		readers, t.Gatherer = append(readers, e), registry
	}
	if len(readers) > 0 {
		options := []sdkmetric.Option{sdkmetric.WithResource(about)}
		for _, r := range readers {
			options = append(options, sdkmetric.WithReader(r))
		}
		p := sdkmetric.NewMeterProvider(options...)
		t.MeterProvider = p
		t.shutdown = append(t.shutdown, p.Shutdown)
	}
	if o.MetricsListen == "" {
		return nil
	}
	page := o.Page
	if page == nil {
		page = t.Gatherer
	}
	return t.serve(ctx, o.MetricsListen, page)
}

// serve serves the page.
func (t *Telemetry) serve(ctx context.Context, address string, g prometheus.Gatherer) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("can't listen on %q: %w", address, reason(err))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // it ends with Shutdown
	}()
	t.MetricsAddress = l.Addr().String()
	t.shutdown = append(t.shutdown, func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if err != nil {
			_ = server.Close() // a reader that doesn't read
		}
		<-ended
		return err
	})
	return nil
}

// reason is an error of the network without the address, which stands before it.
func reason(err error) error {
	if e := (*net.OpError)(nil); errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}
