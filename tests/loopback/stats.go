package loopback

import (
	"slices"
	"time"
)

// Stats is what the provider saw of one run.
type Stats struct {
	// Completed counts distinct calls that were served: two attempts with the same
	// X-Call-Id count once, an attempt without one counts by itself.
	Completed int `json:"completed"`
	// WireAttempts counts the requests that arrived, refused ones included.
	WireAttempts int `json:"wire_attempts"`
	// Overloads counts the 429s.
	Overloads int `json:"overloads"`
	// Aborted counts accepted attempts whose caller left before the answer.
	Aborted int `json:"aborted"`
	// InFlight counts what is being served now.
	InFlight int `json:"in_flight"`
	// MaxInFlight is the largest number of attempts there at once: those being
	// served and the one that just arrived, even if it was refused for it. So a
	// quota of 4 shows 5 where somebody tried.
	MaxInFlight int `json:"max_in_flight"`
	// MinGapMS is the smallest distance between the arrivals of two consecutive
	// attempts, in milliseconds, refused ones included; 0 with fewer than two.
	MinGapMS float64 `json:"min_gap_ms"`
	// P1GapMS is the 1st percentile (nearest rank) of those distances, over the
	// attempts that were kept; 0 with fewer than two.
	P1GapMS float64 `json:"p1_gap_ms"`
	// ElapsedS is the time from the first arrival to the last end, in seconds.
	ElapsedS float64 `json:"elapsed_s"`
	// Dropped counts attempts that were judged and counted but not kept, being
	// beyond MaxAttempts.
	Dropped int `json:"dropped,omitempty"`
}

// Stats returns what was seen of a run so far; the zero value for a run that
// nobody has named.
func (p *Provider) Stats(run string) Stats {
	r := p.findRun(run)
	if r == nil {
		return Stats{}
	}
	return r.snapshot()
}

// Count is how far a run is: what Stats says that costs nothing to find out.
type Count struct {
	WireAttempts int `json:"wire_attempts"`
	Completed    int `json:"completed"`
	Overloads    int `json:"overloads"`
	InFlight     int `json:"in_flight"`
}

// Count returns how far a run is; the zero value for a run that nobody has named.
func (p *Provider) Count(run string) Count {
	r := p.findRun(run)
	if r == nil {
		return Count{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Count{WireAttempts: r.stats.attempts, Completed: r.stats.completed, Overloads: r.stats.overloads, InFlight: r.inFlight}
}

// Attempts returns the recorded attempts of a run, copied, in the order of their
// arrival. Those still being served have Status 0.
func (p *Provider) Attempts(run string) []Attempt {
	r := p.findRun(run)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Attempt, len(r.attempts))
	for i, a := range r.attempts {
		out[i] = *a
	}
	return out
}

// tally is what is counted as attempts come and go, so that it stays right beyond
// MaxAttempts.
type tally struct {
	attempts    int
	overloads   int
	aborted     int
	completed   int
	maxInFlight int
	minGap      time.Duration
	first, end  time.Duration
}

func (r *run) snapshot() Stats {
	r.mu.Lock()
	t, inFlight, kept := r.stats, r.inFlight, r.attempts
	r.mu.Unlock()
	// Outside the lock: kept grows at its end only, an attempt's arrival never changes.
	return Stats{
		Completed:    t.completed,
		WireAttempts: t.attempts,
		Overloads:    t.overloads,
		Aborted:      t.aborted,
		InFlight:     inFlight,
		MaxInFlight:  t.maxInFlight,
		MinGapMS:     milliseconds(t.minGap),
		P1GapMS:      milliseconds(firstPercentileGap(kept)),
		ElapsedS:     max(0, t.end-t.first).Seconds(),
		Dropped:      t.attempts - len(kept),
	}
}

func firstPercentileGap(attempts []*Attempt) time.Duration {
	if len(attempts) < 2 {
		return 0
	}
	gaps := make([]time.Duration, len(attempts)-1)
	for i := range gaps {
		gaps[i] = attempts[i+1].Arrived - attempts[i].Arrived
	}
	slices.Sort(gaps)
	rank := (len(gaps) + 99) / 100 // the nearest rank, at least the first
	return gaps[rank-1]
}

func milliseconds(d time.Duration) float64 {
	return float64(d) / float64(time.Millisecond)
}
