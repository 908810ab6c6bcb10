package activities

import (
	"syscall"
	"time"
)

// timerGrain is how late a timer of Go's runtime may be: on Linux it waits in
// epoll_wait, which counts in milliseconds.
const timerGrain = time.Millisecond

// sleepExactly has the system wait, to some 0.1 ms, with a thread of its own. d is at
// most timerGrain. A signal ends it early.
func sleepExactly(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}
