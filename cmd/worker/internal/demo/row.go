package demo

import (
	"encoding/json"
	"math"

	"sluice/policy"
	"sluice/tests/loopback"
)

// plan is a row before it runs. Its name is also the run's label at the provider.
type plan struct {
	name string
	gate *policy.Gate // nil: no admission
}

// Row is what the provider counted.
type Row struct {
	Name         string  `json:"name"`
	Completed    int     `json:"completed"`     // calls that were served
	Failed       int     `json:"failed"`        // calls whose activity failed for good
	Overloads    int     `json:"overloads"`     // answers 429
	WireAttempts int     `json:"wire_attempts"` // requests that arrived, refused ones included
	MaxInFlight  int     `json:"max_in_flight"`
	MinGapMS     float64 `json:"min_gap_ms"` // between consecutive arrivals
	ElapsedS     float64 `json:"elapsed_s"`  // from the first arrival to the last answer

	Gate       string `json:"gate,omitempty"`        // its ID; empty: no admission
	WorkflowID string `json:"workflow_id,omitempty"` // of the admission workflow
}

func rowOf(p plan, s loopback.Stats, failed int) Row {
	r := Row{
		Name: p.name, Completed: s.Completed, Failed: failed, Overloads: s.Overloads, WireAttempts: s.WireAttempts,
		// Rounded down: a gap is never shown longer than it was.
		MaxInFlight: s.MaxInFlight, MinGapMS: math.Floor(s.MinGapMS*100) / 100, ElapsedS: math.Round(s.ElapsedS*1000) / 1000,
	}
	if p.gate != nil {
		r.Gate, r.WorkflowID = p.gate.ID(), p.gate.WorkflowID()
	}
	return r
}

// encoded is the gate's canonical JSON; nil for no gate.
func (p plan) encoded() (json.RawMessage, error) {
	if p.gate == nil {
		return nil, nil
	}
	return json.Marshal(*p.gate)
}
