package workflows

import (
	"time"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// statusRows bounds the leases and tickets that a status lists.
const statusRows = 100

// Status is the answer of the query status: the whole gate, for a person.
// Instants are as of Now, the gate's last step.
type Status struct {
	Gate     string      `json:"gate"`
	Now      time.Time   `json:"now"`
	Rules    uint32      `json:"rules"`
	FirstRun string      `json:"first_run"`
	Runs     int         `json:"runs"` // how many came before this one
	Policy   policy.Gate `json:"policy"`
	InForce  policy.Gate `json:"in_force"` // the policy with its overlays
	Overlays []Overlay   `json:"overlays,omitempty"`
	Log      []Act       `json:"log,omitempty"`

	InFlight int64 `json:"in_flight"` // weights of all leases
	Cap      int64 `json:"cap"`       // 0: none
	Reserved int   `json:"reserved"`  // leases that have not started
	Started  int   `json:"started"`
	Queued   int   `json:"queued"` // parked ones included
	Parked   int   `json:"parked"`

	Paused        bool      `json:"paused"`
	PauseCause    string    `json:"pause_cause,omitempty"`
	CooldownUntil time.Time `json:"cooldown_until,omitzero"`
	Cooldown      *Cooldown `json:"cooldown,omitempty"` // the last one, over or not
	LearnUntil    time.Time `json:"learn_until,omitzero"`
	NextStart     time.Time `json:"next_start,omitzero"` // when pacing lets the next call start

	// LowerLimits are limits that the provider named, lower than the policy's.
	LowerLimits []LowerLimit `json:"lower_limits,omitempty"`

	Holders  []Holder `json:"holders,omitempty"`
	Leases   []Lease  `json:"leases,omitempty"` // the oldest ones
	Queue    []Ticket `json:"queue,omitempty"`  // the first in line
	Ages     Ages     `json:"ages"`
	Waits    Waits    `json:"waits"`
	Counters Counters `json:"counters"`
}

// Ages says how long the tickets of the whole queue have waited, parked ones left
// out: when those arrived that have waited longer than half of them, than nine
// tenths, and than all others. Zero where there is none.
type Ages struct {
	P50    time.Time `json:"p50,omitzero"`
	P90    time.Time `json:"p90,omitzero"`
	Oldest time.Time `json:"oldest,omitzero"`
}

// Waits says how long the calls in flight had waited, from their arrival to their
// start. 0 where there is none.
type Waits struct {
	P50 Duration `json:"p50"`
	P90 Duration `json:"p90"`
	Max Duration `json:"max"`
}

// Cooldown says where a cooldown came from.
type Cooldown struct {
	At      time.Time `json:"at"`
	Status  int32     `json:"status"`
	Source  string    `json:"source"` // header, or fallback
	Asked   Duration  `json:"asked"`
	Applied Duration  `json:"applied"`
}

// Holder is a worker process as the gate knows it.
type Holder struct {
	ID       string    `json:"id"`
	LastSeen time.Time `json:"last_seen"`
	Present  bool      `json:"present"`
	Waiting  bool      `json:"waiting"` // has an open wait
	Queued   int       `json:"queued"`
	Leased   int       `json:"leased"`
}

// Lease is one lease in use.
type Lease struct {
	Lease   uint64    `json:"lease"`
	Label   string    `json:"label"`
	Holder  string    `json:"holder"`
	Attempt int32     `json:"attempt"`
	Weight  int64     `json:"weight"`
	StartAt time.Time `json:"start_at"`
	Expires time.Time `json:"expires"`
}

// Ticket is one waiting ticket.
type Ticket struct {
	Ticket    uint64    `json:"ticket"` // its number, in the order of arrival
	Label     string    `json:"label"`
	Holder    string    `json:"holder,omitempty"` // empty: parked
	Attempt   int32     `json:"attempt"`
	Weight    int64     `json:"weight"`
	ArrivedAt time.Time `json:"arrived_at"`
	Deadline  time.Time `json:"deadline,omitzero"`
	Reason    string    `json:"reason"` // what it waits for now
}

// Counters count what the gate did and what it refused, over all runs.
type Counters struct {
	Admissions    uint64            `json:"admissions"`
	Releases      uint64            `json:"releases"`
	Overloads     uint64            `json:"overloads"`
	Cooldowns     uint64            `json:"cooldowns"`
	HandBacks     uint64            `json:"hand_backs"`
	Expired       uint64            `json:"expired"`
	Revoked       uint64            `json:"revoked"` // by operators
	LostHolders   uint64            `json:"lost_holders"`
	Parked        uint64            `json:"parked"`
	StaleReleases uint64            `json:"stale_releases"`
	StaleAcquires uint64            `json:"stale_acquires"`
	StaleCancels  uint64            `json:"stale_cancels"`
	Duplicates    uint64            `json:"duplicates"`
	Gaps          uint64            `json:"gaps"`
	Resyncs       uint64            `json:"resyncs"`
	Malformed     uint64            `json:"malformed"`
	Conflicts     uint64            `json:"conflicts"`
	Refusals      map[string]uint64 `json:"refusals,omitempty"` // by kind
}

// status is the handler of the query status.
func (g *gate) status() (Status, error) {
	st := g.s.Status(statusRows)
	out := Status{
		Gate: g.start.GateID, Now: st.Now.Time(), Rules: uint32(st.Rules), FirstRun: g.firstRun, Runs: g.start.Runs,
		Policy: g.base, InForce: g.effective(), Overlays: g.overlays, Log: g.start.Log, LowerLimits: g.start.Lower,
		InFlight: st.InUse, Cap: st.Limits.MaxInFlight, Reserved: st.Reserved, Started: st.Started, Queued: st.Queued, Parked: st.Parked,
		Paused: st.Paused, PauseCause: st.PauseCause, LearnUntil: st.LearnUntil.Time(), Counters: countersOf(&st.Counters),
		Ages:  Ages{P50: st.Ages.P50.Time(), P90: st.Ages.P90.Time(), Oldest: st.Ages.Oldest.Time()},
		Waits: Waits{P50: Duration(st.Waits.P50), P90: Duration(st.Waits.P90), Max: Duration(st.Waits.Max)},
	}
	if st.Cooldown != 0 {
		out.CooldownUntil = st.Cooldown.Time()
		out.Cooldown = &Cooldown{At: st.Cause.At.Time(), Status: st.Cause.Status, Source: st.Cause.Source, Asked: Duration(st.Cause.Asked), Applied: Duration(st.Cause.Applied)}
		if out.Cooldown.Source == "" {
			out.Cooldown.Source = "fallback"
		}
	}
	if st.Limits.Pacing.Spaced() {
		out.NextStart = st.NextStart.Time()
	}
	for _, h := range st.Holders {
		out.Holders = append(out.Holders, Holder{ID: h.ID, LastSeen: h.LastSeen.Time(), Present: h.Present, Waiting: h.Waiting, Queued: h.Queued, Leased: h.Leased})
	}
	for _, l := range st.Leases {
		out.Leases = append(out.Leases, Lease{Lease: l.Lease, Label: l.Label, Holder: l.Holder, Attempt: l.Attempt, Weight: l.Weight, StartAt: l.StartAt.Time(), Expires: l.Expires.Time()})
	}
	for _, t := range st.Queue {
		out.Queue = append(out.Queue, Ticket{
			Ticket: t.Ticket, Label: t.Label, Holder: t.Holder, Attempt: t.Attempt, Weight: t.Weight,
			ArrivedAt: t.ArrivedAt.Time(), Deadline: t.Deadline.Time(), Reason: t.Reason.Name(&st.Limits),
		})
	}
	return out, nil
}

func countersOf(c *admission.Counters) Counters {
	out := Counters{
		Admissions: c.Admissions, Releases: c.Releases, Overloads: c.Overloads, Cooldowns: c.Cooldowns, HandBacks: c.HandBacks,
		Expired: c.Expired, Revoked: c.Revoked, LostHolders: c.LostHolders, Parked: c.Parked, StaleReleases: c.StaleReleases, StaleAcquires: c.StaleAcquires,
		StaleCancels: c.StaleCancels, Duplicates: c.Duplicates, Gaps: c.Gaps, Resyncs: c.Resyncs, Malformed: c.Malformed, Conflicts: c.Conflict,
		Refusals: map[string]uint64{},
	}
	for kind, n := range c.Refusals {
		if n > 0 {
			out.Refusals[refusalNames[kind]] = n
		}
	}
	return out
}

var refusalNames = [...]string{
	0:                                "unknown",
	admission.RefusedQueueTimeout:    "queue_timeout",
	admission.RefusedQueueFull:       "queue_full",
	admission.RefusedNeverAdmissible: "never_admissible",
	admission.RefusedTooLate:         "too_late",
	admission.RefusedInvalid:         "invalid",
	admission.RefusedSuperseded:      "superseded",
	admission.RefusedPolicy:          "policy_conflict",
	admission.RefusedOperator:        "operator",
}

// grants is the handler of the query grants: a pure read.
func (g *gate) grants(raw converter.RawValue) (reply converter.RawValue, err error) {
	m := &contract.Read{}
	asJSON, err := Decode(raw.Payload(), m)
	if err == nil {
		err = checkHolder(m.GetContract(), m.GetHolder())
	}
	if err != nil {
		return reply, temporal.NewNonRetryableApplicationError(err.Error(), ErrTypeMalformed, nil)
	}
	h, known := g.s.HolderByID(m.Holder.Id)
	if !known {
		a := g.s.Snap()
		return Encode(g.sign(&contract.Answer{Now: int64(a.Now), Resync: true}), asJSON)
	}
	a := g.s.AnswerFor(h)
	limits := g.s.Limits()
	if p := m.GetPolicy(); p.GetRevision() == g.base.Revision && p.GetHash() != g.hash {
		if theirs, err := policy.DecodeGate(p.GetBody()); err == nil {
			return Encode(g.sign(&contract.Answer{Now: int64(a.Now), PolicyConflict: g.base.Diff(theirs)}), asJSON)
		}
	}
	return Encode(g.sign(AnswerOf(&a, &limits, nil)), asJSON)
}
