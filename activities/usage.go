package activities

import (
	"context"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"

	"sluice/admission"
)

// Usage finds out what a request really cost, while its caller reads the answer.
// [Transport] makes one for each answer, in its field Usage, and uses it from one
// goroutine at a time. A panic costs no more than the finding.
type Usage interface {
	// Write sees the body's bytes as the caller reads them, and must not keep
	// them. What it returns is not looked at. Bytes that the caller doesn't
	// read are not seen.
	io.Writer
	// Units are what was used, by unit of the gate's budgets; each at least 0.
	// It is asked once, when the body has been read to its end or closed. Units
	// that are not named, and all of them for nil, cost what was estimated.
	Units() map[string]int64
}

// ReportUsage says what the code under the context's lease really used, by unit
// of the gate's budgets: when the lease is given back, that replaces the
// estimate of [Cost]. Several reports add up. Of the gates that the code has
// leases of it is for the one that was taken last. Without a lease, and after it
// was given back, it does nothing. Negative values, and units that the gate has
// no budget of, are left out and logged once.
//
// What a [Transport] with Usage finds under the same lease is added: report only
// what it doesn't see.
func ReportUsage(ctx context.Context, units map[string]int64) {
	h := innermost(ctx)
	if h == nil {
		return
	}
	units = h.gates.budgeted(h.gate, units, true)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used.add(units)
	h.used.reported = true
}

// usedUnits is what is known of an attempt's cost.
type usedUnits struct {
	units    map[string]int64
	unknown  int  // sends that nobody knows the cost of, or not yet
	reported bool // by the code itself: then it knows all
}

// add adds units, saturating.
func (u *usedUnits) add(units map[string]int64) {
	for unit, n := range units {
		if u.units == nil {
			u.units = map[string]int64{}
		}
		u.units[unit] += min(n, math.MaxInt64-u.units[unit])
	}
}

// actual is what a gate may be told. While some sends' cost is unknown it is no
// less than the estimate, which was made for all of them.
func (u *usedUnits) actual(estimate map[string]int64) map[string]int64 {
	if u.unknown == 0 || u.reported {
		return u.units
	}
	var known map[string]int64
	for unit, n := range u.units {
		if n > estimate[unit] {
			if known == nil {
				known = map[string]int64{}
			}
			known[unit] = n
		}
	}
	return known
}

// budgeted are the units that a gate can settle. The others are logged, where
// who names them chose them for this gate.
func (g *Gates) budgeted(gate Gate, units map[string]int64, chosen bool) map[string]int64 {
	if len(units) == 0 {
		return nil
	}
	p := gate.Policy()
	fit := map[string]int64{}
	for unit, n := range units {
		switch {
		case !slices.ContainsFunc(p.Budgets, func(b admission.Budget) bool { return b.Unit == unit }):
			if chosen {
				g.warnOnce("sluice: usage of a unit that the gate has no budget of is left out", "gate", p.ID(), "unit", unit)
			}
		case n < 0:
			g.warnOnce("sluice: negative usage is left out", "gate", p.ID(), "unit", unit)
		default:
			fit[unit] = n
		}
	}
	return fit
}

// meter is the Usage of one answer, made safe: reading and closing a body may
// happen at once, and what the user wrote may panic.
type meter struct {
	gates *Gates
	gate  Gate

	mu    sync.Mutex
	usage Usage
	own   bool // one of this package: it names all that it knows
}

// meterOf asks Transport.Usage; nil where there is nothing to ask.
func (t *Transport) meterOf(gates *Gates, g Gate, response *http.Response) *meter {
	if t.Usage == nil || response == nil {
		return nil
	}
	m := &meter{gates: gates, gate: g}
	gates.shielded("Transport.Usage", func() { m.usage = t.Usage(response) })
	if m.usage == nil {
		return nil
	}
	_, m.own = m.usage.(*llmUsage)
	return m
}

func (m *meter) see(p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		return
	}
	done := false
	m.gates.shielded("Usage.Write", func() { _, _ = m.usage.Write(p); done = true })
	if !done {
		m.usage = nil
	}
}

// units are what was found, once; false: nothing is known.
func (m *meter) units() (units map[string]int64, known bool) {
	if m == nil {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		return nil, false
	}
	m.gates.shielded("Usage.Units", func() { units = m.usage.Units() })
	m.usage = nil
	return m.gates.budgeted(m.gate, units, !m.own), units != nil
}

// seer is the function that sees a body's bytes; nil where nobody wants them.
func (m *meter) seer() func([]byte) {
	if m == nil {
		return nil
	}
	return m.see
}
