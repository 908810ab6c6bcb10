package bench

import (
	"context"
	"errors"
	"time"

	"sluice/policy"
)

// holderCounts are the rows of Holders.
var holderCounts = []int{1, 4, 12, 40, 100}

const holdersCallers = 1200

// HoldersResult is what Holders measured.
type HoldersResult struct {
	Callers int          `json:"callers"`
	Rows    []HoldersRow `json:"rows"`
}

// HoldersRow is how one number of holders fares.
type HoldersRow struct {
	Holders       int     `json:"holders"`
	LeasesPerS    float64 `json:"leases_per_s"`
	P50MS         float64 `json:"p50_ms"`
	P99MS         float64 `json:"p99_ms"`
	ExchangesPerS float64 `json:"exchanges_per_s"`
}

// Holders measures 1,200 callers over more and more holders, each on a connection
// of its own, all started at once, on a gate whose limits don't bind. Each row has
// a server of its own.
func Holders(ctx context.Context, o Options, lasts time.Duration) (r HoldersResult, err error) {
	r.Callers = holdersCallers
	for _, n := range holderCounts {
		o.Report("%d callers over %d holders, %v", holdersCallers, n, lasts)
		row, err := holdersRow(ctx, o, n, lasts)
		if err != nil {
			return r, err
		}
		r.Rows = append(r.Rows, row)
	}
	return r, nil
}

func holdersRow(ctx context.Context, o Options, n int, lasts time.Duration) (row HoldersRow, err error) {
	row.Holders = n
	b, err := newBed(ctx, o, policy.Gate{Provider: "bench", Endpoint: "http://holders.test/v1"})
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.hold(ctx, n, o); err != nil {
		return row, err
	}
	before, err := b.traffic(ctx)
	if err != nil {
		return row, err
	}
	c, err := runCallers(ctx, b.gates(), holdersCallers, lasts)
	if err != nil {
		return row, err
	}
	after, err := b.traffic(ctx)
	if err != nil {
		return row, err
	}
	row.LeasesPerS, row.P50MS, row.P99MS = c.perSecond(), percentile(c.waits, 50), percentile(c.waits, 99)
	row.ExchangesPerS = round(float64(after.exchanges-before.exchanges) / (lasts + callersPause).Seconds())
	return row, nil
}
