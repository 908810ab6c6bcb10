package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/cmd/worker/internal/bench"
)

// TestBenches runs each benchmark, briefly: nothing is lost, everything is counted.
// With SLUICE_TIMING=strict they run as long as they do by default, and the figures
// are judged.
func TestBenches(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("benchmarks take two minutes, and say nothing under the race detector")
	}
	strict := os.Getenv("SLUICE_TIMING") == "strict"
	measure := func(t *testing.T, result any, args ...string) {
		t.Helper()
		dir := t.TempDir()
		if !strict && args[0] != "mixed" {
			args = append(args, "--seconds", "1")
		}
		r := start(t, []string{"TMPDIR=" + dir}, append(append([]string{"bench"}, args...), "--json")...).wait(5 * time.Minute)
		require.Equal(t, 0, r.code, r.stderr)
		t.Log("\n" + r.stderr)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		decode := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
		decode.DisallowUnknownFields()
		require.NoError(t, decode.Decode(result))
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left, "the temporary database is removed")
	}
	t.Run("throughput", func(t *testing.T) {
		var r bench.ThroughputResult
		measure(t, &r, "throughput", "--callers", "64")
		assert.Positive(t, r.LeasesPerS)
		assert.Positive(t, r.P50MS)
		assert.LessOrEqual(t, r.P50MS, r.P99MS)
		assert.Positive(t, r.ExchangesPerS)
		assert.Greater(t, r.LeasesPerExchange, 1.0, "callers share exchanges")
		assert.Less(t, r.EventsPerLease, 5.0)
		assert.Positive(t, r.BareUpdate.P50MS)
		if strict {
			assert.GreaterOrEqual(t, r.LeasesPerS, 5000.0)
			assert.LessOrEqual(t, r.P50MS, 12.0)
			assert.GreaterOrEqual(t, r.Ratio, 150.0)
			assert.LessOrEqual(t, r.EventsPerLease, 0.3)
		}
	})
	t.Run("throughput by signal", func(t *testing.T) {
		var r bench.ThroughputResult
		measure(t, &r, "throughput", "--callers", "64", "--transport", "signal")
		assert.Positive(t, r.LeasesPerS)
		if strict {
			assert.GreaterOrEqual(t, r.LeasesPerS, 500.0)
		}
	})
	t.Run("holders", func(t *testing.T) {
		var r bench.HoldersResult
		measure(t, &r, "holders")
		require.Len(t, r.Rows, 5)
		for _, row := range r.Rows {
			assert.Positive(t, row.ExchangesPerS, "%d holders", row.Holders)
		}
		if strict {
			assert.GreaterOrEqual(t, r.Rows[3].LeasesPerS, 15000.0)
			assert.LessOrEqual(t, r.Rows[3].P99MS, 300.0)
			assert.GreaterOrEqual(t, r.Rows[4].LeasesPerS, 5000.0)
			assert.LessOrEqual(t, r.Rows[4].P99MS, 1500.0)
		}
	})
	t.Run("wake", func(t *testing.T) {
		var r bench.WakeResult
		measure(t, &r, "wake")
		assert.Positive(t, r.LeasesPerS)
		assert.LessOrEqual(t, r.LeasesPerS, 34.0, "one place, 30 ms each")
		if strict {
			assert.LessOrEqual(t, r.P50MS, 10.0)
			assert.LessOrEqual(t, r.P99MS, 40.0)
			assert.GreaterOrEqual(t, r.LeasesPerS, 24.0)
		}
	})
	t.Run("pacing", func(t *testing.T) {
		for rate, least := range map[string]float64{"20": 0.9, "200": 0.8} {
			var r bench.PacingResult
			measure(t, &r, "pacing", "--rate", rate)
			assert.Positive(t, r.Attempts)
			assert.Positive(t, r.QueueRate.Attempts)
			assert.Positive(t, r.BareClock.Attempts)
			if strict {
				assert.GreaterOrEqual(t, r.Utilisation, 0.99)
				assert.GreaterOrEqual(t, r.P1GapMS, least*r.SpacingMS)
				assert.LessOrEqual(t, float64(r.MaxInAnySecond), 1.03*float64(r.Rate)+1)
			}
		}
	})
	t.Run("queue", func(t *testing.T) {
		var r bench.QueueResult
		measure(t, &r, "queue", "--tickets", "10000")
		assert.Positive(t, r.InputBytes)
		assert.Less(t, r.InputBytes, 1<<20)
		assert.Positive(t, r.Steps)
		if strict {
			assert.Less(t, r.StepP99MS, 50.0)
		}
	})
	t.Run("idle", func(t *testing.T) {
		var r bench.IdleResult
		measure(t, &r, "idle")
		assert.Positive(t, r.Leases)
		assert.Zero(t, r.Events)
	})
	t.Run("mixed", func(t *testing.T) {
		var r bench.MixedResult
		measure(t, &r, "mixed")
		assert.Zero(t, r.Lost)
		assert.Equal(t, 5, r.Cooldowns)
		assert.Positive(t, r.Cancelled)
		assert.Positive(t, r.ResumeGapMS, "nothing starts before a cooldown's end")
		if strict {
			assert.LessOrEqual(t, r.ResumeGapMS, r.SpacingMS+60)
		}
	})
}

func TestMistakesInABenchmarksCommandLine(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"throughput --callers 0", "--callers is 0; it may be 1 to 100000"},
		{"throughput --transport mixed", `--transport is "mixed"; it may be update or signal`},
		{"throughput --seconds 0", "--seconds is 0; it may be 1 to 3600"},
		{"pacing --rate 0", "--rate is 0; it may be 1 to 10000"},
		{"queue --tickets 10001", "--tickets is 10001; it may be 1 to 10000"},
		{"wake --ip 192.0.2.1", "--ip is 192.0.2.1; it may be a loopback address"},
		{"mixed now", `unexpected argument "now"`},
		{"throughputs", `unknown command "throughputs", did you mean "throughput"`},
	} {
		requireOneLine(t, exitUsage, command(t, "", append([]string{"bench"}, strings.Fields(test.args)...)...), test.says, "--help")
	}
}
