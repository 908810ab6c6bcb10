package demo

import (
	"fmt"
	"strings"
	"time"

	"sluice/admission"
	"sluice/policy"
	"sluice/tests/loopback"
)

// Experiment is what a demonstration shows: the same calls, made at once to a
// provider with a quota, once per row.
type Experiment struct {
	Name      string
	About     string // the provider, in a few words
	Workflows int
	Calls     int // in all workflows together
	Processes int // worker processes
	// Lasts is about how long all rows take, on a machine with time to spare.
	Lasts time.Duration

	quota    loopback.Quota
	attempts int32         // of each call's activity
	backOff  time.Duration // between them
	plans    func(endpoint string) []plan
}

// Rows is how many rows there are.
func (e *Experiment) Rows() int { return len(e.plans("http://localhost")) }

// startWindow is far below what lies between the paced and the allowed rate
// (25 ms in both experiments): a start that a busy machine delays longer gives its
// lease back and gets a fresh slot.
const startWindow = 5 * time.Millisecond

// quota10 is the experiment that is run unless another is asked for.
var quota10 = Experiment{
	Name: "quota", About: "takes 10 requests/s without burst and 4 in flight",
	Workflows: 10, Calls: 40, Processes: 2, Lasts: 35 * time.Second,
	quota:    loopback.Quota{Interval: 100 * time.Millisecond, MaxInFlight: 4, ServeTime: 150 * time.Millisecond, RetryAfter: "1"},
	attempts: 3, backOff: time.Second,
	plans: func(endpoint string) []plan {
		return []plan{
			{name: "none"},
			{name: "cap", gate: &policy.Gate{Provider: "loopback", Endpoint: endpoint, Name: "cap", MaxInFlight: 4}},
			{name: "cap+pacing", gate: &policy.Gate{
				Provider: "loopback", Endpoint: endpoint, Name: "cap-and-pacing", MaxInFlight: 4,
				// Under the provider's 10, as a careful user would.
				Requests: admission.Rate{Limit: 8, Per: time.Second}, StartWindow: startWindow,
			}},
		}
	},
}

// six shows that a cap can't stand for pacing: it holds with all six calls in
// flight, and no hint tells anybody to slow down.
var six = Experiment{
	Name: "six", About: "takes one request per 250 ms, and says nothing when it refuses",
	Workflows: 6, Calls: 6, Processes: 2, Lasts: 12 * time.Second,
	quota:    loopback.Quota{Interval: 250 * time.Millisecond, ServeTime: 20 * time.Millisecond},
	attempts: 3, backOff: 50 * time.Millisecond,
	plans: func(endpoint string) []plan {
		return []plan{
			{name: "cap", gate: &policy.Gate{Provider: "loopback", Endpoint: endpoint, Name: "six-cap", MaxInFlight: 6, MaxCooldown: policy.Off}},
			{name: "cap+pacing", gate: &policy.Gate{
				Provider: "loopback", Endpoint: endpoint, Name: "six-cap-and-pacing", MaxInFlight: 6,
				// A slot that is missed costs the run 275 ms; a start may be later here.
				Requests: admission.Rate{Limit: 1, Per: 275 * time.Millisecond}, StartWindow: 2 * startWindow,
			}},
		}
	},
}

// Experiments are all that there are, the default first.
func Experiments() []*Experiment { return []*Experiment{&quota10, &six} }

// ExperimentNames lists their names for a person.
func ExperimentNames() string {
	var names []string
	for _, e := range Experiments() {
		names = append(names, e.Name)
	}
	return strings.Join(names, ", ")
}

// FindExperiment returns the experiment of that name. The error lists what may be
// asked for.
func FindExperiment(name string) (*Experiment, error) {
	for _, e := range Experiments() {
		if e.Name == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("--experiment is %.40q; allowed: %s", name, ExperimentNames())
}
