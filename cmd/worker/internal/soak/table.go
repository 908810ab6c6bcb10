package soak

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable prints the result for a person.
func (r *Result) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range []struct {
		name  string
		value any
		note  string
	}{
		{"lost", r.Lost, "calls and tickets that came to no end"},
		{"over_cap", r.OverCap, "attempts above the cap"},
		{"zombie_overlap", r.ZombieOverlap, "the same, because of a process that stood still"},
		{"order_violations", r.OrderViolations, fmt.Sprintf("of %d grants", r.Granted)},
		{"active_at_end", r.ActiveAtEnd, "leases in use after the drain"},
		{"queued_at_end", r.QueuedAtEnd, "tickets in the queue after the drain"},
		{"leaked_leases", r.LeakedLeases, "after all workers have gone"},
		{"cooldowns_lost", r.CooldownsLost, fmt.Sprintf("of %d that the provider asked for", r.Cooldowns)},
		{"double_use", r.DoubleUse, "attempts under a lease that had one"},
		{"ungranted", r.Ungranted, "attempts under a lease that the gate doesn't know"},
		{"reclaim_p90_s", fmt.Sprintf("%.1f", r.ReclaimP90S), fmt.Sprintf("of %d killed workers that held leases", r.Reclaimed)},
		{"fd_growth", r.FDGrowth, "of the last server"},
		{"goroutine_growth", r.GoroutineGrowth, "of the last server"},
		{"attempts", r.Attempts, fmt.Sprintf("for %d calls: %d completed, %d ended with their own error", r.Calls, r.Completed, r.Failed)},
		{"overloads", r.Overloads, fmt.Sprintf("and %d attempts whose caller left", r.Aborted)},
		{"killed", r.KilledWorkers, fmt.Sprintf("workers, and %d servers; %d workers stopped", r.KilledServers, r.Stopped)},
		{"runs", r.Runs, fmt.Sprintf("of the admission workflow, %d events", r.Events)},
		{"elapsed_s", fmt.Sprintf("%.0f", r.ElapsedS), fmt.Sprintf("%.0f of load", r.LoadS)},
	} {
		fmt.Fprintf(t, "%s\t%v\t%s\n", row.name, row.value, row.note)
	}
	return t.Flush()
}
