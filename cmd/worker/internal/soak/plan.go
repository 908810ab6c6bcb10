package soak

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
)

const (
	runName     = "soak"
	holderTTL   = 5 * time.Second
	maxInFlight = 8
	spacing     = 4 * time.Millisecond
	// parkTTL is short, so that the places of callers who never come back (cancelled
	// while their worker was dead) are free again at the end of the run.
	parkTTL          = 30 * time.Second
	fallbackCooldown = 100 * time.Millisecond
	maxCooldown      = 2 * time.Second
	// callTimeout is how long a caller waits for the provider's answer.
	callTimeout = time.Second
	// The provider refuses or hangs in so many of a thousand attempts.
	hangs, hinted, unhinted, failures, slowOnes = 4, 3, 3, 5, 20
	// A cooldown now and then: one of so many attempts asks for longCooldown.
	longEvery    = 5_000
	longCooldown = 1500 * time.Millisecond
)

// theGate is what the soak enforces. on_lease_lost is cancel: a call that went on
// under a lease that the gate may have given away would be above the cap, and
// rightly so.
func theGate(endpoint string) *policy.Gate {
	return &policy.Gate{
		Provider: "loopback", Endpoint: endpoint, Name: runName,
		MaxInFlight: maxInFlight, Requests: admission.Rate{Limit: 1, Per: spacing},
		HolderTTL: holderTTL, ParkTTL: parkTTL, FallbackCooldown: fallbackCooldown, MaxCooldown: maxCooldown,
		OnLeaseLost: policy.LeaseLostCancel,
	}
}

// dice are the random numbers of one thing that happens: the same for the same
// seed, kind and number, whatever else happened before.
func dice(seed uint64, kind string, n int) *rand.Rand {
	h := seed
	for _, c := range []byte(kind) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return rand.New(rand.NewPCG(h, uint64(n)))
}

// script is the provider's behaviour, by the number of the attempt.
func script(seed uint64) loopback.Script {
	return func(attempt int) loopback.Turn {
		d := dice(seed, "provider", attempt)
		if d.IntN(longEvery) == 0 {
			return overload(longCooldown)
		}
		p := d.IntN(1000)
		for _, turn := range []struct {
			share int
			make  func() loopback.Turn
		}{
			{hangs, func() loopback.Turn { return loopback.Turn{Hang: true} }},
			{hinted, func() loopback.Turn {
				return overload(200*time.Millisecond + time.Duration(d.IntN(600))*time.Millisecond)
			}},
			{unhinted, func() loopback.Turn { return loopback.Turn{Status: http.StatusTooManyRequests} }},
			{failures, func() loopback.Turn { return loopback.Turn{Status: http.StatusInternalServerError} }},
			{slowOnes, func() loopback.Turn {
				return loopback.Turn{ServeTime: time.Duration(50+d.IntN(150)) * time.Millisecond}
			}},
		} {
			if p < turn.share {
				return turn.make()
			}
			p -= turn.share
		}
		return loopback.Turn{ServeTime: time.Duration(2+d.IntN(10)) * time.Millisecond}
	}
}

func overload(asked time.Duration) loopback.Turn {
	return loopback.Turn{Status: http.StatusTooManyRequests, RetryAfter: strconv.FormatFloat(asked.Seconds(), 'f', 3, 64)}
}

// faultKind is what is done to a process.
type faultKind string

const (
	killWorker faultKind = "kill worker"
	killServer faultKind = "kill server"
	stopWorker faultKind = "stop worker"
)

// fault is one blow, when so many attempts have been served.
type fault struct {
	at   int
	kind faultKind
	n    int // of its kind, from 0
}

// faults places the blows of each kind evenly over the run, each at a random
// place within the middle half of its share. The last share of those at the server is
// nobody's: whether the last server grows shows only with time.
func faults(o Options) []fault {
	var list []fault
	for _, k := range []struct {
		kind      faultKind
		n, shares int
	}{{killWorker, o.KillWorkers, o.KillWorkers}, {killServer, o.KillServer, o.KillServer + 1}, {stopWorker, o.StopWorkers, o.StopWorkers}} {
		for i := range k.n {
			share := float64(o.Attempts) / float64(k.shares)
			at := (float64(i) + 0.25 + 0.5*dice(o.Seed, string(k.kind), i).Float64()) * share
			list = append(list, fault{at: int(at), kind: k.kind, n: i})
		}
	}
	slices.SortStableFunc(list, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return list
}

// stopFor is how long a process stands still: longer than the holder TTL.
func (f fault) stopFor(seed uint64) time.Duration {
	return holderTTL + time.Second + time.Duration(dice(seed, "stop for", f.n).IntN(2000))*time.Millisecond
}

// Batch is the argument of one workflow: calls of both kinds, all at once.
type Batch struct {
	ID     string `json:"id"`
	URL    string `json:"url"`
	Single int    `json:"single"` // calls that are an activity of their own
	Series int    `json:"series"` // long-running activities
	Calls  int    `json:"calls"`  // of each of them, one after the other
	// Cancel are single calls that the workflow cancels, each so long after it began.
	Cancel map[int]time.Duration `json:"cancel,omitempty"`
}

const (
	batchSingle = 6
	batchSeries = 3
	batchCalls  = 30
	batchSize   = batchSingle + batchSeries*batchCalls
	// cancelled single calls, of a hundred
	cancelled = 4
	// batchesAtOnce keep the queue busy: 72 activities at once, for 8 places.
	batchesAtOnce = 8
)

func batchOf(seed uint64, url string, n int) Batch {
	d := dice(seed, "batch", n)
	b := Batch{ID: fmt.Sprintf("soak-%d", n), URL: url, Single: batchSingle, Series: batchSeries, Calls: batchCalls, Cancel: map[int]time.Duration{}}
	for i := range b.Single {
		if d.IntN(100) < cancelled {
			b.Cancel[i] = time.Duration(d.IntN(1500)) * time.Millisecond
		}
	}
	return b
}

func (b *Batch) singleID(i int) string    { return fmt.Sprintf("%s/single/%d", b.ID, i) }
func (b *Batch) seriesID(s, i int) string { return fmt.Sprintf("%s/series/%d/%d", b.ID, s, i) }

// calls lists the IDs of all calls.
func (b *Batch) calls() []string {
	var ids []string
	for i := range b.Single {
		ids = append(ids, b.singleID(i))
	}
	for s := range b.Series {
		for i := range b.Calls {
			ids = append(ids, b.seriesID(s, i))
		}
	}
	return ids
}
