import { button, allow, buttons, takeToken } from "./control.js";
import { fill, get, make, setText, show } from "./dom.js";
import { by, clock, ms, number, span } from "./format.js";
import * as plots from "./plots.js";

let about = { interval_ms: 1000, prefix: "sluice/", temporal_ui: "" };
let source = null;
let gate = ""; // that is looked at
let heard = 0; // when the last message came, by this machine's clock

const selected = () => new URLSearchParams(location.hash.slice(1)).get("gate") ?? "";

function connection(state, text) {
  const element = get("connection");
  element.dataset.state = state;
  setText(element, text); // said aloud when it changes, and only then
}

// listen opens the stream for the gate that is looked at.
function listen() {
  source?.close();
  source = new EventSource("events?gate=" + encodeURIComponent(gate));
  source.onmessage = (event) => {
    heard = Date.now();
    connection("good", "live");
    const news = JSON.parse(event.data);
    if (!gate && news.gates.length > 0) { // one where something happens, unless a person chooses
      const busy = (g) => g.kind !== "unreachable" && (g.queued > 0 || parseInt(g.in_use) > 0);
      const first = news.gates.find(busy) ?? news.gates.find((g) => g.kind !== "unreachable") ?? news.gates[0];
      history.replaceState(null, "", "#" + new URLSearchParams({ gate: first.gate }));
      select();
      return;
    }
    render(news);
  };
  const mine = source;
  source.onerror = () => {
    connection("bad", `connection lost at ${clock(Date.now(), Date.now())}; trying again`);
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => { if (mine === source) listen(); }, 3000);
  };
}

function select() {
  const wanted = selected();
  if (wanted === gate && source) return;
  gate = wanted;
  plots.reset();
  get("outcome").textContent = "";
  get("control-buttons").replaceChildren();
  delete get("control-buttons").dataset.key;
  for (const id of ["queue", "leases"]) get(id).replaceChildren(); // their buttons are another gate's
  listen();
}

function render(news) {
  show(get("list-error"), news.error && `${news.error}; since ${clock(news.since, news.now)}`);
  renderList(news);
  const section = get("gate");
  section.hidden = !gate;
  if (!gate) return;
  setText(get("gate-heading"), gate);
  document.title = `${gate} – Sluice gates`;
  const d = news.gate;
  if (news.fresh) plots.reset();
  if (!d) {
    show(get("gate-error"), "This gate is not running, or has not been asked yet.");
    return;
  }
  show(get("gate-error"), d.error && `No answer since ${clock(d.since, news.now)}${d.status ? `; what is shown is as of ${clock(d.at, news.now)}` : ""}. ${d.error}`);
  plots.add(d.points, news.now);
  if (!d.status) return;
  renderState(d, news.now);
  renderTiles(d, news.now);
  renderTables(d, news.now);
  renderActs(d.status, news.now);
  buttons(gate, d.status);
}

function renderList(news) {
  get("gates-region").hidden = news.gates.length === 0;
  get("no-gates").hidden = news.gates.length > 0 || Boolean(news.error);
  fill(get("gates"), news.gates.map((g) => ({
    key: g.gate, head: 0, current: g.gate === gate,
    cells: [
      { make: () => make("a", { href: "#" + new URLSearchParams({ gate: g.gate }), text: g.gate }) },
      g.state, { text: g.in_use || "?", class: "num" }, { text: g.parked ? `${g.queued} (${g.parked} parked)` : String(g.queued), class: "num" },
      g.pacing || "?", { text: String(g.holders), class: "num" },
    ],
  })));
}

function renderState(d, now) {
  const st = d.status;
  const element = get("gate-state");
  element.dataset.kind = d.kind;
  setText(element, d.kind === "paused" && st.pause_cause ? `paused by ${st.pause_cause}` : d.state);
  const links = get("gate-links");
  if (links.dataset.gate !== gate) {
    links.dataset.gate = gate;
    const id = about.prefix + gate;
    links.replaceChildren("Workflow ", about.temporal_ui
      ? make("a", { href: `${about.temporal_ui}/namespaces/${encodeURIComponent(about.namespace)}/workflows/${encodeURIComponent(id)}`, text: id, rel: "noreferrer" })
      : make("code", { text: id }));
  }
}

// tiles are the numbers: an id, a name, the number, and what stands below it.
function tiles(d, now) {
  const st = d.status, c = st.counters;
  const left = (t) => (t && ms(t) > now ? span((ms(t) - now) / 1000) : "");
  const age = (t) => (t ? span((now - ms(t)) / 1000) : "–");
  const cooling = left(st.cooldown_until);
  const next = left(Math.max(st.next_start ? ms(st.next_start) : 0, st.cooldown_until ? ms(st.cooldown_until) : 0));
  return [
    ["in_flight", "In flight", st.cap ? `${st.in_flight} / ${st.cap}` : String(st.in_flight), `${d.started} started, ${d.reserved} granted ahead`],
    ["queued", "Queue", String(st.queued), `${st.queued - st.parked} present, ${st.parked} parked`],
    ["starts", "Starts per second", number(d.starts), `limit: ${d.pacing}`],
    ["next_start", "Next start", st.paused ? "not now" : next ? "in " + next : "at once", st.paused ? "the gate is paused" : "as far as pacing and cooldown go"],
    ["oldest", "Longest wait", age(st.ages.oldest), `median ${age(st.ages.p50)}, 90th percentile ${age(st.ages.p90)}`],
    ["cooldown", "Cooldown", cooling || "none", d.cooldown],
    ["paused", "Paused", st.paused ? "yes" : "no", st.pause_cause ?? ""],
    ["admissions", "Admissions", String(c.admissions), `${c.releases} given back`],
    ["overloads", "Overloads", String(c.overloads), `${c.cooldowns} cooldowns`],
    ["hand_backs", "Hand-backs", String(c.hand_backs), "granted, not started in time"],
    ["lost_holders", "Lost holders", String(c.lost_holders), `${c.expired} leases ended so`],
  ];
}

function renderTiles(d, now) {
  const root = get("tiles");
  for (const [id, name, value, below] of tiles(d, now)) {
    let big = get("tile-" + id);
    if (!big) {
      big = make("dd", { class: "big", id: "tile-" + id });
      root.append(make("div", {}, make("dt", { text: name }), big, make("dd", { class: "small", id: "below-" + id })));
    }
    setText(big, value);
    setText(get("below-" + id), below);
  }
}

function table(id, rows, all) {
  get(id + "-none").hidden = rows.length > 0;
  get(id + "-region").hidden = rows.length === 0;
  fill(get(id), rows);
  const more = get(id + "-more");
  if (more) show(more, all > rows.length && `and ${all - rows.length} more`);
}

function renderTables(d, now) {
  const st = d.status;
  const age = (t) => span((now - ms(t)) / 1000);
  const num = (text) => ({ text: String(text), class: "num" });
  const act = (doing, of) => ({ class: "act", make: () => button(gate, doing, of) });
  let place = 0;
  table("queue", (st.queue ?? []).map((q) => ({
    key: String(q.ticket), head: 1,
    cells: [
      num(q.holder ? ++place : "–"), { text: q.label, class: "wide" }, q.holder ? q.reason : "its caller", num(age(q.arrived_at)), num(q.attempt),
      q.holder || "(parked)", q.deadline ? clock(q.deadline, now) : "–", num(q.ticket), act("cancel_ticket", { ticket: q.ticket, label: q.label }),
    ],
  })), st.queued);
  table("leases", (st.leases ?? []).map((l) => ({
    key: String(l.lease), head: 0,
    cells: [
      { text: l.label, class: "wide" }, num(ms(l.start_at) > now ? "in " + span((ms(l.start_at) - now) / 1000) : age(l.start_at)), num(l.weight), num(l.attempt),
      l.holder, num(l.lease), act("revoke_lease", { lease: l.lease, label: l.label }),
    ],
  })), d.reserved + d.started);
  table("holders", (st.holders ?? []).map((h) => ({
    key: h.id, head: 0, cells: [h.id, num(age(h.last_seen) + " ago"), num(h.leased), num(h.queued), h.waiting ? "waiting for news" : h.present ? "present" : "away"],
  })), 0);
  fill(get("limits"), (d.limits ?? []).map((l) => ({ key: l.field, head: 0, cells: [l.field, l.value, l.policy ?? ""] })));
}

function renderActs(st, now) {
  const log = [...(st.log ?? [])].reverse();
  get("acts-none").hidden = log.length > 0;
  const texts = log.map((a) => {
    const changes = (a.changes ?? []).map((c) => `${c.field}: ${c.old} → ${c.new}`).join(", ");
    return `${clock(a.at, now)}: ${[a.what, by(a.who, a.why)].filter(Boolean).join(" ")}${a.error ? "; refused: " + a.error : ""}${changes ? "; " + changes : ""}`;
  });
  const list = get("acts");
  if (texts.join("\n") !== list.dataset.texts) {
    list.dataset.texts = texts.join("\n");
    list.replaceChildren(...texts.map((text) => make("li", { text })));
  }
}

// The colours: as the system says, or as a person says.
const themes = { "": "as the system", dark: "dark", light: "light" };
function showTheme() { setText(get("theme"), "Theme: " + themes[document.documentElement.dataset.theme ?? ""]); }
get("theme").addEventListener("click", () => {
  const order = Object.keys(themes);
  const next = order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % order.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("sluice-theme", next);
  } catch {
    // Nothing is kept here: it holds until the page is loaded again.
  }
  showTheme();
  plots.lay();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.lay());
addEventListener("hashchange", select);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment names the gate
  get("main").focus();
});
new ResizeObserver(() => plots.resize()).observe(get("main"));

// A stream can be open and say nothing.
setInterval(() => {
  if (heard && Date.now() - heard > 5 * about.interval_ms + 5000 && get("connection").dataset.state === "good") {
    connection("bad", "no news since " + clock(heard, Date.now()));
  }
}, 1000);

takeToken();
showTheme();
try {
  about = await (await fetch("about")).json();
  setText(get("where"), `namespace ${about.namespace} at ${about.address}`);
  plots.setKeep(about.keep_ms);
  allow(about);
} catch {
  connection("bad", "the page's server does not answer");
}
plots.lay();
select();
