package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sluice/policy"
)

// pseudoTerminal is a terminal of the given size; what is written to tty can be
// read from master.
func pseudoTerminal(t *testing.T, columns, rows uint16) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() }) // the test is over
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
	return master, tty
}

// TestWatchOnATerminal redraws one page, shows changes, and leaves the terminal as
// it was on Ctrl-C, with status 0.
func TestWatchOnATerminal(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "screened", MaxInFlight: 2})
	require.NoError(t, (<-s.acquire("a call")).err)
	master, tty := pseudoTerminal(t, 60, 10)
	c := exec.Command(os.Args[0], "watch", s.gate.ID(), "--address", s.address, "--interval", "100ms")
	c.Env = append(os.Environ(), executed+"=1", "TERM=xterm")
	c.Stdout = tty
	var stderr bytes.Buffer
	c.Stderr = &stderr
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() }) // it has ended, unless the test failed
	require.NoError(t, tty.Close())

	var mu sync.Mutex
	var all strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			mu.Lock()
			all.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return // the other side is closed
			}
		}
	}()
	shows := func(part string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(all.String(), part)
		}
	}
	require.Eventually(t, shows("1 of 2: 1 started"), 20*time.Second, 20*time.Millisecond)
	s.does("pause", "screened", "--who", "ann")
	require.Eventually(t, shows("paused by ann"), 20*time.Second, 20*time.Millisecond)
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.NoError(t, c.Wait(), stderr.String())
	<-read
	text := all.String()
	assert.True(t, strings.HasPrefix(text, enterScreen))
	assert.True(t, strings.HasSuffix(text, leaveScreen))
	assert.Empty(t, stderr.String())
	for _, frame := range strings.Split(text, home)[1:] {
		assert.LessOrEqual(t, strings.Count(frame, "\n"), 9, "it doesn't scroll")
		for line := range strings.Lines(strings.TrimSuffix(frame, leaveScreen)) {
			line, _, _ = strings.Cut(line, eraseToEnd)
			assert.LessOrEqual(t, len([]rune(line)), 60, "it doesn't wrap: %s", line)
		}
	}
}
