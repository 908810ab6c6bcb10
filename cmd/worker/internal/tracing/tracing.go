// Package tracing has Temporal clients and workers trace what they do, so that the
// spans of admission stand within those of their activities.
package tracing

import (
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/opentelemetry"

	"sluice/worker/telemetry"
)

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
