package soak

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"sluice/tests/loopback"
)

// The same seed makes the same run, another one another.
func TestPlanIsOfItsSeed(t *testing.T) {
	o := Options{Attempts: 48_000, KillWorkers: 40, KillServer: 4, StopWorkers: 8, Seed: 1}
	other := o
	other.Seed = 2
	require.Equal(t, faults(o), faults(o))
	require.NotEqual(t, faults(o), faults(other))
	require.Equal(t, batchOf(1, "u", 7), batchOf(1, "u", 7))
	same := 0
	for i := range 1000 {
		require.Equal(t, script(1)(i), script(1)(i))
		if script(1)(i) == script(2)(i) {
			same++
		}
	}
	require.Less(t, same, 200)
}

// Faults are spread evenly: each quarter of the run gets its share.
func TestFaultsAreSpread(t *testing.T) {
	o := Options{Attempts: 48_000, KillWorkers: 40, KillServer: 4, StopWorkers: 8, Seed: 3}
	list := faults(o)
	require.Len(t, list, 52)
	quarters := map[faultKind][4]int{}
	var servers []int // fifths of the run in which the server is killed
	for i, f := range list {
		require.True(t, i == 0 || list[i-1].at <= f.at)
		q := quarters[f.kind]
		q[f.at*4/o.Attempts]++
		quarters[f.kind] = q
		if f.kind == killServer {
			servers = append(servers, f.at*5/o.Attempts)
		}
	}
	require.Equal(t, [4]int{10, 10, 10, 10}, quarters[killWorker])
	require.Equal(t, [4]int{2, 2, 2, 2}, quarters[stopWorker])
	require.Equal(t, []int{0, 1, 2, 3}, servers, "the last one lives for a fifth of the run at least")
}

// The provider does all that it is meant to do, and mostly serves.
func TestScriptHasEverything(t *testing.T) {
	seen := map[string]int{}
	for i := range 48_000 {
		switch turn := script(1)(i + 1); {
		case turn.Hang:
			seen["hang"]++
		case turn.Status == http.StatusTooManyRequests && turn.RetryAfter == "":
			seen["no hint"]++
		case turn.Status == http.StatusTooManyRequests && turn == overload(longCooldown):
			seen["cooldown"]++
		case turn.Status == http.StatusTooManyRequests:
			seen["hint"]++
		case turn.Status != 0:
			seen["failure"]++
		default:
			require.Equal(t, loopback.Turn{ServeTime: turn.ServeTime}, turn)
			seen["served"]++
		}
	}
	require.Len(t, seen, 6)
	require.Greater(t, seen["served"], 46_000)
	require.Greater(t, seen["cooldown"], 2)
}
