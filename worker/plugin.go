package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/policy"
	"sluice/workflows"
)

// Options of the plugin. Either PolicyFile or Policy; neither gates nothing.
type Options struct {
	// PolicyFile is the path of a policy file. Any fault in it stops NewPlugin.
	PolicyFile string
	// Policy is a policy made in code, see policy.New.
	Policy *policy.Policy

	// HolderID names this process to its gates; see activities.GatesOptions.
	HolderID string
	// Transport of the exchanges with gates. Empty: updates.
	Transport activities.ExchangeTransport
	// NoHost keeps this process from running admission workflows. Some process
	// of the namespace has to.
	NoHost bool
	// RunEvents is how long a run of an admission workflow may grow before it
	// continues as new. 0: workflows.DefaultRunEvents.
	RunEvents int
	// TracerProvider and MeterProvider get the spans and metrics of the gates, see
	// docs/telemetry.md. nil: the global ones of OpenTelemetry. Package
	// worker/telemetry makes some as the OTEL_ environment says.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// StopTimeout bounds the farewell to the gates when the last worker stops.
	// 0: 5 s.
	StopTimeout time.Duration
}

// The SDK's two bases have one name.
type (
	clientBase struct{ client.PluginBase }
	workerBase struct{ sdkworker.PluginBase }
)

// Plugin connects a client and its workers to gates. Make one with NewPlugin.
// Safe for concurrent use.
type Plugin struct {
	clientBase
	workerBase

	options Options
	policy  *policy.Policy

	mu         sync.Mutex
	bound      bool // to a client
	dial       client.Options
	logger     log.Logger
	workers    int
	registered []string
	gates      *activities.Gates
	host       *host
}

var (
	_ client.Plugin    = (*Plugin)(nil)
	_ sdkworker.Plugin = (*Plugin)(nil)
)

// Name implements the plugin interfaces.
func (p *Plugin) Name() string { return "sluice" }

// NewPlugin reads and validates the policy. The error names every fault.
func NewPlugin(o Options) (*Plugin, error) {
	p := &Plugin{options: o, policy: o.Policy}
	switch {
	case o.PolicyFile != "" && o.Policy != nil:
		return nil, errors.New("sluice: both PolicyFile and Policy are set; allowed: one of them")
	case o.PolicyFile != "":
		loaded, err := policy.Load(o.PolicyFile)
		if err != nil {
			return nil, err
		}
		p.policy = loaded
	}
	switch o.Transport {
	case "", activities.TransportUpdate, activities.TransportSignal, activities.TransportMixed:
	default:
		return nil, fmt.Errorf("sluice: Transport is %q; allowed: %s, %s, %s", o.Transport, activities.TransportUpdate, activities.TransportSignal, activities.TransportMixed)
	}
	if p.options.StopTimeout <= 0 {
		p.options.StopTimeout = 5 * time.Second
	}
	return p, nil
}

// Gates returns the gates that this process uses; nil before the first worker
// has started and after the last one has stopped.
func (p *Plugin) Gates() *activities.Gates {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates
}

// ConfigureClient implements client.Plugin.
func (p *Plugin) ConfigureClient(context.Context, client.PluginConfigureClientOptions) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bound {
		return errors.New("sluice: this plugin serves another client already; make one plugin for each client")
	}
	return nil
}

// NewClient implements client.Plugin: it keeps what it takes to dial again.
func (p *Plugin) NewClient(ctx context.Context, options client.PluginNewClientOptions, next func(context.Context, client.PluginNewClientOptions) error) error {
	// The copy is taken before the dial, which may add to what it is given.
	dial := options.ClientOptions
	if dial.ConnectionOptions.TLS != nil {
		dial.ConnectionOptions.TLS = dial.ConnectionOptions.TLS.Clone()
	}
	if err := next(ctx, options); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bound {
		return errors.New("sluice: this plugin serves another client already; make one plugin for each client")
	}
	p.bound, p.dial, p.logger = true, dial, dial.Logger
	return nil
}

// ConfigureWorker implements worker.Plugin: it adds the interceptor.
func (p *Plugin) ConfigureWorker(_ context.Context, options sdkworker.PluginConfigureWorkerOptions) error {
	options.WorkerOptions.Interceptors = append(slices.Clone(options.WorkerOptions.Interceptors), activities.NewLazyInterceptor(p.Gates))
	before := options.WorkerRegistryOptions.OnRegisterActivity
	options.WorkerRegistryOptions.OnRegisterActivity = func(a any, o activity.RegisterOptions) {
		if before != nil {
			before(a, o)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.registered = append(p.registered, activityNames(a, o)...)
	}
	return nil
}

// StartWorker implements worker.Plugin.
func (p *Plugin) StartWorker(ctx context.Context, options sdkworker.PluginStartWorkerOptions, next func(context.Context, sdkworker.PluginStartWorkerOptions) error) error {
	if err := p.enter(); err != nil {
		return err
	}
	if err := next(ctx, options); err != nil {
		p.leave()
		return err
	}
	return nil
}

// StopWorker implements worker.Plugin: the activities drain first, with their
// gates still there.
func (p *Plugin) StopWorker(ctx context.Context, options sdkworker.PluginStopWorkerOptions, next func(context.Context, sdkworker.PluginStopWorkerOptions)) {
	next(ctx, options)
	p.leave()
}

// ConfigureWorkflowReplayer implements worker.Plugin. Sluice changes nothing
// about a user's workflows.
func (p *Plugin) ConfigureWorkflowReplayer(context.Context, sdkworker.PluginConfigureWorkflowReplayerOptions) error {
	return nil
}

// ReplayWorkflow implements worker.Plugin.
func (p *Plugin) ReplayWorkflow(ctx context.Context, options sdkworker.PluginReplayWorkflowOptions, next func(context.Context, sdkworker.PluginReplayWorkflowOptions) error) error {
	return next(ctx, options)
}

// enter counts a worker in; the first one opens everything.
func (p *Plugin) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers > 0 {
		p.workers++
		p.warnUnmatched()
		return nil
	}
	if !p.bound {
		return errors.New("sluice: the plugin belongs into client.Options.Plugins; it reaches workers by itself")
	}
	h, err := openHost(p.dial, !p.options.NoHost && len(p.policy.Gates()) > 0)
	if err != nil {
		return err
	}
	p.host = h
	p.gates = activities.NewDurableGates(p.policy, activities.DurableOptions{
		Service: h.client.WorkflowService(), Namespace: h.namespace, DataConverter: p.dial.DataConverter, Identity: h.identity,
		Transport: p.options.Transport, RunEvents: p.options.RunEvents,
	}, activities.GatesOptions{
		HolderID: p.options.HolderID, Logger: slogOf(p.logger),
		TracerProvider: p.options.TracerProvider, MeterProvider: p.options.MeterProvider,
	})
	p.workers = 1
	p.warnUnmatched()
	return nil
}

// leave counts a worker out; the last one closes everything.
func (p *Plugin) leave() {
	p.mu.Lock()
	p.workers--
	if p.workers > 0 {
		p.mu.Unlock()
		return
	}
	gates, host := p.gates, p.host
	p.gates, p.host = nil, nil
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.options.StopTimeout)
	defer cancel()
	if err := gates.Close(ctx); err != nil && p.logger != nil {
		p.logger.Warn("sluice: the last exchange was not sent; leases end after the holder TTL", "error", err)
	}
	host.close()
}

// warnUnmatched tells of patterns that gate nothing that is registered so far.
func (p *Plugin) warnUnmatched() {
	if len(p.registered) == 0 || p.logger == nil {
		return
	}
	for _, pattern := range p.policy.UnmatchedActivities(p.registered) {
		p.logger.Warn("sluice: the policy gates an activity that no worker here has registered", "activity", pattern)
	}
}

// host is Sluice's own client and, on it, the worker of admission workflows.
type host struct {
	client    client.Client
	namespace string
	identity  string
	worker    sdkworker.Worker
}

// stickyTimeout is how long a workflow task waits for a host that has the
// workflow in its cache; after a host died another one goes on.
const stickyTimeout = time.Second

func openHost(dial client.Options, hosting bool) (*host, error) {
	dial.Plugins, dial.Interceptors = nil, nil
	if tls := dial.ConnectionOptions.TLS; tls != nil && len(tls.Certificates) > 0 && isMTLS(dial.Credentials) {
		dial.Credentials = nil // they are in the connection options already, and twice is refused
	}
	if dial.ConnectionOptions.GrpcCompression == nil {
		// Exchanges are small and dense already; the SDK's default, gzip, cost a third
		// of the time that a gate under load takes.
		dial.ConnectionOptions.GrpcCompression = &client.GrpcCompressionNone{}
	}
	c, err := client.Dial(dial)
	if err != nil {
		return nil, fmt.Errorf("sluice: own connection: %w", err)
	}
	h := &host{client: c, namespace: dial.Namespace, identity: dial.Identity}
	if h.namespace == "" {
		h.namespace = client.DefaultNamespace
	}
	if !hosting {
		return h, nil
	}
	h.worker = sdkworker.New(c, workflows.TaskQueue, sdkworker.Options{
		LocalActivityWorkerOnly:      true, // it has workflows only
		StickyScheduleToStartTimeout: stickyTimeout,
		DisableRegistrationAliasing:  true,
	})
	h.worker.RegisterWorkflowWithOptions(workflows.AdmissionWorkflow, workflow.RegisterOptions{Name: workflows.WorkflowType})
	if err := h.worker.Start(); err != nil {
		c.Close()
		return nil, fmt.Errorf("sluice: host of the admission workflows: %w", err)
	}
	return h, nil
}

func (h *host) close() {
	if h.worker != nil {
		h.worker.Stop()
	}
	h.client.Close()
}

// isMTLS reports whether credentials are those of client.NewMTLSCredentials,
// which the SDK keeps in an unexported type.
func isMTLS(c client.Credentials) bool {
	return c != nil && reflect.TypeOf(c).Name() == "mTLSCredentials"
}

// slogOf lets the gates log where the client logs.
func slogOf(l log.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return slog.New(logHandler{l})
}
