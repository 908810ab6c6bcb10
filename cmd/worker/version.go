package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of what it is built with",
		Long:    "Print the version of this program, of Go, and of Temporal's SDK and server.",
		Example: "  worker version",
		Args:    args(0),
		RunE: func(*cobra.Command, []string) error {
			version, revision := "(devel)", ""
			built := map[string]string{}
			if info, ok := debug.ReadBuildInfo(); ok {
				version = info.Main.Version
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						revision = " " + s.Value
					}
				}
				for _, m := range info.Deps {
					built[m.Path] = m.Version
				}
			}
			_, err := fmt.Fprintf(p.stdout, "sluice %s%s\n%s, Temporal SDK %s, Temporal server %s\n", version, revision,
				runtime.Version(), built["go.temporal.io/sdk"], built["go.temporal.io/server"])
			return err
		},
	}
}
