package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
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
	URL   string    `json:"url"`
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
	if err := json.NewEncoder(stdout).Encode(providerReady{p.URL(), p.Epoch()}); err != nil {
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

func (p *provider) callURL() string { return p.URL + "/v1/runs/" + url.PathEscape(runName) + "/call" }

func (p *provider) count(ctx context.Context) (c loopback.Count, err error) {
	err = p.get(ctx, "/count/"+runName, &c)
	return c, err
}

func (p *provider) attempts(ctx context.Context) (a []loopback.Attempt, err error) {
	err = p.get(ctx, "/attempts/"+runName, &a)
	return a, err
}

func (p *provider) get(ctx context.Context, path string, v any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // read to its end, or of no use
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		return fmt.Errorf("provider's %s: %w", path, err)
	}
	return nil
}
