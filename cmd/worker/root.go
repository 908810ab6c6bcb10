package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sluice/policy"
)

// Exit statuses.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell says of SIGINT
)

// program is what the commands share.
type program struct {
	stdin   io.Reader
	stdout  io.Writer
	console *console // standard error
	verbose bool
}

// run is the program: it runs the command that args name and returns the exit
// status. When ctx ends, the command winds up.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, console: newConsole(stderr)}
	root := p.rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(p.console)
	err := root.ExecuteContext(ctx)
	p.console.end()
	return p.report(err)
}

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "worker",
		Short: "Durable admission control for rate-limited APIs on Temporal",
		Long: `Durable admission control for rate-limited APIs on Temporal.

Start with "worker dev": it needs nothing else, shows what admission does for
calls to a provider with a quota, and leaves everything up to look at.`,
		Example: `  worker dev
  worker dev --once --json
  worker validate sluice.yaml
  worker run --config sluice.yaml --address 127.0.0.1:7233
  worker gates
  worker dashboard
  worker set gpt-4o max_in_flight=4 --for 10m --why "provider is slow"`,
		SilenceErrors: true, // report says them
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		},
	}
	root.SuggestionsMinimumDistance = 2
	root.PersistentFlags().BoolVarP(&p.verbose, "verbose", "v", false, "log more than warnings")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{command: c.CommandPath(), text: err.Error()}
	})
	root.AddCommand(p.devCommand(), p.serverCommand(), p.providerCommand(), p.runCommand(), p.validateCommand(), p.schemaCommand(), p.versionCommand(), p.demoWorkerCommand(), p.demoProviderCommand())
	root.AddCommand(p.gatesCommand(), p.describeCommand(), p.watchCommand(), p.dashboardCommand())
	root.AddCommand(p.operateCommands()...)
	root.AddCommand(p.soakCommand(), p.soakServerCommand(), p.soakProviderCommand(), p.soakWorkerCommand())
	root.AddCommand(p.benchCommand(), p.benchProcessCommand())
	return root
}

// report says an error as a person wants it and returns the exit status.
func (p *program) report(err error) int {
	var usage usageError
	var faults *policy.FaultError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &faults):
		fmt.Fprintln(p.console, faults.Error()) // a line for each, with its place
		return exitFailed
	case errors.Is(err, errInterrupted):
		p.console.line("worker: %s", oneLine(err.Error()))
		return exitInterrupted
	case errors.As(err, &usage):
		p.console.line("worker: %s", oneLine(err.Error()))
		return exitUsage
	default:
		p.console.line("worker: %s", oneLine(err.Error()))
		return exitFailed
	}
}

var errInterrupted = errors.New("interrupted")

// usageError is a mistake in the command line.
type usageError struct{ command, text string }

func (e usageError) Error() string {
	return fmt.Sprintf("%s; see %q", strings.TrimSpace(e.text), e.command+" --help")
}

func unknownCommand(root *cobra.Command, name string) error {
	text := fmt.Sprintf("unknown command %q", name)
	if near := root.SuggestionsFor(name); len(near) > 0 {
		text += fmt.Sprintf(", did you mean %q", near[0])
	}
	return usageError{command: root.CommandPath(), text: text}
}

// args refuses all but n arguments.
func args(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) > n:
			return usageError{command: c.CommandPath(), text: fmt.Sprintf("unexpected argument %q", args[n])}
		case len(args) < n:
			return usageError{command: c.CommandPath(), text: fmt.Sprintf("%d argument(s) given, %d needed", len(args), n)}
		}
		return nil
	}
}

// fileError says which file is missing, in a person's words.
func fileError(name string, err error) error {
	var path *os.PathError
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no file %s; check the path", name)
	case errors.As(err, &path):
		return fmt.Errorf("can't read %s: %w", name, path.Err)
	}
	return err
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
