package dashboard

import (
	"encoding/json"
	"time"

	"sluice/cmd/worker/internal/reading"
	"sluice/workflows"
)

// point is one instant of a gate's history. Numbers are absent where the gate did
// not answer, or, of starts, where there is nothing to compare with.
type point struct {
	Seq      uint64   `json:"-"`
	At       int64    `json:"t"` // milliseconds since 1970, as all instants of the page
	Queued   *int     `json:"queued,omitempty"`
	Parked   *int     `json:"parked,omitempty"`
	InFlight *int64   `json:"in_flight,omitempty"`
	Cap      *int64   `json:"cap,omitempty"` // absent: none
	Starts   *float64 `json:"starts,omitempty"`
	Limit    *float64 `json:"limit,omitempty"` // starts per second; absent: none
	AgeP50   *float64 `json:"age_p50,omitempty"`
	AgeP90   *float64 `json:"age_p90,omitempty"`
	Oldest   *float64 `json:"oldest,omitempty"` // these in seconds
	WaitP50  *float64 `json:"wait_p50,omitempty"`
	WaitP90  *float64 `json:"wait_p90,omitempty"`
	// The last cooldown, from when to when.
	CooldownAt    int64 `json:"cooldown_at,omitempty"`
	CooldownUntil int64 `json:"cooldown_until,omitempty"`
	Paused        bool  `json:"paused,omitempty"`
}

// pointOf is what a status adds to the history after another one.
func pointOf(r reading.Reading, last *reading.Reading) point {
	p := point{
		At: r.At.UnixMilli(), Queued: &r.Queued, Parked: &r.Parked, InFlight: &r.InFlight, Paused: r.Status.Paused,
		AgeP50: age(r, r.Ages.P50), AgeP90: age(r, r.Ages.P90), Oldest: age(r, r.Ages.Oldest),
	}
	if r.Cap > 0 {
		p.Cap = &r.Cap
	}
	if r.Reserved+r.Started > 0 {
		p.WaitP50, p.WaitP90 = seconds(time.Duration(r.Waits.P50)), seconds(time.Duration(r.Waits.P90))
	}
	if rate := r.InForce.Requests; rate.Limit > 0 && rate.Per > 0 {
		limit := float64(rate.Limit) / rate.Per.Seconds()
		p.Limit = &limit
	}
	if c := r.Status.Cooldown; c != nil {
		p.CooldownAt, p.CooldownUntil = c.At.UnixMilli(), r.CooldownUntil.UnixMilli()
	}
	if last != nil && last.FirstRun == r.FirstRun {
		if d := r.At.Sub(last.At).Seconds(); d > 0 {
			rate := max(float64(started(r)-started(*last))/d, 0)
			p.Starts = &rate
		}
	}
	return p
}

// started is how many calls have started so far: what was granted, without what was
// handed back and what is still to start.
func started(r reading.Reading) int64 {
	reserved, _ := r.Running()
	return int64(r.Counters.Admissions) - int64(r.Counters.HandBacks) - int64(reserved)
}

// age is how long a ticket has waited; 0 where none waits.
func age(r reading.Reading, arrived time.Time) *float64 {
	if arrived.IsZero() {
		return seconds(0)
	}
	return seconds(r.Age(arrived))
}

func seconds(d time.Duration) *float64 {
	s := max(d, 0).Round(time.Millisecond).Seconds()
	return &s
}

// history is the last points of a gate, oldest first. It is a ring of fixed size.
type history struct {
	points []point
	next   int
	full   bool
}

func newHistory(size int) *history { return &history{points: make([]point, size)} }

func (h *history) add(p point) {
	h.points[h.next] = p
	h.next = (h.next + 1) % len(h.points)
	h.full = h.full || h.next == 0
}

// since returns the points after a number.
func (h *history) since(seq uint64) []point {
	list := []point{}
	all := h.points[:h.next]
	if h.full {
		for _, p := range h.points[h.next:] {
			if p.Seq > seq {
				list = append(list, p)
			}
		}
	}
	for _, p := range all {
		if p.Seq > seq {
			list = append(list, p)
		}
	}
	return list
}

// row is a gate in the list.
type row struct {
	Gate    string `json:"gate"`
	State   string `json:"state"`
	Kind    string `json:"kind"` // reading.Kind, or unreachable
	InUse   string `json:"in_use"`
	Queued  int    `json:"queued"`
	Parked  int    `json:"parked"`
	Pacing  string `json:"pacing"`
	Holders int    `json:"holders"`
}

// unreachable is the kind of a gate that doesn't answer.
const unreachable = "unreachable"

// detail is the gate that a browser looks at. Status is that of `worker describe`.
type detail struct {
	Gate     string            `json:"gate"`
	At       int64             `json:"at,omitempty"` // of the status
	Error    string            `json:"error,omitempty"`
	Since    int64             `json:"since,omitempty"` // of the error
	Status   *workflows.Status `json:"status,omitempty"`
	State    string            `json:"state,omitempty"`
	Kind     string            `json:"kind,omitempty"`
	Pacing   string            `json:"pacing,omitempty"`
	Cooldown string            `json:"cooldown,omitempty"`
	Reserved int               `json:"reserved"`
	Started  int               `json:"started"`
	Limits   []reading.Limit   `json:"limits,omitempty"`
	Starts   *float64          `json:"starts,omitempty"` // per second, of the newest point
	// Points are the newest one, or all that the browser doesn't have.
	Points []point `json:"points"`
}

// news is one message of the stream.
type news struct {
	Now   int64   `json:"now"` // of this process
	Error string  `json:"error,omitempty"`
	Since int64   `json:"since,omitempty"`
	Gates []row   `json:"gates"`
	Gate  *detail `json:"gate,omitempty"`
	// Fresh says that Points are all that there are: what the browser had is old.
	Fresh bool `json:"fresh,omitempty"`
}

func (n *news) encode() []byte {
	data, err := json.Marshal(n)
	if err != nil { // a policy that this program takes for faulty
		n.Gate.Status, n.Gate.Error, n.Gate.Since = nil, "its status can't be shown: "+err.Error(), n.Now
		data, _ = json.Marshal(n) // all else is plain
	}
	return data
}
