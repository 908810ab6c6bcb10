//go:build !linux

package activities

import "time"

// timerGrain is zero: timers are trusted to the fraction of a millisecond.
const timerGrain time.Duration = 0

func sleepExactly(time.Duration) {}
