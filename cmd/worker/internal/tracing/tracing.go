// Package tracing sets up the telemetry of the program's processes, and has their
// Temporal clients and workers trace what they do, so that the spans of admission
// stand within those of their activities.
package tracing

import (
	"context"
	"os"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/opentelemetry"

	"sluice/worker/telemetry"
)

// ServiceName is what the program's traces and metrics are said to come from.
const ServiceName = "sluice-worker"

// ForChild sets up a process that another one started, as the options and the
// environment say; off: nothing, whatever they say. Such processes are several, so
// none takes the one port that OTEL_METRICS_EXPORTER=prometheus names.
func ForChild(ctx context.Context, off bool, o telemetry.Options) (*telemetry.Telemetry, error) {
	if off {
		return telemetry.Off(), nil
	}
	if os.Getenv("OTEL_METRICS_EXPORTER") == "prometheus" {
		if err := os.Setenv("OTEL_METRICS_EXPORTER", "none"); err != nil {
			return nil, err
		}
	}
	o.ServiceName = ServiceName
	return telemetry.Setup(ctx, o)
}

// Add adds Temporal's tracing to a client's options, where spans are exported.
func Add(o *client.Options, t *telemetry.Telemetry) error {
	if !t.Traces() {
		return nil
	}
	i, err := opentelemetry.NewTracingInterceptor(opentelemetry.TracerOptions{Tracer: t.TracerProvider.Tracer("temporal-sdk-go")})
	if err != nil {
		return err
	}
	o.Interceptors = append(o.Interceptors, i)
	return nil
}
