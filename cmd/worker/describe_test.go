package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/workflows"
)

var rewrite = flag.Bool("rewrite", false, "write the pages as they are to testdata")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), text, "if that is meant: go test ./cmd/worker -run %s -rewrite, and look at it", t.Name())
	for line := range strings.Lines(text) {
		assert.LessOrEqual(t, len([]rune(strings.TrimRight(line, "\n"))), tableWidth, line)
	}
}

// aGate is a gate in which everything happens at once.
func aGate(t *testing.T) (workflows.Status, time.Time) {
	t.Helper()
	now := time.Date(2026, 3, 1, 14, 3, 5, 0, time.Local)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	base, err := policy.Gate{
		Provider: "openai", Endpoint: "https://api.openai.com/v1", Name: "gpt-4o", MaxInFlight: 8, Revision: 3,
		Requests: admission.Rate{Limit: 475, Per: time.Minute},
		Budgets:  []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 90_000, Per: time.Minute, Burst: 10_000}}},
	}.Normalize()
	require.NoError(t, err)
	set := map[string]json.RawMessage{"max_in_flight": json.RawMessage("4"), "requests_per_second": json.RawMessage("2.5"), "park_ttl": json.RawMessage(`"5m"`)}
	inForce, canonical, err := base.With(set)
	require.NoError(t, err)
	st := workflows.Status{
		Gate: base.ID(), Now: ago(300 * time.Millisecond), Rules: 2, Runs: 41, Policy: base, InForce: inForce,
		Overlays: []workflows.Overlay{
			{Set: canonical, Until: now.Add(9*time.Minute + 58*time.Second), Who: "ann@desk", Why: "provider is slow"},
		},
		InFlight: 4, Cap: 4, Reserved: 2, Started: 2, Queued: 132, Parked: 7,
		CooldownUntil: now.Add(3200 * time.Millisecond), NextStart: now.Add(3200 * time.Millisecond),
		Cooldown: &workflows.Cooldown{At: ago(1800 * time.Millisecond), Status: 429, Source: "retry-after", Asked: workflows.Duration(5 * time.Second), Applied: workflows.Duration(5 * time.Second)},
		Ages:     workflows.Ages{P50: ago(42 * time.Second), P90: ago(71 * time.Second), Oldest: ago(83 * time.Second)},
		Waits:    workflows.Waits{P50: workflows.Duration(64 * time.Second), P90: workflows.Duration(77 * time.Second), Max: workflows.Duration(79 * time.Second)},
		LowerLimits: []workflows.LowerLimit{
			{At: ago(40 * time.Second), Header: "x-ratelimit-limit-requests", Unit: "requests", Limit: 300, Per: workflows.Duration(time.Minute), Policy: 475},
		},
		Holders: []workflows.Holder{
			{ID: "worker-7d9f8b6c5-x2x4q", LastSeen: ago(150 * time.Millisecond), Present: true, Waiting: true, Queued: 90, Leased: 3},
			{ID: "worker-7d9f8b6c5-k8w2m", LastSeen: ago(950 * time.Millisecond), Present: true, Queued: 35, Leased: 1},
			{ID: "worker-7d9f8b6c5-gone0", LastSeen: ago(24 * time.Second)},
		},
		Log: []workflows.Act{
			{At: ago(26 * time.Hour), What: "pause", Who: "bob@ops", Why: "key rotation"},
			{At: ago(25 * time.Hour), What: "resume", Who: "bob@ops"},
			{At: ago(90 * time.Second), What: "set max_in_flight=-1", Who: "ann@desk", Error: "max_in_flight is -1; allowed: 0 (no cap) to 1000000"},
			{At: ago(2 * time.Second), What: "set max_in_flight=4, requests_per_second=2.5", Who: "ann@desk", Why: "provider is slow", Changes: base.Changes(inForce)},
		},
		Counters: workflows.Counters{Admissions: 120_345, Releases: 120_200, Overloads: 12, Cooldowns: 3, HandBacks: 141, LostHolders: 1, Parked: 30, Resyncs: 2, Duplicates: 4,
			Refusals: map[string]uint64{"queue_timeout": 3, "operator": 1}},
	}
	for n, age := range []time.Duration{64 * time.Second, 33 * time.Second, -200 * time.Millisecond, -600 * time.Millisecond} {
		st.Leases = append(st.Leases, workflows.Lease{
			Lease: 1795964120000120 + uint64(n), Label: fmt.Sprintf("summarize-2026-03-01-batch-%04d/Summarize", 812+n), Holder: st.Holders[n%2].ID, Attempt: 1, Weight: 1,
			StartAt: ago(age),
		})
	}
	for n := range 100 {
		ticket := workflows.Ticket{
			Ticket: 120_480 + uint64(n), Label: fmt.Sprintf("summarize-2026-03-01-batch-%04d/Summarize", 816+n), Holder: st.Holders[n%2].ID, Attempt: 1, Weight: 1,
			ArrivedAt: ago(73*time.Second - time.Duration(n)*300*time.Millisecond), Reason: "order",
		}
		switch n {
		case 0:
			ticket.Holder, ticket.Attempt = "", 2
		case 1:
			ticket.Reason = "cooldown"
		}
		st.Queue = append(st.Queue, ticket)
	}
	return st, now
}

func TestDescribePage(t *testing.T) {
	st, now := aGate(t)
	golden(t, "describe.txt", view{&st, now}.page(5))
}

// TestDescribeAnIdleGate: what there is none of takes no space.
func TestDescribeAnIdleGate(t *testing.T) {
	st, now := aGate(t)
	idle := workflows.Status{Gate: st.Gate, Now: now.Add(-time.Hour), Rules: 2, Policy: st.Policy, InForce: st.Policy, Paused: true, PauseCause: "bob@ops: key rotation", Cap: 8}
	golden(t, "describe_idle.txt", view{&idle, now}.page(defaultRows))
}

func TestGatesTable(t *testing.T) {
	st, now := aGate(t)
	open, paused, learning := st, st, st
	open.CooldownUntil, open.Gate = time.Time{}, "anthropic@api.anthropic.com/v1"
	paused.Paused, paused.Gate = true, "gemini@generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro#batch-of-the-night"
	learning.LearnUntil = now.Add(23 * time.Second)
	golden(t, "gates.txt", gatesTable([]gateclient.Found{
		{Gate: open.Gate, Status: open}, {Gate: paused.Gate, Status: paused}, {Gate: st.Gate, Status: st}, {Gate: st.Gate, Status: learning},
		{Gate: "openai@api.openai.com/v1#o3", Err: fmt.Errorf("gate: %w", gateclient.ErrNoHost)}, {Gate: "openai@api.openai.com/v1#o4", Err: errors.New("broken")},
	}, now))
}

func TestWatchLine(t *testing.T) {
	st, now := aGate(t)
	assert.Equal(t, "cooldown until 14:03:08, in use 4/4 (2 started, 2 reserved), queue 132 (7 parked), admitted 120345, overloads 12, "+
		"max_in_flight: 8 -> 4, requests: 475 per 1m -> 5 per 2s, park_ttl: 10m -> 5m, start_window: 126.31579ms -> 400ms, last: set max_in_flight=4, requests_per_second=2.5 by ann@desk",
		view{&st, now}.line())
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 0: "0.0s", 40 * time.Millisecond: "0.0s", 360 * time.Millisecond: "0.4s", 3200 * time.Millisecond: "3.2s", 59_949 * time.Millisecond: "59.9s",
		59_960 * time.Millisecond: "1m00s", time.Minute: "1m00s", 4*time.Minute + 5*time.Second: "4m05s", 3*time.Hour + 12*time.Minute: "3h12m", 51 * time.Hour: "2d03h",
	} {
		assert.Equal(t, want, span(d), d)
	}
}

// TestTextFromElsewhere moves no cursor and breaks no table.
func TestTextFromElsewhere(t *testing.T) {
	st, now := aGate(t)
	st.Queue[0].Label, st.Log[0].Why = "evil\x1b[2J\nlabel", "line\r\nbreak\x9b1A"
	page := view{&st, now}.page(1)
	assert.NotContains(t, page, "\x1b")
	assert.NotContains(t, page, "\r")
	assert.NotContains(t, page, "\x9b")
	assert.Contains(t, page, "evil [2J label")
}
