// The page of one cluster: its present state, its history with every decision, its learned values, and what-if simulations.

import { announce, el, field, setAttribute, setText, table } from "./dom.js";
import { duration, percent, plural, rate, seconds, share, short, time } from "./format.js";
import { decideNow, fetchCluster, fetchDecision, fetchSeries, now, recording, simulateWith, state, subscribe } from "./source.js";
import { controlButton, guarded, openDialog } from "./controls.js";
import { sizeOf, stateOf } from "./fleet.js";
import { makeCharts } from "./charts.js";
import { trailOf } from "./trail.js";
import { picturesOf } from "./learned.js";

const RANGES = { "1h": [3600, "1 hour"], "6h": [21_600, "6 hours"], "24h": [86_400, "24 hours"], "7d": [604_800, "7 days"] };
const REFRESH = 15_000;
const LISTED = 200; // most decisions in the list; zooming in shows older ones

const count = (value) => (value === null ? "–" : String(Math.round(value * 10) / 10));

function panelsOf(objective) {
  const limit = objective === null ? null : { value: objective, label: `objective ${duration(objective)}` };
  return [
    {
      title: "Load and capacity",
      series: [
        { key: "load", label: "load", colour: "load", format: rate, fill: true },
        { key: "capacity", label: "capacity", colour: "capacity", format: rate },
      ],
    },
    {
      title: "Backlog",
      limit,
      series: [
        { key: "backlog_time", label: "backlog time", colour: "late", format: duration, fill: true },
        { key: "lag", label: "lag", colour: "lag", format: short, right: true, thin: true },
      ],
    },
    {
      title: "Workers",
      series: [
        { key: "ready", label: "ready", colour: "ready", format: count, stepped: true, fill: true },
        { key: "desired", label: "desired", colour: "asked", format: count, stepped: true },
        { key: "used", label: "used by the job", colour: "used", format: count, stepped: true, thin: true, dash: [3, 3] },
      ],
    },
  ];
}

/** Show the page of a cluster. Returns a function that ends it. */
export function showCluster(main, query, name) {
  let range = RANGES[query.get("range")] ? query.get("range") : recording ? "" : "1h";
  let zoom = null; // [from, until] in seconds
  let opened = query.get("at");
  let charts = null;
  let objective;
  let over = false;
  let asking = new AbortController();
  let compared = null;

  const dot = el("span", { class: "dot" });
  const sentence = el("p", { class: "sentence" });
  const facts = el("dl", { class: "facts" });
  const controls = el("ul", { class: "in-force" });
  const ranges = el(
    "div",
    { class: "ranges", role: "group", "aria-label": "Time range" },
    Object.entries(RANGES).map(([key, [, text]]) => el("button", { type: "button", "data-range": key, title: text, onclick: () => choose(key) }, key)),
    el("button", { type: "button", "data-range": "", hidden: true, onclick: () => setZoom(null, null) }, recording ? "whole run" : "back from zoom"),
  );
  const drawing = el("div", { class: "drawing" });
  const list = el("ol", { class: "decisions", "aria-label": "Decisions that changed the size, newest first" });
  const trail = el("section", { class: "panel", "aria-label": "The trail of a decision", id: "trail" });
  const learned = el("div", { class: "pictures" });
  const ask = guarded("What would you do now?", () =>
    openDialog(
      "What would you do now?",
      "The daemon reads everything again and decides at once, without waiting for the next tick. If it decides on another size, it requests that size as at any tick, unless this is a dry run or a control prevents it.",
      [field("Reason", el("input", { name: "reason", maxlength: 500, autocomplete: "off" }), "For the audit")],
      "Decide now",
      async (form) => showTrail(await decideNow(name, form.get("reason").trim()), "Decided now"),
    ),
  );
  main.append(
    el("p", { class: "crumb" }, el("a", { href: "#/" }, "← Clusters")),
    el("div", { class: "title" }, el("h1", {}, dot, name), el("div", { class: "actions" }, ask, ["pause", "hold", "limit", "resume"].map((action) => controlButton(action, name)))),
    sentence,
    facts,
    controls,
    el("section", { "aria-label": "History" }, el("div", { class: "title" }, el("h2", {}, "History"), ranges), drawing),
    el("div", { class: "columns" }, el("section", { "aria-label": "Decisions" }, el("h2", {}, "Decisions"), list), trail),
    el("section", {}, el("h2", {}, "What it has learned"), learned),
    ...[whatIf()].filter(Boolean),
  );

  const stop = subscribe((changed) => (changed === null || changed.has(name)) && update());
  const refreshing = setInterval(() => document.visibilityState === "visible" && !recording && refresh(), REFRESH);
  document.addEventListener("keydown", onKey);
  document.addEventListener("controlled", readCluster);
  update();
  refresh();
  if (opened) openAt(opened);
  return () => {
    over = true;
    stop();
    asking.abort();
    charts?.end();
    endComparison();
    clearInterval(refreshing);
    document.removeEventListener("keydown", onKey);
    document.removeEventListener("controlled", readCluster);
  };

  async function refresh() {
    await Promise.all([readCluster(), readSeries()]);
  }

  function update() {
    const row = state.rows.get(name);
    if (!row) {
      if (state.link === "live" || recording) setText(sentence, "This cluster does not exist, or has been removed.");
      return;
    }
    setAttribute(dot, "class", `dot ${["fine", "notice", "trouble"][row.severity ?? 0]}`);
    setText(sentence, stateOf(row));
    setAttribute(sentence, "class", `sentence ${["fine", "notice", "trouble"][row.severity ?? 0]}`);
    const entries = factsOf(row);
    while (facts.children.length < entries.length) facts.append(el("div", {}, el("dt"), el("dd"), el("dd", { class: "small" })));
    entries.forEach(([term, value, more], index) => [term, value, more].forEach((text, part) => setText(facts.children[index].children[part], text)));
    const texts = row.controls.map((control) => control.text);
    if (controls.dataset.texts !== texts.join("\n")) {
      controls.dataset.texts = texts.join("\n");
      controls.replaceChildren(...texts.map((text) => el("li", {}, text)));
    }
    controls.hidden = texts.length === 0;
  }

  async function readCluster() {
    try {
      const cluster = await fetchCluster(name);
      if (over) return;
      if (!state.rows.has(name)) state.rows.set(name, cluster), update();
      if (cluster.explanation && !opened) showTrail(cluster, "The last decision", false);
      // Do not redraw the pictures while the user has the table of one open: a redraw would close it.
      if (!learned.querySelector("details[open]")) learned.replaceChildren(...(cluster.learned ? picturesOf(cluster.learned) : [el("p", { class: "calm" }, "Nothing yet.")]));
    } catch (error) {
      if (!over && !learned.children.length) learned.replaceChildren(el("p", { class: "problem" }, error.message));
    }
  }

  function span() {
    if (zoom) return zoom;
    if (range === "") return [null, null];
    return [now() - RANGES[range][0], now()];
  }

  async function readSeries() {
    asking.abort();
    asking = new AbortController();
    const { signal } = asking;
    for (const button of ranges.children) {
      const whole = button.dataset.range === "";
      setAttribute(button, "aria-pressed", String(whole ? recording !== null && !zoom && range === "" : !zoom && button.dataset.range === range));
      if (whole) button.hidden = !zoom && !(recording && range !== "");
    }
    try {
      const series = await fetchSeries(name, ...span(), Math.min(1200, Math.max(200, drawing.clientWidth)));
      if (signal.aborted || over) return;
      const limit = state.rows.get(name)?.objective ?? null;
      if (charts === null || limit !== objective) {
        charts?.end();
        drawing.replaceChildren();
        objective = limit;
        charts = makeCharts(drawing, panelsOf(limit), { onZoom: setZoom, onDecision: (decision) => openAt(decision.at, true) });
      }
      charts.set(series, series);
      listDecisions(series.decisions);
    } catch (error) {
      if (signal.aborted || over) return;
      charts?.end();
      charts = null;
      drawing.replaceChildren(el("p", { class: "problem" }, `The history cannot be shown: ${error.message}`));
    }
  }

  function choose(key) {
    range = key;
    zoom = null;
    remember();
    readSeries();
  }

  function setZoom(from, until) {
    zoom = from === null ? null : [from, until];
    if (recording && !zoom) range = "";
    announce(zoom ? `${time(from)} to ${time(until)}` : "The whole range");
    readSeries();
  }

  function remember() {
    const kept = Object.entries({ range, at: opened }).filter(([, text]) => text);
    history.replaceState(null, "", `#/cluster/${encodeURIComponent(name)}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`);
  }

  function listDecisions(decisions) {
    const newest = decisions.slice(-LISTED).reverse();
    const key = newest.map((each) => each.at).join();
    if (list.dataset.key === key) return markOpened();
    list.dataset.key = key;
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.at : null;
    list.replaceChildren(
      ...newest.map((each) =>
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", "data-at": each.at, "aria-controls": "trail", onclick: () => openAt(each.at, true) },
            el("time", { datetime: each.at }, time(each.at)),
            el("strong", { class: each.to > each.from ? "up" : "down" }, `${each.from} → ${each.to}`),
            el("span", {}, each.text || each.reason),
          ),
        ),
      ),
    );
    if (!newest.length) list.append(el("li", { class: "calm" }, "The size did not change in this time range."));
    if (decisions.length > LISTED) list.append(el("li", { class: "calm" }, `${plural(decisions.length - LISTED, "older decision")}: zoom in to see them.`));
    if (focused) list.querySelector(`[data-at="${CSS.escape(focused)}"]`)?.focus();
    markOpened();
  }

  function markOpened() {
    for (const button of list.querySelectorAll("button")) setAttribute(button, "aria-pressed", String(button.dataset.at === opened));
  }

  async function openAt(at, focus = false) {
    opened = at;
    remember();
    markOpened();
    try {
      const found = await fetchDecision(name, at);
      if (over || opened !== at) return;
      if (found) showTrail(found, `Decision of ${time(found.decision.at)} UTC`, focus);
      else showNote("This decision is not stored any more, or this file does not contain it.");
    } catch (error) {
      if (!over) showNote(error.message);
    }
  }

  function showNote(text) {
    trail.replaceChildren(el("h2", {}, "Decision"), el("p", { class: "problem" }, text));
  }

  function showTrail(found, title, focus = true) {
    const heading = el("h2", { tabindex: -1 }, title);
    const close = opened && el("button", { type: "button", class: "quiet", onclick: closeTrail }, "Close");
    trail.replaceChildren(el("div", { class: "title" }, heading, close), trailOf(found));
    if (focus) heading.focus();
    return heading;
  }

  function closeTrail() {
    const button = list.querySelector('[aria-pressed="true"]');
    opened = null;
    remember();
    markOpened();
    button?.focus();
    readCluster();
  }

  function onKey(event) {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (opened && (trail.contains(document.activeElement) || list.contains(document.activeElement))) closeTrail();
    else if (document.activeElement === document.body || document.activeElement === main) location.hash = "#/";
  }

  function endComparison() {
    compared?.end();
    compared = null;
  }

  function whatIf() {
    if (recording) return null; // there is no daemon to simulate; use the commands instead
    const objectiveField = el("input", { name: "objective", placeholder: "30s", autocomplete: "off", size: 8 });
    const policies = el("textarea", { name: "policies", rows: 3, spellcheck: "false", placeholder: '{"main": {"type": "backlog-drain"}}' });
    const result = el("div", { class: "result" });
    const button = el("button", {}, "Simulate");
    const form = el(
      "form",
      { onsubmit: (event) => (event.preventDefault(), simulate()) },
      el("div", { class: "question" }, field("Another objective", objectiveField, "a duration"), field("or other policies", policies, "as in the configuration, in JSON"), button),
    );
    return el(
      "section",
      {},
      el("h2", {}, "What if"),
      el("p", { class: "calm" }, "Simulate the recorded load of the range above with another objective or other policies. Nothing is changed."),
      form,
      result,
    );

    async function simulate() {
      button.disabled = true;
      result.replaceChildren(el("p", { class: "calm" }, "Simulating… This may take some seconds."));
      endComparison();
      try {
        const change = {};
        if (objectiveField.value.trim()) change.objective = objectiveField.value.trim();
        if (policies.value.trim()) change.policies = parsedJson(policies.value);
        const { what, happened, figures, objective: aim, notes } = await simulateWith(name, change, ...span());
        if (over) return;
        result.replaceChildren(figuresOf(figures), el("p", { class: "calm" }, notes.join(" ")));
        compared = makeCharts(result, comparison(aim));
        compared.set(joined(what, happened), { decisions: what.decisions ?? [], rescales: [] });
        announce("The simulation is done.");
      } catch (error) {
        result.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message));
      }
      button.disabled = false;
    }
  }
}

function parsedJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The policies are not JSON: ${error.message}`);
  }
}

function factsOf(row) {
  const part = share(row.load, row.capacity);
  const late = share(row.backlog_time, row.objective);
  return [
    ["Workers", sizeOf(row), `${row.ready ?? "?"} ready · ${row.min} to ${row.max} allowed`],
    ["Load", rate(row.load), part === null ? "capacity not known" : `${percent(part)} of ${rate(row.capacity)}`],
    ["Backlog time", duration(row.backlog_time), row.objective === null ? "no objective" : `${late === null ? "" : `${percent(late)} of `}objective ${duration(row.objective)}`],
    ["Lag", short(row.lag), "records"],
    ["In flight", row.rescale ? `${row.rescale.before} → ${row.rescale.to}` : "nothing", row.rescale ? `${row.rescale.phase.replaceAll("_", " ")}, for ${duration(now() - seconds(row.rescale.at))}` : ""],
    ["Decided", time(row.at), row.dry_run ? "dry run: no scale calls" : (row.reason ?? "").replaceAll("_", " ")],
  ];
}

function comparison(objective) {
  const limit = objective === null ? null : { value: objective, label: `objective ${duration(objective)}` };
  const both = (key, format, more) => [
    { key: `happened_${key}`, label: "what happened", colour: "capacity", format, fill: true, ...more },
    { key: `what_${key}`, label: "what if", colour: "asked", format, ...more },
  ];
  return [
    { title: "Workers", series: both("desired", count, { stepped: true }) },
    { title: "Backlog time", limit, series: both("backlog_time", duration, {}) },
  ];
}

// Joins two series whose times may differ: at the times of the other series, each keeps its last value.
function joined(what, happened) {
  const columns = { at: [...new Set([...what.at, ...happened.at])].sort((a, b) => a - b) };
  for (const [prefix, series] of Object.entries({ what, happened })) {
    const index = new Map(series.at.map((at, position) => [at, position]));
    for (const key of ["desired", "backlog_time"]) {
      let last = null;
      columns[`${prefix}_${key}`] = columns.at.map((at) => (last = index.has(at) ? (series[key]?.[index.get(at)] ?? null) : last));
    }
  }
  return columns;
}

function figuresOf(figures) {
  const rows = Object.entries({ what: "What if", present: "As configured, in the same simulation", happened: "What happened" })
    .filter(([key]) => figures[key])
    .map(([key, name]) => {
      const { worker_hours: hours, share_later_than_objective: late, rescales } = figures[key];
      return [name, short(hours), percent(late), String(rescales)];
    });
  return table("What if, in figures", ["", "Worker-hours", "Time later than the objective", "Rescales"], rows, { class: "figures" });
}
