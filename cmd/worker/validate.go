package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sluice/policy"
)

func (p *program) validateCommand() *cobra.Command {
	var output string
	var asJSON bool
	c := &cobra.Command{
		Use:   "validate FILE",
		Short: "Print the faults of a policy file, or the effective policy",
		Long: `Read a policy file and print the effective policy on standard output: every key
of every gate, defaults filled in and marked, and each gate's ID, workflow ID and
hash. It is a policy file itself, and means the same.

Remarks on what is valid but may not be meant go to standard error, as warnings;
so does what on_invalid: disable leaves out. With --json they are in the output,
too: "notes" and "warnings".

If the file has faults, all of them are printed on standard error, one per line
with place, value and what is allowed, and the exit status is 1. FILE may be "-"
for standard input.`,
		Example: `  worker validate sluice.yaml
  worker validate --json sluice.yaml | jq '.gates[].id'
  kubectl get configmap sluice -o jsonpath='{.data.sluice\.yaml}' | worker validate -`,
		Args: args(1),
		RunE: func(c *cobra.Command, args []string) error {
			if asJSON {
				if c.Flags().Changed("output") && output != "json" {
					return usageError{command: c.CommandPath(), text: "--json and --output " + output + " exclude each other"}
				}
				output = "json"
			}
			if output != "yaml" && output != "json" {
				return usageError{command: c.CommandPath(), text: fmt.Sprintf("--output is %q; it may be yaml or json", output)}
			}
			return p.validate(args[0], output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "yaml", "form of the effective policy: yaml or json")
	c.Flags().BoolVar(&asJSON, "json", false, "short for --output json")
	return c
}

func (p *program) validate(file, output string) error {
	loaded, err := p.loadPolicy(file)
	if err != nil {
		return err
	}
	if output == "json" {
		data, err := loaded.EffectiveJSON()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "%s\n", data)
		return err
	}
	return loaded.WriteEffective(p.stdout)
}

// loadPolicy reads a policy file, "-" being standard input, and says what is to be
// said about a valid one.
func (p *program) loadPolicy(file string) (*policy.Policy, error) {
	var loaded *policy.Policy
	var err error
	if file == "-" {
		var data []byte
		if data, err = io.ReadAll(p.stdin); err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		loaded, err = policy.Parse("stdin", data)
	} else {
		loaded, err = policy.Load(file)
	}
	if err != nil {
		return nil, fileError(file, err)
	}
	for _, text := range append(loaded.Warnings, loaded.Notes()...) {
		p.console.line("warning: %s", text)
	}
	return loaded, nil
}
