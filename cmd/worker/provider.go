package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice/tests/loopback"
)

const (
	defaultProviderPort = 8234
	runPath             = "/v1/runs/demo/call"
)

type providerFlags struct {
	ip         string
	port       int
	limit      int64
	inFlight   int
	serveTime  time.Duration
	retryAfter string
	json       bool
}

func (p *program) providerCommand() *cobra.Command {
	var f providerFlags
	c := &cobra.Command{
		Use:   "provider",
		Short: "Run a provider with a real quota, to call instead of a paid API",
		Long: `Run an HTTP provider that enforces a quota, until Ctrl-C. Above its rate, which
knows no burst, or above its calls in flight it answers 429 with Retry-After.

  POST /v1/runs/{run}/call   a call; each run has a quota and a record of its own
  POST /v1/call              the same, the run in the header X-Sluice-Run
  GET  /stats/{run}          what arrived, counted at the provider`,
		Example: `  worker provider
  worker provider --limit 5 --in-flight 2 --serve-time 1s --retry-after 3
  curl -i -X POST http://127.0.0.1:8234/v1/runs/demo/call
  curl http://127.0.0.1:8234/stats/demo`,
		Args: args(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return p.provide(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.ip, "ip", "127.0.0.1", "address to listen on")
	flags.IntVar(&f.port, "port", defaultProviderPort, "port to listen on; 0 for a free one")
	flags.Int64Var(&f.limit, "limit", 10, "requests per second, without burst; 0 for no limit")
	flags.IntVar(&f.inFlight, "in-flight", 4, "calls served at once; 0 for no limit")
	flags.DurationVar(&f.serveTime, "serve-time", 150*time.Millisecond, "how long a call takes")
	flags.StringVar(&f.retryAfter, "retry-after", "1", `the Retry-After of a 429, as it is; "" for none`)
	flags.BoolVar(&f.json, "json", false, "print the address as one JSON object on standard output")
	return c
}

func (f *providerFlags) check(c *cobra.Command) error {
	bad := func(flag string, value any) error {
		return usageError{command: c.CommandPath(), text: fmt.Sprintf("%s is %v; it may be 0 or more", flag, value)}
	}
	switch {
	case f.port < 0 || f.port > 65535:
		return portRange(c, "--port", f.port)
	case f.limit < 0:
		return bad("--limit", f.limit)
	case f.inFlight < 0:
		return bad("--in-flight", f.inFlight)
	case f.serveTime < 0:
		return bad("--serve-time", f.serveTime)
	}
	return nil
}

func (f *providerFlags) quota() loopback.Quota {
	q := loopback.Quota{MaxInFlight: f.inFlight, ServeTime: f.serveTime, RetryAfter: f.retryAfter}
	if f.limit > 0 {
		q.Interval = time.Second / time.Duration(f.limit)
	}
	return q
}

func (p *program) provide(ctx context.Context, f providerFlags) error {
	provider := loopback.New(f.quota())
	// A context of its own: Close decides when calls under way end.
	if err := provider.Start(context.WithoutCancel(ctx), net.JoinHostPort(f.ip, strconv.Itoa(f.port))); err != nil {
		return err
	}
	p.console.line("Provider  %s  (%d requests/s, %d in flight, 0 is no limit; calls take %v)", provider.URL(), f.limit, f.inFlight, f.serveTime)
	p.console.line("Call      POST %s%s", provider.URL(), runPath)
	p.console.line("Count     GET %s/stats/demo", provider.URL())
	p.console.line("Ctrl-C stops it.")
	var err error
	if f.json {
		err = json.NewEncoder(p.stdout).Encode(map[string]string{"url": provider.URL()})
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, provider.Close())
}

func portRange(c *cobra.Command, flag string, value int) error {
	return usageError{command: c.CommandPath(), text: fmt.Sprintf("%s is %d; it may be 0 (a free one) to 65535", flag, value)}
}
