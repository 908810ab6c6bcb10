package dashboard

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/workflows"
)

func serve(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Gates == nil {
		o.Gates = newFakeGates("a")
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	s, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

// transport keeps no connection, so that none is left behind.
var transport = &http.Transport{DisableKeepAlives: true}

// base is the address without the token.
func (s *Server) base() string {
	base, _, _ := strings.Cut(s.URL(), "#")
	return strings.TrimSuffix(base, "/")
}

// ask makes a request; change may alter it.
func (s *Server) ask(t *testing.T, method, path, body string, change func(*http.Request)) (status int, header http.Header, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.base()+path, strings.NewReader(body))
	require.NoError(t, err)
	if change != nil {
		change(r)
	}
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header, string(data)
}

func TestThePageAllowsNothingFromElsewhere(t *testing.T) {
	s := serve(t, Options{})
	for _, path := range []string{"/", "/dashboard.js", "/dashboard.css", "/uplot/uPlot.iife.min.js", "/uplot/LICENSE", "/about", "/nothing"} {
		_, h, body := s.ask(t, http.MethodGet, path, "", nil)
		assert.True(t, strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'self'; frame-ancestors 'none'"), path)
		assert.NotContains(t, h.Get("Content-Security-Policy"), "unsafe")
		assert.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), path)
		assert.Equal(t, "no-referrer", h.Get("Referrer-Policy"), path)
		if path != "/nothing" {
			assert.Equal(t, "no-store", h.Get("Cache-Control"), path)
		}
		if strings.HasSuffix(path, ".css") || path == "/" {
			assert.NotContains(t, body, "//", "nothing of another origin: "+path)
		}
	}
}

// TestAnotherNameIsRefused: a site whose name is made to resolve to this address reads
// nothing.
func TestAnotherNameIsRefused(t *testing.T) {
	s := serve(t, Options{})
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "LocalHost:" + port: 200,
		"evil.example:" + port: 421, "127.0.0.1.evil.example:" + port: 421, "localhost": 421, "127.0.0.1:1": 421, "10.1.2.3:" + port: 421, "[::1]:" + port: 421,
	} {
		status, _, _ := s.ask(t, http.MethodGet, "/about", "", func(r *http.Request) { r.Host = host })
		assert.Equal(t, want, status, host)
	}

	all := serve(t, Options{Listen: "0.0.0.0:0"})
	assert.False(t, all.Loopback())
	assert.True(t, strings.HasPrefix(all.URL(), "http://localhost:"), all.URL())
	_, port, err = net.SplitHostPort(all.address)
	require.NoError(t, err)
	for host, want := range map[string]int{"10.1.2.3:" + port: 200, "localhost:" + port: 200, "evil.example:" + port: 421} {
		status, _, _ := all.ask(t, http.MethodGet, "/about", "", func(r *http.Request) { r.Host = host })
		assert.Equal(t, want, status, host)
	}

	named := serve(t, Options{Listen: "localhost:0"})
	assert.True(t, named.Loopback())
	assert.True(t, strings.HasPrefix(named.URL(), "http://localhost:"), named.URL())
}

const pauseIt = `{"gate": "a", "id": "1", "do": "pause", "why": "a test"}`

func TestWithoutControlNothingIsChanged(t *testing.T) {
	g := newFakeGates("a")
	s := serve(t, Options{Gates: g})
	assert.NotContains(t, s.URL(), "token")
	status, _, body := s.ask(t, http.MethodPost, "/act", pauseIt, allowed(s))
	assert.Equal(t, http.StatusForbidden, status)
	assert.Contains(t, body, "--allow-control")
	for _, path := range []string{"/", "/events", "/about", "/dashboard.js"} {
		status, _, _ := s.ask(t, http.MethodPost, path, pauseIt, allowed(s))
		assert.Equal(t, http.StatusMethodNotAllowed, status, path)
	}
	status, _, _ = s.ask(t, http.MethodGet, "/act", "", nil)
	assert.NotEqual(t, http.StatusOK, status)
	assert.Empty(t, g.acts)
}

// allowed makes a request as the page does.
func allowed(s *Server) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set("Origin", s.base())
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(tokenHeader, s.token)
	}
}

func TestControlNeedsTheTokenAndThePage(t *testing.T) {
	g := newFakeGates("a")
	s := serve(t, Options{Gates: g, Control: true, Who: "ann"})
	_, token, ok := strings.Cut(s.URL(), "#token=")
	require.True(t, ok)
	assert.Len(t, token, 48)
	for name, change := range map[string]func(*http.Request){
		"no token":       func(r *http.Request) { r.Header.Del(tokenHeader) },
		"another token":  func(r *http.Request) { r.Header.Set(tokenHeader, strings.Repeat("0", 48)) },
		"no origin":      func(r *http.Request) { r.Header.Del("Origin") },
		"another origin": func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"a form":         func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
	} {
		status, _, _ := s.ask(t, http.MethodPost, "/act", pauseIt, func(r *http.Request) { allowed(s)(r); change(r) })
		assert.Equal(t, http.StatusForbidden, status, name)
	}
	assert.Empty(t, g.acts)

	status, _, body := s.ask(t, http.MethodPost, "/act", pauseIt, allowed(s))
	assert.Equal(t, http.StatusOK, status, body)
	assert.Equal(t, []workflows.Operate{{ID: "1", Do: workflows.DoPause, Who: "ann", Why: "a test"}}, g.acts)
}

func TestActsThatAreNone(t *testing.T) {
	g := newFakeGates("a")
	s := serve(t, Options{Gates: g, Control: true})
	for wanted, says := range map[string]string{
		`{`:                               "unexpected EOF",
		`{"do": "terminate"}`:             "which nobody can",
		`{"do": "pause", "who": "admin"}`: "unknown field",
		`{"do": "set"}`:                   "no FIELD=VALUE",
		`{"do": "set", "set": ["x"]}`:     "is not FIELD=VALUE",
		`{"do": "set", "set": ["max_in_flight=1"], "for": "-1m"}`: "may be a duration",
		`{"do": "cancel_ticket"}`:                                 "no ticket is named",
		`{"do": "revoke_lease"}`:                                  "no lease is named",
		`{"do": "pause", "why": "` + strings.Repeat("x", maxAct):  "too large",
	} {
		status, _, body := s.ask(t, http.MethodPost, "/act", wanted, allowed(s))
		assert.Equal(t, http.StatusBadRequest, status, wanted)
		assert.Contains(t, body, says)
	}
	assert.Empty(t, g.acts)
}

// TestTheStream is one of server-sent events that can be taken up again.
func TestTheStream(t *testing.T) {
	g := newFakeGates("a")
	s := serve(t, Options{Gates: g, Interval: 100 * time.Millisecond})
	read := func(last string) (id string, n news) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base()+"/events?gate=a", nil)
		require.NoError(t, err)
		r.Header.Set("Last-Event-ID", last)
		response, err := transport.RoundTrip(r)
		require.NoError(t, err)
		defer response.Body.Close()
		assert.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
		for in := bufio.NewScanner(response.Body); in.Scan(); {
			if rest, ok := strings.CutPrefix(in.Text(), "id: "); ok {
				id = rest
			}
			if data, ok := strings.CutPrefix(in.Text(), "data: "); ok {
				require.NoError(t, json.Unmarshal([]byte(data), &n))
				if n.Gate != nil && n.Gate.Status != nil {
					return id, n
				}
			}
		}
		require.Fail(t, "the stream ended")
		return id, n
	}
	id, n := read("")
	assert.Equal(t, "a", n.Gate.Gate)
	_, n = read(id)
	assert.False(t, n.Fresh)
	_, n = read("of-another-server-7")
	assert.True(t, n.Fresh)
}

func TestPortTaken(t *testing.T) {
	s := serve(t, Options{})
	_, err := Start(t.Context(), Options{Gates: newFakeGates(), Listen: s.address, PortFlag: "--listen"})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.Equal(t, "port "+s.address+" is taken; choose another with --listen", err.Error())
	_, err = Start(t.Context(), Options{Gates: newFakeGates(), Listen: "8088"})
	assert.ErrorContains(t, err, "it has to be host:port")
}
