package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"sluice/admission"
)

// Gate is the policy of one gate: what it enforces, and how its holders behave.
//
// The zero value of each field stands for its default, which is named there.
// [Gate.Normalize] fills the defaults in and validates; gates of a [Policy] and
// gates that were decoded are normalised already. A Gate is a plain value:
// concurrent reads are safe, and no method changes it.
type Gate struct {
	// Provider and Endpoint are required; with Name they are the gate's
	// identity, see [Gate.ID]. Provider: [a-z0-9][a-z0-9._-]*, at most 64
	// bytes, lower-cased. Endpoint: an http or https URL; https if it names no
	// scheme. Userinfo, query and fragment are discarded.
	Provider string
	Endpoint string
	// Name tells gates on one endpoint apart, such as one per model. Letters,
	// digits and . _ : / -, at most 128 bytes.
	Name string

	// Preset names a known provider: anthropic, azure-openai, gemini, github,
	// openai. Its overload statuses stand where this gate has none, and what it
	// documents of its headers and bodies is known. Empty: none.
	Preset string

	// MaxInFlight is the cap on leases in use, by weight. 0: no cap. At most
	// admission.MaxInFlightBound.
	MaxInFlight int64
	// Requests paces requests. The zero Rate (or Limit 0): no pacing. Burst 0
	// is 1: pure spacing.
	Requests admission.Rate
	// Budgets bound other units, such as tokens; at most admission.MaxBudgets.
	// One with Limit 0 is off. Burst 0 is Limit.
	Budgets []admission.Budget

	// MaxCooldown bounds every cooldown. 0: 5 minutes. Negative: feedback is
	// switched off, as max_cooldown: 0 does in a file.
	MaxCooldown time.Duration
	// FallbackCooldown is the cooldown of an overload without a hint, doubled
	// along the streak. 0: none.
	FallbackCooldown time.Duration
	// OverloadStatuses are the HTTP statuses, 400 to 599, by which the provider
	// says "slow down". Empty: the preset's, or [DefaultOverloadStatuses].
	OverloadStatuses []int
	// ResetHeaders names further headers that tell when an exhausted limit
	// resets, see [Gate.ReadHint].
	ResetHeaders []ResetHeader
	// Learn lets answers that succeeded teach, too, see [Gate.ReadLesson].
	Learn bool

	// QueueTimeout bounds the wait in the queue. 0: no bound.
	QueueTimeout time.Duration
	// MaxQueue bounds the tickets in the queue. 0: 10,000.
	MaxQueue int
	// MinCallTime is what a wait must leave of an attempt's time; one that
	// leaves less is refused. 0: no bound.
	MinCallTime time.Duration

	// Hold says how long a lease lasts. Empty: [HoldAttempt].
	Hold Hold
	// MaxHold bounds the life of a lease. 0: 1 hour.
	MaxHold time.Duration
	// OnLeaseLost says what becomes of an attempt whose lease is lost. Empty:
	// [LeaseLostContinue].
	OnLeaseLost OnLeaseLost
	// OnUnavailable says what a caller does while the gate can't be reached.
	// Empty: [UnavailableWait].
	OnUnavailable OnUnavailable

	// HolderTTL is how long a worker process may be silent before it is lost.
	// 0: 30 s. At least 1 s.
	HolderTTL time.Duration
	// ParkTTL is how long a ticket whose caller is away keeps its place.
	// 0: 10 minutes.
	ParkTTL time.Duration
	// LookAhead is how far ahead leases are granted, less than HolderTTL.
	// 0: 1 s, or half the HolderTTL if that is less. Negative: none, as
	// look_ahead: 0 does in a file.
	LookAhead time.Duration
	// StartWindow is how late a lease may start before it is handed back.
	// 0: the larger of one spacing and 100 ms.
	StartWindow time.Duration
	// MaxExchangesPerSecond bounds the control traffic of all holders. 0: no
	// bound. At most 1,000,000.
	MaxExchangesPerSecond int64

	// Activities are the activity types that are gated without a change to
	// their code; * stands for any run of characters. At most 256.
	Activities []string
	// Exclude are requests to the endpoint that are not gated, such as
	// "/models" or "GET /health*": an optional method and a pattern of
	// path.Match on the path below the endpoint. At most 256.
	Exclude []string
	// RetryHint says whether a failed attempt's error gains the time to come
	// again. Empty: [RetryHintOn].
	RetryHint RetryHint

	// Revision decides between workers with different policies for one gate:
	// the higher one wins. 0: 1.
	Revision int64
}

// ResetHeader names the headers of one limit, in any case. Reset is required:
// a duration, an RFC 3339 instant, seconds, or an epoch. Limit and Remaining
// may be empty.
type ResetHeader struct {
	Limit, Remaining, Reset string
}

// Hold says how long a lease lasts.
type Hold string

const (
	HoldAttempt Hold = "attempt" // each attempt has its own lease
	HoldCall    Hold = "call"    // one lease for all attempts of an activity
)

// OnLeaseLost says what becomes of an attempt whose lease is lost.
type OnLeaseLost string

const (
	LeaseLostContinue OnLeaseLost = "continue" // it goes on, counted and logged
	LeaseLostCancel   OnLeaseLost = "cancel"   // its context ends
)

// OnUnavailable says what a caller does while the gate can't be reached.
type OnUnavailable string

const (
	UnavailableWait  OnUnavailable = "wait"
	UnavailableFail  OnUnavailable = "fail"
	UnavailableLocal OnUnavailable = "local" // a share of the limits, enforced in the process
)

// RetryHint says whether a failed attempt's error gains the time to come again.
type RetryHint string

const (
	RetryHintOn  RetryHint = "on"
	RetryHintOff RetryHint = "off"
)

// Off switches MaxCooldown or LookAhead off in a Gate that is written in Go,
// where 0 stands for the default.
const Off time.Duration = -1

// Normalize returns a copy with canonical identity and every default filled
// in. The error is a *[FaultError] with every fault of the gate. A normalised
// gate stays as it is.
func (g Gate) Normalize() (Gate, error) {
	r := &reader{}
	read := r.gate(spot{node: g.node()})
	if len(r.faults) > 0 {
		return Gate{}, &FaultError{Faults: r.faults}
	}
	return *read.gate, nil
}

// Limits is what the scheduler enforces for this gate, defaults filled in.
func (g Gate) Limits() admission.Limits {
	cooldown := g.MaxCooldown
	switch {
	case cooldown == 0:
		cooldown = admission.DefaultMaxCooldown
	case cooldown < 0:
		cooldown = 0
	}
	return admission.Limits{
		MaxInFlight:           g.MaxInFlight,
		Pacing:                g.Requests,
		Budgets:               g.Budgets,
		MaxCooldown:           cooldown,
		FallbackCooldown:      g.FallbackCooldown,
		MaxQueue:              g.MaxQueue,
		MaxHold:               g.MaxHold,
		HolderTTL:             g.HolderTTL,
		ParkTTL:               g.ParkTTL,
		LookAhead:             g.LookAhead,
		StartWindow:           g.StartWindow,
		MaxExchangesPerSecond: g.MaxExchangesPerSecond,
	}.WithDefaults()
}

// Hash is 16 hexadecimal digits that two gates share exactly when everything
// that the gate or its holders enforce is the same: all but Activities,
// Exclude and Revision, with rates in lowest terms.
func (g Gate) Hash() string {
	g = g.canonical()
	enforced := mapping{}
	for _, k := range gateKeys {
		if v := k.enforced(&g); v != nil {
			enforced = append(enforced, pair{k.name, v})
		}
	}
	sum := sha256.Sum256(jsonOf(enforced))
	return hex.EncodeToString(sum[:8])
}

// Diff names the fields that differ, each with both values, such as
// "max_in_flight: 8 != 4", in the order of the file. It looks at what
// [Gate.Hash] looks at: it is empty exactly when the hashes are equal.
func (g Gate) Diff(other Gate) []string {
	g, other = g.canonical(), other.canonical()
	var differing []string
	for _, k := range gateKeys {
		if string(jsonOf(k.enforced(&g))) != string(jsonOf(k.enforced(&other))) {
			differing = append(differing, fmt.Sprintf("%s: %s != %s", k.name, textOf(k.value(&g)), textOf(k.value(&other))))
		}
	}
	return differing
}

// canonical is the normalised gate, or the gate itself where it has faults.
func (g Gate) canonical() Gate {
	if n, err := g.Normalize(); err == nil {
		return n
	}
	return g
}

// MarshalJSON is the canonical form: every key of the policy file with its
// effective value, sorted, durations as strings, rates as {limit, per, burst}.
// The same gate always gives the same bytes. A gate with faults is an error.
func (g Gate) MarshalJSON() ([]byte, error) {
	n, err := g.Normalize()
	if err != nil {
		return nil, err
	}
	return json.Marshal(n.mapping())
}

// UnmarshalJSON is [DecodeGate].
func (g *Gate) UnmarshalJSON(data []byte) error {
	decoded, err := DecodeGate(data)
	if err == nil {
		*g = decoded
	}
	return err
}

// mapping is the gate as the file would say it, without fields that are unset.
func (g *Gate) mapping() mapping {
	var m mapping
	for _, k := range gateKeys {
		if v := k.value(g); v != nil {
			m = append(m, pair{k.name, v})
		}
	}
	return m
}
