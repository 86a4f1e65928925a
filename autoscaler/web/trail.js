// A decision with its whole trail: the daemon's explanation, the readings, the recommendations of policies, and the verdicts of guards.

import { el, table } from "./dom.js";
import { duration, seconds, short } from "./format.js";

/** The trail of a decision in the format of `/decisions`. */
export function trailOf({ observation, decision, explanation }) {
  return el(
    "div",
    { class: "trail" },
    ...proseOf(explanation),
    el("h3", {}, "Each verdict"),
    table("Each verdict", ["Guard", "Size", "Why"], verdictsOf(decision)),
    el("h3", {}, "Each policy"),
    table("Each policy", ["Policy", "Recommends", "Why"], decision.recommendations.map(asked)),
    el("h3", {}, "Each reading"),
    table("Each reading", ["Reading", "Value", "Age"], readingsOf(observation, decision.at)),
  );
}

/** The paragraphs and lists of an explanation. */
export function proseOf(explanation) {
  return (explanation ?? "").split("\n\n").flatMap((block, number) => {
    const [first, ...items] = block.split("\n");
    if (!items.length) return [el("p", { class: number ? null : "outcome" }, first)];
    return [el("p", { class: "lead" }, first), el("ul", {}, items.map((item) => el("li", {}, item.replace(/^\s*- /, ""))))];
  });
}

function verdictsOf(decision) {
  return decision.verdicts.map(({ guard, before, after, detail }) => [
    guard.replaceAll("_", " "),
    before === after ? `${after}` : el("strong", {}, `${before} → ${after}`),
    detail || (before === after ? "no objection" : ""),
  ]);
}

function asked({ policy, replicas, reason, detail, inputs }) {
  const numbers = Object.entries(inputs).map(([name, value]) => `${name.replaceAll("_", " ")} ${short(Number(value))}`);
  return [
    policy,
    replicas === null ? "nothing" : String(replicas),
    el("span", {}, detail || reason.replaceAll("_", " "), numbers.length ? el("small", { class: "inputs" }, numbers.join(" · ")) : null),
  ];
}

function readingsOf({ desired, ready, metrics, missing, engine }, at) {
  const rows = [["target", `${desired ?? "?"} desired, ${ready ?? "?"} ready`, ""]];
  if (engine) {
    const numbers = ["slots", "parallelism", "restarts"].filter((key) => engine[key] !== null).map((key) => `${key} ${engine[key]}`);
    rows.push(["engine", [`job ${engine.job}`, ...numbers].join(", "), ""]);
  }
  for (const [name, { value, at: read, over }] of Object.entries(metrics)) {
    const mean = spanOfText(over);
    const shown = Array.isArray(value) ? value.map((each) => short(Number(each))).join(", ") : short(Number(value));
    rows.push([name, shown + (mean ? `, mean of ${mean}` : ""), duration(seconds(at) - seconds(read))]);
  }
  for (const [name, why] of Object.entries(missing)) rows.push([name, el("span", { class: "problem" }, `not read: ${why}`), ""]);
  return rows;
}

// Formats an ISO 8601 duration, as in the trace format.
function spanOfText(text) {
  const found = /^P(?:([\d.]+)D)?T?(?:([\d.]+)H)?(?:([\d.]+)M)?(?:([\d.]+)S)?$/.exec(text ?? "");
  const total = found ? [86400, 3600, 60, 1].reduce((sum, size, index) => sum + size * Number(found[index + 1] ?? 0), 0) : Number(text ?? 0);
  return total ? duration(total) : "";
}
