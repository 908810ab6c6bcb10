package activities

import (
	"sync"
	"time"

	"sluice/admission"
)

// gateClock knows the gate's time from exchanges. Each exchange bounds the
// offset (gate time minus this process's monotonic clock) by its sending and
// its arrival; the bounds of recent ones are intersected. The worker's wall
// clock has no part in it.
//
// The gate reads its clock when it takes a message in hand, so an exchange's
// way there is short and its way back, over the server's disk, is long. The
// estimate therefore stands a quarter of the way below the upper bound, where
// two holders with different round trips agree to a millisecond or two; at the
// lower bound they would disagree by as much as their ways back do.
type gateClock struct {
	mu      sync.Mutex
	origin  time.Time // of the monotonic clock
	samples [clockSamples]bounds
	next    int
	count   int
	offset  time.Duration // the estimate
	width   time.Duration // of the bounds that it stands in
}

const clockSamples = 32

// wayThere is the share of a round trip, one in so many, by which the estimate
// keeps away from the upper bound.
const wayThere = 4

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
	c.width = high - low
	c.offset = high - c.width/wayThere
	if c.count < sureAfter {
		c.offset = high - c.width/2 // nothing is known of the ways yet
	}
}

// unsure reports whether so little is known that another exchange is worth it:
// the first one of a gate may have started its workflow, and took long.
func (c *gateClock) unsure() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count < sureAfter && c.width > narrow
}

// Bounds wider than narrow are not believed before sureAfter exchanges.
const (
	narrow    = 8 * time.Millisecond
	sureAfter = 6
)

// now is the gate's time, to a fraction of a round trip.
func (c *gateClock) now() admission.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return admission.Instant(time.Since(c.origin) + c.offset)
}

// until is how long it takes until the gate's time is at.
func (c *gateClock) until(at admission.Instant) time.Duration { return at.Sub(c.now()) }
