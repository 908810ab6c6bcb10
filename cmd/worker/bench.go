package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sluice/activities"
	"sluice/cmd/worker/internal/bench"
	"sluice/worker/telemetry"
)

// benchFlags are what every benchmark has.
type benchFlags struct {
	ip      string
	seconds int
	json    bool
}

const maxBenchSeconds = 3600

// add adds the flags. seconds 0: it takes as long as its calls do.
func (f *benchFlags) add(c *cobra.Command, seconds int) {
	c.Flags().StringVar(&f.ip, "ip", "127.0.0.1", "loopback address to listen on")
	if seconds > 0 {
		c.Flags().IntVar(&f.seconds, "seconds", seconds, "how long each measurement takes")
	}
	c.Flags().BoolVar(&f.json, "json", false, "print one JSON object as the last line of standard output")
}

func (f *benchFlags) check(c *cobra.Command) error {
	if err := loopbackIP(c, f.ip); err != nil {
		return err
	}
	if c.Flags().Lookup("seconds") == nil {
		return nil
	}
	return inRange(c, "--seconds", f.seconds, 1, maxBenchSeconds)
}

func (f *benchFlags) lasts() time.Duration { return time.Duration(f.seconds) * time.Second }

// inRange is the error of a flag's number that is out of its range.
func inRange(c *cobra.Command, flag string, value, from, to int) error {
	if value < from || value > to {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf("%s is %d; it may be %d to %d", flag, value, from, to)}
	}
	return nil
}

// loopbackIP is the error of an --ip that isn't a loopback address.
func loopbackIP(c *cobra.Command, address string) error {
	if ip := net.ParseIP(address); ip == nil || !ip.IsLoopback() {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf("--ip is %s; it may be a loopback address", address)}
	}
	return nil
}

func (p *program) benchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast a gate is on this machine",
		Long: `Measure gates on a Temporal server of this program's own, on a temporary SQLite
file that is as durable as that of "worker dev". Figures depend on the machine and
on what else it does: compare those of one run.`,
		Example: `  worker bench throughput --callers 64
  worker bench holders --json | tail -n 1 | jq '.rows[]'
  worker bench pacing --rate 200`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		},
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(p.benchThroughputCommand(), p.benchHoldersCommand(), p.benchWakeCommand(), p.benchPacingCommand(), p.benchMixedCommand(), p.benchQueueCommand(), p.benchIdleCommand())
	return c
}

func (p *program) benchThroughputCommand() *cobra.Command {
	var callers int
	var transport, mode string
	c := benchCommand(p, &cobra.Command{
		Use:   "throughput",
		Short: "Leases per second, beside a plain semaphore workflow",
		Long: `Callers of one process take leases of one gate and give them back, in a loop; the
gate's limits don't bind. Before that, on the same server, an update that does nothing:
no exchange can be faster. Then the yardstick, for as long: a plain semaphore workflow
(one signal to acquire, a poll by query, one signal to release; 16 callers) on a
second server, with Temporal's own dynamic configuration.`,
		Example: `  worker bench throughput --callers 1000
  worker bench throughput --callers 64 --transport signal --json`,
		PreRunE: func(c *cobra.Command, _ []string) error {
			if err := inRange(c, "--callers", callers, 1, 100_000); err != nil {
				return err
			}
			switch activities.ExchangeTransport(transport) {
			case activities.TransportUpdate, activities.TransportSignal:
			default:
				return usageError{command: c.CommandPath(), text: fmt.Sprintf("--transport is %q; it may be update or signal", transport)}
			}
			if wrong := checkTelemetry(mode); wrong != "" {
				return usageError{command: c.CommandPath(), text: wrong}
			}
			return nil
		},
	}, 10, func(ctx context.Context, o bench.Options, lasts time.Duration) (r bench.ThroughputResult, err error) {
		o.Transport = activities.ExchangeTransport(transport)
		o.Telemetry, err = p.openTelemetry(ctx, telemetryFlags{mode: mode}, p.console, nil)
		if err != nil {
			return r, err
		}
		defer p.closeTelemetry(o.Telemetry)
		return bench.Throughput(ctx, o, callers, lasts)
	})
	c.Flags().IntVar(&callers, "callers", 64, "callers at once")
	c.Flags().StringVar(&transport, "transport", string(activities.TransportUpdate), "how exchanges reach the gate: update or signal")
	addTelemetry(c.Flags(), &mode, "as a worker has it, exporting what OTEL_... says")
	return c
}

func (p *program) benchHoldersCommand() *cobra.Command {
	return benchCommand(p, &cobra.Command{
		Use:   "holders",
		Short: "1,200 callers over 1 to 100 holders",
		Long: `1,200 callers take leases of one gate, spread over 1, 4, 12, 40 and 100 holders,
each on a connection of its own, all started at once. The gate's limits don't bind.`,
	}, 8, bench.Holders)
}

func (p *program) benchWakeCommand() *cobra.Command {
	return benchCommand(p, &cobra.Command{
		Use:   "wake",
		Short: "From a release to the next holder's start",
		Long: `Ten holders share a gate of cap 1; each holds it for 30 ms. Measured is the time
from a release until the next holder's call starts.`,
	}, 10, bench.Wake)
}

func (p *program) benchPacingCommand() *cobra.Command {
	var rate int
	c := benchCommand(p, &cobra.Command{
		Use:   "pacing",
		Short: "A rate over two worker processes, beside Temporal's own",
		Long: `Two worker processes with plenty of callers call a provider through a gate that
paces them; the provider's record is judged. Then the same by the rate of a task
queue (TaskQueueActivitiesPerSecond), over as many processes; and two processes that
call in turn by the clock, which shows what the machine itself does to a steady rate.`,
	}, 20, func(ctx context.Context, o bench.Options, lasts time.Duration) (bench.PacingResult, error) {
		return bench.Pacing(ctx, o, rate, lasts)
	})
	number(c, &rate, "rate", 20, 1, 10_000, "calls per second")
	return c
}

func (p *program) benchMixedCommand() *cobra.Command {
	return benchCommand(p, &cobra.Command{
		Use:   "mixed",
		Short: "Pacing, a cap, cooldowns and cancellations at once",
		Long: `500 callers on two holders call a provider through a gate of 200 per second and 50
in flight. Five times the provider answers 429 with "Retry-After: 2"; a fifth of the
calls is cancelled while it is queued. Judged is whether anything was lost, and how
long after a cooldown's end the first call starts.`,
	}, 0, func(ctx context.Context, o bench.Options, _ time.Duration) (bench.MixedResult, error) {
		return bench.Mixed(ctx, o)
	})
}

func (p *program) benchQueueCommand() *cobra.Command {
	var tickets int
	c := benchCommand(p, &cobra.Command{
		Use:   "queue",
		Short: "A long queue: the gate's steps, and the state it carries over",
		Long: `So many tickets wait at a gate of 50 per second, whose runs continue as new after 200
events. Measured is how long the gate's workflow tasks take meanwhile, and the size
of the state that a run hands to the next.`,
	}, 20, func(ctx context.Context, o bench.Options, lasts time.Duration) (bench.QueueResult, error) {
		return bench.Queue(ctx, o, tickets, lasts)
	})
	number(c, &tickets, "tickets", 10_000, 1, 10_000, "tickets that wait")
	return c
}

func (p *program) benchIdleCommand() *cobra.Command {
	return benchCommand(p, &cobra.Command{
		Use:   "idle",
		Short: "What a gate writes that nobody uses",
		Long: `Two holders use a gate for two seconds and then stay idle. Counted are the events
that its histories get from then on.`,
	}, 60, bench.Idle)
}

// benchCommand makes a benchmark's command of what is its own: the texts, further checks
// in PreRunE, how long it measures (0: as long as its calls take), and the measurement.
func benchCommand[R interface{ WriteTable(io.Writer) error }](p *program, c *cobra.Command, seconds int, measure func(context.Context, bench.Options, time.Duration) (R, error)) *cobra.Command {
	var f benchFlags
	c.Args = args(0)
	c.RunE = func(c *cobra.Command, _ []string) error { return runBench(p, c, f, measure) }
	f.add(c, seconds)
	return c
}

// number adds a flag that is a number within a range.
func number(c *cobra.Command, value *int, name string, standard, from, to int, usage string) {
	c.Flags().IntVar(value, name, standard, usage)
	c.PreRunE = func(c *cobra.Command, _ []string) error { return inRange(c, "--"+name, *value, from, to) }
}

// runBench runs a benchmark and prints what it measured.
func runBench[R interface{ WriteTable(io.Writer) error }](p *program, c *cobra.Command, f benchFlags, measure func(context.Context, bench.Options, time.Duration) (R, error)) error {
	if err := f.check(c); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program can't start processes: %w", err)
	}
	ctx := c.Context()
	o := bench.Options{
		IP: f.ip, Transport: activities.TransportUpdate, Program: []string{program, bench.Role},
		Telemetry: telemetry.Off(), Stderr: p.console, Report: p.console.line,
	}
	if p.verbose {
		o.Log = p.console
	}
	r, err := measure(ctx, o, f.lasts())
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w before the benchmark was over", errInterrupted)
	case err != nil:
		return err
	}
	out := p.stdout
	if f.json {
		out = p.console
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if err := r.WriteTable(t); err != nil {
		return err
	}
	if err := t.Flush(); err != nil || !f.json {
		return err
	}
	return json.NewEncoder(p.stdout).Encode(r)
}

func (p *program) benchProcessCommand() *cobra.Command {
	return &cobra.Command{
		Use: bench.Role, Short: "A process of a benchmark, started by bench", Hidden: true, Args: args(0),
		RunE: func(*cobra.Command, []string) error { return bench.Work(p.stdin, p.stdout, p.console) },
	}
}
