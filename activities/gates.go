package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"sluice/policy"
)

// Gates are the gates of one policy in this process, opened as they are needed.
// The worker plugin makes one and puts it into the context of every activity;
// tests and tools make their own with [NewLocalGates]. Safe for concurrent use.
type Gates struct {
	policy  *policy.Policy
	options GatesOptions
	connect func(policy.Gate) (link, error)

	mu     sync.Mutex
	open   map[*policy.Gate]*holder
	closed bool

	telemetry *telemetry

	warned sync.Map // what was said once
	warns  atomic.Int64
}

// GatesOptions say how this process appears to its gates.
type GatesOptions struct {
	// HolderID names this process; a restarted process with the same name ends
	// what the old one held at once, so name only what is unique, such as the
	// pod of a stateful set. Empty: a new name for each process, whose leases
	// end after the holder TTL if it dies.
	HolderID string
	// Logger gets warnings: unavailable gates, lost leases, conflicts.
	// nil: slog.Default().
	Logger *slog.Logger
	// TracerProvider gets a span of each wait for admission and of each attempt,
	// see docs/telemetry.md. nil: the global one; without a provider that records
	// they cost next to nothing. It is never shut down here.
	TracerProvider trace.TracerProvider
	// MeterProvider gets the metrics of the gates, likewise.
	MeterProvider metric.MeterProvider
}

func newGates(p *policy.Policy, options GatesOptions, connect func(policy.Gate) (link, error)) *Gates {
	if options.HolderID == "" {
		host, _ := os.Hostname() // only for people
		options.HolderID = fmt.Sprintf("%.60s/%d/%s", host, os.Getpid(), uuid.NewString()[:8])
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	options.Logger = slog.New(shieldedHandler{options.Logger.Handler()})
	g := &Gates{policy: p, options: options, connect: connect, open: map[*policy.Gate]*holder{}}
	g.telemetry = newTelemetry(g)
	return g
}

// NewLocalGates returns gates that work without Temporal: the same scheduler,
// shared by all in this process that use the same gate ID. For unit tests,
// tools and single processes. Close them when done.
func NewLocalGates(p *policy.Policy, options GatesOptions) *Gates {
	return newGates(p, options, func(g policy.Gate) (link, error) { return openLocal(g) })
}

// NewDurableGates returns gates that are workflows of a Temporal namespace. The
// worker plugin makes these. Close them when the activities have drained.
func NewDurableGates(p *policy.Policy, durable DurableOptions, options GatesOptions) *Gates {
	return newGates(p, options, func(g policy.Gate) (link, error) { return newDurableLink(g, durable) })
}

// Policy returns the policy of these gates.
func (g *Gates) Policy() *policy.Policy { return g.policy }

// Gate returns the gate with the given ID, or with the given name where that is
// unique. The error is or wraps policy.ErrUnknownGate, or ErrStopped.
func (g *Gates) Gate(name string) (Gate, error) {
	found, err := g.policy.ByName(name)
	if err != nil {
		return nil, err
	}
	return g.of(found)
}

// ForActivity returns the gate of an activity type; nil if it isn't gated.
func (g *Gates) ForActivity(name string) (Gate, error) {
	found := g.policy.ByActivity(name)
	if found == nil {
		return nil, nil
	}
	return g.of(found)
}

// ForRequest returns the gate of an HTTP request; nil if it isn't gated. name
// chooses among several gates of one endpoint; empty: the only or unnamed one.
func (g *Gates) ForRequest(r *http.Request, name string) (Gate, error) {
	found, err := g.policy.Find(r.Method, r.URL, name)
	if err != nil || found == nil {
		return nil, err
	}
	return g.of(found)
}

func (g *Gates) of(found *policy.Gate) (Gate, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.open[found]; h != nil {
		return h, nil
	}
	if g.closed {
		return nil, ErrStopped
	}
	l, err := g.connect(*found)
	if err != nil {
		return nil, err
	}
	h, err := newHolder(*found, g.options.HolderID, l, g.options.Logger)
	if err != nil {
		return nil, err
	}
	h.telemetry = g.telemetry.of(h.gate)
	g.open[found] = h
	return h, nil
}

// LowerLimits are, by gate ID, the provider's limits that are lower than the
// policy's, as answers have shown them to this process. Only gates that learn
// (`learn: true`) look at them.
func (g *Gates) LowerLimits() map[string][]policy.LowerLimit {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string][]policy.LowerLimit{}
	for _, h := range g.open {
		h.mu.Lock()
		if len(h.lower) > 0 {
			all[h.id] = slices.Clone(h.lower)
		}
		h.mu.Unlock()
	}
	return all
}

// maxWarnings bounds what is remembered of having been said.
const maxWarnings = 1000

// warnOnce logs what would be said for every call otherwise.
func (g *Gates) warnOnce(text string, args ...any) {
	if _, said := g.warned.LoadOrStore(fmt.Sprint(text, args), true); said || g.warns.Add(1) > maxWarnings {
		return
	}
	g.options.Logger.Warn(text, args...)
}

// Close gives back what this process still holds and says so to the gates,
// durably even where no host is left. Waiting callers get ErrStopped. Call it
// when the activities have drained; ctx bounds the farewell.
func (g *Gates) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	holders := make([]*holder, 0, len(g.open))
	for _, h := range g.open {
		holders = append(holders, h)
	}
	g.mu.Unlock()
	slices.SortFunc(holders, func(a, b *holder) int { return strings.Compare(a.id, b.id) })
	var failed error
	for _, h := range holders {
		if err := h.close(ctx); err != nil {
			failed = errors.Join(failed, fmt.Errorf("gate %s: last exchange: %w", h.id, err))
		}
		if l, local := h.link.(*localLink); local {
			l.close()
		}
	}
	g.telemetry.close(ctx)
	return failed
}

type contextKey int

const (
	gatesKey contextKey = iota
	heldKey
	nameKey
	attemptKey
)

// WithGates returns a context in which HTTPClient, Transport, Do and TryAcquire
// find their gates. The worker plugin does this for every activity; a test puts
// it into worker.Options.BackgroundActivityContext.
func WithGates(ctx context.Context, g *Gates) context.Context {
	return context.WithValue(ctx, gatesKey, g)
}

// GatesFrom returns the context's gates; nil if it has none.
func GatesFrom(ctx context.Context) *Gates {
	g, _ := ctx.Value(gatesKey).(*Gates)
	return g
}

// WithGate chooses among several gates of one endpoint, by the policy's name or
// the whole gate ID, for requests that carry the returned context. An unknown
// name is an error when a request is sent.
func WithGate(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nameKey, name)
}
