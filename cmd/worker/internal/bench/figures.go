package bench

import (
	"math"
	"slices"
	"time"
)

// percentile is the nearest rank in sorted durations, in milliseconds; 0 of none.
func percentile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return milliseconds(sorted[max(rank, 1)-1])
}

func milliseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

// round keeps three digits behind the point: more would be noise.
func round(f float64) float64 { return math.Round(f*1000) / 1000 }

func sorted(lists ...[]time.Duration) []time.Duration {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return all
}
