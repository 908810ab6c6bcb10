package telemetry

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
)

// clean takes what the machine's own environment asks for away.
func clean(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

func setup(t *testing.T, o Options) *Telemetry {
	t.Helper()
	s, err := Setup(t.Context(), o)
	require.NoError(t, err)
	return s
}

func span(t *testing.T, s *Telemetry) (recording bool) {
	t.Helper()
	_, span := s.TracerProvider.Tracer("test").Start(t.Context(), "told")
	defer span.End()
	return span.IsRecording()
}

// TestNothingAskedForNothingExported, and no global provider is touched.
func TestNothingAskedForNothingExported(t *testing.T) {
	clean(t)
	tracers, meters := otel.GetTracerProvider(), otel.GetMeterProvider()
	s := setup(t, Options{})
	assert.False(t, s.Traces())
	assert.False(t, span(t, s))
	assert.Nil(t, s.Gatherer)
	require.NoError(t, s.Shutdown(t.Context()))
	assert.Same(t, tracers, otel.GetTracerProvider())
	assert.Same(t, meters, otel.GetMeterProvider())
}

func TestDisabledByTheEnvironment(t *testing.T) {
	clean(t)
	t.Setenv("OTEL_SDK_DISABLED", "true")
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	s := setup(t, Options{Console: &bytes.Buffer{}})
	assert.False(t, span(t, s))
}

// TestTheConsole: by option, and by the environment.
func TestTheConsole(t *testing.T) {
	for name, by := range map[string]func(t *testing.T, out io.Writer) Options{
		"option": func(_ *testing.T, out io.Writer) Options { return Options{Console: out} },
		"environment": func(t *testing.T, out io.Writer) Options {
			t.Setenv("OTEL_TRACES_EXPORTER", "console")
			return Options{Output: out}
		},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			var out bytes.Buffer
			s := setup(t, by(t, &out))
			require.True(t, span(t, s))
			require.NoError(t, s.Shutdown(context.Background()))
			assert.Equal(t, 1, strings.Count(out.String(), "\n"), "a line for each span")
			assert.Contains(t, out.String(), `"Name":"told"`)
			assert.Contains(t, out.String(), `"unknown_service:telemetry.test"`)
		})
	}
}

// TestAnEndpointIsEnough: OTLP goes where the environment says, traces and metrics.
func TestAnEndpointIsEnough(t *testing.T) {
	clean(t)
	var traces, metrics atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/traces":
			traces.Add(1)
		case "/v1/metrics":
			metrics.Add(1)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	s := setup(t, Options{})
	require.True(t, span(t, s))
	c, err := s.MeterProvider.Meter("test").Int64Counter("counted")
	require.NoError(t, err)
	c.Add(t.Context(), 1)
	require.NoError(t, s.Shutdown(t.Context()))
	assert.Positive(t, traces.Load())
	assert.Positive(t, metrics.Load())
}

func TestThePage(t *testing.T) {
	clean(t)
	s := setup(t, Options{MetricsListen: "127.0.0.1:0"})
	c, err := s.MeterProvider.Meter("test").Int64Counter("sluice.counted")
	require.NoError(t, err)
	c.Add(t.Context(), 3)
	response, err := http.Get("http://" + s.MetricsAddress + "/metrics")
	require.NoError(t, err)
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Contains(t, string(page), "sluice_counted_total 3")
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, s.Shutdown(t.Context()))
	_, err = net.Dial("tcp", s.MetricsAddress)
	require.Error(t, err, "the page ends with the rest")
}

// TestMistakes: each is said, and nothing stays behind.
func TestMistakes(t *testing.T) {
	clean(t)
	_, err := Setup(t.Context(), Options{MetricsListen: "127.0.0.1:70000"})
	require.ErrorContains(t, err, `can't listen on "127.0.0.1:70000"`)
	for _, signal := range []string{"TRACES", "METRICS"} {
		t.Setenv("OTEL_"+signal+"_EXPORTER", "pigeon")
		_, err := Setup(t.Context(), Options{})
		require.ErrorContains(t, err, `OTEL_`+signal+`_EXPORTER is "pigeon"`)
		t.Setenv("OTEL_"+signal+"_EXPORTER", "")
	}
}
