package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/api/serviceerror"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/workflows"
)

// gateFlags are those of every command that looks at gates or changes them.
type gateFlags struct {
	connection
	output  string
	timeout time.Duration
}

func (f *gateFlags) add(p *program, c *cobra.Command) {
	f.connection.add(c)
	c.Flags().StringVarP(&f.output, "output", "o", "table", "table or json")
	c.Flags().DurationVar(&f.timeout, "timeout", 10*time.Second, "how long a gate may take to answer")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

func (f *gateFlags) check(c *cobra.Command) error {
	switch {
	case f.output != "table" && f.output != "json":
		return usageError{command: c.CommandPath(), text: fmt.Sprintf("--output is %q; it may be table or json", f.output)}
	case f.timeout <= 0:
		return usageError{command: c.CommandPath(), text: fmt.Sprintf("--timeout is %v; it may be more than 0", f.timeout)}
	}
	return nil
}

// withGates connects and does something with the gates of the namespace.
func (p *program) withGates(ctx context.Context, f *gateFlags, do func(*gateclient.Client) error) error {
	c, at, err := p.connect(ctx, f.connection, nil)
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	defer c.Close()
	err = do(gateclient.New(c, at.namespace, f.timeout))
	var noNamespace *serviceerror.NamespaceNotFound
	if errors.As(err, &noNamespace) {
		err = at.explain(err)
	}
	return unlessInterrupted(ctx, err)
}

// withGate is withGates for the one gate that a person means.
func (p *program) withGate(ctx context.Context, f *gateFlags, name string, do func(*gateclient.Client, string) error) error {
	return p.withGates(ctx, f, func(gates *gateclient.Client) error {
		gate, err := gates.Find(ctx, name)
		if err != nil {
			return err
		}
		return do(gates, gate)
	})
}

func (p *program) printJSON(v any) error { return json.NewEncoder(p.stdout).Encode(v) }

func (p *program) gatesCommand() *cobra.Command {
	var f gateFlags
	c := &cobra.Command{
		Use:   "gates",
		Short: "List the gates that run in a namespace",
		Long: `List the gates that run in a namespace: whether they admit, what is in use of their
caps, who queues, how calls are paced. Gates are found by visibility, which may be
a moment behind.` + connectionHelp,
		Example: `  worker gates
  worker gates --output json | jq -r '.[] | select(.status.paused) | .gate'`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return p.withGates(c.Context(), &f, func(gates *gateclient.Client) error {
				ids, err := gates.Gates(c.Context())
				if err != nil {
					return err
				}
				found := gates.Statuses(c.Context(), ids)
				if c.Context().Err() != nil {
					return c.Context().Err()
				}
				if f.output == "json" {
					return p.printJSON(listedGates(found))
				}
				if len(found) == 0 {
					p.console.line("no gate runs here; one starts with the first call that it admits")
					return nil
				}
				_, err = fmt.Fprint(p.stdout, gatesTable(found, time.Now()))
				return err
			})
		},
	}
	f.add(p, c)
	return c
}

const connectionHelp = `

It connects as "worker run" does: by TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
TEMPORAL_API_KEY, TEMPORAL_TLS_... and the profiles of temporal.toml; flags come
first.`

// gateHelp says what GATE may be.
const gateHelp = `

GATE is a gate's ID as "worker gates" lists it, its name, its provider, or an end
of its ID that only it has.` + connectionHelp

// listedGate is a gate in the JSON of `worker gates`.
type listedGate struct {
	Gate       string            `json:"gate"`
	WorkflowID string            `json:"workflow_id"`
	Status     *workflows.Status `json:"status,omitempty"`
	Error      string            `json:"error,omitempty"` // why there is no status
}

func listedGates(found []gateclient.Found) []listedGate {
	list := []listedGate{}
	for _, g := range found {
		l := listedGate{Gate: g.Gate, WorkflowID: workflows.WorkflowIDPrefix + g.Gate}
		if g.Err != nil {
			l.Error = g.Err.Error()
		} else {
			l.Status = &g.Status
		}
		list = append(list, l)
	}
	return list
}

func gatesTable(found []gateclient.Found, now time.Time) string {
	t := table{head: []string{"GATE", "STATE", "IN USE", "QUEUE", "PACING", "HOLDERS"}, right: map[int]bool{2: true, 3: true, 5: true}}
	for _, g := range found {
		if g.Err != nil {
			state := "error"
			if errors.Is(g.Err, gateclient.ErrNoHost) {
				state = "no answer"
			}
			t.add(g.Gate, state, "?", "?", "?", "?")
			continue
		}
		st := view{&g.Status, now}
		t.add(g.Gate, st.state(), st.inUse(), fmt.Sprint(g.Status.Queued), st.pacing(), fmt.Sprint(len(g.Status.Holders)))
	}
	var b strings.Builder
	t.write(&b, "")
	return b.String()
}

// completeTime bounds what a completion waits for: a person waits with it.
const completeTime = 2 * time.Second

// completeGate completes the first argument by the gates that run, the others by
// what others does.
func (p *program) completeGate(f *gateFlags, others func(ctx context.Context, gates *gateclient.Client, gate string, args []string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) (list []string, directive cobra.ShellCompDirective) {
		directive = cobra.ShellCompDirectiveNoFileComp
		if len(args) > 0 && others == nil {
			return nil, directive
		}
		ctx, cancel := context.WithTimeout(c.Context(), completeTime)
		defer cancel()
		quick := *f
		quick.timeout = completeTime
		_ = p.withGates(ctx, &quick, func(gates *gateclient.Client) (err error) { // without an answer there is nothing to complete
			if len(args) == 0 {
				list, err = gates.Gates(ctx)
				return err
			}
			gate, err := gates.Find(ctx, args[0])
			if err == nil {
				list = others(ctx, gates, gate, args[1:])
			}
			return err
		})
		return slices.DeleteFunc(list, func(s string) bool { return !strings.HasPrefix(s, prefix) }), directive
	}
}

// whoami is the default of --who.
func whoami() string {
	user := os.Getenv("USER")
	if user == "" {
		user = os.Getenv("LOGNAME")
	}
	if user == "" {
		user = "unknown"
	}
	host, err := os.Hostname()
	if err != nil {
		return user
	}
	return user + "@" + host
}
