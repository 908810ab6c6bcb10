//go:build !unix

package main

import "io"

// screenSize is the size in characters that every terminal has.
func screenSize(io.Writer) (width, height int) { return 80, 24 }
