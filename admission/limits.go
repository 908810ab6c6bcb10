package admission

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of what a gate may be asked to enforce. They keep all arithmetic
// exact in 64 bits (with 128-bit intermediates) and the state small enough
// for one Temporal payload.
const (
	MaxInFlightBound = 1_000_000
	MaxQueueBound    = 2_000_000
	MaxBudgets       = 8
	MaxUnitLength    = 32
	MaxRateLimit     = 1_000_000_000_000 // units per Rate.Per
	MaxPer           = 366 * 24 * time.Hour
	MaxRefill        = 10 * 366 * 24 * time.Hour // time to fill an empty bucket
	MaxDuration      = 10 * 366 * 24 * time.Hour // any other duration
)

// Defaults of the optional limits; see [Limits.WithDefaults].
const (
	DefaultMaxCooldown = 5 * time.Minute
	DefaultMaxQueue    = 10_000
	DefaultMaxHold     = time.Hour
	DefaultHolderTTL   = 30 * time.Second
	DefaultParkTTL     = 10 * time.Minute
	DefaultLookAhead   = time.Second
	MinStartWindow     = 100 * time.Millisecond
)

// Rate is an exact rational rate: Limit units per Per. The zero Rate means
// "no limit".
type Rate struct {
	Limit int64         // 1 to MaxRateLimit
	Per   time.Duration // 1 ns to MaxPer
	Burst int64         // units that may be used at once after idleness; at least 1
}

// IsZero reports whether the rate is switched off.
func (r Rate) IsZero() bool { return r.Limit == 0 }

// Spaced reports whether the rate is pure pacing: no two admissions closer
// together than Spacing.
func (r Rate) Spaced() bool { return r.Limit > 0 && r.Burst == 1 }

// Spacing is Per/Limit, rounded up to a nanosecond; 0 for the zero Rate.
func (r Rate) Spacing() time.Duration {
	if r.IsZero() {
		return 0
	}
	d := scale(1, r)
	return time.Duration(d.ceil())
}

// Budget is a token bucket of one unit that an attempt costs, such as tokens.
type Budget struct {
	Unit string // [a-z][a-z0-9_]*, at most MaxUnitLength bytes
	Rate Rate
}

// Limits is what a scheduler enforces. The zero value of each field switches
// it off, except where a default is named; [Limits.WithDefaults] fills those.
type Limits struct {
	// MaxInFlight is the cap on the sum of the weights of leases in use
	// (reserved and started). 0: no cap. At most MaxInFlightBound.
	MaxInFlight int64
	// Pacing spaces admissions: each costs one unit. Never refunded.
	Pacing Rate
	// Budgets are further token buckets, at most MaxBudgets, settled at release.
	Budgets []Budget

	// MaxCooldown bounds every cooldown. 0: feedback is switched off.
	MaxCooldown time.Duration
	// FallbackCooldown is the cooldown of an overload without a hint, doubled
	// along the streak. 0: none.
	FallbackCooldown time.Duration

	// MaxQueue bounds the tickets in the queue, parked ones included.
	// 0: DefaultMaxQueue.
	MaxQueue int
	// MaxHold bounds the life of a lease from its start. 0: DefaultMaxHold.
	MaxHold time.Duration
	// HolderTTL is how long a holder may be silent before it is lost.
	// 0: DefaultHolderTTL.
	HolderTTL time.Duration
	// ParkTTL is how long a parked ticket keeps its place. 0: DefaultParkTTL.
	ParkTTL time.Duration
	// LookAhead is how far ahead leases are granted; less than HolderTTL.
	// 0: DefaultLookAhead, or half the HolderTTL if that is less. Negative: none.
	LookAhead time.Duration
	// StartWindow is how late a lease may start before it is handed back.
	// 0: the larger of one spacing and MinStartWindow.
	StartWindow time.Duration
	// MaxExchangesPerSecond bounds the control traffic of all holders
	// together. 0: no bound.
	MaxExchangesPerSecond int64
}

// WithDefaults returns a copy in which every optional field that is zero has
// its default. MaxCooldown stays as it is: there 0 has a meaning.
func (l Limits) WithDefaults() Limits {
	l.Budgets = append([]Budget(nil), l.Budgets...)
	setDefault(&l.MaxQueue, DefaultMaxQueue)
	setDefault(&l.MaxHold, DefaultMaxHold)
	setDefault(&l.HolderTTL, DefaultHolderTTL)
	setDefault(&l.ParkTTL, DefaultParkTTL)
	setDefault(&l.LookAhead, min(DefaultLookAhead, l.HolderTTL/2))
	setDefault(&l.StartWindow, max(l.Pacing.Spacing(), MinStartWindow))
	return l
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Validate reports every fault of the limits at once, each with field, value
// and what is allowed; nil if there is none. It expects defaults to be filled.
func (l Limits) Validate() error {
	var faults []error
	fault := func(field string, value any, allowed string) {
		faults = append(faults, &LimitError{Field: field, Value: fmt.Sprint(value), Allowed: allowed})
	}
	if l.MaxInFlight < 0 || l.MaxInFlight > MaxInFlightBound {
		fault("max_in_flight", l.MaxInFlight, fmt.Sprintf("0 (no cap) to %d", MaxInFlightBound))
	}
	if l.Pacing != (Rate{}) {
		faults = append(faults, l.Pacing.faults("requests")...)
	}
	if len(l.Budgets) > MaxBudgets {
		fault("budgets", len(l.Budgets), fmt.Sprintf("at most %d budgets", MaxBudgets))
	}
	seen := map[string]bool{}
	for i, b := range l.Budgets {
		field := fmt.Sprintf("budgets[%d]", i)
		if !ValidUnit(b.Unit) {
			fault(field+".unit", b.Unit, fmt.Sprintf("[a-z][a-z0-9_]*, at most %d bytes", MaxUnitLength))
		} else if seen[b.Unit] {
			fault(field+".unit", b.Unit, "each unit once")
		}
		seen[b.Unit] = true
		faults = append(faults, b.Rate.faults(field)...)
	}
	duration := func(field string, d, least time.Duration) {
		if d < least || d > MaxDuration {
			fault(field, d, fmt.Sprintf("%v to %v", least, MaxDuration))
		}
	}
	duration("max_cooldown", l.MaxCooldown, 0)
	duration("fallback_cooldown", l.FallbackCooldown, 0)
	if l.MaxQueue < 1 || l.MaxQueue > MaxQueueBound {
		fault("max_queue", l.MaxQueue, fmt.Sprintf("1 to %d", MaxQueueBound))
	}
	duration("max_hold", l.MaxHold, time.Millisecond)
	duration("holder_ttl", l.HolderTTL, time.Second)
	duration("park_ttl", l.ParkTTL, time.Millisecond)
	duration("start_window", l.StartWindow, time.Millisecond)
	if l.LookAhead >= l.HolderTTL {
		fault("look_ahead", l.LookAhead, fmt.Sprintf("less than holder_ttl (%v)", l.HolderTTL))
	}
	if l.MaxExchangesPerSecond < 0 || l.MaxExchangesPerSecond > 1_000_000 {
		fault("max_exchanges_per_second", l.MaxExchangesPerSecond, "0 (no bound) to 1000000")
	}
	return errors.Join(faults...)
}

func (r Rate) faults(field string) []error {
	var faults []error
	fault := func(name string, value any, allowed string) {
		faults = append(faults, &LimitError{Field: field + "." + name, Value: fmt.Sprint(value), Allowed: allowed})
	}
	if r.Limit < 1 || r.Limit > MaxRateLimit {
		fault("limit", r.Limit, fmt.Sprintf("1 to %d", int64(MaxRateLimit)))
	}
	if r.Per < 1 || r.Per > MaxPer {
		fault("per", r.Per, fmt.Sprintf("more than 0, at most %v", MaxPer))
	}
	if r.Burst < 1 || r.Burst > MaxRateLimit {
		fault("burst", r.Burst, fmt.Sprintf("1 to %d", int64(MaxRateLimit)))
	}
	if len(faults) == 0 && scale(r.Burst, r).ns >= int64(MaxRefill) {
		fault("burst", r.Burst, fmt.Sprintf("what refills in less than %v", MaxRefill))
	}
	return faults
}

// ValidUnit reports whether s can name a budget's unit.
func ValidUnit(s string) bool {
	if s == "" || len(s) > MaxUnitLength || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_') {
			return false
		}
	}
	return true
}

// LimitError is one fault of a limit.
type LimitError struct {
	Field   string // as the policy file names it
	Value   string
	Allowed string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s is %s; allowed: %s", e.Field, e.Value, e.Allowed)
}
