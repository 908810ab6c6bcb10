package demo

import (
	"fmt"
	"io"
	"strings"
)

// WriteTable writes an experiment's rows for a person to read. The error is w's.
func WriteTable(w io.Writer, e *Experiment, rows []Row) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d calls to a provider that %s\n\n", e.Calls, e.About)
	fmt.Fprintf(&b, "  %-12s %9s %7s %10s %9s %10s %12s %8s\n", "admission", "completed", "failed", "429s", "requests", "in flight", "least gap", "time")
	for _, r := range rows {
		fmt.Fprintf(&b, "  %-12s %9d %7d %10d %9d %10d %9.1f ms %6.1f s\n", r.Name, r.Completed, r.Failed, r.Overloads, r.WireAttempts, r.MaxInFlight, r.MinGapMS, r.ElapsedS)
	}
	b.WriteString("\n  counted at the provider; in flight includes requests it refused for that\n")
	_, err := io.WriteString(w, b.String())
	return err
}
