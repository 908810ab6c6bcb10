package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/activities"
	"sluice/cmd/worker/internal/soak"
)

type soakFlags struct {
	attempts    int
	processes   int
	killWorkers int
	killServer  int
	stopWorkers int
	seed        uint64
	transport   string
	telemetry   string
	ip          string
	db          string
	json        bool
}

const (
	maxSoakAttempts  = 1_000_000
	maxSoakProcesses = 64
)

func (p *program) soakCommand() *cobra.Command {
	var f soakFlags
	c := &cobra.Command{
		Use:   "soak",
		Short: "Kill workers and the server under load, and judge what became of it",
		Long: `Run a Temporal server, a provider and worker processes, make calls through one
gate (8 in flight, 4 ms apart, holder TTL 5 s), and meanwhile kill workers and the
server with SIGKILL, and stop workers with SIGSTOP for longer than the TTL. The
provider times out, fails and answers 429 with and without Retry-After; some calls
are cancelled. What happens is placed at numbers of attempts, from the seed.

Then everything is judged: at the provider, which took down every attempt and the
lease that it named, and from the gate's status and its histories, which are
replayed. The exit status is 1 if a bound is broken; each is named, and the
database and the processes' logs are kept.`,
		Example: `  worker soak
  worker soak --attempts 48000 --processes 12 --kill-workers 40 --kill-server 4 --stop-workers 8 --json
  worker soak --seed 7 --transport mixed --json | tail -n 1 | jq '{lost, over_cap, ok}'`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return p.soak(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.IntVar(&f.attempts, "attempts", 3000, "requests that the provider shall have served")
	flags.IntVar(&f.processes, "processes", 4, "worker processes")
	flags.IntVar(&f.killWorkers, "kill-workers", 4, "workers to kill")
	flags.IntVar(&f.killServer, "kill-server", 1, "how often to kill the Temporal server")
	flags.IntVar(&f.stopWorkers, "stop-workers", 1, "workers to stop for longer than the holder TTL")
	flags.Uint64Var(&f.seed, "seed", 1, "what happens is the same for the same seed")
	flags.StringVar(&f.transport, "transport", string(activities.TransportUpdate), "how exchanges reach the gate: update, signal or mixed")
	addTelemetry(flags, &f.telemetry, "worker processes export traces and metrics as OTEL_... says")
	flags.StringVar(&f.ip, "ip", "127.0.0.1", "loopback address to listen on")
	flags.StringVar(&f.db, "db", "", "SQLite file, which must be new; beside it FILE.logs (default: a temporary one)")
	flags.BoolVar(&f.json, "json", false, "print one JSON object as the last line of standard output")
	return c
}

func (f *soakFlags) check(c *cobra.Command) error {
	bad := func(format string, args ...any) error {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf(format, args...)}
	}
	for _, n := range []struct {
		flag             string
		value, from, top int
	}{
		{"--attempts", f.attempts, 1, maxSoakAttempts},
		{"--processes", f.processes, 1, maxSoakProcesses},
		{"--kill-workers", f.killWorkers, 0, f.attempts},
		{"--kill-server", f.killServer, 0, f.attempts},
		{"--stop-workers", f.stopWorkers, 0, f.attempts},
	} {
		if err := inRange(c, n.flag, n.value, n.from, n.top); err != nil {
			return err
		}
	}
	switch activities.ExchangeTransport(f.transport) {
	case activities.TransportUpdate, activities.TransportSignal, activities.TransportMixed:
	default:
		return bad("--transport is %q; it may be update, signal or mixed", f.transport)
	}
	if wrong := checkTelemetry(f.telemetry); wrong != "" {
		return bad("%s", wrong)
	}
	if err := loopbackIP(c, f.ip); err != nil {
		return err
	}
	if f.db != "" {
		if _, err := os.Stat(f.db); err == nil {
			return bad("--db is %s, which exists; it may be a file that doesn't", f.db)
		}
	}
	return nil
}

func (p *program) soak(ctx context.Context, f soakFlags) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program can't start processes: %w", err)
	}
	dir := ""
	if f.db == "" {
		if dir, err = os.MkdirTemp("", "sluice-soak-"); err != nil {
			return fmt.Errorf("temporary database: %w; choose a file with --db", err)
		}
		f.db = soak.TemporaryDatabase(dir)
	} else if f.db, err = filepath.Abs(f.db); err != nil {
		return err
	}
	p.console.line("%d attempts, %d worker processes; to be killed: %d workers, %d servers; to be stopped: %d workers; seed %d, transport %s",
		f.attempts, f.processes, f.killWorkers, f.killServer, f.stopWorkers, f.seed, f.transport)
	r, err := soak.Run(ctx, soak.Options{
		Attempts: f.attempts, Processes: f.processes, KillWorkers: f.killWorkers, KillServer: f.killServer, StopWorkers: f.stopWorkers,
		Seed: f.seed, Transport: activities.ExchangeTransport(f.transport), NoTelemetry: f.telemetry == telemetryOff, IP: f.ip, Database: f.db, Program: program, Report: p.soakProgress(),
	})
	p.console.end()
	if err == nil && r.OK || ctx.Err() != nil {
		if dir != "" {
			_ = os.RemoveAll(dir) // a leftover in the temporary directory is no failure
		}
	} else {
		p.console.line("Database %s, logs of the processes %s.logs", f.db, f.db)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w before the soak was over", errInterrupted)
	case err != nil:
		return err
	}
	return p.printSoak(r, f.json)
}

// soakProgress shows how it goes: in a live line on a terminal, else in one line
// when a phase begins and every half minute.
func (p *program) soakProgress() func(soak.Progress) {
	phase, next := "", time.Duration(0)
	return func(s soak.Progress) {
		if !p.console.terminal && (s.Phase != phase || s.Elapsed >= next) {
			p.console.line("%s, %.0f s: %d attempts, %d calls completed, %d answered 429, %d of %d faults", s.Phase, s.Elapsed.Seconds(), s.Attempts, s.Completed, s.Overloads, s.Faults, s.Planned)
			next = s.Elapsed + 30*time.Second
		}
		phase = s.Phase
		p.console.live("%s, %.0f s: %d attempts, %d calls completed, %d answered 429, %d of %d faults", s.Phase, s.Elapsed.Seconds(), s.Attempts, s.Completed, s.Overloads, s.Faults, s.Planned)
	}
}

// printSoak prints the result, and is the error of one that broke a bound.
func (p *program) printSoak(r soak.Result, asJSON bool) error {
	r.WriteDetails(p.console)
	out := p.stdout
	if asJSON {
		out = p.console
	}
	if err := r.WriteTable(out); err != nil {
		return err
	}
	if asJSON {
		if err := json.NewEncoder(p.stdout).Encode(r); err != nil {
			return err
		}
	}
	if !r.OK {
		return errors.New("soak: " + strings.Join(r.Broken, "; "))
	}
	return nil
}

func (p *program) soakServerCommand() *cobra.Command {
	return p.soakProcess(soak.RoleServer, "The Temporal server of the soak, started by soak", func() error {
		return soak.Serve(p.stdin, p.stdout, p.console)
	})
}

func (p *program) soakProviderCommand() *cobra.Command {
	return p.soakProcess(soak.RoleProvider, "The provider of the soak, started by soak", func() error {
		return soak.ServeProvider(p.stdin, p.stdout)
	})
}

func (p *program) soakWorkerCommand() *cobra.Command {
	return p.soakProcess(soak.RoleWorker, "A worker process of the soak, started by soak", func() error {
		return soak.Work(p.stdin, p.stdout, p.console)
	})
}

func (p *program) soakProcess(name, short string, run func() error) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Hidden: true, Args: args(0), RunE: func(*cobra.Command, []string) error { return run() }}
}
