//go:build unix

package soak

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// canSuspend reports whether processes can be stopped and resumed here.
const canSuspend = true

var suspendSignal, resumeSignal os.Signal = syscall.SIGSTOP, syscall.SIGCONT

// resumeLater resumes a process after d even if this one has died meanwhile: one
// that stands still doesn't see that its standard input ended. Call off when it
// has been resumed.
func resumeLater(pid int, d time.Duration) (off func(), err error) {
	c := exec.Command("sh", "-c", fmt.Sprintf("sleep %d; kill -CONT %d", int(d/time.Second)+1, pid))
	if err := c.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	}, nil
}
