package demo

import (
	"encoding/json"
	"io"
	"os/exec"
	"sync"
	"time"
)

// drainTimeout is how long a worker process may take to drain before it is killed.
const drainTimeout = 10 * time.Second

// process is a worker process, seen from the one that started it.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // its end tells the process to drain and go
	ready chan struct{} // closed when it takes work
	done  chan struct{} // closed when it has ended
	err   error         // how; read after done
}

// startProcess starts a worker process and gives it its order.
func startProcess(program []string, o order, stderr io.Writer) (*process, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program[0], program[1:]...), ready: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Stdout = &readySignal{c: p.ready}
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

// readySignal is a process's standard output: whatever it writes there means that
// it is ready.
type readySignal struct {
	once sync.Once
	c    chan struct{}
}

func (r *readySignal) Write(p []byte) (int, error) {
	r.once.Do(func() { close(r.c) })
	return len(p), nil
}
