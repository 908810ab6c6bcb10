package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/workflows"
)

// TestScreen: each frame overwrites the one before, the last answer stays while
// there is none, and what stood there before is there again afterwards.
func TestScreen(t *testing.T) {
	st, _ := aGate(t)
	var b strings.Builder
	s := openScreen(&b)
	show := s.show(st.Gate)
	frame := func(st workflows.Status, err error) string {
		b.Reset()
		require.NoError(t, show(st, err))
		assert.True(t, strings.HasPrefix(b.String(), home))
		assert.True(t, strings.HasSuffix(b.String(), eraseBelow))
		_, height := screenSize(&b)
		assert.Less(t, strings.Count(b.String(), "\r\n"), height)
		return b.String()
	}
	assert.Equal(t, enterScreen, b.String())
	assert.Contains(t, frame(workflows.Status{}, errors.New("nobody answers")), "nobody answers")
	assert.Contains(t, frame(st, nil), st.Gate+eraseToEnd)
	s.at = s.at.Add(-time.Second)
	st.Counters.Admissions += 5
	assert.Regexp(t, `(4\.\d|5\.0) admissions/s`, frame(st, nil))
	again := frame(workflows.Status{}, errors.New("nobody answers"))
	assert.Contains(t, again, "nobody answers")
	assert.Contains(t, again, "132, of them 7 parked")
	b.Reset()
	s.close()
	assert.Equal(t, leaveScreen, b.String())
}
