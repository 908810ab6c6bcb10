package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func spanLine(trace, id, parent, name, from, to, attributes string) string {
	return fmt.Sprintf(`{"Name":%q,"SpanContext":{"TraceID":%q,"SpanID":%q},"Parent":{"SpanID":%q},"StartTime":"2026-11-30T10:00:%sZ","EndTime":"2026-11-30T10:00:%sZ","Attributes":[%s]}`,
		name, trace, id, parent, from, to, attributes)
}

// TestDraw: the trace with the longest waits is drawn, each span under its parent,
// waits parted by reason, and hostile names as text.
func TestDraw(t *testing.T) {
	spans := strings.Join([]string{
		"Temporal server 127.0.0.1:7233",
		spanLine("short", "9", "", "admission.wait", "00", "01", ""),
		spanLine("long", "3", "2", "admission.attempt", "05", "06", `{"Key":"http.response.status_code","Value":{"Type":"INT64","Value":429}}`),
		spanLine("long", "2", "1", "admission.wait", "01", "05", `{"Key":"sluice.wait.cap","Value":{"Type":"FLOAT64","Value":3}},{"Key":"sluice.wait.cooldown","Value":{"Type":"FLOAT64","Value":1}}`),
		spanLine("long", "1", "elsewhere", "Run<Activity>", "00", "07", ""),
	}, "\n")
	var out strings.Builder
	require.NoError(t, draw(strings.NewReader(spans), &out))
	svg := out.String()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
	}
	first, second, third := strings.Index(svg, "Run&lt;Activity&gt;"), strings.Index(svg, ">admission.wait"), strings.Index(svg, ">admission.attempt")
	assert.True(t, 0 < first && first < second && second < third, "parents first, by their start")
	assert.Contains(t, svg, ">4s<")
	assert.Contains(t, svg, ">1s, 429<")
	assert.Contains(t, svg, ">cap<")
	assert.Contains(t, svg, ">cooldown<")
	assert.NotContains(t, svg, ">pacing<", "what nobody waited for")
	assert.NotContains(t, svg, "%!")
}

func TestNothingToDraw(t *testing.T) {
	err := draw(strings.NewReader("no spans\n"), io.Discard)
	assert.ErrorContains(t, err, "pipe `worker dev --once --otel-console` into it")
}
