package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sluice/activities"
	"sluice/cmd/worker/internal/child"
)

// fleet is all processes of a soak and what was done to them. Faults come from one
// goroutine; the rest is safe for concurrent use.
type fleet struct {
	program     string
	logs        string // directory of what the processes write to standard error
	ip, db      string
	seed        uint64
	transport   activities.ExchangeTransport
	noTelemetry bool
	gate        json.RawMessage
	died        chan error // gets the first process that ended by itself

	provider *provider

	mu      sync.Mutex
	server  *server
	serving int // how many servers there have been
	workers []*member
	blows   blows
	closing bool
	resumes sync.WaitGroup
}

// member is one worker process, and after its death the next one in its place.
type member struct {
	*child.Process
	holder  string
	lives   int
	stopped bool
	doomed  bool          // it is ended on purpose
	resume  chan struct{} // closed to have it go on at once where it stands still
}

// blows are the faults that were struck, in wall time.
type blows struct {
	Kills   []kill
	Stops   []stop
	Outages []outage
	Sizes   []sample // of the present server, oldest first
}

type kill struct {
	Holder string
	At     time.Time
}

// stop is a time in which a worker process stood still.
type stop struct {
	Holder   string
	From, To time.Time
}

// outage is a time without a server.
type outage struct{ From, To time.Time }

type sample struct {
	At time.Time
	Size
}

// log opens the file that gets what a process writes to standard error.
func (f *fleet) log(name string) (io.WriteCloser, error) {
	return os.OpenFile(filepath.Join(f.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// watch tells the soak of a process that ends by itself.
func (f *fleet) watch(name string, p *child.Process, log io.Closer, onPurpose func() bool) {
	go func() {
		<-p.Done()
		_ = log.Close()
		if onPurpose() {
			return
		}
		select {
		case f.died <- fmt.Errorf("%s ended by itself: %w; see %s.log", name, p.Ended(), filepath.Join(f.logs, name)):
		default: // the first one says why
		}
	}()
}

func (f *fleet) startProvider(ctx context.Context) error {
	log, err := f.log("provider")
	if err != nil {
		return err
	}
	if f.provider, err = startProvider(ctx, []string{f.program, RoleProvider}, providerOrder{IP: f.ip, Seed: f.seed}, log); err != nil {
		return err
	}
	f.watch("provider", f.provider.Process, log, f.isClosing)
	return nil
}

// isClosing reports whether all processes are to end.
func (f *fleet) isClosing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closing
}

// startServer starts the server, on the port of the one before.
func (f *fleet) startServer(ctx context.Context) error {
	f.mu.Lock()
	o, previous := serverOrder{IP: f.ip, DB: f.db}, f.server
	f.serving++
	name := fmt.Sprintf("server-%d", f.serving)
	f.mu.Unlock()
	if previous != nil {
		o.Port = portOf(previous.address)
	}
	log, err := f.log(name)
	if err != nil {
		return err
	}
	s, err := startServer(ctx, []string{f.program, RoleServer}, o, log)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.server, f.blows.Sizes = s, nil
	f.mu.Unlock()
	f.watch(name, s.Process, log, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.closing || f.server != s
	})
	return nil
}

// killServer ends the server at once and starts another one on its file and port.
func (f *fleet) killServer(ctx context.Context) error {
	f.mu.Lock()
	old := f.server
	f.server = &server{address: old.address} // nobody's: it may end
	f.mu.Unlock()
	from := time.Now()
	old.Kill()
	if err := f.startServer(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blows.Outages = append(f.blows.Outages, outage{from, time.Now()})
	return nil
}

// measure takes down how large the server is.
func (f *fleet) measure(ctx context.Context) {
	f.mu.Lock()
	s := f.server
	f.mu.Unlock()
	if s == nil || s.Process == nil {
		return
	}
	size, err := s.size(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.server == s {
		f.blows.Sizes = append(f.blows.Sizes, sample{time.Now(), size})
	}
}

// startWorkers starts n worker processes and returns when all take work.
func (f *fleet) startWorkers(ctx context.Context, n int) error {
	workers := make([]*member, n)
	for i := range workers {
		workers[i] = &member{}
	}
	f.mu.Lock()
	f.workers = workers
	f.mu.Unlock()
	for i := range n {
		if err := f.startWorker(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// startWorker starts the next worker process in a place. Each has a name of its
// own, as processes have that nobody names: what the dead one held is free only
// when the gate has missed it for a TTL.
func (f *fleet) startWorker(ctx context.Context, i int) error {
	f.mu.Lock()
	m := f.workers[i]
	lives := m.lives + 1
	address := f.server.address
	f.mu.Unlock()
	holder := fmt.Sprintf("worker-%d.%d", i+1, lives)
	log, err := f.log(holder)
	if err != nil {
		return err
	}
	p, err := child.Start([]string{f.program, RoleWorker}, workOrder{Address: address, Holder: holder, Transport: f.transport, Gate: f.gate, NoTelemetry: f.noTelemetry}, log)
	if err != nil {
		return fmt.Errorf("%s: %w", holder, err)
	}
	next := &member{Process: p, holder: holder, lives: lives, resume: make(chan struct{})}
	f.mu.Lock()
	f.workers[i] = next
	f.mu.Unlock()
	f.watch(holder, p, log, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return next.doomed
	})
	if _, err := p.Line(ctx); err != nil {
		return fmt.Errorf("%s: %w", holder, err)
	}
	return nil
}

// victim chooses a worker process that doesn't stand still, -1 if all do; n says which.
func (f *fleet) victim(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.workers {
		if at := (n + i) % len(f.workers); !f.workers[at].stopped {
			return at
		}
	}
	return -1
}

// killWorker ends a worker process at once and starts another one in its place.
func (f *fleet) killWorker(ctx context.Context, i int) error {
	f.mu.Lock()
	m := f.workers[i]
	m.doomed = true
	f.blows.Kills = append(f.blows.Kills, kill{m.holder, time.Now()})
	f.mu.Unlock()
	m.Kill()
	return f.startWorker(ctx, i)
}

// stopWorker has a worker process stand still for so long; it doesn't wait for that.
func (f *fleet) stopWorker(i int, d time.Duration) error {
	f.mu.Lock()
	m := f.workers[i]
	m.stopped = true
	f.mu.Unlock()
	off, err := resumeLater(m.PID(), d)
	if err != nil {
		return err
	}
	from := time.Now()
	if err := m.Signal(suspendSignal); err != nil {
		off()
		return err
	}
	f.resumes.Go(func() {
		defer off()
		select {
		case <-time.After(d):
		case <-m.resume:
		}
		_ = m.Signal(resumeSignal) // an error says that it has just ended
		f.mu.Lock()
		defer f.mu.Unlock()
		m.stopped = false
		f.blows.Stops = append(f.blows.Stops, stop{m.holder, from, time.Now()})
	})
	return nil
}

// strike is one fault.
func (f *fleet) strike(ctx context.Context, b fault) error {
	if b.kind == killServer {
		return f.killServer(ctx)
	}
	n := dice(f.seed, "whom to "+string(b.kind), b.n).IntN(1 << 16)
	i := f.victim(n)
	for i < 0 { // all stand still, and will go on
		f.resumes.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		i = f.victim(n)
	}
	if b.kind == killWorker {
		return f.killWorker(ctx, i)
	}
	return f.stopWorker(i, b.stopFor(f.seed))
}

// struck is what was done so far.
func (f *fleet) struck() blows {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blows
}

// stopWorkers has the worker processes drain and returns when they are gone.
func (f *fleet) stopWorkers() {
	f.mu.Lock()
	workers := f.workers
	f.workers = nil
	for _, m := range workers {
		m.doomed = true
	}
	f.mu.Unlock()
	for _, m := range workers {
		if m.Process != nil {
			close(m.resume) // one that stands still can't drain
			m.AskToStop()
		}
	}
	for _, m := range workers {
		if m.Process != nil {
			m.Wait()
		}
	}
	f.resumes.Wait()
}

// close ends all processes.
func (f *fleet) close() {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	f.stopWorkers()
	f.mu.Lock()
	s := f.server
	f.mu.Unlock()
	if s != nil && s.Process != nil {
		s.AskToStop()
		s.Wait()
	}
	if f.provider != nil {
		f.provider.AskToStop()
		f.provider.Wait()
	}
}
