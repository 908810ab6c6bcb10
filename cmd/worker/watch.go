package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/workflows"
)

func (p *program) watchCommand() *cobra.Command {
	var f gateFlags
	var interval time.Duration
	c := &cobra.Command{
		Use:   "watch GATE",
		Short: "Show a gate live",
		Long: `Show a gate live until Ctrl-C. On a terminal the page of "worker describe" is drawn
again and again; elsewhere there is a line for each change, with --output json an
object per line.` + gateHelp,
		Example: `  worker watch gpt-4o
  worker watch gpt-4o --interval 250ms
  worker watch gpt-4o --output json | jq --unbuffered -c '[.in_flight, .queued]'`,
		Args: args(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			if interval < leastInterval {
				return usageError{command: c.CommandPath(), text: fmt.Sprintf("--interval is %v; it may be %v or more", interval, leastInterval)}
			}
			return p.withGate(c.Context(), &f, args[0], func(gates *gateclient.Client, gate string) error {
				return p.watch(c.Context(), gates, gate, f.output, interval)
			})
		},
	}
	f.add(p, c)
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks; each is a query")
	c.ValidArgsFunction = p.completeGate(&f, nil)
	return c
}

// leastInterval keeps a person from burdening a gate with queries.
const leastInterval = 100 * time.Millisecond

// watch shows the gate until ctx ends, which is no error, or the gate does.
func (p *program) watch(ctx context.Context, gates *gateclient.Client, gate, output string, interval time.Duration) error {
	var show func(workflows.Status, error) error
	switch {
	case output == "json":
		show = p.showJSON()
	case isTerminal(p.stdout):
		screen := openScreen(p.stdout)
		defer screen.close()
		show = screen.show(gate)
	default:
		show = p.showLines()
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		st, err := gates.Status(ctx, gate)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, gateclient.ErrNotRunning) {
			return err
		}
		if err := show(st, err); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// showLines writes a line for each change.
func (p *program) showLines() func(workflows.Status, error) error {
	last := ""
	return func(st workflows.Status, err error) error {
		now := time.Now()
		line := ""
		if err != nil {
			line = err.Error()
		} else {
			line = view{&st, now}.line()
		}
		if line == last {
			return nil
		}
		last = line
		_, err = fmt.Fprintf(p.stdout, "%s  %s\n", now.Format(time.TimeOnly), line)
		return err
	}
}

// showJSON writes an object for each change of what lines would show.
func (p *program) showJSON() func(workflows.Status, error) error {
	last := ""
	return func(st workflows.Status, err error) error {
		if err != nil {
			if text := err.Error(); text != last {
				last = text
				p.console.line("worker: %s", text)
			}
			return nil
		}
		if line := (view{&st, st.Now}).line(); line != last {
			last = line
			return p.printJSON(st)
		}
		return nil
	}
}

// line is what of a gate changes, on one line. Nothing in it changes by time
// alone but what ends.
func (v view) line() string {
	state := v.state()
	if strings.HasPrefix(state, "cooldown") {
		state = "cooldown until " + clock(v.CooldownUntil, v.now())
	} else if strings.HasPrefix(state, "learning") {
		state = "learning until " + clock(v.LearnUntil, v.now())
	}
	reserved, started := v.started()
	parts := []string{state, fmt.Sprintf("in use %s (%d started, %d reserved)", v.inUse(), started, reserved), fmt.Sprintf("queue %d (%d parked)", v.Queued, v.Parked),
		fmt.Sprintf("admitted %d", v.Counters.Admissions)}
	if n := v.Counters.Overloads; n > 0 {
		parts = append(parts, fmt.Sprintf("overloads %d", n))
	}
	if len(v.Overlays) > 0 {
		parts = append(parts, strings.Join(changesOf(v.Policy.Changes(v.InForce)), ", "))
	}
	if n := len(v.Log); n > 0 {
		parts = append(parts, strings.TrimSpace("last: "+v.Log[n-1].What+" "+by(v.Log[n-1].Who, "")))
	}
	return printable(strings.Join(parts, ", "))
}

// screen is a terminal that is drawn again and again, on its second page: what
// stood there before is there again afterwards.
type screen struct {
	w    io.Writer
	last workflows.Status // and when it came
	at   time.Time
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // second page, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	eraseToEnd  = "\x1b[K" // of the line
	eraseBelow  = "\x1b[J"
)

func openScreen(w io.Writer) *screen {
	_, _ = io.WriteString(w, enterScreen) // the first frame says if it can't be written
	return &screen{w: w}
}

func (s *screen) close() { _, _ = io.WriteString(s.w, leaveScreen) }

// show draws the gate, and while there is no answer the last one, with a line
// that says so.
func (s *screen) show(gate string) func(workflows.Status, error) error {
	return func(st workflows.Status, err error) error {
		now := time.Now()
		headline := ""
		switch {
		case err != nil:
			headline = err.Error()
		case !s.at.IsZero() && now.After(s.at) && s.last.FirstRun == st.FirstRun:
			rate := float64(st.Counters.Admissions-s.last.Counters.Admissions) / now.Sub(s.at).Seconds()
			headline = fmt.Sprintf("%.1f admissions/s", rate)
		}
		if err == nil {
			s.last, s.at = st, now
		}
		page := gate + "\n"
		if !s.at.IsZero() {
			page = view{&s.last, now}.page(defaultRows)
		}
		return s.draw(fmt.Sprintf("%s  %s", now.Format(time.TimeOnly), headline), page)
	}
}

func (s *screen) draw(headline, page string) error {
	width, height := screenSize(s.w)
	lines := append([]string{headline, ""}, strings.Split(strings.TrimRight(page, "\n"), "\n")...)
	lines = lines[:min(len(lines), height-1)]
	var b strings.Builder
	b.WriteString(home)
	for _, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + eraseToEnd + "\r\n")
	}
	b.WriteString(eraseBelow)
	_, err := io.WriteString(s.w, b.String())
	return err
}
