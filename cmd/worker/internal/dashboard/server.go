package dashboard

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/workflows"
)

//go:embed assets
var assets embed.FS

const (
	defaultInterval = time.Second
	defaultKeep     = 10 * time.Minute
	stopTimeout     = 2 * time.Second
	// writeTimeout is how long a browser may take to take in a message.
	writeTimeout = 10 * time.Second
	// keepAlive is how long a stream says nothing at most.
	keepAlive = 15 * time.Second
)

// Gates is what the page needs of gates; a [gateclient.Client] has it.
type Gates interface {
	// Gates lists the gates that run.
	Gates(ctx context.Context) ([]string, error)
	// Status asks a gate how it is.
	Status(ctx context.Context, gate string) (workflows.Status, error)
	// Act makes an operator's act.
	Act(ctx context.Context, gate string, o workflows.Operate) (workflows.Act, error)
}

var _ Gates = (*gateclient.Client)(nil)

// Options of a page. Gates, Namespace and Listen are required.
type Options struct {
	Gates Gates // safe for concurrent use
	// Address and Namespace are what the page says that it shows.
	Address   string
	Namespace string
	// Listen is host:port. Port 0 is a free one. The host is an address, localhost,
	// or a name of this machine, by which the page is then called.
	Listen string
	// PortFlag is what a person changes where the port is taken, for the error.
	PortFlag string
	// Control allows acts to whoever has the token.
	Control bool
	// Who makes the acts, for the gate's log and history.
	Who string
	// Interval is the time between two looks at a gate. 0: 1 s.
	Interval time.Duration
	// Keep is how far back the plots go. 0: 10 min.
	Keep time.Duration
	// Always asks the gates also while nobody looks, so that there is a past to see.
	Always bool
	// TemporalUI is where Temporal's own UI is; "": nobody knows.
	TemporalUI string
	// Log gets the HTTP server's error messages; nil drops them.
	Log io.Writer
}

// Server is a running page. Safe for concurrent use.
type Server struct {
	o       Options
	address string // that it listens on
	host    string // by which it is called
	token   string
	epoch   string // of the numbers of its messages
	sampler *sampler
	server  *http.Server

	stopOnce sync.Once
	stopErr  error
}

// Start serves the page and returns once it accepts connections. The error for a
// taken port is one line and wraps [syscall.EADDRINUSE]. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.Keep <= 0 {
		o.Keep = defaultKeep
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("the page can't listen on %q; it has to be host:port, such as 127.0.0.1:8088", o.Listen)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, portTaken{o.Listen, o.PortFlag}
	}
	if err != nil {
		return nil, fmt.Errorf("the page can't listen on %s: %w", o.Listen, err)
	}
	s := &Server{
		o: o, address: l.Addr().String(), host: host, epoch: strconv.FormatInt(time.Now().UnixNano(), 36),
		sampler: newSampler(o.Gates, o.Interval, int(o.Keep/o.Interval)+1, o.Always),
	}
	if o.Control {
		var secret [24]byte
		_, _ = rand.Read(secret[:]) // it never fails
		s.token = hex.EncodeToString(secret[:])
	}
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // embedded
	}
	s.server = &http.Server{Handler: s.handler(files), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ErrorLog: log.New(o.Log, "dashboard: ", 0)}
	go s.sampler.run()
	go func() { _ = s.server.Serve(l) }() // returns when Stop closes the server
	return s, nil
}

// URL is where the page is. With Options.Control it has the token, so whoever is
// given it can change gates.
func (s *Server) URL() string {
	host, port, _ := net.SplitHostPort(s.address)
	if s.host != "" && net.ParseIP(s.host) == nil {
		host = s.host // a name
	} else if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = "localhost"
	}
	u := "http://" + net.JoinHostPort(host, port) + "/"
	if s.token != "" {
		u += "#token=" + s.token
	}
	return u
}

// Loopback reports whether only this machine reaches the page.
func (s *Server) Loopback() bool {
	at, err := netip.ParseAddrPort(s.address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// Stop ends the streams, lets requests end for up to 2 s, then closes their
// connections. Further calls return what the first returned.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		s.sampler.close()
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if s.server.Shutdown(ctx) != nil {
			s.stopErr = s.server.Close()
		}
	})
	return s.stopErr
}

func (s *Server) handler(files fs.FS) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /about", s.about)
	mux.HandleFunc("POST /act", s.act)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.calledRightly(r.Host) {
			http.Error(w, "this page is not known by that name", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// calledRightly refuses a Host that may be another site's name, made to resolve to
// this address so that the site's scripts can read the page. An address, localhost,
// this machine's name and the name that it listens on are no other site's.
func (s *Server) calledRightly(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, "80"
	}
	_, own, _ := net.SplitHostPort(s.address)
	if port != own {
		return false
	}
	name = strings.ToLower(strings.Trim(name, "[]"))
	if name == "localhost" || name == strings.ToLower(s.host) {
		return true
	}
	bound, err := netip.ParseAddrPort(s.address)
	if err != nil {
		return false
	}
	if ip, err := netip.ParseAddr(name); err == nil {
		return bound.Addr().IsUnspecified() || ip.Unmap() == bound.Addr().Unmap()
	}
	own, err = os.Hostname()
	return err == nil && bound.Addr().IsUnspecified() && name == strings.ToLower(own)
}

// events is the stream of a browser.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	var after uint64
	if epoch, seq, ok := strings.Cut(r.Header.Get("Last-Event-ID"), "-"); ok && epoch == s.epoch {
		after, _ = strconv.ParseUint(seq, 10, 64) // what isn't one is 0: everything
	}
	c, err := s.sampler.open(r.URL.Query().Get("gate"), after)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.sampler.leave(c)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	write := func(format string, args ...any) bool {
		if out.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil {
			return false
		}
		if _, err := fmt.Fprintf(w, format, args...); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	if !write("retry: 1000\n\n") {
		return
	}
	quiet := time.NewTicker(keepAlive)
	defer quiet.Stop()
	for {
		select {
		case m, open := <-c.out:
			if !open || !write("id: %s-%d\ndata: %s\n\n", s.epoch, m.seq, m.data) {
				return
			}
		case <-quiet.C:
			if !write(": still here\n\n") {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// portTaken is a refused bind that a person can act on.
type portTaken struct{ addr, flag string }

func (e portTaken) Error() string {
	return fmt.Sprintf("port %s is taken; choose another with %s", e.addr, e.flag)
}

func (portTaken) Unwrap() error { return syscall.EADDRINUSE }
