package child

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// DrainTimeout is how long a process may take to drain before it is killed.
const DrainTimeout = 10 * time.Second

// Process is a child, seen from the process that started it. Signals and the
// methods that wait are safe for concurrent use; Ask and Line are one caller's.
type Process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser // its end tells the process to drain and go
	lines chan string
	done  chan struct{} // closed when it has ended
	err   error         // how; read after done
}

// Start starts a process and gives it its order. program is a path and arguments.
func Start(program []string, order any, stderr io.Writer) (*Process, error) {
	return StartHeard(program, order, stderr, func(string) bool { return false })
}

// StartHeard is Start for a process that says more than it is asked for: heard gets
// each line of its standard output and takes those for which it returns true. It is
// called from one goroutine, and has had the last line when Done is closed.
func StartHeard(program []string, order any, stderr io.Writer, heard func(line string) bool) (*Process, error) {
	data, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(program[0], program[1:]...), lines: make(chan string, maxLines), done: make(chan struct{})}
	p.cmd.Stdout = &lineWriter{to: p.lines, heard: heard}
	p.cmd.Stderr = stderr
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	// A process that has ended already says more than a broken pipe.
	_, _ = p.stdin.Write(append(data, '\n'))
	return p, nil
}

// Line returns the next line that the process writes. The first is the one by
// which it says that it is ready.
func (p *Process) Line(ctx context.Context) (string, error) {
	select {
	case line := <-p.lines:
		return line, nil
	case <-p.done:
		return "", fmt.Errorf("ended too soon: %w", p.Ended())
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Ask writes a line to the process and returns the next one that it writes.
func (p *Process) Ask(ctx context.Context, line string) (string, error) {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return "", err
	}
	return p.Line(ctx)
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended says how the process ended; call it after Done. It is never nil.
func (p *Process) Ended() error {
	if p.err != nil {
		return p.err
	}
	return errEnded
}

var errEnded = errors.New("exit status 0")

// AskToStop tells the process to drain. It may have ended already.
func (p *Process) AskToStop() { _ = p.stdin.Close() }

// PID is the process's ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal. The error of a process that has ended is nil: whoever
// sends one can't know.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the process at once and returns when it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error says that it has just ended
	p.AskToStop()            // frees the pipe
	<-p.done
}

// Wait returns when the process has ended, which it is made to do in time.
func (p *Process) Wait() {
	timeout := time.NewTimer(DrainTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
		p.Kill()
	}
}

// maxLines are kept until somebody asks for them; what comes then is dropped.
const maxLines = 16

// lineWriter is a process's standard output, line by line.
type lineWriter struct {
	to    chan<- string
	heard func(string) bool
	line  []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.line = append(w.line, p...)
	for {
		line, rest, whole := bytes.Cut(w.line, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		if !w.heard(string(line)) {
			select {
			case w.to <- string(line):
			default: // nobody asks
			}
		}
		w.line = rest
	}
}
