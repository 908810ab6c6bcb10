package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"

	"sluice/cmd/worker/internal/child"
	"sluice/tests/loopback"
)

// Provider is the provider of the demonstration, in a process of its own: whatever
// else the machine does, an arrival is taken down when it arrives.
type Provider struct {
	loopback.Remote
	process *child.Process
}

// providerOrder is what the process reads first from its standard input.
type providerOrder struct {
	IP         string `json:"ip"`
	Experiment string `json:"experiment"`
}

// StartProvider starts the provider on a free port. program starts the process: a
// path and arguments; it must call ServeProvider. ctx bounds the start.
func StartProvider(ctx context.Context, program []string, e *Experiment, ip string, stderr io.Writer) (*Provider, error) {
	process, err := child.Start(program, providerOrder{IP: ip, Experiment: e.Name}, stderr)
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	p := &Provider{process: process}
	if p.URL, err = process.Line(ctx); err != nil {
		p.Close()
		return nil, fmt.Errorf("provider: %w", err)
	}
	return p, nil
}

// Close ends the provider and what it is serving.
func (p *Provider) Close() {
	p.process.AskToStop()
	p.process.Wait()
}

// ServeProvider is the provider's process. It says on stdout where it listens and
// serves until stdin ends: a Ctrl-C reaches all processes, and here calls of worker
// processes that drain are still served.
func ServeProvider(stdin io.Reader, stdout io.Writer) error {
	var o providerOrder
	if err := json.NewDecoder(stdin).Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	e, err := FindExperiment(o.Experiment)
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	p := loopback.New(e.quota)
	if err := p.Start(context.Background(), net.JoinHostPort(o.IP, "0")); err != nil {
		return err
	}
	defer func() { _ = p.Close() }() // nobody is left to be told
	if _, err := fmt.Fprintln(stdout, p.URL()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, stdin)
	return err
}
