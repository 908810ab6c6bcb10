// Command tracepicture draws one trace of the demonstration as a waterfall, for the
// README. It reads the spans that --otel-console prints and writes an SVG file:
//
//	go run ./cmd/worker dev --once --otel-console | go run ./tests/docs/tracepicture > docs/images/trace.svg
//
// The trace is that of the workflow whose calls waited longest. A wait's bar is
// parted by reason, in proportion to how long each lasted, not in their sequence.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// span is what the picture takes of a span that the console exporter prints.
type span struct {
	Name        string
	SpanContext struct{ TraceID, SpanID string }
	Parent      struct{ SpanID string }
	StartTime   time.Time
	EndTime     time.Time
	Attributes  []struct {
		Key   string
		Value struct{ Value any }
	}
}

func (s *span) length() time.Duration { return s.EndTime.Sub(s.StartTime) }

func (s *span) attribute(key string) any {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.Value
		}
	}
	return nil
}

const (
	wait    = "admission.wait"
	attempt = "admission.attempt"

	width, names = 960.0, 270.0 // of the picture, and of the column of names
	line, bar    = 24.0, 14.0
	head         = 34.0
)

// reasons in the order in which a wait's bar shows them, with their colours.
var reasons = []struct{ name, colour string }{
	{"order", "#8b95a5"}, {"cap", "#d98e32"}, {"pacing", "#3f7fd0"}, {"cooldown", "#c8504b"}, {"paused", "#7a5bb5"},
	{"learning", "#b0813d"}, {"delivery", "#4fa39a"}, {"unavailable", "#333333"}, {"remainder", "#d5d9e0"},
}

func main() {
	if err := draw(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tracepicture:", err)
		os.Exit(1)
	}
}

func draw(in io.Reader, out io.Writer) error {
	spans, err := read(in)
	if err != nil {
		return err
	}
	trace := longest(spans)
	if len(trace) == 0 {
		return errors.New("no trace with a wait on standard input; pipe `worker dev --once --otel-console` into it")
	}
	_, err = out.Write(picture(trace))
	return err
}

// read takes the spans from lines of JSON; other lines are the program's.
func read(in io.Reader) (spans []*span, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s := &span{}
		if json.Unmarshal(lines.Bytes(), s) == nil && s.SpanContext.TraceID != "" {
			spans = append(spans, s)
		}
	}
	return spans, lines.Err()
}

// longest is the trace of a workflow whose waits took longest, parents first.
func longest(spans []*span) (trace []*span) {
	byTrace, waits := map[string][]*span{}, map[string]time.Duration{}
	best := ""
	for _, s := range spans {
		id := s.SpanContext.TraceID
		byTrace[id] = append(byTrace[id], s)
		if s.Name == wait {
			waits[id] += s.length()
		}
		if waits[id] > waits[best] {
			best = id
		}
	}
	children := map[string][]*span{}
	known := map[string]bool{}
	for _, s := range byTrace[best] {
		known[s.SpanContext.SpanID] = true
	}
	for _, s := range byTrace[best] {
		parent := s.Parent.SpanID
		if !known[parent] {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	var visit func(id string)
	visit = func(id string) {
		slices.SortFunc(children[id], func(a, b *span) int { return a.StartTime.Compare(b.StartTime) })
		for _, s := range children[id] {
			trace = append(trace, s)
			visit(s.SpanContext.SpanID)
		}
	}
	visit("")
	return trace
}

func picture(trace []*span) []byte {
	depth := map[string]int{}
	from, to := trace[0].StartTime, trace[0].EndTime
	for _, s := range trace {
		depth[s.SpanContext.SpanID] = depth[s.Parent.SpanID] + 1
		if s.StartTime.Before(from) {
			from = s.StartTime
		}
		if s.EndTime.After(to) {
			to = s.EndTime
		}
	}
	scale := (width - names - 90) / float64(to.Sub(from))
	x := func(t time.Time) float64 { return names + float64(t.Sub(from))*scale }
	height := head + line*float64(len(trace)) + 34

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" font-family="system-ui, sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, "<title>A trace of a workflow whose calls waited for admission</title>\n")
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n")
	step := time.Second
	if to.Sub(from) > 10*time.Second {
		step = 5 * time.Second
	}
	for at := time.Duration(0); at <= to.Sub(from); at += step {
		fmt.Fprintf(&b, `<line x1="%.1[1]f" x2="%.1[1]f" y1="%.0[2]f" y2="%.0[3]f" stroke="#e4e7ec"/><text x="%.1[1]f" y="20" fill="#5c6675" text-anchor="middle">%[4]v</text>`+"\n", x(from.Add(at)), head-6, height-34, at)
	}
	for i, s := range trace {
		y := head + line*float64(i)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" fill="#1d2430">%s</text>`+"\n", 8+14*float64(depth[s.SpanContext.SpanID]-1), y+bar-2, html.EscapeString(s.Name))
		s.bar(&b, x(s.StartTime), y, scale)
	}
	at := names
	for _, r := range reasons {
		if !slices.ContainsFunc(trace, func(s *span) bool { return s.waited(r.name) > 0 }) {
			continue
		}
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.0f" width="12" height="12" fill="%s"/><text x="%.0f" y="%.0f" fill="#1d2430">%s</text>`+"\n", at, height-24, r.colour, at+17, height-14, r.name)
		at += 30 + 7*float64(len(r.name))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// bar draws a span, a wait parted by reason, and says how long it was.
func (s *span) bar(b *bytes.Buffer, x, y, scale float64) {
	length := max(float64(s.length())*scale, 1.5)
	colour := map[bool]string{true: "#3c8f55", false: "#c3cad5"}[s.Name == attempt]
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" rx="2" fill="%s"/>`+"\n", x, y, length, bar, colour)
	part := x
	for _, r := range reasons {
		if d := s.waited(r.name); d > 0 {
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s"/>`+"\n", part, y, float64(d)*scale, bar, r.colour)
			part += float64(d) * scale
		}
	}
	note := s.length().Round(time.Millisecond).String()
	if status := s.attribute("http.response.status_code"); status != nil {
		note += fmt.Sprint(", ", status)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#5c6675">%s</text>`+"\n", x+length+5, y+bar-2, html.EscapeString(note))
}

// waited is how long a wait was for a reason; budgets have one for each unit.
func (s *span) waited(reason string) time.Duration {
	if s.Name != wait {
		return 0
	}
	for _, a := range s.Attributes {
		if seconds, ok := a.Value.Value.(float64); ok && strings.TrimPrefix(a.Key, "sluice.wait.") == reason {
			return time.Duration(seconds * float64(time.Second))
		}
	}
	return 0
}
