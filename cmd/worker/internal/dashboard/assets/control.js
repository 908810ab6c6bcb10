import { get, make, setText, show } from "./dom.js";

// Acts of an operator. The token came in the address that was printed at the start.
let token = "";
let settable = [];

// takeToken keeps the token of the address for this tab, and takes it out of there.
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.has("token")) {
    sessionStorage.setItem("sluice-token", fragment.get("token"));
    fragment.delete("token");
    history.replaceState(null, "", location.pathname + (fragment.size ? "#" + fragment : ""));
  }
  token = sessionStorage.getItem("sluice-token") ?? "";
}

// allow shows what can be done, where it may be.
export function allow(about) {
  if (!about.control) return;
  settable = about.settable;
  get("control").hidden = false;
  if (!token) {
    show(get("control-note"), "To change a gate, open the address that was printed when this page's server started.");
    return;
  }
  document.body.classList.add("controls");
}

const acts = {
  pause: { button: "Pause…", title: "Pause this gate?", text: "It admits nothing until it is resumed. Calls under way go on; the queue keeps its order.", confirm: "Pause" },
  resume: { button: "Resume…", title: "Resume this gate?", text: "The queue goes on in its order.", confirm: "Resume" },
  set: { button: "Set limits…", title: "Set limits of this gate?", text: "They lie over the policy, for a while or until reset.", confirm: "Set" },
  reset: { button: "Reset…", title: "Take away all that was set?", text: "The policy's limits hold again.", confirm: "Reset" },
  cancel_ticket: { button: "Cancel…", title: "Cancel this ticket?", text: "Its caller gets sluice.TicketCancelled, which is not retried.", confirm: "Cancel the ticket" },
  revoke_lease: { button: "Revoke…", title: "Revoke this lease?", text: "Its place is free at once. The call itself goes on until its process learns of it.", confirm: "Revoke" },
};

// buttons are those of the gate as a whole.
export function buttons(gate, status) {
  if (!document.body.classList.contains("controls")) return;
  const box = get("control-buttons");
  const wanted = [status.paused ? "resume" : "pause", "set", ...(status.overlays?.length ? ["reset"] : [])];
  const key = gate + wanted.join();
  if (box.dataset.key === key) return;
  const focused = [...box.children].findIndex((b) => b === document.activeElement);
  box.dataset.key = key;
  box.replaceChildren(...wanted.map((doing) => button(gate, doing, {})));
  if (focused >= 0) box.children[Math.min(focused, box.children.length - 1)].focus();
}

// button makes one act. of is the ticket or the lease, and its label.
export function button(gate, doing, of) {
  const name = of.label ? { "aria-label": acts[doing].button.replace("…", "") + " " + of.label } : {};
  return make("button", { type: "button", text: acts[doing].button, "data-do": doing, ...name, onclick: () => ask(gate, doing, of) });
}

function ask(gate, doing, of) {
  const act = acts[doing];
  setText(get("dialog-heading"), act.title);
  setText(get("dialog-text"), (of.label ? of.label + ". " : "") + act.text);
  setText(get("dialog-confirm"), act.confirm);
  setText(get("dialog-settable"), "Fields: " + settable.join(", "));
  get("dialog-set").hidden = doing !== "set";
  for (const id of ["dialog-fields", "dialog-for", "dialog-why"]) get(id).value = "";
  show(get("dialog-error"), "");
  // One ID for the act, however often it is sent.
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
  get("dialog-form").onsubmit = (event) => {
    event.preventDefault();
    const wish = { gate, id, do: doing, why: get("dialog-why").value, ticket: of.ticket, lease: of.lease };
    if (doing === "set") {
      wish.set = get("dialog-fields").value.split("\n").map((line) => line.trim()).filter(Boolean);
      wish.for = get("dialog-for").value.trim();
    }
    send(wish, act);
  };
  get("dialog-cancel").onclick = () => get("dialog").close();
  get("dialog").showModal();
  get(doing === "set" ? "dialog-fields" : "dialog-why").focus();
}

async function send(wish, act) {
  get("dialog-confirm").disabled = true;
  try {
    const response = await fetch("act", { method: "POST", headers: { "Content-Type": "application/json", "X-Sluice-Token": token }, body: JSON.stringify(wish) });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    get("dialog").close();
    const changes = (answer.changes ?? []).map((c) => `${c.field}: ${c.old} → ${c.new}`);
    setText(get("outcome"), `Done: ${answer.what}${changes.length ? "; " + changes.join(", ") : ""}.`);
  } catch (error) {
    show(get("dialog-error"), error.message || "The page's server does not answer.");
  } finally {
    get("dialog-confirm").disabled = false;
  }
}
