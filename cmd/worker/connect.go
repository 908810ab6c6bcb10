package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
)

// connection says which Temporal server and namespace a command works with,
// where the environment and temporal.toml don't.
type connection struct {
	profile   string
	address   string
	namespace string
}

func (f *connection) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.profile, "profile", "", "profile of temporal.toml")
	flags.StringVar(&f.address, "address", "", "address of the Temporal server, host:port")
	flags.StringVar(&f.namespace, "namespace", "", "namespace")
}

// target is where a client connects to.
type target struct{ address, namespace string }

// connect dials as envconfig and the flags say. with changes the options; nil: it
// doesn't.
func (p *program) connect(ctx context.Context, f connection, with func(*client.Options) error) (client.Client, target, error) {
	var at target
	profile, err := envconfig.LoadClientConfigProfile(envconfig.LoadClientConfigProfileOptions{ConfigFileProfile: f.profile})
	if err != nil {
		return nil, at, fmt.Errorf("connection settings (temporal.toml, TEMPORAL_...): %w", err)
	}
	if f.address != "" {
		profile.Address = f.address
	}
	if f.namespace != "" {
		profile.Namespace = f.namespace
	}
	o, err := profile.ToClientOptions(envconfig.ToClientOptionsRequest{})
	if err != nil {
		return nil, at, fmt.Errorf("connection settings (temporal.toml, TEMPORAL_...): %w", err)
	}
	if o.HostPort == "" {
		o.HostPort = client.DefaultHostPort
	}
	if o.Namespace == "" {
		o.Namespace = client.DefaultNamespace
	}
	at = target{address: o.HostPort, namespace: o.Namespace}
	o.Logger = p.sdkLogger()
	if with != nil {
		if err := with(&o); err != nil {
			return nil, at, err
		}
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.DialContext(dialing, o)
	return c, at, at.explain(err)
}

// explain says in a person's words why a connection failed, and what to do.
func (t target) explain(err error) error {
	var noNamespace *serviceerror.NamespaceNotFound
	var notFound *serviceerror.NotFound
	var unavailable *serviceerror.Unavailable
	var deadline *serviceerror.DeadlineExceeded
	var denied *serviceerror.PermissionDenied
	switch {
	case err == nil:
		return nil
	case errors.As(err, &noNamespace), errors.As(err, &notFound):
		return fmt.Errorf("the Temporal server at %s has no namespace %s; create it, or choose another with --namespace", t.address, t.namespace)
	case errors.As(err, &denied):
		return fmt.Errorf("the Temporal server at %s refused access to namespace %s: %w; check TEMPORAL_API_KEY, the certificates and --namespace", t.address, t.namespace, err)
	case errors.As(err, &unavailable), errors.As(err, &deadline), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no Temporal server answers at %s (%w); start one with \"worker server\", or choose another with --address or TEMPORAL_ADDRESS", t.address, err)
	}
	return fmt.Errorf("connection to the Temporal server %s, namespace %s: %w", t.address, t.namespace, err)
}
