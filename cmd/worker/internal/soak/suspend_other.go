//go:build !unix

package soak

import (
	"errors"
	"os"
	"time"
)

const canSuspend = false

var suspendSignal, resumeSignal os.Signal

func resumeLater(int, time.Duration) (func(), error) {
	return nil, errors.New("processes can't be stopped on this system")
}
