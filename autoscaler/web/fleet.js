// The page with all clusters, those in trouble first. The document contains only the rows in view, even for thousands.

import { el, setAttribute, setText } from "./dom.js";
import { duration, percent, plural, rate, seconds, share, short, time } from "./format.js";
import { now, state, subscribe } from "./source.js";

const STATES = {
  "": "all states",
  trouble: "in trouble",
  notice: "with a notice",
  fine: "fine",
  moving: "rescaling",
  ordered: "paused, held, limited",
};
const IS = {
  trouble: (row) => row.severity === 2,
  notice: (row) => row.severity === 1,
  fine: (row) => !row.severity,
  moving: (row) => row.rescale !== null,
  ordered: (row) => row.controls.length > 0,
};
const COLUMNS = [
  ["trouble", "Trouble first"],
  ["workers", "Workers"],
  ["load", "Load of capacity"],
  ["backlog", "Backlog of objective"],
  ["moving", "In flight"],
  [null, "State"],
];
const ORDERS = {
  trouble: (a, b) => (b.severity ?? 0) - (a.severity ?? 0) || doublings(b) - doublings(a) || (b.rescale !== null) - (a.rescale !== null) || byName(a, b),
  workers: (a, b) => (b.current ?? -1) - (a.current ?? -1) || byName(a, b),
  load: (a, b) => (share(b.load, b.capacity) ?? -1) - (share(a.load, a.capacity) ?? -1) || byName(a, b),
  backlog: (a, b) => (late(b) ?? -1) - (late(a) ?? -1) || byName(a, b),
  moving: (a, b) => (b.rescale ? seconds(b.rescale.at) : 0) - (a.rescale ? seconds(a.rescale.at) : 0) || byName(a, b),
};
const AROUND = 8; // rows kept above and below those in view

const byName = (a, b) => (a.name < b.name ? -1 : 1);
const late = (row) => (row.backlog_time === null ? null : row.backlog_time / (row.objective ?? 3600));

/** How far a cluster in trouble is behind its objective, in powers of two: smaller changes must not reorder the rows. */
function doublings(row) {
  return row.severity === 2 ? Math.ceil(Math.log2(Math.max(late(row) ?? 0, 1))) : 0;
}

/** Show the page with all clusters. Returns a function that ends it. */
export function showFleet(main, query) {
  const filter = { q: query.get("q") ?? "", fleet: query.get("fleet") ?? "", state: query.get("state") ?? "", sort: ORDERS[query.get("sort")] ? query.get("sort") : "trouble" };
  let names = [];
  let active = null; // the name of the row from which arrow keys move
  let drawing = 0;
  const shown = new Map(); // name -> its row in the document

  const summary = el("p", { class: "summary", id: "summary" });
  const search = el("input", { type: "search", value: filter.q, placeholder: "Search", "aria-label": "Search clusters", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false", oninput: () => change("q", search.value) });
  const fleets = el("select", { "aria-label": "Fleet", onchange: () => change("fleet", fleets.value) });
  const states = el(
    "select",
    { "aria-label": "State", onchange: () => change("state", states.value) },
    Object.entries(STATES).map(([value, text]) => el("option", { value, selected: value === filter.state }, text)),
  );
  const heads = COLUMNS.map(([key, text]) =>
    el("th", { scope: "col", "data-key": key }, key ? el("button", { type: "button", class: "sort", onclick: () => change("sort", key) }, text) : text),
  );
  const above = spacer();
  const below = spacer();
  const body = el("tbody", {}, above, below);
  const grid = el("table", { class: "fleet", "aria-label": "Clusters", "aria-describedby": "summary" }, el("thead", {}, el("tr", { "aria-rowindex": 1 }, heads)), body);
  const notes = el("ul", { class: "notes", "aria-label": "Problems of the daemon" });
  const empty = el("p", { class: "calm", hidden: true });
  main.append(
    el("h1", { class: "unseen" }, "Clusters"),
    el("div", { class: "bar-of-tools", role: "search" }, summary, search, states, fleets),
    notes,
    grid,
    empty,
  );

  const stop = subscribe(arrange);
  const clock = setInterval(draw, 5000); // updates the ages
  addEventListener("scroll", soon, { passive: true });
  addEventListener("resize", soon, { passive: true });
  document.addEventListener("keydown", onKey);
  arrange();
  return () => {
    stop();
    clearInterval(clock);
    cancelAnimationFrame(drawing);
    removeEventListener("scroll", soon);
    removeEventListener("resize", soon);
    document.removeEventListener("keydown", onKey);
  };

  function change(key, value) {
    filter[key] = value;
    const kept = Object.entries(filter).filter(([name, text]) => text && !(name === "sort" && text === "trouble"));
    history.replaceState(null, "", `#/${kept.length ? `?${new URLSearchParams(kept)}` : ""}`);
    active = null;
    arrange();
    if (scrollY > grid.offsetTop) scrollTo(0, 0);
  }

  function arrange() {
    const words = filter.q.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    let workers = 0;
    let asked = 0;
    const counts = { trouble: 0, notice: 0, fine: 0 };
    for (const row of state.rows.values()) {
      counts[row.severity === 2 ? "trouble" : row.severity === 1 ? "notice" : "fine"]++;
      workers += row.current ?? 0;
      asked += row.desired ?? row.current ?? 0;
      if (filter.fleet && row.fleet !== filter.fleet) continue;
      if (filter.state && !IS[filter.state]?.(row)) continue;
      if (words.length) {
        const text = `${row.name} ${row.fleet ?? ""} ${row.trouble ?? ""}`.toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      rows.push(row);
    }
    names = rows.sort(ORDERS[filter.sort]).map((row) => row.name);
    setText(summary, summarized(counts, workers, asked, names.length));
    fillFleets();
    showNotes();
    for (const head of heads) setAttribute(head, "aria-sort", head.dataset.key === filter.sort ? (filter.sort === "trouble" ? "other" : "descending") : null);
    setAttribute(grid, "aria-rowcount", String(names.length + 1));
    empty.hidden = names.length > 0;
    grid.hidden = names.length === 0;
    const waiting = { connecting: "Asking the daemon…", refused: "The daemon shows its clusters only with a valid token." }[state.link];
    setText(empty, waiting && !state.rows.size ? waiting : state.rows.size ? "No cluster matches. Escape clears the search." : "There are no clusters yet.");
    draw();
  }

  function showNotes() {
    notes.hidden = state.notes.length === 0;
    if (notes.dataset.texts === state.notes.join("\n")) return;
    notes.dataset.texts = state.notes.join("\n");
    notes.replaceChildren(...state.notes.map((text) => el("li", {}, text)));
  }

  function fillFleets() {
    const found = [...new Set([...state.rows.values()].map((row) => row.fleet).filter(Boolean))].sort();
    if (fleets.dataset.names === found.join("\n") && fleets.options.length) return;
    fleets.dataset.names = found.join("\n");
    fleets.replaceChildren(el("option", { value: "" }, "all fleets"), ...found.map((name) => el("option", { value: name, selected: name === filter.fleet }, name)));
    fleets.hidden = found.length === 0;
  }

  function soon() {
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(draw);
  }

  function draw() {
    const height = rowHeight();
    const top = Math.max(0, scrollY - body.getBoundingClientRect().top - scrollY);
    const first = Math.max(0, Math.floor(top / height) - AROUND);
    const last = Math.min(names.length, Math.ceil((top + innerHeight) / height) + AROUND);
    const wanted = names.slice(first, last);
    const keep = new Set(wanted);
    const spare = [];
    for (const [name, entry] of shown) {
      if (keep.has(name)) continue;
      entry.row.remove();
      shown.delete(name);
      spare.push(entry);
    }
    setHeight(above, first * height);
    setHeight(below, (names.length - last) * height);
    let before = above;
    wanted.forEach((name, index) => {
      let entry = shown.get(name);
      if (!entry) shown.set(name, (entry = spare.pop() ?? newRow()));
      if (before.nextSibling !== entry.row) before.after(entry.row);
      before = entry.row;
      setAttribute(entry.row, "aria-rowindex", String(first + index + 2));
      entry.fill(state.rows.get(name));
      setAttribute(entry.link, "tabindex", name === (active ?? names[0]) || (index === 0 && !keep.has(active ?? names[0])) ? "0" : "-1");
    });
  }

  function rowHeight() {
    return matchMedia("(max-width: 720px)").matches ? 96 : 45;
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const { target } = event;
    if (event.key === "/" && !isTyping(target)) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && (filter.q || target === search)) {
      search.value = "";
      change("q", "");
      move(0);
    } else if (target === search && (event.key === "Enter" || event.key === "ArrowDown")) {
      event.preventDefault();
      move(0);
    } else if (target === document.body || target.id === "main" || body.contains(target)) {
      const at = names.indexOf(active);
      const page = Math.max(1, Math.floor(innerHeight / rowHeight()) - 3);
      const to = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), PageDown: at + page, PageUp: at - page, Home: 0, End: names.length }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(to);
    }
  }

  function move(to) {
    if (!names.length) return;
    const index = Math.min(Math.max(to, 0), names.length - 1);
    active = names[index];
    const height = rowHeight();
    const top = body.getBoundingClientRect().top + scrollY + index * height;
    const head = grid.tHead.offsetHeight + 60;
    if (top < scrollY + head) scrollTo(0, Math.max(0, top - head));
    else if (top + height > scrollY + innerHeight) scrollTo(0, top + 2 * height - innerHeight);
    draw();
    shown.get(active)?.link.focus({ preventScroll: true });
  }
}

function isTyping(target) {
  return ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

function summarized({ trouble, notice, fine }, workers, asked, matching) {
  const total = trouble + notice + fine;
  const parts = [trouble ? `${trouble} in trouble` : "none in trouble", notice && `${notice} with a notice`, `${fine} fine`];
  const sizes = asked === workers ? plural(workers, "worker") : `${workers.toLocaleString("en")} → ${plural(asked, "worker")}`;
  return `${matching === total ? plural(total, "cluster") : `${matching} of ${plural(total, "cluster")}`}: ${parts.filter(Boolean).join(", ")} · ${sizes}`;
}

function spacer() {
  return el("tr", { "aria-hidden": "true", class: "spacer" }, el("td", { colspan: COLUMNS.length }));
}

function setHeight(row, pixels) {
  row.hidden = pixels === 0;
  if (row.firstChild.dataset.height === String(pixels)) return;
  row.firstChild.dataset.height = pixels;
  row.firstChild.style.height = `${pixels}px`;
}

/** A row, and a function that fills it with a cluster, changing only the parts that differ. */
function newRow() {
  const link = el("a", { class: "name" });
  const mark = el("span", { class: "dot" });
  const said = el("span", { class: "unseen" });
  const fleet = el("span", { class: "small" });
  const size = el("span", {});
  const sizes = el("span", { class: "small" });
  const load = meter();
  const backlog = meter();
  const moving = el("span", {});
  const phase = el("span", { class: "small" });
  const text = el("span", { class: "text" });
  const row = el(
    "tr",
    { onclick: (event) => event.target.closest("a") || getSelection().toString() || link.click() },
    el("th", { scope: "row" }, el("span", { class: "who" }, mark, said, link, fleet)),
    el("td", { class: "workers" }, size, sizes),
    el("td", { class: "load" }, load.node),
    el("td", { class: "backlog" }, backlog.node),
    el("td", { class: "moving" }, moving, phase),
    el("td", { class: "state" }, text),
  );
  return { row, link, fill };

  function fill(known) {
    setAttribute(row, "class", ["fine", "notice", "trouble"][known.severity ?? 0]);
    setText(link, known.name);
    setAttribute(link, "href", `#/cluster/${encodeURIComponent(known.name)}`);
    setText(said, ["", "Notice: ", "In trouble: "][known.severity ?? 0]);
    setText(fleet, known.fleet ?? "");
    setText(size, sizeOf(known));
    setText(sizes, `${known.ready !== null && known.ready !== known.current ? `${known.ready} ready · ` : ""}${known.min}–${known.max}`);
    load.set(share(known.load, known.capacity), known.load === null ? "" : `${short(known.load)} / ${rate(known.capacity)}`);
    backlog.set(share(known.backlog_time, known.objective), known.backlog_time === null ? "" : `${duration(known.backlog_time)}${known.objective === null ? "" : ` / ${duration(known.objective)}`}`);
    setText(moving, known.rescale ? `${known.rescale.before} → ${known.rescale.to}` : "");
    setText(phase, known.rescale ? `${known.rescale.phase.replaceAll("_", " ")}, ${duration(now() - seconds(known.rescale.at))}` : "");
    setText(text, stateOf(known));
    setAttribute(text, "title", stateOf(known));
  }
}

/** The present size, and the desired one if it differs. */
export function sizeOf(row) {
  if (row.current === null) return "–";
  return row.desired !== null && row.desired !== row.current ? `${row.current} → ${row.desired}` : String(row.current);
}

/** The state of a cluster in a few words. */
export function stateOf(row) {
  if (row.trouble) return row.trouble;
  if (row.controls.length) return row.controls.map((control) => control.text).join("; ");
  if (row.at === null) return "not observed yet";
  const words = { above: "the load needs more workers", below: "fewer workers would suffice", steady: "fits the load", learning: "still learning" };
  return `${row.dry_run ? "dry run; " : ""}${words[row.reason] ?? row.reason.replaceAll("_", " ")}, ${time(row.at)}`;
}

function meter() {
  const value = el("span", { class: "share" });
  const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("i", {}));
  const text = el("span", { class: "small" });
  let last = null;
  return {
    node: el("span", { class: "meter" }, value, bar, text),
    set(part, words) {
      setText(value, part === null ? "–" : percent(part));
      setText(text, words);
      const wide = part === null ? 0 : Math.round(Math.min(part, 1) * 100);
      if (wide !== last) bar.firstChild.style.width = `${wide}%`;
      last = wide;
      setAttribute(bar, "data-over", part !== null && part > 1 ? "true" : null);
    },
  };
}
