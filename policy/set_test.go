package policy

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
)

// settableGate is what the tests change.
func settableGate(t *testing.T) Gate {
	t.Helper()
	g, err := Gate{
		Provider: "p", Endpoint: "https://h", MaxInFlight: 8, Requests: admission.Rate{Limit: 5, Per: time.Second},
		Budgets: []admission.Budget{
			{Unit: "images", Rate: admission.Rate{Limit: 10, Per: time.Minute, Burst: 2}},
			{Unit: "tokens", Rate: admission.Rate{Limit: 90_000, Per: time.Minute}},
		},
	}.Normalize()
	require.NoError(t, err)
	return g
}

func TestWith(t *testing.T) {
	g := settableGate(t)
	for name, c := range map[string]struct {
		set       map[string]string
		canonical map[string]string
		changes   []string
	}{
		"a cap": {
			map[string]string{"max_in_flight": "4"}, map[string]string{"max_in_flight": "4"}, []string{"max_in_flight: 8 -> 4"},
		},
		"no cap": {
			map[string]string{"max_in_flight": "0"}, map[string]string{"max_in_flight": "0"}, []string{"max_in_flight: 8 -> 0 (no cap)"},
		},
		"the same": {
			map[string]string{"max_in_flight": "8"}, map[string]string{"max_in_flight": "8"}, nil,
		},
		"a rate, whose window follows": {
			map[string]string{"requests_per_second": "2.5"},
			map[string]string{"requests": `{"limit":5,"per":"2s","burst":1}`, "start_window": `"400ms"`},
			[]string{"requests: 5 per 1s -> 5 per 2s", "start_window: 200ms -> 400ms"},
		},
		"an interval": {
			map[string]string{"min_interval": `"1s"`, "start_window": `"150ms"`},
			map[string]string{"requests": `{"limit":1,"per":"1s","burst":1}`, "start_window": `"150ms"`},
			[]string{"requests: 5 per 1s -> 1 per 1s", "start_window: 200ms -> 150ms"},
		},
		"a part of the rate": {
			map[string]string{"requests.burst": "3"},
			map[string]string{"requests": `{"limit":5,"per":"1s","burst":3}`, "start_window": `"200ms"`},
			[]string{"requests: 5 per 1s -> 5 per 1s, burst 3"},
		},
		"no pacing": {
			map[string]string{"requests_per_second": "0"},
			map[string]string{"requests": `{"limit":0}`, "start_window": `"100ms"`},
			[]string{"requests: 5 per 1s -> off", "start_window: 200ms -> 100ms"},
		},
		"a budget, whose burst follows": {
			map[string]string{"budgets.tokens.limit": "45000"},
			map[string]string{"budgets": `[{"unit":"images","limit":10,"per":"1m","burst":2},{"unit":"tokens","limit":45000,"per":"1m","burst":45000}]`},
			[]string{"budgets.tokens: 90000 per 1m -> 45000 per 1m"},
		},
		"a budget, whose burst stays": {
			map[string]string{"budgets.images.limit": "5"},
			map[string]string{"budgets": `[{"unit":"images","limit":5,"per":"1m","burst":2},{"unit":"tokens","limit":90000,"per":"1m","burst":90000}]`},
			[]string{"budgets.images: 10 per 1m, burst 2 -> 5 per 1m, burst 2"},
		},
		"a budget off, and a new one": {
			map[string]string{"budgets.images.limit": "0", "budgets.calls.limit": "7", "budgets.calls.per": `"1h"`},
			map[string]string{"budgets": `[{"unit":"calls","limit":7,"per":"1h","burst":7},{"unit":"tokens","limit":90000,"per":"1m","burst":90000}]`},
			[]string{"budgets.calls: off -> 7 per 1h", "budgets.images: 10 per 1m, burst 2 -> off"},
		},
		"a feedback bound": {
			map[string]string{"max_cooldown": "0"}, map[string]string{"max_cooldown": `"0s"`}, []string{"max_cooldown: 5m -> 0s (no feedback)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			set := map[string]json.RawMessage{}
			for field, value := range c.set {
				set[field] = json.RawMessage(value)
			}
			changed, canonical, err := g.With(set)
			require.NoError(t, err)
			var changes []string
			for _, change := range g.Changes(changed) {
				changes = append(changes, change.String())
			}
			assert.Equal(t, c.changes, changes)
			require.Len(t, canonical, len(c.canonical))
			for field, value := range c.canonical {
				assert.JSONEq(t, value, string(canonical[field]), field)
			}
			again, second, err := g.With(canonical)
			require.NoError(t, err)
			assert.Empty(t, changed.Changes(again), "what is canonical says it all")
			for field := range canonical {
				assert.Equal(t, string(canonical[field]), string(second[field]))
			}
		})
	}
}

func TestWithRefuses(t *testing.T) {
	g := settableGate(t)
	for name, c := range map[string]struct {
		set  map[string]string
		says []string
	}{
		"an unknown key":       {map[string]string{"max_inflight": "4"}, []string{"max_inflight: unknown key", "max_in_flight"}},
		"a key of the holders": {map[string]string{"hold": `"call"`}, []string{"hold: it can't be set while the gate runs", "max_in_flight, requests_per_second"}},
		"the identity":         {map[string]string{"endpoint": `"https://x"`}, []string{"endpoint: it can't be set"}},
		"the revision":         {map[string]string{"revision": "9"}, []string{"revision: it can't be set"}},
		"a value":              {map[string]string{"max_in_flight": "-1"}, []string{"max_in_flight is -1; allowed: 0 (no cap) to 1000000"}},
		"a type":               {map[string]string{"max_in_flight": `"many"`}, []string{`max_in_flight is "many"; allowed: 0`}},
		"no JSON":              {map[string]string{"max_in_flight": "{"}, []string{"not JSON"}},
		"two ways to pace":     {map[string]string{"min_interval": `"1s"`, "requests_per_second": "1"}, []string{"pacing is set twice"}},
		"a part of no mapping": {map[string]string{"max_in_flight.limit": "1"}, []string{"max_in_flight has no parts"}},
		"an unknown part":      {map[string]string{"requests.rate": "1"}, []string{`unknown part "rate"; allowed: limit, per, burst`}},
		"a budget alone":       {map[string]string{"budgets.tokens": "1"}, []string{"budgets.UNIT.limit"}},
		"a budget without per": {map[string]string{"budgets.calls.limit": "1"}, []string{"per: is missing"}},
		"look-ahead":           {map[string]string{"look_ahead": `"1m"`}, []string{"look_ahead", "holder_ttl"}},
		"all faults":           {map[string]string{"max_in_flight": "-1", "max_queue": "0"}, []string{"max_in_flight is -1", "max_queue is 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			set := map[string]json.RawMessage{}
			for field, value := range c.set {
				set[field] = json.RawMessage(value)
			}
			_, _, err := g.With(set)
			require.Error(t, err)
			for _, part := range c.says {
				assert.Contains(t, err.Error(), part)
			}
		})
	}
}

// TestSettableKeysAreTheGates: all that the scheduler enforces can be set, but
// for holder_ttl, which holders go by as well.
func TestSettableKeysAreTheGates(t *testing.T) {
	for _, key := range Settable() {
		assert.Contains(t, gateKeyNames, key)
	}
	assert.False(t, slices.Contains(Settable(), "holder_ttl"))
}
