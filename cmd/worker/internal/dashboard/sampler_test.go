package dashboard

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/policy"
)

// sampling runs a sampler in a bubble of its own time.
func sampling(t *testing.T, g Gates, always bool, do func(*sampler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSampler(g, time.Second, 60, always)
		go s.run()
		do(s)
		s.close()
	})
}

// pass lets time pass, until all that is due is done.
func pass(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

// read takes what a browser has not taken yet.
func read(t *testing.T, c *stream) (all []news, open bool) {
	t.Helper()
	for {
		select {
		case m, ok := <-c.out:
			if !ok {
				return all, false
			}
			var n news
			require.NoError(t, json.Unmarshal(m.data, &n))
			all = append(all, n)
		default:
			return all, true
		}
	}
}

func newest(t *testing.T, c *stream) news {
	t.Helper()
	all, open := read(t, c)
	require.True(t, open)
	require.NotEmpty(t, all)
	return all[len(all)-1]
}

// first is the message that a browser gets when it comes.
func first(t *testing.T, c *stream) news {
	t.Helper()
	all, _ := read(t, c)
	require.NotEmpty(t, all)
	return all[0]
}

// TestManyBrowsersAreOneQuestion: a gate is asked once per second, whoever looks, and
// not at all while nobody does.
func TestManyBrowsersAreOneQuestion(t *testing.T) {
	g := newFakeGates("a", "b")
	sampling(t, g, false, func(s *sampler) {
		pass(10 * time.Second)
		assert.Zero(t, g.times("a"), "nobody looks")
		var streams []*stream
		for range 20 {
			c, err := s.open("a", 0)
			require.NoError(t, err)
			streams = append(streams, c)
		}
		for range 10 {
			pass(time.Second)
			for _, c := range streams {
				read(t, c)
			}
		}
		assert.InDelta(t, 10, g.times("a"), 2)
		assert.InDelta(t, 10, g.times("b"), 2)
		for _, c := range streams {
			s.leave(c)
		}
		before := g.times("a")
		pass(10 * time.Second)
		assert.Equal(t, before, g.times("a"), "nobody looks any more")
	})
}

// TestGatesThatNobodyLooksAt are asked less often where there are many.
func TestGatesThatNobodyLooksAt(t *testing.T) {
	var list []string
	for n := range 20 {
		list = append(list, fmt.Sprint("gate-", n))
	}
	g := newFakeGates(list...)
	sampling(t, g, true, func(s *sampler) {
		c, err := s.open("gate-7", 0)
		require.NoError(t, err)
		for range 50 {
			pass(time.Second)
			read(t, c)
		}
		assert.InDelta(t, 50, g.times("gate-7"), 2)
		assert.InDelta(t, 10, g.times("gate-8"), 2)
	})
}

// TestAGateThatDoesNotAnswer is asked less and less often; the page says since when,
// and what was known. When it answers, the plots have a gap.
func TestAGateThatDoesNotAnswer(t *testing.T) {
	g := newFakeGates("a", "b")
	g.st.Queued = 7
	sampling(t, g, false, func(s *sampler) {
		c, err := s.open("a", 0)
		require.NoError(t, err)
		pass(3 * time.Second)
		n := newest(t, c)
		require.Equal(t, 7, n.Gate.Status.Queued)
		died := time.Now()
		g.change(func() { g.dead["a"] = true })
		asked := g.times("a")
		for range 63 {
			pass(time.Second)
			n = newest(t, c)
		}
		assert.Equal(t, unreachable, n.Gate.Kind)
		assert.Equal(t, errDead.Error(), n.Gate.Error)
		assert.InDelta(t, died.UnixMilli(), n.Gate.Since, 1500)
		assert.Equal(t, 7, n.Gate.Status.Queued, "what was known")
		assert.Equal(t, "open", n.Gates[1].State, "the other one is asked on")
		assert.InDelta(t, 7, g.times("a")-asked, 1, "after 1, 2, 4, 8, 16, 30 s")

		g.change(func() { g.dead["a"] = false })
		for range 31 {
			pass(time.Second)
			n = newest(t, c)
		}
		assert.Empty(t, n.Gate.Error)
		again, err := s.open("a", 0)
		require.NoError(t, err)
		gaps := 0
		for _, p := range first(t, again).Gate.Points {
			if p.Queued == nil {
				gaps++
			}
		}
		assert.Equal(t, 2, gaps, "where it began, and where it ended")
	})
}

// TestASlowBrowserIsCutOff and the others are not.
func TestASlowBrowserIsCutOff(t *testing.T) {
	g := newFakeGates("a")
	sampling(t, g, false, func(s *sampler) {
		slow, err := s.open("a", 0)
		require.NoError(t, err)
		quick, err := s.open("a", 0)
		require.NoError(t, err)
		for range backlog + 3 {
			pass(time.Second)
			read(t, quick)
		}
		_, open := read(t, slow)
		assert.False(t, open)
		pass(time.Second)
		_, open = read(t, quick)
		assert.True(t, open)
		s.leave(slow) // again does nothing
	})
}

// TestABrowserThatComesBack gets what it doesn't have; one that comes anew, or from
// another server, all.
func TestABrowserThatComesBack(t *testing.T) {
	g := newFakeGates("a")
	sampling(t, g, true, func(s *sampler) {
		pass(20 * time.Second)
		came, err := s.open("a", 0)
		require.NoError(t, err)
		m := <-came.out
		var n news
		require.NoError(t, json.Unmarshal(m.data, &n))
		assert.True(t, n.Fresh)
		assert.InDelta(t, 20, len(n.Gate.Points), 2)
		s.leave(came)
		pass(5 * time.Second)
		back, err := s.open("a", m.seq)
		require.NoError(t, err)
		n = first(t, back)
		assert.False(t, n.Fresh)
		assert.InDelta(t, 5, len(n.Gate.Points), 1)
		other, err := s.open("a", 1_000_000)
		require.NoError(t, err)
		assert.True(t, first(t, other).Fresh)
	})
}

// TestStartsPerSecond are what was granted, without what was handed back and what is
// still to start.
func TestStartsPerSecond(t *testing.T) {
	g := newFakeGates("a")
	sampling(t, g, false, func(s *sampler) {
		c, err := s.open("a", 0)
		require.NoError(t, err)
		pass(2 * time.Second)
		read(t, c)
		g.change(func() { g.st.Counters.Admissions, g.st.Counters.HandBacks, g.st.Reserved = 20, 2, 3 })
		pass(time.Second)
		n := newest(t, c)
		require.NotNil(t, n.Gate.Starts)
		assert.InDelta(t, 15, *n.Gate.Starts, 0.01)
	})
}

// TestAStatusThatCannotBeShown is said, and ends nothing.
func TestAStatusThatCannotBeShown(t *testing.T) {
	g := newFakeGates("a")
	g.st.Policy = policy.Gate{}
	sampling(t, g, false, func(s *sampler) {
		c, err := s.open("a", 0)
		require.NoError(t, err)
		pass(2 * time.Second)
		assert.Contains(t, newest(t, c).Gate.Error, "its status can't be shown")
	})
}

// TestTooManyPages are refused.
func TestTooManyPages(t *testing.T) {
	sampling(t, newFakeGates("a"), false, func(s *sampler) {
		for range maxStreams {
			_, err := s.open("a", 0)
			require.NoError(t, err)
		}
		_, err := s.open("a", 0)
		require.ErrorIs(t, err, errTooMany)
	})
}

// TestHistoryIsARing keeps the newest points.
func TestHistoryIsARing(t *testing.T) {
	h := newHistory(3)
	assert.Empty(t, h.since(0))
	for n := range uint64(5) {
		h.add(point{Seq: n + 1, At: int64(n + 1)})
	}
	at := func(list []point) (at []int64) {
		for _, p := range list {
			at = append(at, p.At)
		}
		return at
	}
	assert.Equal(t, []int64{3, 4, 5}, at(h.since(0)))
	assert.Equal(t, []int64{5}, at(h.since(4)))
}
