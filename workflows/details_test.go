package workflows

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkpb "go.temporal.io/api/sdk/v1"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// details are the current details, as Temporal's UI asks for them.
func (g *gateTest) details() string {
	g.t.Helper()
	v, err := g.QueryWorkflow("__temporal_workflow_metadata")
	require.NoError(g.t, err)
	var m sdkpb.WorkflowMetadata
	require.NoError(g.t, v.Get(&m))
	return m.CurrentDetails
}

// TestCurrentDetails show the gate at a glance, as it is when it has come to rest.
func TestCurrentDetails(t *testing.T) {
	g := newGateTest(t, policy.Gate{MaxInFlight: 1, MaxCooldown: time.Minute, HolderTTL: 30 * time.Second})
	var busy, cooling, idle string
	g.at(time.Second, func() {
		g.answered(g.exchange("worker`a", func(x *contract.Exchange) {
			for n := range uint64(3) {
				x.Acquire = append(x.Acquire, &contract.Acquire{Number: n + 1, Ticket: []byte(strings.Repeat(string(rune('a'+n)), 16)), Label: "call", Attempt: 1})
			}
		}), ignore)
	})
	g.at(3*time.Second, func() {
		busy = g.details()
		st := g.status()
		asked := int64(20 * time.Second)
		g.answered(g.exchange("worker`a", func(x *contract.Exchange) {
			x.Release = []*contract.Release{{Lease: st.Leases[0].Lease, Generation: 1, Outcome: contract.Outcome_OUTCOME_OVERLOAD, Status: 429, HintSource: "retry-after", AskedCooldown: &asked}}
			x.Cancel = []*contract.Cancel{{Number: 2, Attempt: 1}}
		}), ignore)
	})
	g.at(3100*time.Millisecond, func() {
		cooling = g.details()
		g.answered(g.exchange("worker`a", func(x *contract.Exchange) {
			x.Cancel = []*contract.Cancel{{Number: 3, Attempt: 1}}
		}), ignore)
	})
	g.at(3200*time.Millisecond, func() { idle = g.details() })
	g.run(5 * time.Second)

	assert.Contains(t, busy, "- **state**: open\n")
	assert.Contains(t, busy, "- **limits**: 1 in flight\n")
	assert.Contains(t, busy, "- **in use**: 1 of 1; 1 started, 0 granted ahead\n")
	assert.Contains(t, busy, "- **queue**: 2, 0 of them parked; the oldest waits since ")
	assert.Contains(t, busy, "  - `worker'a`: 1 in use, 2 queued, seen ")
	assert.Contains(t, cooling, "- **state**: cooling down until ", "a change of the state is shown at once")
	assert.Contains(t, cooling, "; `429, retry-after`, asked for 20s\n")
	assert.Contains(t, idle, "- **queue**: 0, 0 of them parked\n", "a gate at rest is shown as it is")
	assert.Contains(t, idle, "1 admissions, 1 overloads, 1 cooldowns")
}

// TestDetailsAreBounded: text from elsewhere neither grows them without end nor is
// taken for Markdown.
func TestDetailsAreBounded(t *testing.T) {
	st := admission.Status{Paused: true, PauseCause: strings.Repeat("`<b>\n# x", MaxTextBytes/8)}
	for range 1000 {
		st.Holders = append(st.Holders, admission.HolderStatus{ID: strings.Repeat("h", MaxHolderID)})
	}
	text := detailsText(strings.Repeat("g", 200), &policy.Gate{}, 1, &st)
	assert.Less(t, len(text), 3<<10)
	assert.Contains(t, text, "- and 995 more")
	for line := range strings.Lines(text) {
		if strings.Contains(line, "<b>") {
			assert.Equal(t, 2, strings.Count(line, "`"), line)
		}
	}
}

// BenchmarkDetails is what a refresh costs, with a queue of 10,000.
func BenchmarkDetails(b *testing.B) {
	limits := admission.Limits{MaxInFlight: 100}
	s, err := admission.New(1, limits, admission.Options{})
	require.NoError(b, err)
	h, err := s.Register(1, "a", 1)
	require.NoError(b, err)
	for n := range uint64(10_000) {
		r := admission.Request{Number: n + 1, Label: "summaries/42/7", Attempt: 1, Weight: 1}
		r.Key[0], r.Key[1] = byte(n), byte(n>>8)
		require.NoError(b, s.Acquire(1, h, r))
	}
	s.Advance(1)
	g := policy.Gate{MaxInFlight: 100}
	for b.Loop() {
		st := s.Status(0)
		detailsText("test@gate.test", &g, 0, &st)
	}
}
