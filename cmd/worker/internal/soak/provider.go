package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"sluice/cmd/worker/internal/child"
	"sluice/tests/loopback"
)

// providerOrder is what the provider's process reads first from its standard input.
type providerOrder struct {
	IP   string `json:"ip"`
	Seed uint64 `json:"seed"`
}

// providerReady is what it says when it listens.
type providerReady struct {
	loopback.Remote
	Epoch time.Time `json:"epoch"` // what its instants are measured from
}

// ServeProvider is the provider's process. It takes whatever comes, as the script
// says, and judges nothing: that is done afterwards, from its record.
func ServeProvider(stdin io.Reader, stdout io.Writer) error {
	var o providerOrder
	if err := json.NewDecoder(stdin).Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	p := loopback.New(loopback.Quota{})
	if err := p.SetScript(runName, script(o.Seed)); err != nil {
		return err
	}
	if err := p.Start(context.Background(), net.JoinHostPort(o.IP, "0")); err != nil {
		return err
	}
	defer func() { _ = p.Close() }() // nobody is left to be told
	if err := json.NewEncoder(stdout).Encode(providerReady{loopback.Remote{URL: p.URL()}, p.Epoch()}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, stdin)
	return err
}

// provider is that process, seen from the soak.
type provider struct {
	*child.Process
	providerReady
}

func startProvider(ctx context.Context, program []string, o providerOrder, stderr io.Writer) (*provider, error) {
	process, err := child.Start(program, o, stderr)
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	p := &provider{Process: process}
	line, err := process.Line(ctx)
	if err == nil {
		err = json.Unmarshal([]byte(line), &p.providerReady)
	}
	if err != nil {
		process.Kill()
		return nil, fmt.Errorf("provider: %w", err)
	}
	return p, nil
}
