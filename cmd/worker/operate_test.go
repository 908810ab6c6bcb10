package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/converter"

	"sluice/activities"
	"sluice/admission"
	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/workflows"
)

func strictTiming() bool { return os.Getenv("SLUICE_TIMING") == "strict" && !raceDetector }

// exchangeTime is what one exchange takes at most where timing is judged.
const exchangeTime = 50 * time.Millisecond

// TestPauseStopsStarts: within 250 ms and one exchange nothing starts any more,
// as the provider sees it, until resume.
func TestPauseStopsStarts(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "paused", Requests: admission.Rate{Limit: 20, Per: time.Second, Burst: 1}})
	s.load(16)
	s.waitArrivals(20, s.epoch)
	paused := s.acts("pause", "paused", "--who", "ann@desk", "--why", "provider is down")
	assert.Equal(t, "pause", paused.What)
	require.Eventually(t, func() bool { st := s.status(); return st.InFlight == 0 && st.Queued == 16 }, 20*time.Second, 20*time.Millisecond,
		"what was granted ahead is handed back, calls under way end")
	before := len(s.arrivals(s.epoch, never))
	require.Never(t, func() bool { return len(s.arrivals(s.epoch, never)) > before }, time.Second, 50*time.Millisecond)
	assert.Contains(t, s.does("describe", "paused"), "paused by ann@desk: provider is down")

	resumed := s.acts("resume", "paused")
	s.waitArrivals(30, resumed.At)
	assert.Empty(t, s.arrivals(paused.At.Add(2*time.Second), resumed.At))
	late := s.arrivals(paused.At.Add(250*time.Millisecond+exchangeTime), resumed.At)
	t.Logf("%d calls started within the pause, %d of them later than 250 ms and one exchange", len(s.arrivals(paused.At, resumed.At)), len(late))
	if strictTiming() {
		assert.Empty(t, late)
	}
	assert.Positive(t, s.status().Counters.HandBacks, "of what was granted ahead")
}

// TestResumeGoesOnInOrder: whoever queued first starts first. The window is wide:
// on a busy machine a start may be late, and would have its slot after others.
func TestResumeGoesOnInOrder(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "resumed", Requests: admission.Rate{Limit: 50, Per: time.Second, Burst: 1}, StartWindow: 20 * time.Second})
	require.NoError(t, (<-s.acquire("the gate starts")).err)
	s.does("pause", "resumed")
	waiting := map[string]<-chan acquired{}
	for n := range 30 {
		label := fmt.Sprintf("call %02d", n)
		waiting[label] = s.acquire(label)
	}
	s.queued(30)
	var inLine []string
	for _, ticket := range s.status().Queue {
		assert.Contains(t, []string{"paused", "order"}, ticket.Reason)
		inLine = append(inLine, ticket.Label)
	}
	s.does("resume", "resumed")
	starts := map[string]time.Time{}
	for label, got := range waiting {
		a := <-got
		require.NoError(t, a.err)
		starts[label] = a.lease.(activities.FeedbackLease).Info().StartAt
	}
	order := slices.SortedFunc(slices.Values(inLine), func(a, b string) int { return starts[a].Compare(starts[b]) })
	assert.Equal(t, inLine, order)
}

// TestSetChangesTheRate: within one look-ahead and a second the provider sees the
// new rate, and after reset the old one.
func TestSetChangesTheRate(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "set", Requests: admission.Rate{Limit: 20, Per: time.Second, Burst: 1}})
	s.load(16)
	fast := s.waitArrivals(30, s.epoch.Add(time.Second))
	set := s.acts("set", "set", "requests_per_second=5", "--for", "10m", "--why", "provider is slow")
	require.NotEmpty(t, set.Changes)
	assert.Equal(t, "requests: 20 per 1s -> 5 per 1s", set.Changes[0].String())
	assert.Equal(t, 10*time.Minute, set.Until.Sub(set.At))
	settled := time.Second + time.Second // one look-ahead and a second
	slow := s.waitArrivals(15, set.At.Add(settled))
	assert.Positive(t, s.status().Counters.HandBacks, "what was granted ahead under the old rate")

	reset := s.acts("reset", "set")
	assert.Equal(t, "requests: 5 per 1s -> 20 per 1s", reset.Changes[0].String())
	again := s.waitArrivals(30, reset.At.Add(settled))

	t.Logf("mean gaps: %v, set to 200ms: %v, after reset: %v", meanGap(fast), meanGap(slow), meanGap(again))
	assert.GreaterOrEqual(t, meanGap(slow), 190*time.Millisecond)
	assert.Less(t, meanGap(again), 150*time.Millisecond)
	hasty := s.arrivals(set.At.Add(250*time.Millisecond+exchangeTime), set.At.Add(settled))
	if strictTiming() {
		assert.InDelta(t, 200, meanGap(slow).Milliseconds(), 10)
		assert.InDelta(t, 50, meanGap(again).Milliseconds(), 5)
		assert.Less(t, len(hasty), 10, "the old rate ends with the hand-back, not with the look-ahead")
	}
}

func meanGap(at []time.Time) time.Duration {
	return at[len(at)-1].Sub(at[0]) / time.Duration(len(at)-1)
}

// TestSetALowerCap takes back what has not started, and nothing that has.
func TestSetALowerCap(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "capped", MaxInFlight: 4, Requests: admission.Rate{Limit: 1, Per: 2 * time.Second, Burst: 1}, LookAhead: 8 * time.Second})
	require.NoError(t, (<-s.acquire("first")).err)
	for n := range 3 {
		s.acquire(fmt.Sprint("ahead ", n))
	}
	require.Eventually(t, func() bool { return s.status().InFlight == 4 }, 20*time.Second, 20*time.Millisecond)
	assert.Equal(t, "max_in_flight: 4 -> 1", s.acts("set", "capped", "max_in_flight=1").Changes[0].String())
	require.Eventually(t, func() bool { st := s.status(); return st.InFlight <= 2 && st.Queued >= 2 }, 20*time.Second, 20*time.Millisecond,
		"one may have started meanwhile")
	for _, ticket := range s.status().Queue[:1] {
		assert.Equal(t, "cap", ticket.Reason)
	}
}

// TestSetGoesBackByItself after --for.
func TestSetGoesBackByItself(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "awhile", MaxInFlight: 4})
	require.NoError(t, (<-s.acquire("a call")).err)
	out := s.does("set", "awhile", "max_in_flight=2", "max_cooldown=30s", "--for", "2s", "--who", "ann", "--why", "a try")
	assert.Regexp(t, `(?m)^`+s.gate.ID()+`: set max_cooldown="30s", max_in_flight=2\n  max_in_flight: 4 -> 2\n  max_cooldown: 5m -> 30s\n  until \d\d:\d\d:\d\d, then it goes back by itself$`, out)
	assert.Regexp(t, `max_in_flight +2 +4`, s.does("describe", "awhile"))
	require.Eventually(t, func() bool { return s.status().InForce.MaxInFlight == 4 }, 20*time.Second, 50*time.Millisecond)
	page := s.does("describe", "awhile")
	assert.Regexp(t, `end of what was set by ann: a try\n +max_in_flight: 2 -> 4,`, page)
	assert.Contains(t, s.does("reset", "awhile"), "nothing that is in force changes")
}

// TestSetRefuses what the policy would refuse, in one line, before it is sent.
func TestSetRefuses(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "strict", MaxInFlight: 4})
	require.NoError(t, (<-s.acquire("a call")).err)
	for _, c := range []struct {
		set  []string
		says []string
	}{
		{[]string{"max_in_flight=-1"}, []string{"max_in_flight is -1; allowed: 0 (no cap) to 1000000"}},
		{[]string{"max_in_flight=many", "max_queue=0"}, []string{`max_in_flight is "many"; allowed: 0`, "; max_queue is 0; allowed: 1"}},
		{[]string{"max_inflight=4"}, []string{"max_inflight: unknown key; the nearest that can be set is max_in_flight"}},
		{[]string{"hold=call"}, []string{"hold: it can't be set while the gate runs: workers read it from their policy file; allowed: max_in_flight"}},
		{[]string{"budgets.tokens.limit=5"}, []string{"per: is missing"}},
		{[]string{"requests={limit: 1"}, []string{"requests is", "can't be read"}},
		{[]string{"max_in_flight="}, []string{`max_in_flight is ""`}},
		{[]string{"max_queue=5", "max_queue=6"}, []string{"max_queue is set twice"}},
	} {
		requireOneLine(t, 1, s.command(append([]string{"set", "strict"}, c.set...)...), c.says...)
	}
	assert.Empty(t, s.status().Log, "nothing was sent")
}

// TestCancelTicketAndRevokeLease: each is told to whom it concerns, and is in the
// history and the log with who and why.
func TestCancelTicketAndRevokeLease(t *testing.T) {
	s := newStage(t, policy.Gate{Name: "steered", MaxInFlight: 1, HolderTTL: 3 * time.Second})
	first := <-s.acquire("first call")
	require.NoError(t, first.err)
	second, third := s.acquire("second call"), s.acquire("third call")
	s.queued(2)

	a := s.acts("cancel-ticket", "steered", "second call", "--who", "ann", "--why", "runaway batch")
	assert.Regexp(t, `^cancel ticket \d+$`, a.What)
	cancelled := <-second
	require.ErrorIs(t, cancelled.err, activities.ErrTicketCancelled)
	assert.False(t, cancelled.err.(*activities.Error).Retryable())
	requireOneLine(t, 1, s.command("cancel-ticket", "steered", "second call"), `no ticket in the queue has the label "second call"`)
	requireOneLine(t, 1, s.command("cancel-ticket", "steered", "77"), "no ticket 77 in the queue")

	lease := fmt.Sprint(s.status().Leases[0].Lease)
	out := s.does("revoke-lease", "steered", lease, "--who", "ann", "--why", "hangs")
	assert.Equal(t, s.gate.ID()+": revoke lease "+lease+"\n", out)
	require.NoError(t, (<-third).err, "its place is free")
	<-first.lease.(activities.FeedbackLease).Lost()
	requireOneLine(t, 1, s.command("revoke-lease", "steered", lease), "no lease "+lease+": it has ended")

	st := s.status()
	assert.EqualValues(t, 1, st.Counters.Revoked)
	assert.EqualValues(t, 1, st.Counters.Refusals["operator"])
	assert.Regexp(t, `revoke lease \d+ by ann: hangs`, s.does("describe", "steered"))
	var inHistory []workflows.Operate
	history := s.client.GetWorkflowHistory(t.Context(), s.gate.WorkflowID(), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for history.HasNext() {
		e, err := history.Next()
		require.NoError(t, err)
		if input := e.GetWorkflowExecutionUpdateAcceptedEventAttributes().GetAcceptedRequest().GetInput(); input.GetName() == workflows.UpdateOperate {
			var o workflows.Operate
			require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(input.GetArgs(), &o))
			inHistory = append(inHistory, o)
		}
	}
	require.Len(t, inHistory, 5)
	assert.Equal(t, workflows.DoCancelTicket, inHistory[0].Do)
	assert.Equal(t, "ann", inHistory[0].Who)
	assert.Equal(t, "runaway batch", inHistory[0].Why)
}

func TestWhoIsKnownByDefault(t *testing.T) {
	t.Setenv("USER", "joe")
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Equal(t, "joe@"+host, whoami())
}

// TestValuesAreThoseOfAPolicyFile: numbers keep their digits, text stays text.
func TestValuesAreThoseOfAPolicyFile(t *testing.T) {
	set, err := gateclient.SetValues([]string{
		"max_in_flight=4", "requests_per_second=2.50", "min_interval=275ms", "look_ahead=0",
		"budgets=[{unit: tokens, limit: 90000, per: 1m}]", "requests={limit: 5, per: 1s}", "a=", "b=010", "c==",
	})
	require.NoError(t, err)
	got := map[string]string{}
	for field, value := range set {
		require.True(t, json.Valid(value), field)
		got[field] = string(value)
	}
	assert.Equal(t, map[string]string{
		"max_in_flight": "4", "requests_per_second": "2.50", "min_interval": `"275ms"`, "look_ahead": "0",
		"budgets": `[{"limit":90000,"per":"1m","unit":"tokens"}]`, "requests": `{"limit":5,"per":"1s"}`, "a": `""`, "b": `"010"`, "c": `"="`,
	}, got)
}

// TestTheOperationsPage names every command that looks at gates or changes them,
// and every field that can be set.
func TestTheOperationsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	p := &program{}
	for _, c := range append(p.operateCommands(), p.gatesCommand(), p.describeCommand(), p.watchCommand(), p.dashboardCommand()) {
		assert.Contains(t, string(page), "worker "+c.Name())
	}
	for _, field := range policy.Settable() {
		assert.Contains(t, string(page), "`"+field+"`")
	}
}
