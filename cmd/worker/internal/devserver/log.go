package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"

	serverlog "go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// errListen is a service that couldn't open its port.
var errListen = errors.New("a service couldn't listen on its port")

// noHTTP begins a warning at every start, about a port that is left out on purpose.
const noHTTP = "HTTP API port has not been set"

// serverLog is the server's logger. Temporal's own one ends the process at Fatal;
// here the goroutine that can't go on ends alone, with its deferred calls, and the
// error arrives on failed.
type serverLog struct {
	out    *slog.Logger // nil: dropped
	failed chan error   // the first fatal message
	quiet  atomic.Bool  // the server is stopping: its parts complain about each other
}

var _ serverlog.Logger = (*serverLog)(nil)

func newServerLog(w io.Writer) *serverLog {
	l := &serverLog{failed: make(chan error, 1)}
	if w != nil {
		l.out = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return l
}

func (l *serverLog) Debug(string, ...tag.Tag)           {}
func (l *serverLog) Info(string, ...tag.Tag)            {}
func (l *serverLog) Warn(msg string, tags ...tag.Tag)   { l.write(slog.LevelWarn, msg, tags) }
func (l *serverLog) Error(msg string, tags ...tag.Tag)  { l.write(slog.LevelError, msg, tags) }
func (l *serverLog) DPanic(msg string, tags ...tag.Tag) { l.write(slog.LevelError, msg, tags) }

// Panic panics, as every other implementation does: the caller counts on it.
func (l *serverLog) Panic(msg string, tags ...tag.Tag) {
	l.write(slog.LevelError, msg, tags)
	panic(describe(msg, tags))
}

// Fatal ends the calling goroutine.
func (l *serverLog) Fatal(msg string, tags ...tag.Tag) {
	l.write(slog.LevelError, msg, tags)
	err := errors.New(describe(msg, tags))
	if strings.Contains(msg, "gRPC listener") {
		err = fmt.Errorf("%w: %w", errListen, err)
	}
	l.fail(err)
	runtime.Goexit()
}

func (l *serverLog) fail(err error) {
	select {
	case l.failed <- err:
	default: // one is waiting already; what follows from it matters less
	}
}

// guard runs f in a goroutine of its own, which a Fatal or a panic may end, and
// turns either into an error.
func (l *serverLog) guard(f func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if r := recover(); !returned {
				select {
				case err = <-l.failed: // it explains the panic, if there is one too
					l.fail(err)
				default:
					err = fmt.Errorf("panic in the server: %v", r)
				}
			}
			done <- err
		}()
		err = f()
		returned = true
	}()
	return <-done
}

func (l *serverLog) write(level slog.Level, msg string, tags []tag.Tag) {
	if l.out == nil || l.quiet.Load() || strings.HasPrefix(msg, noHTTP) {
		return
	}
	attrs := make([]any, 0, 2*len(tags))
	for _, t := range tags {
		attrs = append(attrs, t.Key(), t.Value())
	}
	l.out.Log(context.Background(), level, msg, attrs...)
}

// describe is a message on one line with its error, the tag that tells a reader most.
func describe(msg string, tags []tag.Tag) string {
	for _, t := range tags {
		if t.Key() == "error" {
			msg += fmt.Sprintf(": %v", t.Value())
		}
	}
	return strings.Join(strings.Fields(msg), " ")
}
