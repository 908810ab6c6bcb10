package activities

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
)

// shielded runs what must do no harm to a call: parsers, observers, callbacks.
func (g *Gates) shielded(what string, run func()) {
	defer func() {
		if p := recover(); p != nil {
			g.options.Logger.Error("sluice: a panic was kept from the call", "in", what, "panic", panicText(p))
		}
	}()
	run()
}

// panicText is the runtime's own words, else the type alone: the rest is a
// stranger's, and may hold anything.
func panicText(p any) string {
	if e, ok := p.(runtime.Error); ok {
		return e.Error()
	}
	return fmt.Sprintf("%T", p)
}

// shieldedHandler keeps what a log handler breaks from those who log: they may
// be in the middle of a lease.
type shieldedHandler struct{ slog.Handler }

func (h shieldedHandler) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("log handler: %s", panicText(p))
		}
	}()
	return h.Handler.Handle(ctx, r)
}

func (h shieldedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return shieldedHandler{h.Handler.WithAttrs(attrs)}
}

func (h shieldedHandler) WithGroup(name string) slog.Handler {
	return shieldedHandler{h.Handler.WithGroup(name)}
}
