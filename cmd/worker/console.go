package main

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// console is standard error: lines, logs, and on a terminal one live line below
// them. Safe for concurrent use.
type console struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	shown    bool // a live line stands at the cursor
}

func newConsole(w io.Writer) *console {
	return &console{w: w, terminal: isTerminal(w)}
}

// isTerminal reports whether what is written is shown by a terminal that can
// move its cursor.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

const eraseLine = "\r\x1b[2K"

// Write writes whole lines, above the live line.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eraseLocked()
	return c.w.Write(p)
}

// line writes one line.
func (c *console) line(format string, args ...any) { _, _ = fmt.Fprintf(c, format+"\n", args...) }

// live replaces the live line. Without a terminal it does nothing.
func (c *console) live(format string, args ...any) {
	if !c.terminal {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.w, eraseLine+format, args...) // nobody can be told
	c.shown = true
}

// end takes the live line away.
func (c *console) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eraseLocked()
}

func (c *console) eraseLocked() {
	if c.shown {
		_, _ = io.WriteString(c.w, eraseLine)
		c.shown = false
	}
}
