package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// browser is a real Chromium with one page.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	mistakes []string // what the console says of errors
	requests []string // URLs
}

// newBrowser starts Chromium without a window. Where there is none, the test is
// skipped, unless SLUICE_BROWSER=required.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		require.NotEqual(t, "required", os.Getenv("SLUICE_BROWSER"), "no Chromium here; install Debian's package chromium")
		t.Skip("no Chromium here: chromium, chromium-browser or google-chrome; Debian's package is chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath(path), chromedp.Flag("headless", "new"), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("lang", "en-GB"), chromedp.WSURLReadTimeout(time.Minute))
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	b := &browser{t: t}
	ctx, stop := chromedp.NewContext(allocator, chromedp.WithListener(b.hear))
	b.ctx = ctx
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // ends the browser and waits for it
		stop()
		stopAllocator()
	})
	// The first action starts the browser, which ends with the context of that.
	require.NoError(t, chromedp.Do(ctx))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, accessibility.Enable, cdp.Empty{})
	b.size(1280, 900)
	return b
}

// hear takes in what the browser tells.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.mistakes = append(b.mistakes, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			b.mistakes = append(b.mistakes, fmt.Sprint(e.Type, e.Args))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			b.mistakes = append(b.mistakes, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// browserTime bounds what a browser may take for one action.
const browserTime = time.Minute

// call makes one command of the browser's protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserTime)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	require.NoError(b.t, err)
	return result
}

// does makes an action of the browser.
func does[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserTime)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	require.NoError(b.t, err)
	return result
}

// size is that of the window, in pixels.
func (b *browser) size(width, height int64) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500})
}

// colors makes the system prefer a scheme, light or dark.
func (b *browser) colors(scheme string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// open goes to an address.
func (b *browser) open(url string) {
	b.t.Helper()
	does(b, chromedp.Navigate(url))
}

// press presses keys.
func (b *browser) press(keys string) {
	b.t.Helper()
	does(b, chromedp.KeyEvent(keys))
}

// eval is the value of a JavaScript expression, or of what it promises.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	return does(b, chromedp.Evaluate[string]("(async () => String(await ("+expression+")))()", chromedp.EvalAwaitPromise))
}

// text is what an element says.
func (b *browser) text(id string) string {
	b.t.Helper()
	return b.eval(fmt.Sprintf(`document.getElementById(%q)?.textContent ?? ""`, id))
}

// until waits for an expression to be true.
func (b *browser) until(expression, why string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.eval(expression) == "true" }, time.Minute, 50*time.Millisecond, "%s: %s", why, expression)
}

// picture keeps what the page looks like: in SLUICE_ARTIFACTS, if that is set. Whole
// says that it is as long as the page is.
func (b *browser) picture(name string, whole bool) {
	b.t.Helper()
	dir := os.Getenv("SLUICE_ARTIFACTS")
	if dir == "" {
		dir = b.t.TempDir()
	}
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	size := b.eval("innerWidth + ' ' + innerHeight + ' ' + document.documentElement.scrollHeight")
	var width, height, all int64
	_, err := fmt.Sscan(size, &width, &height, &all)
	require.NoError(b.t, err)
	if whole {
		b.size(width, all)
		b.eval("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))") // it is drawn
	}
	png := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{}).Data
	b.size(width, height)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// tabTo presses Tab until an element that fits has the focus.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 60 {
		b.press("\t")
		if b.eval(fmt.Sprintf("document.activeElement.matches(%q)", selector)) == "true" {
			return
		}
	}
	require.FailNow(b.t, "Tab does not reach it", selector)
}

// requireNoMistakes: nothing in the console, nothing loaded from elsewhere.
func (b *browser) requireNoMistakes(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(b.t, b.mistakes)
	require.NotEmpty(b.t, b.requests)
	for _, url := range b.requests {
		assert.True(b.t, strings.HasPrefix(url, origin), "%s is not of %s", url, origin)
	}
}

// requireAccessible checks what can be checked without a person: names, headings,
// language, IDs, contrast, and that nothing is wider than the window.
func (b *browser) requireAccessible() {
	b.t.Helper()
	named := []string{"button", "link", "textbox", "region", "dialog", "image", "heading", "columnheader", "rowheader"}
	for _, n := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil || !slices.Contains(named, strings.Trim(string(n.Role.Value), `"`)) {
			continue
		}
		if n.Name == nil || strings.Trim(string(n.Name.Value), `" `) == "" {
			b.t.Errorf("a %s has no name (node %s)", n.Role.Value, n.NodeID)
		}
	}
	assert.Equal(b.t, "en", b.eval("document.documentElement.lang"))
	assert.Equal(b.t, "1", b.eval("document.querySelectorAll('h1').length"))
	assert.Empty(b.t, b.eval(`(() => {
		const faults = []; let last = 0;
		for (const h of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
			if (!h.checkVisibility()) continue;
			const level = Number(h.tagName[1]);
			if (level > last + 1) faults.push("heading " + h.textContent + " is of level " + level + " after " + last);
			last = level;
		}
		const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
		if (new Set(ids).size !== ids.length) faults.push("an ID stands twice");
		for (const e of document.querySelectorAll("[aria-labelledby],[aria-describedby]"))
			for (const id of ((e.getAttribute("aria-labelledby") ?? "") + " " + (e.getAttribute("aria-describedby") ?? "")).split(" ").filter(Boolean))
				if (!document.getElementById(id)) faults.push("nothing has the ID " + id);
		if (document.querySelector("[tabindex]:not([tabindex='0']):not([tabindex='-1'])")) faults.push("a tabindex changes the order");
		if (document.documentElement.scrollWidth > document.documentElement.clientWidth) faults.push("wider than the window: " + document.documentElement.scrollWidth);
		return faults.join("; ");
	})()`))
	assert.Empty(b.t, b.eval(contrastFaults), "contrast below 4.5 to 1")
}

// contrastFaults lists the visible texts whose contrast is below WCAG's AA.
const contrastFaults = `(() => {
	const parse = (color) => { const m = color.match(/[\d.]+/g).map(Number); return color.startsWith("color(") ? [m[0]*255, m[1]*255, m[2]*255, m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
	const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
	const back = (e) => { if (!e) return [255, 255, 255, 1]; const c = parse(getComputedStyle(e).backgroundColor); return c[3] === 1 ? c : over(c, back(e.parentElement)); };
	const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const faults = new Set();
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement;
		if (!walker.currentNode.textContent.trim() || !e.checkVisibility() || e.closest(".skip, script, noscript")) continue;
		const behind = back(e), front = over(parse(getComputedStyle(e).color), behind);
		const [a, b] = [light(front), light(behind)].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < 4.5) faults.add(e.tagName + "." + e.className + " " + ratio.toFixed(2));
	}
	return [...faults].join("; ");
})()`

// countMistakes is how many there were so far.
func (b *browser) countMistakes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mistakes)
}

// forgetMistakes forgets all after the first n: what was asked for.
func (b *browser) forgetMistakes(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mistakes = b.mistakes[:n]
}
