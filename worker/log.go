package worker

import (
	"context"
	"log/slog"

	"go.temporal.io/sdk/log"
)

// logHandler brings what the gates log to the client's logger.
type logHandler struct{ to log.Logger }

func (h logHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h logHandler) WithGroup(string) slog.Handler            { return h }

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var pairs []any
	for _, a := range attrs {
		pairs = append(pairs, a.Key, a.Value.Any())
	}
	return logHandler{log.With(h.to, pairs...)}
}

func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	var pairs []any
	r.Attrs(func(a slog.Attr) bool {
		pairs = append(pairs, a.Key, a.Value.Any())
		return true
	})
	switch {
	case r.Level >= slog.LevelError:
		h.to.Error(r.Message, pairs...)
	case r.Level >= slog.LevelWarn:
		h.to.Warn(r.Message, pairs...)
	case r.Level >= slog.LevelInfo:
		h.to.Info(r.Message, pairs...)
	default:
		h.to.Debug(r.Message, pairs...)
	}
	return nil
}
