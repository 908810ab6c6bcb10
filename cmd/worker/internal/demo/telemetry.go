package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"sluice/cmd/worker/internal/tracing"
	"sluice/worker/telemetry"
)

// Telemetry says what worker processes tell of themselves. They tell it on their
// standard output, a line each, beside what the OTEL_ environment has them export.
type Telemetry struct {
	Off     bool      // nothing, whatever the environment says
	Console bool      // spans, to Spans
	Spans   io.Writer // gets a line of JSON for each span; safe for concurrent use
	Page    bool      // metrics, to Metrics
	Metrics *Metrics
}

// Lines of a worker process that are no answer begin so.
const (
	spanLine   = "span "
	metricLine = "metrics "
	// tellEvery is how old a worker's metrics may be on the page.
	tellEvery = 250 * time.Millisecond
	// flushTimeout bounds the export of what is left when a worker process ends.
	flushTimeout = 3 * time.Second
)

// telemetryOrder is the part of the order that says what to tell.
type telemetryOrder struct {
	Off     bool `json:"off,omitempty"`
	Spans   bool `json:"spans,omitempty"`
	Metrics bool `json:"metrics,omitempty"`
}

func (t *Telemetry) order() telemetryOrder {
	return telemetryOrder{Off: t.Off, Spans: t.Console, Metrics: t.Page}
}

// heard takes what a worker process tells.
func (t *Telemetry) heard(worker string) func(line string) bool {
	return func(line string) bool {
		if span, ok := strings.CutPrefix(line, spanLine); ok {
			if t.Spans != nil {
				_, _ = io.WriteString(t.Spans, span+"\n") // nobody can be told
			}
			return true
		}
		if page, ok := strings.CutPrefix(line, metricLine); ok {
			var text string
			if err := json.Unmarshal([]byte(page), &text); err == nil && t.Metrics != nil {
				t.Metrics.put(worker, text)
			}
			return true
		}
		return false
	}
}

// Metrics are those of all worker processes, each with the label worker: row and
// number. What a process counted stays when it has ended. It is a
// prometheus.Gatherer, safe for concurrent use.
type Metrics struct {
	mu      sync.Mutex
	workers map[string]map[string]*dto.MetricFamily
}

// NewMetrics returns Metrics without any.
func NewMetrics() *Metrics { return &Metrics{workers: map[string]map[string]*dto.MetricFamily{}} }

// put takes a worker's metrics in Prometheus' text form. What isn't that is left
// out: the next ones come soon.
func (m *Metrics) put(worker, text string) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return
	}
	for _, f := range families {
		for _, one := range f.Metric {
			name := "worker"
			one.Label = append(one.Label, &dto.LabelPair{Name: &name, Value: &worker})
			slices.SortFunc(one.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers[worker] = families
}

// Gather implements prometheus.Gatherer.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	byName := map[string]*dto.MetricFamily{}
	for _, families := range m.workers {
		for name, f := range families {
			all := byName[name]
			if all == nil {
				all = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type, Unit: f.Unit}
				byName[name] = all
			}
			all.Metric = append(all.Metric, f.Metric...)
		}
	}
	list := make([]*dto.MetricFamily, 0, len(byName))
	for _, f := range byName {
		slices.SortFunc(f.Metric, func(a, b *dto.Metric) int { return cmp.Compare(labels(a), labels(b)) })
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return list, nil
}

func labels(m *dto.Metric) string {
	var b strings.Builder
	for _, l := range m.Label {
		fmt.Fprintf(&b, "%s=%q,", l.GetName(), l.GetValue())
	}
	return b.String()
}

var _ prometheus.Gatherer = (*Metrics)(nil)

// teller is a worker process's standard output: its answers, and what it tells.
type teller struct {
	telemetry *telemetry.Telemetry

	mu   sync.Mutex
	out  io.Writer
	stop chan struct{}
	done sync.WaitGroup
}

// open sets up what the order says. stderr gets what the environment wants on a
// console: standard output is the teller's.
func (o telemetryOrder) open(ctx context.Context, stdout, stderr io.Writer) (*teller, error) {
	t := &teller{out: stdout, stop: make(chan struct{})}
	options := telemetry.Options{Gather: o.Metrics, Output: stderr}
	if o.Spans {
		options.Console = spanWriter{t}
	}
	var err error
	if t.telemetry, err = tracing.ForChild(ctx, o.Off, options); err != nil {
		return nil, err
	}
	if t.telemetry.Gatherer != nil {
		t.done.Go(t.tellMetrics)
	}
	return t, nil
}

// say writes a line.
func (t *teller) say(line string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := io.WriteString(t.out, line+"\n")
	return err
}

// spanWriter gets a span with each Write.
type spanWriter struct{ t *teller }

func (w spanWriter) Write(p []byte) (int, error) {
	return len(p), w.t.say(spanLine + string(bytes.TrimSpace(p)))
}

func (t *teller) tellMetrics() {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.metrics()
		case <-t.stop:
			return
		}
	}
}

// metrics tells the metrics as they are. What fails is told the next time.
func (t *teller) metrics() {
	families, err := t.telemetry.Gatherer.Gather()
	if err != nil {
		return
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return
		}
	}
	line, err := json.Marshal(text.String())
	if err == nil {
		_ = t.say(metricLine + string(line)) // the starting process has gone
	}
}

// close tells the last of it.
func (t *teller) close() {
	close(t.stop)
	t.done.Wait()
	if t.telemetry.Gatherer != nil {
		t.metrics()
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	_ = t.telemetry.Shutdown(ctx) // a collector that is gone is no failure of the calls
}
