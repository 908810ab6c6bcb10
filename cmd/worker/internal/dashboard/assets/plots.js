import { get, make, setText } from "./dom.js";
import { clock, number, span } from "./format.js";

// The plots: each a number of series over the points of a gate's history.
const seconds = (v) => (v === null || v === undefined ? "–" : span(v));
const plots = [
  { id: "depth", title: "Queue depth", series: [
    { name: "queued", of: (p) => p.queued, color: 1 },
    { name: "of them parked", of: (p) => p.parked, color: 2 }] },
  { id: "flight", title: "In flight against the cap", series: [
    { name: "in flight", of: (p) => p.in_flight, color: 3 },
    { name: "cap", of: (p) => p.cap, color: 5, dash: true, none: "none" }] },
  { id: "starts", title: "Starts per second against the limit", series: [
    { name: "starts per second", of: (p) => p.starts, color: 1 },
    { name: "limit", of: (p) => p.limit, color: 5, dash: true, none: "none" }] },
  { id: "waits", title: "How long calls wait", format: seconds, series: [
    { name: "waiting: median", of: (p) => p.age_p50, color: 1 },
    { name: "waiting: 90th percentile", of: (p) => p.age_p90, color: 2 },
    { name: "waiting: longest", of: (p) => p.oldest, color: 4 },
    { name: "in flight, had waited: median", of: (p) => p.wait_p50, color: 3 },
    { name: "in flight, had waited: 90th percentile", of: (p) => p.wait_p90, color: 5 }] },
];

let points = [];
let keep = 600_000;
let drawn = [];

export function setKeep(milliseconds) { keep = milliseconds; }

// reset forgets a gate's history.
export function reset() { points = []; }

// add takes in new points, of which some may be known, and draws.
export function add(list, now) {
  const last = points.length ? points[points.length - 1].t : 0;
  points.push(...list.filter((p) => p.t > last));
  const from = now - keep;
  let old = 0;
  while (old < points.length && points[old].t < from) old++;
  points.splice(0, old);
  draw(now);
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// bands are the times in which the gate was closed.
function bands() {
  const found = new Map();
  let paused = null;
  const list = [];
  for (const p of points) {
    if (p.cooldown_at) found.set(p.cooldown_at, p.cooldown_until);
    if (p.paused && !paused) list.push((paused = { kind: "--paused", from: p.t, to: p.t }));
    else if (p.paused) paused.to = p.t;
    else paused = null;
  }
  for (const [from, to] of found) list.push({ kind: "--cooldown", from, to });
  return list;
}

function paintBands(u) {
  for (const band of bands()) {
    const left = Math.max(u.valToPos(band.from / 1000, "x", true), u.bbox.left);
    const right = Math.min(u.valToPos(band.to / 1000, "x", true), u.bbox.left + u.bbox.width);
    if (right <= left) continue;
    u.ctx.save();
    u.ctx.fillStyle = color(band.kind);
    u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
    u.ctx.restore();
  }
}

let nowShown = 0;

function range() {
  const first = points.length ? points[0].t : nowShown;
  return [Math.max(nowShown - keep, Math.min(first, nowShown - 30_000)) / 1000, nowShown / 1000];
}

// alone are the points that no line would show.
function alone(u, series) {
  const v = u.data[series];
  const found = [];
  for (let i = 0; i < v.length; i++) {
    if (v[i] !== null && (v[i - 1] ?? null) === null && (v[i + 1] ?? null) === null) found.push(i);
  }
  return found;
}

function build(plot, box) {
  const axis = { stroke: color("--soft"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  return new uPlot({
    width: Math.max(box.clientWidth, 200), height: 180,
    legend: { show: false },
    cursor: { sync: { key: "gate" }, drag: { x: false, y: false }, points: { size: 5 } },
    scales: { x: { time: true, range }, y: { range: (u, min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] } },
    axes: [
      { ...axis, space: 80, values: (u, at) => at.map((t) => clock(t * 1000, nowShown)) },
      { ...axis, size: 48, values: (u, at) => at.map((v) => (plot.format ? span(v) : String(v))), incrs: plot.format ? undefined : [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5] },
    ],
    series: [{}, ...plot.series.map((s) => ({
      label: s.name, stroke: color("--s" + s.color), width: s.dash ? 1.5 : 2, dash: s.dash ? [6, 4] : undefined, points: { show: true, size: 5, fill: color("--s" + s.color), filter: alone }, spanGaps: false,
    }))],
    hooks: { drawClear: [paintBands], setCursor: [(u) => values(plot, u.cursor.idx)] },
  }, [[], ...plot.series.map(() => [])], box);
}

// values says a plot's numbers in words: those at the cursor, or the newest.
function values(plot, at) {
  const pointed = at !== null && at !== undefined && at < points.length - 1;
  const p = points[pointed ? at : points.length - 1];
  if (!p) return;
  setText(get("when-" + plot.id), pointed ? "at " + clock(p.t, nowShown) : "newest values");
  plot.series.forEach((s, i) => {
    const v = s.of(p);
    setText(get(`value-${plot.id}-${i}`), v === undefined && s.none && p.queued !== undefined ? s.none : (plot.format ?? number)(v));
  });
}

// lay lays the plots out, once, or anew where the colours have changed.
export function lay() {
  const root = get("plots");
  drawn.forEach(({ u }) => u.destroy());
  drawn = [];
  if (!root.firstChild) {
    for (const plot of plots) {
      const rows = plot.series.map((s, i) => make("tr", {},
        make("th", { scope: "row" }, make("span", { class: s.dash ? "swatch dashed" : "swatch s" + s.color }), s.name),
        make("td", { class: "num", id: `value-${plot.id}-${i}`, text: "–" })));
      root.append(make("figure", {},
        make("h4", { id: "title-" + plot.id, text: plot.title }),
        make("div", { class: "plot", id: "plot-" + plot.id, role: "img", "aria-labelledby": "title-" + plot.id, "aria-describedby": "values-" + plot.id }),
        make("table", { class: "values", id: "values-" + plot.id }, make("caption", { id: "when-" + plot.id, text: "newest values" }), make("tbody", {}, ...rows))));
    }
  }
  for (const plot of plots) {
    const box = get("plot-" + plot.id);
    drawn.push({ plot, box, u: build(plot, box) });
  }
  if (nowShown) draw(nowShown);
}

function draw(now) {
  nowShown = now;
  const at = points.map((p) => p.t / 1000);
  for (const { plot, u } of drawn) {
    u.setData([at, ...plot.series.map((s) => points.map((p) => s.of(p) ?? null))]);
    values(plot, u.cursor.idx);
  }
}

export function resize() {
  for (const { box, u } of drawn) {
    const width = Math.max(box.clientWidth, 200);
    if (width !== u.width) u.setSize({ width, height: 180 });
  }
}
