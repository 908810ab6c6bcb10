package bench

import (
	"fmt"
	"io"
)

// WriteTable writes rows whose columns are parted by tabs.
func (r ThroughputResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, `	leases/s	p50 ms	p99 ms
gate, %d callers, %s	%.0f	%.2f	%.2f
an update that does nothing		%.2f	%.2f
semaphore workflow, %d callers	%.0f	%.2f	%.2f

The gate gives %.0f times as many leases per second.
%.0f exchanges/s, %.1f leases in each; %.3f history events per lease.
`, r.Callers, r.Transport, r.LeasesPerS, r.P50MS, r.P99MS, r.BareUpdate.P50MS, r.BareUpdate.P99MS, r.Yardstick.Callers, r.Yardstick.LeasesPerS, r.Yardstick.P50MS, r.Yardstick.P99MS,
		r.Ratio, r.ExchangesPerS, r.LeasesPerExchange, r.EventsPerLease)
	return err
}

// WriteTable writes rows whose columns are parted by tabs.
func (r HoldersResult) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "holders\tleases/s\tp50 ms\tp99 ms\texchanges/s\n"); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if _, err := fmt.Fprintf(w, "%d\t%.0f\t%.1f\t%.1f\t%.0f\n", row.Holders, row.LeasesPerS, row.P50MS, row.P99MS, row.ExchangesPerS); err != nil {
			return err
		}
	}
	return nil
}

// WriteTable writes rows whose columns are parted by tabs.
func (r WakeResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "holders\tleases/s\twake p50 ms\twake p99 ms\texchanges per lease\twaits per lease\n%d\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\n",
		r.Holders, r.LeasesPerS, r.P50MS, r.P99MS, r.ExchangesPerLease, r.WaitsPerLease)
	return err
}

// WriteTable writes rows whose columns are parted by tabs.
func (r PacingResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%d per second	achieved/asked	p1 gap ms	most in any second
gate	%.3f	%.2f of %.2f	%d
task queue	%.3f	%.2f of %.2f	%d
by the clock	%.3f	%.2f of %.2f	%d

%d leases: %d exchanges, %d waits, %d timers; %.2f history events per lease, %.0f billable actions per 1,000.
`, r.Rate, r.Utilisation, r.P1GapMS, r.SpacingMS, r.MaxInAnySecond, r.QueueRate.Utilisation, r.QueueRate.P1GapMS, r.SpacingMS, r.QueueRate.MaxInAnySecond,
		r.BareClock.Utilisation, r.BareClock.P1GapMS, r.SpacingMS, r.BareClock.MaxInAnySecond,
		r.Cost.Leases, r.Cost.Exchanges, r.Cost.Waits, r.Cost.Timers, r.Cost.EventsPerLease, r.Cost.ActionsPer1000)
	return err
}

// WriteTable writes rows whose columns are parted by tabs.
func (r MixedResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, `calls served	%d, and %d cancelled in the queue
lost	%d
cooldowns	%d
first start after a cooldown	%.1f ms later (median), at a spacing of %.1f ms
exchanges/s while all wait	%.1f
`, r.Calls, r.Cancelled, r.Lost, r.Cooldowns, r.ResumeGapMS, r.SpacingMS, r.WaitingExchangesPerS)
	return err
}

// WriteTable writes rows whose columns are parted by tabs.
func (r QueueResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, `tickets waiting	%d
largest input of a run	%d bytes, in %d runs
workflow tasks	%d: p50 %.2f ms, p99 %.2f ms, at most %.2f ms
`, r.Tickets, r.InputBytes, r.Runs, r.Steps, r.StepP50MS, r.StepP99MS, r.StepMaxMS)
	return err
}

// WriteTable writes rows whose columns are parted by tabs.
func (r IdleResult) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "events in %.0f s after %d leases\t%d\n", r.Seconds, r.Leases, r.Events)
	return err
}
