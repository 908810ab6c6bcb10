package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/cmd/worker/internal/soak"
)

// TestSoak is the soak in small: whatever the machine's speed, nothing is lost and
// no bound of the gate is broken while workers and the server are killed.
func TestSoak(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("kills and restarts processes for two minutes")
	}
	dir := t.TempDir()
	r := start(t, []string{"TMPDIR=" + dir}, "soak", "--json").wait(8 * time.Minute)
	t.Log("\n" + r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var out soak.Result
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &out), r.stderr)
	assert.GreaterOrEqual(t, out.Attempts, 3000)
	assert.Equal(t, out.Calls, out.Completed+out.Failed)
	assert.Equal(t, []int{4, 1, 1}, []int{out.KilledWorkers, out.KilledServers, out.Stopped})
	assert.Positive(t, out.Cooldowns)
	assert.Positive(t, out.Aborted)
	assert.True(t, out.Correct(), "%v", out.Broken)
	if os.Getenv("SLUICE_TIMING") == "strict" {
		assert.True(t, out.OK, "%v", out.Broken)
		assert.Equal(t, 0, r.code)
	}
	if out.OK {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left, "the temporary database is removed")
	}
	for _, field := range []string{
		"lost", "over_cap", "zombie_overlap", "order_violations", "active_at_end", "queued_at_end", "leaked_leases", "cooldowns_lost",
		"double_use", "ungranted", "reclaim_p90_s", "fd_growth", "goroutine_growth", "attempts", "elapsed_s", "seed", "ok",
	} {
		assert.Contains(t, lines[len(lines)-1], fmt.Sprintf("%q:", field))
	}
}

func TestMistakesInTheSoaksCommandLine(t *testing.T) {
	there := file(t, "")
	for _, test := range []struct{ flag, value, says string }{
		{"--attempts", "0", "--attempts is 0; it may be 1 to 1000000"},
		{"--processes", "0", "--processes is 0; it may be 1 to 64"},
		{"--processes", "65", "--processes is 65; it may be 1 to 64"},
		{"--kill-workers", "-1", "--kill-workers is -1; it may be 0 to 3000"},
		{"--kill-server", "3001", "--kill-server is 3001; it may be 0 to 3000"},
		{"--stop-workers", "-2", "--stop-workers is -2; it may be 0 to 3000"},
		{"--seed", "x", "x"},
		{"--transport", "pigeon", `--transport is "pigeon"; it may be update, signal or mixed`},
		{"--ip", "0.0.0.0", "--ip is 0.0.0.0; it may be a loopback address"},
		{"--db", there, "which exists"},
	} {
		t.Run(test.flag+" "+test.value, func(t *testing.T) {
			requireOneLine(t, exitUsage, command(t, "", "soak", test.flag, test.value), test.says, "--help")
		})
	}
}

func TestSoakHelp(t *testing.T) {
	r := command(t, "", "soak", "--help")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "--kill-workers")
	require.NotContains(t, command(t, "", "--help").stdout, soak.RoleWorker, "the processes' commands are hidden")
}

func TestSoakInterrupted(t *testing.T) {
	dir := t.TempDir()
	c := start(t, []string{"TMPDIR=" + dir}, "soak", "--attempts", "1000000", "--processes", "2", "--stop-workers", "0", "--json")
	c.waitFor("under fire")
	children := childrenOf(t, c.cmd.Process.Pid)
	c.interrupt()
	r := c.wait(time.Minute)
	require.Equal(t, exitInterrupted, r.code, r.stderr)
	require.Empty(t, r.stdout)
	requireGone(t, children)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A soak that is killed takes its processes along.
func TestSoakKilled(t *testing.T) {
	c := start(t, []string{"TMPDIR=" + t.TempDir()}, "soak", "--attempts", "1000000", "--processes", "2", "--stop-workers", "0")
	c.waitFor("under fire")
	children := childrenOf(t, c.cmd.Process.Pid)
	require.NoError(t, c.cmd.Process.Kill())
	<-c.done
	requireGone(t, children)
}

// childrenOf lists the processes that a process has started; none where the
// system doesn't tell.
func childrenOf(t *testing.T, pid int) (children []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, list := range lists {
		if data, err := os.ReadFile(list); err == nil { // a thread may have ended
			children = append(children, strings.Fields(string(data))...)
		}
	}
	require.GreaterOrEqual(t, len(children), 4, "provider, server and two workers")
	return children
}

// requireGone waits until processes have ended, whether or not somebody has asked how.
func requireGone(t *testing.T, pids []string) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			_, state, _ := strings.Cut(string(stat), ") ")
			return err != nil || strings.HasPrefix(state, "Z")
		}, 30*time.Second, 50*time.Millisecond, "process %s", pid)
	}
}
