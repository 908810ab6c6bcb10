package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/activities"
	"sluice/policy"
	"sluice/workflows"
)

// described is a gate as `worker describe` says, if it does.
func described(t *testing.T, address, gate string) (st workflows.Status, ok bool) {
	var stdout bytes.Buffer
	code := run(t.Context(), []string{"describe", gate, "--output", "json", "--address", address}, strings.NewReader(""), &stdout, io.Discard)
	return st, code == 0 && json.Unmarshal(stdout.Bytes(), &st) == nil
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
		st, ok := described(b.t, address, gate)
		terminal, page = figuresOf(st), b.figures()
		return ok && assert.ObjectsAreEqual(terminal, page)
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
	if raceDetector {
		t.Skip("a row is over before a browser beside it has looked twice; the run without it does this")
	}
	b := newBrowser(t)
	dev := start(t, nil, "dev", "--memory", "--port", "0", "--ui-port", "0", "--dashboard-port", "0")
	address, _, _ := strings.Cut(dev.waitFor("Temporal server "), ",")
	url := dev.waitFor("Dashboard ")
	b.open(url)
	b.until(`document.getElementById("connection").textContent === "live"`, "connected")
	assert.Contains(t, b.text("where"), "namespace default at "+address)

	dev.waitFor("row cap")
	b.until(`document.getElementById("gate-heading").textContent.endsWith("#cap")`, "the first gate is shown by itself")
	b.waitForChanges("tile-admissions", 3)
	b.waitForChanges("tile-queued", 3)
	b.until(`Number(document.getElementById("tile-overloads").textContent) > 0`, "the provider has said slow down")
	b.until(`document.getElementById("value-flight-0").textContent !== "–"`, "the plots have words")
	assert.Equal(t, "4", b.text("value-flight-1"), "the cap")
	b.requireAccessible()
	b.size(1200, 1330)
	b.until(`Number(document.getElementById("tile-queued").textContent) <= 6`, "the row nears its end")
	b.picture("dashboard", false) // that of the README is one of these
	b.size(1280, 900)

	paced := b.text("gate-heading") + "-and-pacing"
	dev.waitFor("row cap+pacing")
	require.Eventually(t, func() bool { st, ok := described(t, address, paced); return ok && st.Queued >= 8 }, time.Minute, 20*time.Millisecond)
	pause := command(t, "", "pause", paced, "--address", address, "--who", "ann", "--why", "to compare")
	require.Equal(t, 0, pause.code, pause.stderr)
	b.until(fmt.Sprintf(`[...document.querySelectorAll("#gates a")].some((a) => a.textContent === %q)`, paced), "the next gate is listed")
	b.tabTo(`#gates a[href$="and-pacing"]`)
	b.press(kb.Enter)
	b.until(fmt.Sprintf(`document.getElementById("gate-heading").textContent === %q`, paced), "the keyboard chooses a gate")
	assert.Equal(t, "true", b.eval(`document.activeElement.matches("#gates a")`), "the focus stays")
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

// dashboard starts `worker dashboard` for the stage's gate and opens it.
func (s *stage) dashboard(b *browser, args ...string) (page *child, url string) {
	s.t.Helper()
	page = start(s.t, nil, append([]string{"dashboard", "--address", s.address, "--listen", "127.0.0.1:0"}, args...)...)
	url = page.waitFor("Dashboard ")
	b.openGate(url, s.gate.ID())
	return page, url
}

// openGate opens a page, and there a gate.
func (b *browser) openGate(url, gate string) {
	b.t.Helper()
	b.open(url)
	b.until(`document.getElementById("connection").textContent === "live"`, "connected")
	b.until(fmt.Sprintf(`[...document.querySelectorAll("#gates a")].some((a) => a.textContent === %q)`, gate), "the gate is listed")
	b.eval(fmt.Sprintf(`[...document.querySelectorAll("#gates a")].find((a) => a.textContent === %q).click()`, gate))
	b.until(fmt.Sprintf(`document.getElementById("gate-heading").textContent === %q && document.getElementById("tile-queued") !== null`, gate), "the gate is shown")
}

// act presses a button by the keyboard, says why, and confirms.
func (b *browser) act(selector, why string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.querySelector(%q) !== null`, selector), "the button is there")
	b.tabTo(selector)
	b.press(kb.Enter)
	b.until(`document.getElementById("dialog").open`, "it asks first")
	b.until(`document.activeElement.id === "dialog-why"`, "the focus is in the dialog")
	b.press(why)
	b.press(kb.Enter)
}

const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`

// TestDashboardControl: with --allow-control and the token a person can do what the
// terminal's commands can, and it is in the gate's log.
func TestDashboardControl(t *testing.T) {
	b := newBrowser(t)
	s := newStage(t, policy.Gate{Name: "page", MaxInFlight: 1, HolderTTL: 3 * time.Second})
	require.NoError(t, (<-s.acquire(hostile)).err)
	second := s.acquire("second " + hostile)
	third := s.acquire("third call")
	s.queued(2)
	page, url := s.dashboard(b, "--allow-control", "--who", "ann@desk")
	base, token, found := strings.Cut(url, "/#token=")
	require.True(t, found, url)
	assert.Equal(t, "false", b.eval(`location.href.includes("token")`), "it doesn't stay in the address")
	b.until(`document.querySelectorAll("#queue tr").length === 2`, "the queue")
	assert.Contains(t, b.eval(`document.querySelector("#leases th").textContent`), "<img", "text is text")
	assert.NotContains(t, b.eval("document.title"), "owned")
	b.requireAccessible()

	b.act(`[data-do="pause"]`, "provider is down")
	b.until(`document.getElementById("gate-state").textContent === "paused by ann@desk: provider is down"`, "it is paused")
	assert.Equal(t, "Done: pause.", b.text("outcome"))
	act := s.status().Log[0]
	assert.Equal(t, []string{"pause", "ann@desk", "provider is down"}, []string{act.What, act.Who, act.Why})
	b.requireFigures(s.address, "page")
	b.picture("dashboard-control", true)

	b.act(`[data-do="resume"]`, "it is up")
	b.until(`document.getElementById("tile-paused").textContent === "no"`, "it is resumed")

	b.tabTo(`[data-do="set"]`)
	b.press(kb.Enter)
	b.until(`document.activeElement.id === "dialog-fields"`, "the focus is in the dialog")
	b.requireAccessible()
	b.picture("dashboard-dialog", false)
	b.press("max_in_flight=-1")
	before := b.countMistakes()
	b.eval(`document.getElementById("dialog-confirm").click()`)
	b.until(`document.getElementById("dialog-error").textContent.includes("max_in_flight is -1; allowed: 0 (no cap) to 1000000")`, "what is refused is said")
	b.forgetMistakes(before) // the console tells of a refused request
	b.eval(`document.getElementById("dialog-fields").value = "max_in_flight=3"`)
	b.eval(`document.getElementById("dialog-for").value = "10m"`)
	b.eval(`document.getElementById("dialog-confirm").click()`)
	b.until(`document.getElementById("tile-in_flight").textContent === "3 / 3"`, "all three are in flight")
	require.NoError(t, (<-second).err)
	require.NoError(t, (<-third).err)
	assert.Equal(t, "Done: set max_in_flight=3; max_in_flight: 1 → 3.", b.text("outcome"))

	fourth := s.acquire("fourth call")
	s.queued(1)
	fifth := s.acquire("fifth call")
	b.until(`document.querySelectorAll("#queue tr").length === 2`, "two wait")
	b.eval(`document.querySelector("#queue tr:last-child button").focus()`)
	s.acts("cancel-ticket", "page", "fourth call")
	require.ErrorIs(t, (<-fourth).err, activities.ErrTicketCancelled)
	b.until(`document.querySelectorAll("#queue tr").length === 1`, "the first has gone")
	assert.Equal(t, "Cancel fifth call", b.eval(`document.activeElement.getAttribute("aria-label")`), "the focus stays where it was")
	b.act(`#queue [data-do="cancel_ticket"]`, "nobody needs it")
	require.ErrorIs(t, (<-fifth).err, activities.ErrTicketCancelled)
	b.act(`#leases [data-do="revoke_lease"]`, "it hangs")
	b.until(`document.querySelectorAll("#leases tr").length === 2`, "its place is free")
	b.act(`[data-do="reset"]`, "done")
	b.until(`[...document.querySelectorAll("#limits tr")].find((tr) => tr.children[0].textContent === "max_in_flight").children[1].textContent === "1"`, "the policy's limit holds")
	var log []string
	for _, a := range s.status().Log {
		if a.Who == "ann@desk" {
			log = append(log, a.Why)
		}
	}
	assert.Equal(t, []string{"provider is down", "it is up", "", "nobody needs it", "it hangs", "done"}, log)

	b.press(kb.Escape)
	wish := fmt.Sprintf(`{gate: %q, id: "by-hand", do: "pause", why: "by hand"}`, s.gate.ID())
	assert.Equal(t, "403", b.post(wish, ""))
	assert.Equal(t, "403", b.post(wish, "wrong"))
	assert.False(t, s.status().Paused)
	assert.Equal(t, "200", b.post(wish, token))
	assert.True(t, s.status().Paused)
	assert.Equal(t, "owned?", b.eval(`document.title.includes("owned") ? "owned" : "owned?"`))
	b.requireNoMistakes(base)
	page.interrupt()
	r := page.wait(20 * time.Second)
	require.Equal(t, 0, r.code, r.stderr)
	assert.Contains(t, r.stderr, "Control          allowed")
	b.until(`document.getElementById("connection").textContent.startsWith("connection lost")`, "the page says that its server is gone")
}

// TestDashboardWithoutControl has no button, and refuses what a button would send.
func TestDashboardWithoutControl(t *testing.T) {
	b := newBrowser(t)
	s := newStage(t, policy.Gate{Name: "readonly", MaxInFlight: 1})
	require.NoError(t, (<-s.acquire("first")).err)
	s.acquire("second")
	s.queued(1)
	page, url := s.dashboard(b)
	assert.NotContains(t, url, "token")
	b.requireFigures(s.address, "readonly")
	assert.Equal(t, "0", b.eval(`[...document.querySelectorAll("[data-do]")].filter((e) => e.checkVisibility()).length`))
	assert.Equal(t, "403", b.post(fmt.Sprintf(`{gate: %q, do: "pause"}`, s.gate.ID()), "anything"))
	assert.False(t, s.status().Paused)
	b.requireNoMistakes(strings.TrimSuffix(url, "/"))

	s.stop() // nobody hosts the gate any more
	b.until(`document.getElementById("gate-error").textContent.startsWith("No answer since ")`, "a gate that doesn't answer is said to")
	assert.Contains(t, b.text("gate-error"), "no worker answers for the gate")
	b.picture("dashboard-no-answer", false)
	page.interrupt()
	r := page.wait(20 * time.Second)
	require.Equal(t, 0, r.code, r.stderr)
}

// TestDashboardWithoutGates says so in words.
func TestDashboardWithoutGates(t *testing.T) {
	b := newBrowser(t)
	own := server(t)
	page := start(t, nil, "dashboard", "--address", own.HostPort(), "--listen", "127.0.0.1:0")
	b.open(page.waitFor("Dashboard "))
	b.until(`document.getElementById("no-gates").checkVisibility()`, "there is none")
	b.requireAccessible()
}

func TestDashboardPortTaken(t *testing.T) {
	s := sharedServer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	r := command(t, "", "dashboard", "--address", s.HostPort(), "--listen", l.Addr().String())
	requireOneLine(t, 1, r, "port "+l.Addr().String()+" is taken", "--listen", "port 0")
}

// TestDashboardForOthers warns that others reach it.
func TestDashboardForOthers(t *testing.T) {
	page := start(t, nil, "dashboard", "--address", sharedServer(t).HostPort(), "--listen", "0.0.0.0:0")
	assert.Contains(t, page.waitFor("Warning "), "others reach this page")
	page.interrupt()
	require.Equal(t, 0, page.wait(20*time.Second).code)
}
