// Elements, made without markup: whatever a daemon sends becomes text and never HTML.

/** An element. `on…` are listeners; an attribute that is null, undefined or false is left out. Children: nodes or text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Set the text of an element if it is another one: what stays the same costs nothing, and is not read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

let announcing = 0;

/** Have a screen reader say something, when it has finished what it says. */
export function announce(text) {
  const live = document.getElementById("live");
  live.textContent = "";
  clearTimeout(announcing);
  announcing = setTimeout(() => (live.textContent = text), 100);
}

let fields = 0;

/** A labelled field of a form, and a hint that describes it. */
export function field(label, input, hint = null) {
  const id = `field-${++fields}`;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, label), input, hint && el("small", { id: `${id}-hint` }, hint));
}

/** A table with a caption for those who cannot see where it stands. Cells are nodes or text; the first one is the row's name. */
export function table(caption, heads, rows, attributes = {}) {
  return el(
    "div",
    { class: "scrolls", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      attributes,
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
      el(
        "tbody",
        {},
        rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((cell) => el("td", {}, cell)))),
      ),
    ),
  );
}
