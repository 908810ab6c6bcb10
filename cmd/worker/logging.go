package main

import (
	"log/slog"

	"go.temporal.io/sdk/log"
)

// sdkLogger is where Temporal's SDK and the plugin log: standard error, warnings
// and above unless --verbose is given.
func (p *program) sdkLogger() log.Logger {
	level := slog.LevelWarn
	if p.verbose {
		level = slog.LevelDebug
	}
	return log.NewStructuredLogger(slog.New(slog.NewTextHandler(p.console, &slog.HandlerOptions{Level: level})))
}
