package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
)

var (
	codedName = regexp.MustCompile(`= (?:attribute\.Key\()?"((?:sluice|admission|http|error)\.[a-z_.]+)"`)
	holderOwn = regexp.MustCompile(`reason[A-Z][a-z]+ += "([a-z]+)"`)
	quoted    = regexp.MustCompile("`([a-z]+\\.[a-z_.<>]+)`")
)

// TestTelemetryIsDocumented: every name of a span, an attribute, an event and a
// metric in the code stands in docs/telemetry.md, and what stands there is in the
// code.
func TestTelemetryIsDocumented(t *testing.T) {
	code := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, "activities", name))
		require.NoError(t, err)
		return string(text)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/telemetry.md"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, found := range codedName.FindAllStringSubmatch(code("telemetry.go"), -1) {
		names[strings.TrimSuffix(found[1], ".")] = true
	}
	require.Greater(t, len(names), 35)
	reasons := []string{"budget.<unit>"}
	for w := range admission.WaitBudget {
		reasons = append(reasons, w.Name(&admission.Limits{}))
	}
	for _, found := range holderOwn.FindAllStringSubmatch(code("wait_span.go"), -1) {
		reasons = append(reasons, found[1])
	}
	require.Len(t, reasons, 10)
	for _, reason := range reasons {
		names["sluice.wait."+reason] = true
	}
	documented := map[string]bool{}
	for _, found := range quoted.FindAllStringSubmatch(string(page), -1) {
		documented[found[1]] = true
	}
	for name := range names {
		assert.True(t, documented[name], "docs/telemetry.md doesn't name %s", name)
	}
	for name := range documented {
		if strings.HasPrefix(name, "sluice.") || strings.HasPrefix(name, "admission.") {
			assert.True(t, names[name], "docs/telemetry.md names %s, which isn't in activities/telemetry.go", name)
		}
	}
	for _, row := range metrics(t) {
		assert.True(t, names[row.name], row.name)
		want := strings.ReplaceAll(row.name, ".", "_")
		if strings.HasSuffix(row.kind, ", s") {
			want += "_seconds"
		}
		if strings.HasPrefix(row.kind, "counter") {
			want += "_total"
		}
		assert.Equal(t, want, row.page)
	}
}

// metric is a row of the table of metrics.
type metric struct{ name, page, kind string }

// metrics reads the table of metrics.
func metrics(t *testing.T) (rows []metric) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/telemetry.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "\n## Metrics\n")
	require.True(t, found)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "| `sluice.") || len(cells) < 5 {
			continue
		}
		cell := func(i int) string { return strings.Trim(cells[i], " `") }
		rows = append(rows, metric{cell(1), cell(2), cell(3)})
	}
	require.Len(t, rows, 14)
	return rows
}
