package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/server/temporaltest"

	"sluice/activities"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
)

// Where timing is judged, provider and workers are processes of their own, as
// in production: this test binary, run again in another role. Else a start that
// is due queues behind the goroutines of the server that shares its process.
const (
	envRole      = "SLUICE_E2E_ROLE" // provider or worker
	envQuota     = "SLUICE_E2E_QUOTA"
	envAddress   = "SLUICE_E2E_ADDRESS"
	envNamespace = "SLUICE_E2E_NAMESPACE"
	envPolicy    = "SLUICE_E2E_POLICY"
	envTransport = "SLUICE_E2E_TRANSPORT"
	envHolder    = "SLUICE_E2E_HOLDER"
)

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "provider":
		os.Exit(role(runProvider))
	case "worker":
		os.Exit(role(runWorker))
	}
	prefer(-10)
	os.Exit(m.Run())
}

// prefer asks for the processor before others do, where that is allowed: what is
// judged is Sluice, not how busy the machine is with compiling the next test. On
// Linux a priority is a thread's; later threads inherit it.
func prefer(nice int) {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, nice)
		}
	}
}

// role runs until standard input ends, which it does when the test goes away.
func role(run func() (name string, stop func(), err error)) int {
	prefer(-20)
	name, stop, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(name) // ready
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	return 0
}

func runProvider() (string, func(), error) {
	var q loopback.Quota
	if err := json.Unmarshal([]byte(os.Getenv(envQuota)), &q); err != nil {
		return "", nil, err
	}
	p := loopback.New(q)
	err := p.Start(context.Background(), "127.0.0.1:0")
	return p.URL(), func() { _ = p.Close() }, err
}

func runWorker() (string, func(), error) {
	plugin, err := worker.NewPlugin(worker.Options{
		PolicyFile: os.Getenv(envPolicy), Transport: activities.ExchangeTransport(os.Getenv(envTransport)), HolderID: os.Getenv(envHolder),
	})
	if err != nil {
		return "", nil, err
	}
	c, err := client.Dial(client.Options{HostPort: os.Getenv(envAddress), Namespace: os.Getenv(envNamespace), Logger: quiet(), Plugins: []client.Plugin{plugin}})
	if err != nil {
		return "", nil, err
	}
	w := sdkworker.New(c, taskQueue, sdkworker.Options{MaxConcurrentActivityExecutionSize: 40, WorkerStopTimeout: 10 * time.Second})
	register(w)
	if err := w.Start(); err != nil {
		return "", nil, err
	}
	return "worker", func() { w.Stop(); c.Close() }, nil
}

// child is one process in a role.
type child struct {
	name string // what it said when it was ready
	cmd  *exec.Cmd
	in   io.Closer
	done chan error
}

func spawn(t *testing.T, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, in: in, done: make(chan error, 1)}
	t.Cleanup(c.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() { c.done <- cmd.Wait() }()
	require.NoError(t, err, "the process said nothing")
	c.name = strings.TrimSpace(line)
	return c
}

// stop ends the process in good order.
func (c *child) stop() {
	if c.in == nil {
		return
	}
	_ = c.in.Close()
	c.in = nil
	<-c.done
}

// kill ends it at once.
func (c *child) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.in.Close()
	c.in = nil
	<-c.done
}

// remoteProvider is a loopback provider in a process of its own.
type remoteProvider struct {
	*child
	t *testing.T
}

func spawnProvider(t *testing.T, q loopback.Quota) *remoteProvider {
	t.Helper()
	quota, err := json.Marshal(q)
	require.NoError(t, err)
	return &remoteProvider{spawn(t, envRole+"=provider", envQuota+"="+string(quota)), t}
}

func (p *remoteProvider) callURL(run string) string { return p.name + "/v1/runs/" + run + "/call" }

func (p *remoteProvider) get(path string, v any) {
	p.t.Helper()
	response, err := http.Get(p.name + path)
	require.NoError(p.t, err)
	defer func() { _ = response.Body.Close() }()
	require.NoError(p.t, json.NewDecoder(response.Body).Decode(v))
}

func (p *remoteProvider) stats(run string) (s loopback.Stats) {
	p.get("/stats/"+run, &s)
	return s
}

func (p *remoteProvider) attempts(run string) (a []loopback.Attempt) {
	p.get("/attempts/"+run, &a)
	return a
}

func spawnWorker(t *testing.T, ts *temporaltest.TestServer, p *policy.Policy, env ...string) *child {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, p.WriteEffective(f))
	require.NoError(t, f.Close())
	return spawn(t, append([]string{
		envRole + "=worker", envAddress + "=" + ts.GetFrontendHostPort(), envNamespace + "=" + ts.GetDefaultNamespace(), envPolicy + "=" + file,
	}, env...)...)
}
