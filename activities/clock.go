package activities

import (
	"sync"
	"time"

	"sluice/admission"
)

// gateClock knows the gate's time from exchanges. Each exchange bounds the
// offset (gate time minus this process's monotonic clock) by its sending and
// its arrival; the bounds of recent ones are intersected. Starts use the lower
// bound: a lease never starts before its instant, whatever the worker's wall
// clock says, and two holders agree to a fraction of a round trip.
type gateClock struct {
	mu      sync.Mutex
	origin  time.Time // of the monotonic clock
	samples [clockSamples]bounds
	next    int
	count   int
	low     time.Duration
}

const clockSamples = 32

type bounds struct{ low, high time.Duration }

func newGateClock() *gateClock { return &gateClock{origin: time.Now()} }

// observe takes in an exchange: the gate's time lay between sent and arrived.
func (c *gateClock) observe(sent, arrived time.Time, gate admission.Instant) {
	at := time.Duration(gate)
	b := bounds{low: at - arrived.Sub(c.origin), high: at - sent.Sub(c.origin)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples[c.next] = b
	c.next = (c.next + 1) % clockSamples
	c.count = min(c.count+1, clockSamples)
	// From the newest to the oldest, as far as they agree: clocks drift, and
	// the server's may be set.
	low, high := b.low, b.high
	for back := 1; back < c.count; back++ {
		s := c.samples[(c.next-1-back+2*clockSamples)%clockSamples]
		l, h := max(low, s.low), min(high, s.high)
		if l > h {
			c.count = back // the older ones contradict: forget them
			break
		}
		low, high = l, h
	}
	c.low = low
}

// now is the gate's time, at the latest by a fraction of a round trip behind.
func (c *gateClock) now() admission.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return admission.Instant(time.Since(c.origin) + c.low)
}

// until is how long it takes until the gate's time is at.
func (c *gateClock) until(at admission.Instant) time.Duration { return at.Sub(c.now()) }
