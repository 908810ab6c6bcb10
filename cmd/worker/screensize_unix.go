//go:build unix

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// screenSize is the terminal's size in characters; 80 by 24 where it doesn't say.
func screenSize(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 1 {
			return int(size.Col), int(size.Row)
		}
	}
	return 80, 24
}
