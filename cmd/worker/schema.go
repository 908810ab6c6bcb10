package main

import (
	"github.com/spf13/cobra"

	"sluice/policy"
)

func (p *program) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a policy file, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of a policy file on standard output. Editors
complete and check a policy by it; docs/policy.md tells how. It can't tell every
fault: "worker validate" can.`,
		Example: `  worker schema > sluice.schema.json`,
		Args:    args(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := p.stdout.Write(policy.Schema())
			return err
		},
	}
}
