package activities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"sluice/admission"
)

// TestGateClock: the gate's time is known from exchanges alone, within a round
// trip, however wrong the worker's own clock is.
func TestGateClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newGateClock()
		origin := time.Now()
		offset := time.Hour // the gate is an hour ahead
		gate := func() admission.Instant { return admission.InstantOf(origin.Add(offset)).Add(time.Since(origin)) }
		exchange := func(there, back time.Duration) {
			sent := time.Now()
			time.Sleep(there)
			at := gate()
			time.Sleep(back)
			c.observe(sent, time.Now(), at)
		}
		exchange(50*time.Millisecond, 50*time.Millisecond)
		assert.Equal(t, time.Duration(0), gate().Sub(c.now()), "in the middle, as long as little is known")
		assert.True(t, c.unsure())
		for range sureAfter {
			exchange(time.Millisecond, 2*time.Millisecond)
		}
		assert.Equal(t, -250*time.Microsecond, gate().Sub(c.now()), "a quarter below the upper bound")
		assert.False(t, c.unsure())
		exchange(30*time.Millisecond, 40*time.Millisecond)
		assert.Equal(t, -250*time.Microsecond, gate().Sub(c.now()), "a slow one takes nothing away")
		offset -= time.Minute // the server's clock is set back
		exchange(time.Millisecond, time.Millisecond)
		assert.Equal(t, time.Duration(0), gate().Sub(c.now()), "bounds that contradict are forgotten")
		assert.Equal(t, 10*time.Millisecond, c.until(gate().Add(10*time.Millisecond)))
	})
}
