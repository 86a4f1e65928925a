// Creation of elements without markup: everything that a daemon sends becomes text, never HTML.

/** An element. `on…` are listeners; attributes that are null, undefined or false are omitted. Children: nodes or text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Like `el`, for SVG elements. */
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

/** Set the text of an element only if it differs: this saves work, and screen readers do not repeat unchanged text. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

let announcing = 0;

/** Make a screen reader announce a text, after its present speech. */
export function announce(text) {
  const live = document.getElementById("live");
  live.textContent = "";
  clearTimeout(announcing);
  announcing = setTimeout(() => (live.textContent = text), 100);
}

let fields = 0;

/** A labelled field of a form, optionally with a hint. */
export function field(label, input, hint = null) {
  const id = `field-${++fields}`;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, label), input, hint && el("small", { id: `${id}-hint` }, hint));
}

/** A table with a caption for screen readers. Cells are nodes or text; the first cell of a row is its header. */
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
