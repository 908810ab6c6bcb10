package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/activities"
	"sluice/cmd/worker/internal/devserver"
	"sluice/policy"
	"sluice/tests/loopback"
	"sluice/worker"
	"sluice/workflows"
)

// shared is the server of the tests that don't stop theirs, started by the first
// of them and stopped by TestMain.
var shared struct {
	once   sync.Once
	server *devserver.Server
	err    error
}

func sharedServer(t *testing.T) *devserver.Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = devserver.Start(context.Background(), devserver.Options{}) })
	require.NoError(t, shared.err)
	return shared.server
}

func stopSharedServer() {
	if shared.server != nil {
		_ = shared.server.Stop() // the tests are over
	}
}

// stage is a gate with a worker process that holds and hosts it, and a provider
// behind it.
type stage struct {
	t        *testing.T
	address  string
	gate     *policy.Gate
	gates    *activities.Gates
	client   client.Client
	provider *loopback.Provider
	epoch    time.Time // of the provider's instants, but for microseconds
	stop     func()    // ends the worker process
}

func newStage(t *testing.T, g policy.Gate) *stage {
	t.Helper()
	s := &stage{t: t, address: sharedServer(t).HostPort(), epoch: time.Now()}
	s.provider = loopback.New(loopback.Quota{ServeTime: 10 * time.Millisecond})
	require.NoError(t, s.provider.Start(context.Background(), "127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, s.provider.Close()) })
	g.Provider, g.Endpoint = "loopback", s.provider.URL()
	pol, err := policy.New(g)
	require.NoError(t, err)
	plugin, err := worker.NewPlugin(worker.Options{Policy: pol})
	require.NoError(t, err)
	c, err := client.Dial(client.Options{HostPort: s.address, Logger: quiet(), Plugins: []client.Plugin{plugin}})
	require.NoError(t, err)
	w := sdkworker.New(c, "calls", sdkworker.Options{})
	w.RegisterActivity(&activities.Caller{})
	require.NoError(t, w.Start())
	s.gate, s.gates, s.client = pol.Gates()[0], plugin.Gates(), c
	s.stop = sync.OnceFunc(w.Stop)
	t.Cleanup(func() {
		s.stop()
		_ = c.TerminateWorkflow(context.Background(), s.gate.WorkflowID(), "", "the test is over") // so that its name is free; it may have ended
		c.Close()
	})
	return s
}

// command runs the program against the stage's server.
func (s *stage) command(args ...string) result {
	s.t.Helper()
	return command(s.t, "", append(args, "--address", s.address)...)
}

// does runs a command that has to work.
func (s *stage) does(args ...string) string {
	s.t.Helper()
	r := s.command(args...)
	require.Equal(s.t, 0, r.code, r.stderr)
	require.Empty(s.t, r.stderr)
	return r.stdout
}

// acts runs a command that changes the gate, and returns what it came to.
func (s *stage) acts(args ...string) (a actResult) {
	s.t.Helper()
	require.NoError(s.t, json.Unmarshal([]byte(s.does(append(args, "--output", "json")...)), &a))
	assert.Equal(s.t, s.gate.ID(), a.Gate)
	return a
}

func (s *stage) status() workflows.Status {
	s.t.Helper()
	st, err := status(s.t, s.client, s.gate)
	require.NoError(s.t, err)
	return st
}

// acquire asks for a lease and returns what comes of it.
func (s *stage) acquire(label string) <-chan acquired {
	s.t.Helper()
	g, err := s.gates.Gate(s.gate.ID())
	require.NoError(s.t, err)
	got := make(chan acquired, 1)
	go func() {
		l, err := g.Acquire(s.t.Context(), activities.Request{Label: label})
		if l != nil {
			s.t.Cleanup(l.Release)
		}
		got <- acquired{l, err}
	}()
	return got
}

type acquired struct {
	lease activities.Lease
	err   error
}

// queued waits until so many tickets queue.
func (s *stage) queued(n int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.status().Queued == n }, 20*time.Second, 20*time.Millisecond)
}

// load keeps so many callers calling the provider until the test ends.
func (s *stage) load(callers int) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	s.t.Cleanup(func() { cancel(); all.Wait() })
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = callers
	c := &http.Client{Transport: &activities.Transport{Gates: s.gates, Base: base}}
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider.CallURL("load"), nil)
				if err != nil {
					panic(err)
				}
				if response, err := c.Do(r); err == nil {
					_ = response.Body.Close() // what it says doesn't matter
				}
			}
		})
	}
}

// arrivals are the instants at which calls of load came to the provider, of those
// between two instants.
func (s *stage) arrivals(from, to time.Time) (at []time.Time) {
	for _, a := range s.provider.Attempts("load") {
		if t := s.epoch.Add(a.Arrived); t.After(from) && t.Before(to) {
			at = append(at, t)
		}
	}
	return at
}

// never is later than everything.
var never = time.Now().Add(1000 * time.Hour)

// waitArrivals waits for so many calls after an instant.
func (s *stage) waitArrivals(n int, after time.Time) []time.Time {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.arrivals(after, never)) >= n }, 60*time.Second, 20*time.Millisecond)
	return s.arrivals(after, never)[:n]
}

func TestGatesAndDescribe(t *testing.T) {
	one := newStage(t, policy.Gate{Name: "busy", MaxInFlight: 1})
	other := newStage(t, policy.Gate{Name: "idle"})
	require.NoError(t, (<-one.acquire("first call")).err)
	require.NoError(t, (<-other.acquire("only call")).err)
	one.acquire("second call")
	one.queued(1)

	var table string
	require.Eventually(t, func() bool { // visibility may be a moment behind
		table = one.does("gates")
		return strings.Contains(table, "#busy") && strings.Contains(table, "#idle")
	}, 20*time.Second, 50*time.Millisecond)
	assert.Regexp(t, `(?m)^GATE +STATE +IN USE +QUEUE +PACING +HOLDERS$`, table)
	assert.Regexp(t, `(?m)^loopback@.*#busy +open +1/1 +1 +off +1$`, table)
	var listed []listedGate
	require.NoError(t, json.Unmarshal([]byte(one.does("gates", "-o", "json")), &listed))
	found := false
	for _, g := range listed {
		if g.Gate == one.gate.ID() {
			found = true
			assert.Equal(t, one.gate.WorkflowID(), g.WorkflowID)
			assert.Equal(t, 1, g.Status.Queued)
		}
	}
	assert.True(t, found)

	for _, name := range []string{"busy", one.gate.ID(), one.gate.WorkflowID(), "#busy"} {
		page := one.does("describe", name)
		assert.True(t, strings.HasPrefix(page, one.gate.ID()+"\n"), page)
		for _, part := range []string{`in use +1 of 1: 1 started, 0 reserved`, `queue +1, of them 0 parked`, `s +1 +1 +\S+ +first call`, `s +cap +1 +\S+ +second call`, `admissions 1`} {
			assert.Regexp(t, part, page)
		}
		for line := range strings.Lines(page) {
			assert.LessOrEqual(t, len([]rune(line)), tableWidth+1, line)
		}
	}
	var st workflows.Status
	require.NoError(t, json.Unmarshal([]byte(one.does("describe", "busy", "-o", "json")), &st))
	assert.Equal(t, one.gate.ID(), st.Gate)
	assert.Equal(t, "cap", st.Queue[0].Reason)
	assert.EqualValues(t, 1, st.InForce.MaxInFlight)

	requireOneLine(t, 1, one.command("describe", "nobody"), `no gate "nobody" runs in namespace default; there is `, one.gate.ID())
	requireOneLine(t, 1, one.command("pause", "loopback"), `"loopback" may be `, one.gate.ID(), other.gate.ID(), "say more of it")
	requireOneLine(t, 1, one.command("gates", "--namespace", "nowhere"), "no namespace nowhere", "--namespace")
}

// TestAGateWithoutAHost says so, instead of waiting for ever.
func TestAGateWithoutAHost(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "hostless"})
	require.NoError(t, (<-s.acquire("a call")).err)
	require.Eventually(t, func() bool { return strings.Contains(s.does("gates"), "#hostless") }, 20*time.Second, 50*time.Millisecond)
	s.stop()
	assert.Regexp(t, `#hostless +no answer`, s.does("gates", "--timeout", "1s"))
	requireOneLine(t, 1, s.command("describe", "hostless", "--timeout", "1s"), "no worker answers for the gate within 1s", "namespace default")
	requireOneLine(t, 1, s.command("pause", "hostless", "--timeout", "1s"), "no worker answers for the gate within 1s")
}

// TestAGateThatEnded is not running, whatever its last state was.
func TestAGateThatEnded(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "ended"})
	require.NoError(t, (<-s.acquire("a call")).err)
	s.stop()
	require.NoError(t, s.client.TerminateWorkflow(t.Context(), s.gate.WorkflowID(), "", "the test wants it"))
	for _, verb := range []string{"describe", "pause", "watch"} {
		requireOneLine(t, 1, s.command(verb, s.gate.ID()), "no gate", s.gate.ID())
	}
}

func TestCompletion(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "completed", MaxInFlight: 1})
	require.NoError(t, (<-s.acquire("first call")).err)
	s.acquire("second call")
	s.queued(1)
	complete := func(args ...string) string {
		r := command(t, "", append([]string{"__complete"}, args...)...)
		require.Equal(t, 0, r.code, r.stderr)
		return r.stdout
	}
	require.Eventually(t, func() bool {
		return strings.Contains(complete("describe", "--address", s.address, ""), s.gate.ID()+"\n")
	}, 20*time.Second, 50*time.Millisecond)
	assert.Contains(t, complete("set", "--address", s.address, "completed", "max_i"), "max_in_flight=\n")
	assert.Contains(t, complete("cancel-ticket", "--address", s.address, "completed", ""), fmt.Sprintf("%d\tsecond call\n", s.status().Queue[0].Ticket))
	assert.Contains(t, complete("revoke-lease", "--address", s.address, "completed", ""), fmt.Sprintf("%d\tfirst call\n", s.status().Leases[0].Lease))
	assert.Contains(t, complete("gates", "--output", ""), "json\n")
}

// watched runs `worker watch` in this process and returns its lines, and what
// interrupts it and returns its exit status.
func (s *stage) watched(args ...string) (lines <-chan string, interrupt func() int) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out := &lineWriter{lines: make(chan string, 1000)}
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"watch", "--address", s.address, "--interval", "100ms"}, args...), strings.NewReader(""), out, &stderr)
	}()
	return out.lines, func() int {
		cancel()
		select {
		case c := <-code:
			require.Empty(s.t, stderr.String())
			return c
		case <-time.After(20 * time.Second):
			require.FailNow(s.t, "watch did not end")
			return -1
		}
	}
}

type lineWriter struct{ lines chan string }

func (w *lineWriter) Write(p []byte) (int, error) {
	w.lines <- string(bytes.TrimRight(p, "\n"))
	return len(p), nil
}

func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case line := <-lines:
		return line
	case <-time.After(20 * time.Second):
		require.FailNow(t, "no line")
		return ""
	}
}

// TestWatch: a line for each change, an object with --output json, and status 0
// on Ctrl-C.
func TestWatch(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "watched", MaxInFlight: 2})
	require.NoError(t, (<-s.acquire("a call")).err)
	lines, interrupt := s.watched("watched")
	objects, interruptJSON := s.watched("watched", "--output", "json")
	assert.Regexp(t, `^\d\d:\d\d:\d\d  open, in use 1/2 \(1 started, 0 reserved\), queue 0 \(0 parked\), admitted 1$`, next(t, lines))
	var st workflows.Status
	require.NoError(t, json.Unmarshal([]byte(next(t, objects)), &st))
	assert.False(t, st.Paused)

	s.does("pause", "watched", "--who", "ann")
	assert.Contains(t, next(t, lines), "paused, in use 1/2")
	require.NoError(t, json.Unmarshal([]byte(next(t, objects)), &st))
	assert.True(t, st.Paused)
	s.does("set", "watched", "max_in_flight=1", "--who", "ann")
	assert.Contains(t, next(t, lines), "in use 1/1 (1 started, 0 reserved), queue 0 (0 parked), admitted 1, max_in_flight: 2 -> 1, last: set max_in_flight=1 by ann")
	assert.Equal(t, 0, interrupt())
	assert.Equal(t, 0, interruptJSON())
	assert.Empty(t, lines, "a line for each change, and no more")
}
