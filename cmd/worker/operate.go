package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/workflows"
)

// operateFlags are those of the commands that change a gate.
type operateFlags struct {
	gateFlags
	who, why string
}

func (f *operateFlags) add(p *program, c *cobra.Command) {
	f.gateFlags.add(p, c)
	c.Flags().StringVar(&f.who, "who", whoami(), "who does it, for the gate's log and history")
	c.Flags().StringVar(&f.why, "why", "", "why, for the gate's log and history")
}

// operateCommands are the commands by which a person changes a running gate.
func (p *program) operateCommands() []*cobra.Command {
	return []*cobra.Command{
		p.pauseCommand(), p.resumeCommand(), p.setCommand(), p.resetCommand(), p.cancelTicketCommand(), p.revokeLeaseCommand(),
	}
}

// actHelp is what all of them promise.
const actHelp = `

It ends when the gate has done it, and says what changed. The act is in the
workflow's history and in the gate's log, with who and why.` + gateHelp

func (p *program) pauseCommand() *cobra.Command {
	return p.actCommand(&cobra.Command{
		Use:   "pause GATE",
		Short: "Admit nothing until resume",
		Long: `Pause a gate: it admits nothing until "worker resume". Calls under way go on, and
leases that have not started are handed back within 250 ms. The queue keeps its
order.` + actHelp,
		Example: `  worker pause gpt-4o --why "provider is down"`,
		Args:    args(1),
	}, workflows.DoPause, nil)
}

func (p *program) resumeCommand() *cobra.Command {
	return p.actCommand(&cobra.Command{
		Use:     "resume GATE",
		Short:   "End a pause",
		Long:    `End a pause. The queue goes on in its order.` + actHelp,
		Example: `  worker resume gpt-4o`,
		Args:    args(1),
	}, workflows.DoResume, nil)
}

func (p *program) resetCommand() *cobra.Command {
	return p.actCommand(&cobra.Command{
		Use:     "reset GATE",
		Short:   "Take away all that set has changed",
		Long:    `Take away all that "worker set" has laid over a gate's policy.` + actHelp,
		Example: `  worker reset gpt-4o`,
		Args:    args(1),
	}, workflows.DoReset, nil)
}

func (p *program) cancelTicketCommand() *cobra.Command {
	c := p.actCommand(&cobra.Command{
		Use:   "cancel-ticket GATE TICKET",
		Short: "Take a ticket out of the queue",
		Long: `Take a ticket out of the queue. TICKET is its number or its call as "worker
describe" shows them. Its caller gets the error sluice.TicketCancelled, which is
not retried. Of a parked ticket nobody is told: its caller queues anew where it
comes back.` + actHelp,
		Example: `  worker cancel-ticket gpt-4o 812 --why "runaway batch"`,
		Args:    args(2),
	}, workflows.DoCancelTicket, func(o *workflows.Operate, args []string) error {
		o.Ticket, o.Label = numberOrLabel(args[1])
		return nil
	})
	return c
}

func (p *program) revokeLeaseCommand() *cobra.Command {
	return p.actCommand(&cobra.Command{
		Use:   "revoke-lease GATE LEASE",
		Short: "End a lease and free its place",
		Long: `End a lease and free its place at once. LEASE is its number or its call as "worker
describe" shows them. Its holder learns at its next exchange, at the latest after
a third of holder_ttl; then on_lease_lost says what becomes of the call. Until then
it goes on beside what is admitted in its place: the provider may see more calls
at once than the cap allows.` + actHelp,
		Example: `  worker revoke-lease gpt-4o 1795964120000123 --why "hangs since noon"`,
		Args:    args(2),
	}, workflows.DoRevokeLease, func(o *workflows.Operate, args []string) error {
		o.Lease, o.Label = numberOrLabel(args[1])
		return nil
	})
}

// numberOrLabel: what looks like a number is one.
func numberOrLabel(text string) (number uint64, label string) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n > 0 {
		return n, ""
	}
	return 0, text
}

func (p *program) setCommand() *cobra.Command {
	var d time.Duration
	c := p.actCommand(&cobra.Command{
		Use:   "set GATE FIELD=VALUE...",
		Short: "Change limits of a running gate, for a while or until reset",
		Long: `Lay fields over a gate's policy while it runs: for as long as --for says, or until
"worker reset". The policy file stays as it is, and workers may come and go.

FIELD is a key of the policy that the gate enforces: ` + strings.Join(policy.Settable()[:5], ", ") + `,
` + strings.Join(policy.Settable()[5:], ", ") + `.
A part of a rate may be set alone: requests.limit, budgets.tokens.limit, .per, .burst.
VALUE is written as in the policy file.

The change holds from the next grant on. Where it tightens, leases that have not
started are handed back within 250 ms and granted anew, which may leave one
look-ahead (1s unless set) without a start.` + actHelp,
		Example: `  worker set gpt-4o max_in_flight=4 --for 10m --why "provider is slow"
  worker set gpt-4o requests_per_second=2.5 budgets.tokens.limit=45000
  worker set gpt-4o 'requests={limit: 300, per: 1m, burst: 10}'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError{command: c.CommandPath(), text: fmt.Sprintf("%d argument(s) given; a gate and at least one FIELD=VALUE are needed", len(args))}
			}
			for _, arg := range args[1:] {
				if field, _, ok := strings.Cut(arg, "="); !ok || field == "" {
					return usageError{command: c.CommandPath(), text: fmt.Sprintf("%q is not FIELD=VALUE", arg)}
				}
			}
			if d < 0 || c.Flags().Changed("for") && d == 0 {
				return usageError{command: c.CommandPath(), text: fmt.Sprintf("--for is %v; it may be more than 0", d)}
			}
			return nil
		},
	}, workflows.DoSet, func(o *workflows.Operate, args []string) (err error) {
		o.For = workflows.Duration(d)
		o.Set, err = gateclient.SetValues(args[1:])
		return err
	})
	c.Flags().DurationVar(&d, "for", 0, "how long it holds; without it, until reset")
	return c
}

// actCommand makes the command of one act. fill adds what its arguments say.
func (p *program) actCommand(c *cobra.Command, do workflows.Doing, fill func(*workflows.Operate, []string) error) *cobra.Command {
	var f operateFlags
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(c); err != nil {
			return err
		}
		o := workflows.Operate{Do: do, Who: f.who, Why: f.why}
		if fill != nil {
			if err := fill(&o, args); err != nil {
				return err
			}
		}
		return p.withGate(c.Context(), &f.gateFlags, args[0], func(gates *gateclient.Client, gate string) error {
			return p.act(c.Context(), gates, gate, o, f.output)
		})
	}
	f.add(p, c)
	c.ValidArgsFunction = p.completeGate(&f.gateFlags, map[workflows.Doing]func(context.Context, *gateclient.Client, string, []string) []string{
		workflows.DoSet: completeFields, workflows.DoCancelTicket: completeTickets, workflows.DoRevokeLease: completeLeases,
	}[do])
	if do == workflows.DoSet {
		byName := c.ValidArgsFunction
		c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			list, directive := byName(c, args, prefix)
			if len(args) > 0 {
				directive |= cobra.ShellCompDirectiveNoSpace // its value follows
			}
			return list, directive
		}
	}
	return c
}

func completeFields(context.Context, *gateclient.Client, string, []string) []string {
	var list []string
	for _, field := range policy.Settable() {
		list = append(list, field+"=")
	}
	return list
}

func completeTickets(ctx context.Context, gates *gateclient.Client, gate string, args []string) (list []string) {
	if st, err := gates.Status(ctx, gate); err == nil && len(args) == 0 {
		for _, t := range st.Queue {
			list = append(list, fmt.Sprintf("%d\t%s", t.Ticket, t.Label))
		}
	}
	return list
}

func completeLeases(ctx context.Context, gates *gateclient.Client, gate string, args []string) (list []string) {
	if st, err := gates.Status(ctx, gate); err == nil && len(args) == 0 {
		for _, l := range st.Leases {
			list = append(list, fmt.Sprintf("%d\t%s", l.Lease, l.Label))
		}
	}
	return list
}

// actResult is what an act prints with --output json.
type actResult struct {
	Gate string `json:"gate"`
	workflows.Act
}

// act makes an act and says what it came to.
func (p *program) act(ctx context.Context, gates *gateclient.Client, gate string, o workflows.Operate, output string) error {
	act, err := gates.Act(ctx, gate, o)
	if err != nil {
		return err
	}
	if output == "json" {
		return p.printJSON(actResult{Gate: gate, Act: act})
	}
	_, err = fmt.Fprint(p.stdout, actText(gate, o, act))
	return err
}

// actText is what an act came to, for a person.
func actText(gate string, o workflows.Operate, act workflows.Act) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", gate, act.What)
	for _, change := range act.Changes {
		fmt.Fprintf(&b, "  %s\n", change)
	}
	changes := o.Do == workflows.DoSet || o.Do == workflows.DoReset
	switch {
	case changes && len(act.Changes) == 0:
		b.WriteString("  nothing that is in force changes\n")
	case o.Do == workflows.DoSet && act.Until.IsZero():
		fmt.Fprintf(&b, "  until \"worker reset %s\"\n", gate)
	case o.Do == workflows.DoSet:
		fmt.Fprintf(&b, "  until %s, then it goes back by itself\n", clock(act.Until, act.At))
	case o.Do == workflows.DoPause:
		fmt.Fprintf(&b, "  nothing starts until \"worker resume %s\"\n", gate)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
