package policy

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"sluice/admission"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// absurd are values that no number, duration, word, list or mapping of a policy
// may have, each for at least one of them.
var absurd = []string{
	"-1", "-0", "-0.5", "-9223372036854775808", "9223372036854775808", "99999999999999999999999999", "1e400", "1e3", "0.1", "1.0",
	".nan", ".NaN", ".inf", "-.inf", "NaN", "Infinity", "0x10", "0o17", "0b1", "010", "1_000", "+5", `"5"`, `""`, `" "`,
	"-1s", "-0.1ms", "1e9s", "1d", "300000h", "2562048h", "0.1ns", "1", "1s1", "s", "NaNs", "infs", "1s ago",
	"null", "~", "yes", "True", "{}", "[]", "[[]]", "{limit: 0, a: b}", "[null]", "2026-11-30", `"` + strings.Repeat("9", 5000) + `"`,
}

// Every value of every key: it is either taken and within its bounds, or there
// is one fault, and that names the key and what it may be. With on_invalid:
// disable the limits, and they alone, are left out instead.
func TestAbsurdValues(t *testing.T) {
	for _, k := range gateKeys {
		if k.name == "provider" || k.name == "endpoint" {
			continue // gateFile has them already; see the tests of identity
		}
		t.Run(k.name, func(t *testing.T) {
			for _, value := range absurd {
				file := gateFile(k.name + ": " + value)
				p, err := Parse("f", []byte(file))
				if err == nil {
					assert.NoError(t, p.Gates()[0].Limits().Validate(), value)
					switch form := k.form.(type) {
					case integerForm, decimalForm:
						assert.Regexp(t, `^([0-9]|1\.0|0\.1)$`, value, "%T", form)
					case durationForm:
						assert.Fail(t, "taken", value)
					}
					continue
				}
				var faults *FaultError
				require.ErrorAs(t, err, &faults, value)
				require.Len(t, faults.Faults, 1, "%s: %v", value, err)
				f := faults.Faults[0]
				assert.True(t, strings.HasPrefix(f.Path, "gates[0]."+k.name), err)
				assert.NotEqual(t, f.Value == "", f.Message == "", err)
				assert.True(t, f.Allowed != "" || strings.Contains(f.Message, "unknown key"), err)
				assert.Positive(t, f.Line)
				assert.NotContains(t, err.Error(), "\n", "one line")
				assert.Less(t, len(err.Error()), 500)

				p, err = Parse("f", []byte("on_invalid: disable\n"+file))
				formal := strings.Contains(f.Message, "unknown key") || strings.Contains(f.Message, "not supported")
				if !k.limit || formal {
					assert.Error(t, err, value)
					continue
				}
				require.NoError(t, err, value)
				assert.Len(t, p.Warnings, 1, value)
				assert.Contains(t, p.Warnings[0], "gates[0]."+k.name)
				assert.NotEmpty(t, p.Gates()[0].origin(k.rateOrName()), "without it: %s", value)
			}
		})
	}
}

// rateOrName is the key by which the gate says what this one set.
func (k key) rateOrName() string {
	if k.value(&Gate{}) == nil && strings.Contains(strings.Join(pacingForms, " "), k.name) {
		return formRequests
	}
	return k.name
}

// The bounds of a form are the last values that it takes.
func TestBoundsAreTaken(t *testing.T) {
	for _, k := range gateKeys {
		var taken, refused []string
		switch f := k.form.(type) {
		case integerForm:
			taken = []string{fmt.Sprint(f.least), fmt.Sprint(f.most)}
			refused = []string{fmt.Sprint(f.least - 1)}
			if f.most < math.MaxInt64 {
				refused = append(refused, fmt.Sprint(f.most+1))
			}
		case durationForm:
			taken = []string{f.least.String(), f.most.String()}
			refused = []string{(f.least - 1).String(), (f.most + 1).String()}
			if f.least > 0 {
				refused = append(refused, "0", "0s")
			} else {
				taken = append(taken, "0")
			}
		case decimalForm:
			taken = []string{"0", "0.0000001", fmt.Sprint(f.most), fmt.Sprint(f.most) + ".0"}
			refused = []string{"-0.1", fmt.Sprint(f.most) + ".1", "0.00000001"}
		}
		for _, value := range taken {
			if k.name == "look_ahead" && strings.HasSuffix(value, "h0m0s") {
				continue // below holder_ttl, which has a bound itself
			}
			_, err := Parse("f", []byte(gateFile(k.name+": "+value)))
			assert.NoError(t, err, "%s: %s", k.name, value)
		}
		for _, value := range refused {
			_, err := Parse("f", []byte(gateFile(k.name+": "+value)))
			assert.ErrorContains(t, err, "gates[0]."+k.name, "%s: %s", k.name, value)
		}
	}
}

// What a rate's fields may not be, alone and together; each in a budget, too.
func TestAbsurdRates(t *testing.T) {
	for fields, want := range map[string]string{
		"limit: -1, per: 1s":                         ".limit is -1; allowed: 0 (off) to 1000000000000",
		"limit: .nan, per: 1s":                       ".limit is .nan; allowed: 0 (off) to 1000000000000",
		"limit: 1000000000001, per: 1s":              ".limit is 1000000000001; allowed: 0 (off) to 1000000000000",
		"limit: 1.5, per: 1s":                        ".limit is 1.5; allowed: 0 (off) to 1000000000000",
		"limit: 1, per: 0":                           ".per is 0; allowed: 1ns to 8784h, such as 1m30s",
		"limit: 1, per: 0s":                          `.per is "0s"; allowed: 1ns to 8784h, such as 1m30s`,
		"limit: 1, per: -1s":                         `.per is "-1s"; allowed: 1ns to 8784h, such as 1m30s`,
		"limit: 1, per: 8785h":                       `.per is "8785h"; allowed: 1ns to 8784h, such as 1m30s`,
		"limit: 1, per: 60":                          ".per is 60; allowed: 1ns to 8784h, such as 1m30s",
		"limit: 1, per: 1s, burst: 0":                ".burst is 0; allowed: 1 to 1000000000000",
		"limit: 1, per: 1s, burst: -1":               ".burst is -1; allowed: 1 to 1000000000000",
		"limit: 1, per: 1s, burst: 1000000000001":    ".burst is 1000000000001; allowed: 1 to 1000000000000",
		"limit: 1, per: 1s, burst: .inf":             ".burst is .inf; allowed: 1 to 1000000000000",
		"limit: 1, per: 1h, burst: 87840":            ".burst is 87840; allowed: what refills in less than 87840h",
		"limit: 1000000000000, per: 1ns, burst: 1":   "",
		"limit: 1, per: 8784h, burst: 9":             "",
		"limit: 1, per: 1h, burst: 87839":            "",
		"limit: 1, per: 1ns, burst: 1000000000000":   "",
		"limit: 1000000000000, per: 8784h, burst: 1": "",
		"limit: 0, per: 0":                           ".per is 0; allowed: 1ns to 8784h, such as 1m30s",
		"limit: 0, per: 8784h, burst: 1000000000000": "",
	} {
		for prefix, line := range map[string]string{"gates[0].requests": "requests: {" + fields + "}", "gates[0].budgets[0]": "budgets: [{unit: a, " + fields + "}]"} {
			p, err := Parse("f", []byte(gateFile(line)))
			if want == "" {
				require.NoError(t, err, line)
				assert.NoError(t, p.Gates()[0].Limits().Validate(), line)
				continue
			}
			require.Error(t, err, line)
			assert.True(t, strings.HasSuffix(err.Error(), prefix+want), "%s\n%s", err, prefix+want)

			p, err = Parse("f", []byte("on_invalid: disable\n"+gateFile(line)))
			require.NoError(t, err, line)
			assert.True(t, p.Gates()[0].Requests.IsZero())
			assert.Empty(t, p.Gates()[0].Budgets)
			assert.Equal(t, []string{strings.Replace(err0(line), "f:4", "f:5", 1) + "; this limit is off"}, p.Warnings)
		}
	}
}

// err0 is the fault of a gate with the line.
func err0(line string) string {
	_, err := Parse("f", []byte(gateFile(line)))
	return err.Error()
}

// A gate that is written in Go is held to the same bounds.
func TestAbsurdGates(t *testing.T) {
	for want, set := range map[string]func(*Gate){
		"max_in_flight is -1; allowed: 0 (no cap) to 1000000":                      func(g *Gate) { g.MaxInFlight = -1 },
		"max_in_flight is 9223372036854775807; allowed: 0 (no cap) to 1000000":     func(g *Gate) { g.MaxInFlight = math.MaxInt64 },
		"requests.limit is -1; allowed: 0 (off) to 1000000000000":                  func(g *Gate) { g.Requests = admission.Rate{Limit: -1, Per: 1, Burst: 1} },
		`requests.per is "0s"; allowed: 1ns to 8784h, such as 1m30s`:               func(g *Gate) { g.Requests = admission.Rate{Limit: 1} },
		"requests.burst is -1; allowed: 1 to 1000000000000":                        func(g *Gate) { g.Requests = admission.Rate{Limit: 1, Per: 1, Burst: -1} },
		`budgets[0].unit is "A"; allowed: [a-z][a-z0-9_]*, at most 32 bytes`:       func(g *Gate) { g.Budgets = []admission.Budget{{Unit: "A"}} },
		`fallback_cooldown is "-1ns"; allowed: 0s (none) to 87840h, such as 1m30s`: func(g *Gate) { g.FallbackCooldown = -1 },
		`max_cooldown is "2562047h47m16.854775807s"; allowed: 0s (no feedback)`:    func(g *Gate) { g.MaxCooldown = math.MaxInt64 },
		"overload_statuses[0] is -429; allowed: 400 to 599":                        func(g *Gate) { g.OverloadStatuses = []int{-429} },
		`queue_timeout is "-1ns"; allowed: 0s (none)`:                              func(g *Gate) { g.QueueTimeout = -1 },
		"max_queue is -1; allowed: 1 to 2000000":                                   func(g *Gate) { g.MaxQueue = -1 },
		`min_call_time is "-1ns"; allowed: 0s (none)`:                              func(g *Gate) { g.MinCallTime = -1 },
		`max_hold is "-1ns"; allowed: 1ms to 87840h`:                               func(g *Gate) { g.MaxHold = -1 },
		`holder_ttl is "1ms"; allowed: 1s to 87840h`:                               func(g *Gate) { g.HolderTTL = time.Millisecond },
		`park_ttl is "-1ns"; allowed: 1ms to 87840h`:                               func(g *Gate) { g.ParkTTL = -1 },
		`look_ahead is "1m"; allowed: 0 (none) to less than holder_ttl`:            func(g *Gate) { g.LookAhead = time.Minute },
		`start_window is "1ns"; allowed: 1ms to 87840h`:                            func(g *Gate) { g.StartWindow = 1 },
		"max_exchanges_per_second is -1; allowed: 0 (no bound) to 1000000":         func(g *Gate) { g.MaxExchangesPerSecond = -1 },
		"revision is -1; allowed: 1 to 9223372036854775807":                        func(g *Gate) { g.Revision = -1 },
	} {
		g := Gate{Provider: "p", Endpoint: "h"}
		set(&g)
		_, err := g.Normalize()
		require.Error(t, err, want)
		assert.True(t, strings.HasPrefix(err.Error(), want), "%s\n%s", err, want)
		assert.NotContains(t, err.Error(), "\n")
		_, err = New(g)
		assert.ErrorContains(t, err, "gates[0]."+want)
	}
}
