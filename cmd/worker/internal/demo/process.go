package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// drainTimeout is how long a process may take to drain before it is killed.
const drainTimeout = 10 * time.Second

// process is a process of the demonstration, seen from the one that started it.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // its end tells the process to drain and go
	ready chan string   // delivers the first line that it writes
	done  chan struct{} // closed when it has ended
	err   error         // how; read after done
}

// startProcess starts a process and gives it its order.
func startProcess(program []string, order any, stderr io.Writer) (*process, error) {
	data, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program[0], program[1:]...), ready: make(chan string, 1), done: make(chan struct{})}
	p.cmd.Stdout = &firstLine{to: p.ready}
	p.cmd.Stderr = stderr
	p.cmd.WaitDelay = time.Second
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	// A process that has ended already says more than a broken pipe.
	_, _ = stdin.Write(append(data, '\n'))
	return p, nil
}

// waitUntilReady returns the line by which the process says that it is ready.
func (p *process) waitUntilReady(ctx context.Context) (string, error) {
	select {
	case line := <-p.ready:
		return line, nil
	case <-p.done:
		return "", fmt.Errorf("did not start: %w", p.ended())
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// ended says how the process ended; call it after done.
func (p *process) ended() error {
	if p.err != nil {
		return p.err
	}
	return errEnded
}

// askToStop tells the process to drain. It may have ended already.
func (p *process) askToStop() { _ = p.stdin.Close() }

// wait returns when the process has ended, which it is made to do in time.
func (p *process) wait() {
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
		_ = p.cmd.Process.Kill() // an error says that it has just ended
		<-p.done
	}
}

// firstLine is a process's standard output, of which the first line counts.
type firstLine struct {
	to   chan<- string // has room for it
	line []byte
	told bool
}

func (f *firstLine) Write(p []byte) (int, error) {
	if f.told {
		return len(p), nil
	}
	f.line = append(f.line, p...)
	if line, _, whole := bytes.Cut(f.line, []byte("\n")); whole {
		f.to <- string(line)
		f.told = true
	}
	return len(p), nil
}
