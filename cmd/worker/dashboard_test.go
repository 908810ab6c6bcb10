package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/workflows"
)

// described is a gate as `worker describe` says.
func described(t *testing.T, address, gate string) (st workflows.Status) {
	t.Helper()
	r := command(t, "", "describe", gate, "--output", "json", "--address", address)
	require.Equal(t, 0, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &st))
	return st
}

// figures are the page's, in the words of a status.
func (b *browser) figures() map[string]string {
	b.t.Helper()
	got := map[string]string{}
	for _, id := range []string{"in_flight", "queued", "admissions", "overloads", "hand_backs", "lost_holders", "paused"} {
		got[id] = b.text("tile-" + id)
	}
	got["below queued"] = b.text("below-queued")
	got["in the list"] = b.eval(`document.querySelector("#gates tr[aria-current=true]")?.children[2].textContent`)
	got["tickets"] = b.eval(`[...document.querySelectorAll("#queue tr")].map((tr) => tr.children[7].textContent + " " + tr.children[1].textContent + " " + tr.children[2].textContent).join("\n")`)
	return got
}

// figuresOf are a status's, as the page would say them.
func figuresOf(st workflows.Status) map[string]string {
	var tickets []string
	for _, q := range st.Queue {
		reason := q.Reason
		if q.Holder == "" {
			reason = "its caller"
		}
		tickets = append(tickets, fmt.Sprintf("%d %s %s", q.Ticket, q.Label, reason))
	}
	inFlight, list := fmt.Sprint(st.InFlight), fmt.Sprint(st.InFlight)
	if st.Cap > 0 {
		inFlight, list = fmt.Sprintf("%d / %d", st.InFlight, st.Cap), fmt.Sprintf("%d/%d", st.InFlight, st.Cap)
	}
	return map[string]string{
		"in_flight": inFlight, "queued": fmt.Sprint(st.Queued), "admissions": fmt.Sprint(st.Counters.Admissions), "overloads": fmt.Sprint(st.Counters.Overloads),
		"hand_backs": fmt.Sprint(st.Counters.HandBacks), "lost_holders": fmt.Sprint(st.Counters.LostHolders), "paused": map[bool]string{true: "yes", false: "no"}[st.Paused],
		"below queued": fmt.Sprintf("%d present, %d parked", st.Queued-st.Parked, st.Parked), "in the list": list, "tickets": strings.Join(tickets, "\n"),
	}
}

// requireFigures waits until the page has the figures of `worker describe`.
func (b *browser) requireFigures(address, gate string) {
	b.t.Helper()
	var page, terminal map[string]string
	require.Eventually(b.t, func() bool {
		terminal = figuresOf(described(b.t, address, gate))
		page = b.figures()
		return assert.ObjectsAreEqual(terminal, page)
	}, 20*time.Second, 200*time.Millisecond, "the page and describe never agreed")
	assert.Equal(b.t, terminal, page)
	b.t.Logf("page and describe agree: in flight %s, queue %s (%s), admissions %s, overloads %s", page["in_flight"], page["queued"], page["below queued"], page["admissions"], page["overloads"])
}

// waitForChanges waits until an element has said so many different things more.
func (b *browser) waitForChanges(id string, n int) {
	b.t.Helper()
	seen := map[string]bool{b.text(id): true}
	require.Eventually(b.t, func() bool { seen[b.text(id)] = true; return len(seen) > n }, time.Minute, 50*time.Millisecond, "%s: %v", id, seen)
}

// TestDashboardDuringTheDemonstration: the page moves while calls are made, and says
// what describe says.
func TestDashboardDuringTheDemonstration(t *testing.T) {
	b := newBrowser(t)
	dev := start(t, nil, "dev", "--memory", "--port", "0", "--ui-port", "0", "--dashboard-port", "0")
	address, _, _ := strings.Cut(dev.waitFor("Temporal server "), ",")
	url := dev.waitFor("Dashboard ")
	b.open(url)
	b.until(`document.getElementById("connection").textContent === "live"`, "connected")
	assert.Contains(t, b.text("where"), "namespace default at "+address)

	dev.waitFor("row cap")
	const isCap = `document.getElementById("gate-heading").textContent.endsWith("#cap")`
	b.until(isCap, "the first gate is shown by itself")
	b.waitForChanges("tile-admissions", 3)
	b.waitForChanges("tile-queued", 3)
	b.until(`Number(document.getElementById("tile-overloads").textContent) > 4`, "the provider has said slow down")
	b.until(`document.getElementById("value-flight-0").textContent !== "–"`, "the plots have words")
	assert.Equal(t, "4", b.text("value-flight-1"), "the cap")
	b.requireAccessible()
	b.picture("dashboard-demonstration", false)

	dev.waitFor("row cap+pacing")
	const paced = "cap-and-pacing"
	b.until(`[...document.querySelectorAll("#gates a")].some((a) => a.textContent.endsWith("#`+paced+`"))`, "the next gate is listed")
	b.tabTo(`#gates a[href$="` + paced + `"]`)
	b.press(kb.Enter)
	b.until(`document.getElementById("gate-heading").textContent.endsWith("#`+paced+`")`, "the keyboard chooses a gate")
	assert.Equal(t, "true", b.eval(`document.activeElement.matches("#gates a")`), "the focus stays")
	require.Eventually(t, func() bool { return described(t, address, paced).Queued >= 8 }, 30*time.Second, 20*time.Millisecond)
	pause := command(t, "", "pause", paced, "--address", address, "--who", "ann", "--why", "to compare")
	require.Equal(t, 0, pause.code, pause.stderr)
	b.until(`document.getElementById("gate-state").textContent === "paused by ann: to compare"`, "why it is paused")
	b.until(`document.getElementById("tile-in_flight").textContent === "0 / 4"`, "calls under way end")
	b.requireFigures(address, paced)
	assert.Equal(t, "8 per 1s", b.eval(`[...document.querySelectorAll("#limits tr")].find((tr) => tr.children[0].textContent === "requests").children[1].textContent`))
	b.requireAccessible()
	b.picture("dashboard-light-wide", true)
	b.colors("dark")
	b.until(`getComputedStyle(document.body).backgroundColor === "rgb(18, 21, 26)"`, "the system's colours")
	b.requireAccessible()
	b.picture("dashboard-dark-wide", true)
	b.size(360, 740)
	b.requireAccessible()
	b.picture("dashboard-dark-narrow", true)
	b.colors("light")
	b.requireAccessible()
	b.picture("dashboard-light-narrow", true)
	resume := command(t, "", "resume", paced, "--address", address)
	require.Equal(t, 0, resume.code, resume.stderr)

	dev.waitFor("Ctrl-C stops it.")
	b.requireFigures(address, paced)
	assert.Equal(t, "true", b.eval(`document.getElementById("control").hidden`), "nothing can be changed")
	assert.Equal(t, "403", b.post(`{gate: "x", do: "pause"}`, ""))
	b.requireNoMistakes(strings.TrimSuffix(url, "/"))
	dev.interrupt()
	r := dev.wait(30 * time.Second)
	require.Equal(t, 0, r.code, r.stderr)
	assert.Contains(t, r.stdout, "dashboard            "+url)
}

// post sends an act from the page, and returns the status of the answer.
func (b *browser) post(wish, token string) (status string) {
	b.t.Helper()
	before := b.countMistakes()
	status = b.eval(fmt.Sprintf(`fetch("act", {method: "POST", headers: {"Content-Type": "application/json", "X-Sluice-Token": %q}, body: JSON.stringify(%s)}).then((r) => r.status)`, token, wish))
	b.forgetMistakes(before) // the console tells of a refused request, as it should
	return status
}
