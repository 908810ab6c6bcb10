package dashboard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/cmd/worker/internal/reading"
)

const (
	// listEvery is how often the gates that there are are looked up; while there is
	// none, each interval.
	listEvery = 5 * time.Second
	// fewGates are all asked each interval; of more, those that nobody looks at
	// are asked every restEvery intervals.
	fewGates  = 4
	restEvery = 5
	// lastBackOff is the longest pause before a gate that doesn't answer is asked
	// again.
	lastBackOff = 30 * time.Second
	// backlog is how many messages a browser may leave unread.
	backlog = 8
	// maxStreams bounds the browsers that look at once.
	maxStreams = 64
)

// sampler asks the gates how they are and tells the browsers. Safe for concurrent
// use.
type sampler struct {
	gates    Gates
	interval time.Duration
	keep     int // points
	always   bool
	ctx      context.Context
	stop     context.CancelFunc
	ended    chan struct{}
	wake     chan struct{} // a browser came
	all      sync.WaitGroup

	mu      sync.Mutex
	seq     uint64 // of the newest point of all gates
	told    uint64 // to browsers
	watched map[string]*watched
	err     error // of the list
	since   time.Time
	listed  time.Time
	listing bool
	pending int // answers that this tick waits for
	streams map[*stream]struct{}
}

// watched is one gate.
type watched struct {
	gate    string
	last    *reading.Reading // of its last answer; nil: none yet
	err     error
	since   time.Time // of err
	asked   time.Time
	next    time.Time // after a failure, when it is asked again
	fails   int
	asking  bool
	history *history
	starts  *float64
	gone    bool // it doesn't run any more
}

// stream is one browser.
type stream struct {
	gate string // that it looks at; "": none
	out  chan message
}

// message is encoded news, and the number of the newest point that there was.
type message struct {
	seq  uint64
	data []byte
}

func newSampler(g Gates, interval time.Duration, keep int, always bool) *sampler {
	ctx, stop := context.WithCancel(context.Background())
	return &sampler{
		gates: g, interval: interval, keep: keep, always: always, ctx: ctx, stop: stop, ended: make(chan struct{}), wake: make(chan struct{}, 1),
		watched: map[string]*watched{}, streams: map[*stream]struct{}{},
	}
}

// run samples until close.
func (s *sampler) run() {
	defer close(s.ended)
	s.ask(true)
	ticker := time.NewTicker(s.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.ask(true)
		case <-s.wake:
			s.ask(false)
		case <-s.ctx.Done():
			return
		}
	}
}

// close ends the sampling and all streams.
func (s *sampler) close() {
	s.stop()
	<-s.ended
	s.all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.streams {
		s.dropLocked(c)
	}
}

// ask asks whichever gates are due. A tick of the clock is told to all browsers, also
// where there is nothing new; a browser that came has been told.
func (s *sampler) ask(clock bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 && !s.always {
		return
	}
	if s.pending > 0 && clock {
		s.publishLocked() // some don't answer; the others shall be seen
	}
	now := time.Now()
	if !s.listing && (now.Sub(s.listed) >= listEvery || len(s.watched) == 0) {
		s.listing = true
		s.pending++
		s.all.Go(s.list)
	}
	looked := s.lookedAtLocked()
	for _, w := range s.watched {
		every := s.interval
		if len(s.watched) > fewGates && !looked[w.gate] {
			every *= restEvery
		}
		// A tick may be a little early, and one for a new browser comes at any time.
		if w.asking || now.Before(w.next) || now.Sub(w.asked) < every-s.interval/4 {
			continue
		}
		w.asking, w.asked = true, now
		s.pending++
		s.all.Go(func() { s.askOne(w) })
	}
	if s.pending == 0 && clock {
		s.publishLocked()
	}
}

func (s *sampler) lookedAtLocked() map[string]bool {
	looked := map[string]bool{}
	for c := range s.streams {
		looked[c.gate] = true
	}
	return looked
}

// list looks up the gates that there are.
func (s *sampler) list() {
	list, err := s.gates.Gates(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listing, s.listed = false, time.Now()
	if err != nil {
		if s.err == nil {
			s.since = time.Now()
		}
		s.err = err
	} else {
		s.err = nil
		for _, gate := range list {
			s.watchLocked(gate)
		}
		// Visibility may be a moment behind: one that runs stays.
		for gate, w := range s.watched {
			if w.gone && !slices.Contains(list, gate) {
				delete(s.watched, gate)
			}
		}
	}
	s.answeredLocked()
	s.wakeUp() // what is new is asked at once
}

func (s *sampler) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sampler) watchLocked(gate string) *watched {
	w := s.watched[gate]
	if w == nil {
		w = &watched{gate: gate, history: newHistory(s.keep)}
		s.watched[gate] = w
	}
	return w
}

// askOne asks a gate.
func (s *sampler) askOne(w *watched) {
	st, err := s.gates.Status(s.ctx, w.gate)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	w.asking = false
	switch {
	case err == nil:
		r := reading.Reading{Status: &st, At: now}
		if w.last != nil && (w.fails > 0 || now.Sub(w.last.At) > 2*restEvery*s.interval) {
			s.noteLocked(w, point{At: now.UnixMilli() - 1}) // nobody knows what was between
			w.last = nil
		}
		p := pointOf(r, w.last)
		s.noteLocked(w, p)
		w.last, w.starts, w.err, w.fails, w.gone = &r, p.Starts, nil, 0, false
	case s.ctx.Err() != nil:
	default:
		if w.err == nil {
			w.since = w.asked
			s.noteLocked(w, point{At: now.UnixMilli()})
		}
		w.err, w.gone, w.starts = err, errors.Is(err, gateclient.ErrNotRunning), nil
		w.next = now.Add(min(s.interval<<min(w.fails, 10), lastBackOff))
		w.fails++
	}
	s.answeredLocked()
}

func (s *sampler) answeredLocked() {
	if s.pending--; s.pending == 0 {
		s.publishLocked()
	}
}

// publishLocked tells every browser what is known. One that has left too much unread
// is cut off.
func (s *sampler) publishLocked() {
	encoded := map[string][]byte{}
	for c := range s.streams {
		data, done := encoded[c.gate]
		if !done {
			n := s.newsLocked(c.gate)
			if n.Gate != nil {
				n.Gate.Points = s.watched[c.gate].history.since(s.told)
			}
			data = n.encode()
			encoded[c.gate] = data
		}
		select {
		case c.out <- message{s.seq, data}:
		default:
			s.dropLocked(c)
		}
	}
	s.told = s.seq
}

// noteLocked adds a point to the history of a gate.
func (s *sampler) noteLocked(w *watched, p point) {
	s.seq++
	p.Seq = s.seq
	w.history.add(p)
}

// newsLocked is what is known, for a browser that looks at a gate.
func (s *sampler) newsLocked(gate string) *news {
	now := time.Now()
	n := &news{Now: now.UnixMilli(), Gates: []row{}}
	if s.err != nil {
		n.Error, n.Since = s.err.Error(), s.since.UnixMilli()
	}
	for _, w := range s.watched {
		if w.last == nil && w.err == nil {
			continue // not asked yet
		}
		n.Gates = append(n.Gates, w.row())
	}
	slices.SortFunc(n.Gates, func(a, b row) int { return cmp.Compare(a.Gate, b.Gate) })
	if w := s.watched[gate]; w != nil && (w.last != nil || w.err != nil) {
		n.Gate = w.detail()
	}
	return n
}

func (w *watched) row() row {
	r := row{Gate: w.gate, State: "no answer", Kind: unreachable}
	if w.gone {
		r.State = "not running"
	}
	if w.last == nil {
		return r
	}
	last := *w.last
	r.InUse, r.Queued, r.Parked, r.Pacing, r.Holders = last.InUse(), last.Queued, last.Parked, last.Pacing(), len(last.Holders)
	if w.err == nil {
		kind, _ := last.Kind()
		r.State, r.Kind = last.State(), string(kind)
	}
	return r
}

func (w *watched) detail() *detail {
	d := &detail{Gate: w.gate, Kind: unreachable, State: "no answer", Starts: w.starts, Points: []point{}}
	if w.err != nil {
		d.Error, d.Since = w.err.Error(), w.since.UnixMilli()
	}
	if w.last == nil {
		return d
	}
	last := *w.last
	d.Status, d.At, d.Pacing, d.Limits = last.Status, last.At.UnixMilli(), last.Pacing(), last.Limits()
	d.Cooldown = last.CooldownText()
	d.Reserved, d.Started = last.Running()
	if w.err == nil {
		kind, _ := last.Kind()
		d.State, d.Kind = last.State(), string(kind)
	}
	return d
}

// errTooMany refuses a browser.
var errTooMany = errors.New("too many pages are open")

// open lets a browser look at a gate; "" is the list alone. after is the last message
// that it has; 0: none. Its first message is there at once where anything is known.
func (s *sampler) open(gate string, after uint64) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams || s.ctx.Err() != nil {
		return nil, errTooMany
	}
	c := &stream{gate: gate, out: make(chan message, backlog)}
	s.streams[c] = struct{}{}
	if gate != "" {
		s.watchLocked(gate)
	}
	n := s.newsLocked(gate)
	n.Fresh = after == 0 || after > s.seq
	if n.Fresh {
		after = 0
	}
	if n.Gate != nil {
		n.Gate.Points = s.watched[gate].history.since(after)
	}
	c.out <- message{s.seq, n.encode()}
	s.wakeUp()
	return c, nil
}

// leave takes a browser away.
func (s *sampler) leave(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(c)
}

func (s *sampler) dropLocked(c *stream) {
	if _, there := s.streams[c]; there {
		delete(s.streams, c)
		close(c.out)
	}
}
