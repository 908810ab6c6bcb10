package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Bounds on what a Provider keeps.
const (
	MaxRuns     = 1000      // runs; a call of a further one is answered 507
	MaxAttempts = 1_000_000 // attempts and call IDs recorded per run
	MaxLabel    = 128       // bytes of a run's label and of each recorded header
)

// Headers that a caller may send.
const (
	HeaderRun    = "X-Sluice-Run"   // the run, where the URL doesn't name it
	HeaderCallID = "X-Call-Id"      // one logical call; all its attempts carry the same
	HeaderLease  = "X-Sluice-Lease" // recorded with the attempt as it is
)

// ErrTooManyRuns is what SetQuota returns once MaxRuns runs exist.
var ErrTooManyRuns = errors.New("loopback: too many runs")

// Quota is what a run is held to. The zero value accepts everything and answers
// at once.
type Quota struct {
	// Interval is the smallest distance between two accepted attempts: 100 ms is
	// ten requests per second without burst. 0 or less: no limit.
	Interval time.Duration
	// MaxInFlight is how many calls are served at once. 0 or less: no limit.
	MaxInFlight int
	// ServeTime is how long an accepted call takes. 0 or less: answered at once.
	ServeTime time.Duration
	// RetryAfter is the value of a 429's Retry-After header, as it is. "": no header.
	RetryAfter string
}

// Turn is what becomes of one attempt that the quota lets in.
type Turn struct {
	// Status other than 0 and 200 refuses the attempt at once: it takes no place
	// and moves no spacing.
	Status int
	// RetryAfter is that header of a refusal, as it is. "": no header.
	RetryAfter string
	// ServeTime is how long the call takes; 0 or less: answered at once.
	ServeTime time.Duration
	// Hang serves the call until its caller leaves: it is never answered.
	Hang bool
}

// Script decides what becomes of a run's attempts from their number, 1 for the
// first to arrive: so a run can be repeated. It is called under the run's lock,
// for attempts in the order of their numbers, and must not block.
type Script func(attempt int) Turn

// Provider is an [http.Handler] that judges calls against a quota, run by run,
// and records what it saw. Make one with [New]. Safe for concurrent use.
type Provider struct {
	quota Quota            // of a run that has none of its own
	epoch time.Time        // what every recorded instant is measured from
	mux   http.Handler     // the routes of handler.go
	done  <-chan struct{}  // closed by Close: ends what is being served
	stop  func()           // closes done
	onEnd func(a *Attempt) // for tests: sees each attempt as it ends

	mu     sync.Mutex // guards what follows; never held together with a run's lock
	runs   map[string]*run
	server *http.Server
	url    string
	unhook func() bool // parts the provider from the context of Start
}

// New makes a provider that holds each run to q, unless [Provider.SetQuota] gives
// the run a quota of its own. It listens nowhere until [Provider.Start]; as an
// http.Handler it works at once.
func New(q Quota) *Provider {
	ctx, stop := context.WithCancel(context.Background())
	p := &Provider{
		quota: q,
		epoch: time.Now(),
		done:  ctx.Done(),
		stop:  stop,
		runs:  make(map[string]*run),
	}
	p.mux = p.routes()
	return p
}

// Start listens on addr ("127.0.0.1:0" picks a free port) and serves until Close
// is called or ctx ends. It returns once connections are accepted. The error for
// a taken port is one line and wraps [syscall.EADDRINUSE].
func (p *Provider) Start(ctx context.Context, addr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return errors.New("loopback: already started")
	}
	select {
	case <-p.done:
		return errors.New("loopback: closed")
	default:
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return portTaken{addr}
	}
	if err != nil {
		return fmt.Errorf("can't listen on %s: %w", addr, err)
	}
	p.url = "http://" + l.Addr().String()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go p.server.Serve(l) // returns when Close closes the server
	p.unhook = context.AfterFunc(ctx, func() { p.Close() })
	return nil
}

// URL is where the provider listens, "http://127.0.0.1:45123", or "" before Start.
func (p *Provider) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

// CallURL is the address that a call of the run is posted to, or "" before Start.
func (p *Provider) CallURL(run string) string {
	base := p.URL()
	if base == "" {
		return ""
	}
	return base + callPath(run)
}

// Close stops listening and ends what is being served; those calls count as
// aborted. What was recorded stays readable. It may be called more than once.
func (p *Provider) Close() error {
	p.stop()
	p.mu.Lock()
	server, unhook := p.server, p.unhook
	p.mu.Unlock()
	if server == nil {
		return nil
	}
	unhook()
	return server.Close()
}

// SetQuota gives a run a quota of its own from now on. What the run has recorded
// and when it last accepted an attempt stay. The error is [ErrTooManyRuns], or
// says that the label is empty or too long.
func (p *Provider) SetQuota(run string, q Quota) error {
	r, err := p.openRun(run)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quota = q
	return nil
}

// SetScript has a run follow a script from now on, within its quota. nil: none.
// The errors are those of SetQuota.
func (p *Provider) SetScript(run string, s Script) error {
	r, err := p.openRun(run)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = s
	return nil
}

// Epoch is what every recorded instant is measured from.
func (p *Provider) Epoch() time.Time { return p.epoch }

// openRun returns the run of that label, a new one if there is none yet.
func (p *Provider) openRun(label string) (*run, error) {
	switch {
	case label == "":
		return nil, errors.New("loopback: a run needs a label")
	case len(label) > MaxLabel:
		return nil, fmt.Errorf("loopback: a run's label of %d bytes; it may be %d", len(label), MaxLabel)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.runs[label]; r != nil {
		return r, nil
	}
	if len(p.runs) >= MaxRuns {
		return nil, ErrTooManyRuns
	}
	r := &run{quota: p.quota, served: make(map[callKey]struct{})}
	p.runs[label] = r
	return r, nil
}

// findRun returns the run of that label, nil if it has never been named.
func (p *Provider) findRun(label string) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs[label]
}

// portTaken is a refused bind that a person can act on.
type portTaken struct{ addr string }

func (e portTaken) Error() string {
	return fmt.Sprintf("port %s is taken; choose another with --port or 0 for a free one", e.addr)
}

func (portTaken) Unwrap() error { return syscall.EADDRINUSE }
