// All text reaches the page as text: labels, reasons and names come from elsewhere.

export const get = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// fill makes a table's body show rows, each an object with a key and cells. Rows that
// stay keep their elements, so that focus and selection stay where they are. A cell is
// a text, or an object: text, class, title, or make, which makes its content once.
export function fill(body, rows) {
  const old = new Map([...body.children].map((tr) => [tr.dataset.key, tr]));
  const stay = new Set(rows.map((row) => row.key));
  for (const [key, tr] of old) { // first, so that none of the others moves
    if (stay.has(key)) continue;
    if (tr.contains(document.activeElement)) body.closest("[tabindex]")?.focus(); // not to the page's beginning
    tr.remove();
  }
  let at = body.firstElementChild;
  for (const row of rows) {
    let tr = old.get(row.key);
    if (!tr) {
      tr = make("tr", { "data-key": row.key });
      row.cells.forEach((cell, i) => tr.append(make(i === (row.head ?? -1) ? "th" : "td", i === (row.head ?? -1) ? { scope: "row" } : {})));
    }
    if (tr === at) at = at.nextElementSibling;
    else body.insertBefore(tr, at);
    row.cells.forEach((cell, i) => {
      const td = tr.children[i];
      const c = typeof cell === "object" ? cell : { text: cell };
      if ((c.class ?? "") !== td.className) td.className = c.class ?? "";
      if (c.make) {
        if (!td.firstChild) td.append(c.make());
      } else {
        setText(td, c.text);
      }
    });
    if (row.current) tr.setAttribute("aria-current", "true");
    else tr.removeAttribute("aria-current");
  }
}

// show shows an element with a text, or hides it where there is none.
export function show(element, text) {
  setText(element, text || "");
  element.hidden = !text;
}
