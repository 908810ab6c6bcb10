package e2e

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/server/temporaltest"

	"sluice/activities"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
	"sluice/workflows"
)

// process is one worker process as far as Sluice can tell: a client with a
// plugin of its own, and a worker.
type process struct {
	client client.Client
	worker sdkworker.Worker
	plugin *worker.Plugin
}

func server(t *testing.T) *temporaltest.TestServer {
	t.Helper()
	return temporaltest.NewServer(temporaltest.WithT(t))
}

// taskQueue is that of the user's workers here.
const taskQueue = "calls"

// register gives a worker what the tests run.
func register(r sdkworker.Registry) {
	r.RegisterWorkflow(fanOut)
	r.RegisterActivity(caller().CallProvider)
	r.RegisterWorkflow(oneActivity)
	r.RegisterActivity(FailUnderLease)
	r.RegisterActivity(WaitForLease)
	r.RegisterActivity(Progress)
	r.RegisterActivity(NoProgress)
}

func quiet() log.Logger {
	return log.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

// provider is a loopback provider with the given quota.
func provider(t *testing.T, q loopback.Quota) *loopback.Provider {
	t.Helper()
	p := loopback.New(q)
	require.NoError(t, p.Start(context.Background(), "127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func policyOf(t *testing.T, gates ...policy.Gate) *policy.Policy {
	t.Helper()
	p, err := policy.New(gates...)
	require.NoError(t, err)
	return p
}

// start starts a worker with a plugin of its own.
func start(t *testing.T, ts *temporaltest.TestServer, o worker.Options, w sdkworker.Options, register func(sdkworker.Registry)) *process {
	t.Helper()
	plugin, err := worker.NewPlugin(o)
	require.NoError(t, err)
	c, err := client.Dial(client.Options{HostPort: ts.GetFrontendHostPort(), Namespace: ts.GetDefaultNamespace(), Logger: quiet(), Plugins: []client.Plugin{plugin}})
	require.NoError(t, err)
	p := &process{client: c, worker: sdkworker.New(c, taskQueue, w), plugin: plugin}
	register(p.worker)
	require.NoError(t, p.worker.Start())
	t.Cleanup(p.stop)
	return p
}

func (p *process) stop() {
	if p.worker != nil {
		p.worker.Stop()
		p.client.Close()
		p.worker = nil
	}
}

// status asks a gate how it is.
func status(t *testing.T, c client.Client, g *policy.Gate) workflows.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	v, err := c.QueryWorkflow(ctx, g.WorkflowID(), "", workflows.QueryStatus)
	require.NoError(t, err)
	var st workflows.Status
	require.NoError(t, v.Get(&st))
	return st
}

func caller() *activities.Caller {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 64
	return &activities.Caller{Base: base, LeaseHeader: loopback.HeaderLease}
}

func sortTimes(times []time.Time) { slices.SortFunc(times, time.Time.Compare) }
