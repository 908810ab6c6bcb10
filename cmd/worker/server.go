package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"sluice/cmd/worker/internal/devserver"
	"sluice/cmd/worker/internal/webui"
)

const (
	defaultPort     = 7233
	defaultUIPort   = 8233
	defaultDatabase = "sluice-dev.db"
)

// serverFlags say where the embedded server listens and where it keeps its data.
type serverFlags struct {
	ip     string
	port   int
	uiPort int
	db     string
	memory bool
}

func (f *serverFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.ip, "ip", "127.0.0.1", "loopback address to listen on")
	flags.IntVar(&f.port, "port", defaultPort, "port of the Temporal server; 0 for a free one")
	flags.IntVar(&f.uiPort, "ui-port", defaultUIPort, "port of Temporal's web UI; 0 for a free one")
	flags.StringVar(&f.db, "db", defaultDatabase, "SQLite file, made if it doesn't exist")
	flags.BoolVar(&f.memory, "memory", false, "keep everything in memory instead of a file")
}

// check refuses what can't be meant.
func (f *serverFlags) check(c *cobra.Command) error {
	switch {
	case f.memory && c.Flags().Changed("db"):
		return usageError{command: c.CommandPath(), text: "--db and --memory exclude each other"}
	case f.db == "" && !f.memory:
		return usageError{command: c.CommandPath(), text: "--db names no file; use --memory to keep none"}
	case f.port < 0 || f.port > 65535:
		return portRange(c, "--port", f.port)
	case f.uiPort < 0 || f.uiPort > 65535:
		return portRange(c, "--ui-port", f.uiPort)
	}
	return nil
}

// embedded is a running Temporal server with its web UI.
type embedded struct {
	server *devserver.Server
	ui     *webui.UI
}

func (p *program) startServer(ctx context.Context, f serverFlags) (*embedded, error) {
	var log io.Writer
	if p.verbose {
		log = p.console
	}
	o := devserver.Options{IP: f.ip, Port: f.port, DBFile: f.db, Log: log}
	if f.memory {
		o.DBFile = ""
	}
	server, err := devserver.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	ui, err := webui.Start(ctx, webui.Options{IP: f.ip, Port: f.uiPort, TemporalAddress: server.HostPort(), Log: log})
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return &embedded{server: server, ui: ui}, nil
}

func (e *embedded) stop() error { return errors.Join(e.ui.Stop(), e.server.Stop()) }

func (p *program) serverCommand() *cobra.Command {
	var f serverFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "server",
		Short: "Run a Temporal server and its web UI",
		Long: `Run a Temporal server and Temporal's web UI in this process until Ctrl-C.

It is a server for one machine: it listens on loopback addresses only and asks
nobody who they are. Data is in a SQLite file in WAL mode with synchronous=FULL,
so whatever was acknowledged survives a crash. A file has one server at a time.`,
		Example: `  worker server
  worker server --db demo.db --port 7234 --ui-port 8234
  worker server --memory --port 0 --ui-port 0 --json`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return p.serve(c.Context(), f, asJSON)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print the addresses as one JSON object on standard output")
	return c
}

func (p *program) serve(ctx context.Context, f serverFlags, asJSON bool) error {
	e, err := p.startServer(ctx, f)
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	p.console.line("Temporal server  %s", e.server.HostPort())
	p.console.line("Temporal UI      %s", e.ui.URL())
	if f.memory {
		p.console.line("Database         in memory, gone when this ends")
	} else {
		p.console.line("Database         %s", f.db)
	}
	p.console.line("Ctrl-C stops it.")
	if asJSON {
		err = json.NewEncoder(p.stdout).Encode(map[string]any{"address": e.server.HostPort(), "ui": e.ui.URL(), "database": e.database(f)})
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-e.server.Failed():
		}
	}
	p.console.line("Stopping.")
	return errors.Join(err, e.stop())
}

func (e *embedded) database(f serverFlags) string {
	if f.memory {
		return ""
	}
	return f.db
}

// unlessInterrupted is err, or nil where a person ended the start.
func unlessInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
