package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dto "github.com/prometheus/client_model/go"

	"sluice/tests/loopback"
)

// scrape reads a page of metrics.
func scrape(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	response, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	return families
}

// sum adds up the counters of a gate, by the end of its ID, but for those with a label.
func sum(f *dto.MetricFamily, gate, without string) (n int) {
	for _, m := range f.GetMetric() {
		counts := false
		for _, l := range m.Label {
			if l.GetName() == "sluice_gate" && strings.HasSuffix(l.GetValue(), "#"+gate) {
				counts = true
			}
		}
		for _, l := range m.Label {
			counts = counts && l.GetValue() != without
		}
		if counts {
			n += int(m.GetCounter().GetValue())
		}
	}
	return n
}

// documentedMetrics are those of docs/telemetry.md, as the page names them.
func documentedMetrics(t *testing.T) (names []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/telemetry.md")
	require.NoError(t, err)
	for _, row := range regexp.MustCompile("(?m)^\\| `sluice\\.[a-z_.]+` \\| `(sluice_[a-z_]+)` \\|").FindAllSubmatch(page, -1) {
		names = append(names, string(row[1]))
	}
	require.Len(t, names, 14)
	return names
}

// TestDevTellsWhatItsWorkersCount: while a demonstration is up, its page has every
// metric that is documented, with the figures that the provider counted; and its
// workers' spans are printed, where --json leaves them.
func TestDevTellsWhatItsWorkersCount(t *testing.T) {
	c := start(t, nil, "dev", "--json", "--memory", "--port", "0", "--ui-port", "0", "--dashboard-port", "0", "--otel-console", "--metrics-listen", "127.0.0.1:0")
	page := c.waitFor("Metrics")
	provider := strings.TrimSuffix(c.waitFor("  provider's count"), "/stats/cap+pacing")
	families := map[string]*dto.MetricFamily{}
	for row, gate := range map[string]string{"cap": "cap", "cap+pacing": "cap-and-pacing"} {
		response, err := http.Get(provider + "/stats/" + row)
		require.NoError(t, err)
		var counted loopback.Stats
		require.NoError(t, json.NewDecoder(response.Body).Decode(&counted))
		require.NoError(t, response.Body.Close())
		assert.Eventually(t, func() bool { // the page is at most a quarter of a second old
			families = scrape(t, page)
			return sum(families["sluice_attempts_total"], gate, "abandoned") == counted.WireAttempts
		}, 5*time.Second, 50*time.Millisecond, row)
		assert.Equal(t, counted.WireAttempts, sum(families["sluice_attempts_total"], gate, "abandoned"), "attempts of %s", row)
		assert.Equal(t, counted.Overloads, sum(families["sluice_overloads_total"], gate, ""), "overloads of %s", row)
		assert.Equal(t, sum(families["sluice_attempts_total"], gate, ""), sum(families["sluice_admissions_total"], gate, ""), "each lease of %s was for one attempt", row)
		assert.Positive(t, sum(families["sluice_exchanges_total"], gate, ""))
		assert.Zero(t, sum(families["sluice_holders_lost_total"], gate, ""))
	}
	for _, name := range documentedMetrics(t) {
		assert.Contains(t, families, name)
	}
	c.interrupt()
	r := c.wait(30 * time.Second)
	require.Equal(t, 0, r.code)
	var out demoResult
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &out), "spans leave the result alone")
	for _, name := range []string{"admission.wait", "admission.attempt", "RunActivity:CallProvider", "StartWorkflow:demo.Calls"} {
		assert.True(t, strings.Contains(r.stderr, `{"Name":"`+name+`"`), name)
	}
}

// TestMetricsAddressTaken: what can't be listened on is said in a line, before
// anything is started.
func TestMetricsAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	address := l.Addr().String()
	for _, args := range [][]string{{"dev", "--once"}, {"run", "--config", file(t, goodPolicy)}} {
		requireOneLine(t, 1, command(t, "", append(args, "--metrics-listen", address)...), `can't listen on "`+address+`"`, "in use")
	}
	t.Setenv("OTEL_TRACES_EXPORTER", "pigeon")
	requireOneLine(t, 1, command(t, "", "run", "--config", file(t, goodPolicy)), "telemetry", "pigeon")
}
