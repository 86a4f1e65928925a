// Pictures of the learned values of a cluster: the capacity of each size, the duration of rescales, and the usual week.

import { el, svg, table } from "./dom.js";
import { duration, rate, short } from "./format.js";

const WIDE = 340;
const HIGH = 170;
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const PHASES = ["ready", "registered", "absorbed", "running", "caught_up"];

/** All pictures for which there is data. */
export function picturesOf(learned) {
  const found = [capacityPicture(learned), rescalePicture(learned), weekPicture(learned)].filter(Boolean);
  return found.length ? found : [el("p", { class: "calm" }, "Nothing yet: learning takes some hours without disturbances.")];
}

function picture(title, drawing, spoken, heads, rows) {
  return el(
    "figure",
    { class: "picture" },
    el("figcaption", {}, el("h3", {}, title), el("p", { class: "small" }, spoken)),
    drawing,
    rows && el("details", {}, el("summary", {}, "As a table"), table(title, heads, rows)),
  );
}

function drawn(label, ...children) {
  return svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label }, children);
}

const text = (x, y, words, more = {}) => svg("text", { x, y, ...more }, String(words));

function capacityPicture(learned) {
  const points = learned.capacity_by_size ?? learned.capacity?.map((each) => [each.replicas, each.rate, each.samples]) ?? [];
  if (!points.length) return null;
  const most = Math.max(...points.map(([size]) => size));
  const top = Math.max(...points.map(([, speed]) => speed)) * 1.1;
  const heaviest = Math.max(...points.map(([, , weight]) => weight ?? 1));
  const x = (size) => 40 + (size / most) * (WIDE - 60);
  const y = (speed) => HIGH - 24 - (speed / top) * (HIGH - 40);
  const lines = [0.25, 0.5, 0.75, 1].map((part) => svg("g", {}, svg("line", { x1: 40, x2: WIDE - 10, y1: y(top * part), y2: y(top * part), class: "grid" }), text(36, y(top * part) + 3, short(top * part), { "text-anchor": "end" })));
  const path = points.map(([size, speed], index) => `${index ? "L" : "M"}${x(size).toFixed(1)} ${y(speed).toFixed(1)}`).join("");
  const apart = Math.ceil(points.length / 14);
  const ticks = points.filter((_, index) => index % apart === 0).map(([size]) => text(x(size), HIGH - 8, size, { "text-anchor": "middle" }));
  const dots = points.map(([size, speed, weight]) =>
    svg("circle", { cx: x(size), cy: y(speed), r: 2.5 + 3 * Math.sqrt((weight ?? 1) / heaviest), class: "point" }, svg("title", {}, `${size} workers: ${rate(speed)}`)),
  );
  const [size, speed] = points.at(-1);
  const spoken = `${size} workers can process ${rate(speed)}. A larger point has more samples.`;
  return picture("Capacity by size", drawn(spoken, lines, svg("path", { d: path, class: "line" }), dots, ticks), spoken, ["Workers", "Capacity"], points.map(([many, fast]) => [String(many), rate(fast)]));
}

function rescalePicture(learned) {
  const bars = Object.entries(learned.durations ?? {}).map(([direction, { phases }]) => [direction, PHASES.filter((name) => phases[name]).map((name) => [name, phases[name].median])]);
  for (const [from, to, took] of (learned.rescale_seconds ?? []).slice(-5)) bars.push([`${from} → ${to}`, [["caught_up", took]]]);
  const shown = bars.filter(([, parts]) => parts.length);
  if (!shown.length) return null;
  const total = (parts) => parts.reduce((sum, [, took]) => sum + took, 0);
  const longest = Math.max(...shown.map(([, parts]) => total(parts))) || 1;
  const step = Math.min(34, (HIGH - 10) / shown.length);
  const rows = shown.map(([label, parts], index) => {
    let left = 62;
    const y = 6 + index * step;
    const pieces = parts.map(([name, took]) => {
      const wide = (took / longest) * (WIDE - 130);
      const piece = svg("rect", { x: left, y, width: Math.max(wide - 1, 0.5), height: step * 0.6, rx: 2, class: `phase ${name}` }, svg("title", {}, `${name.replaceAll("_", " ")}: ${duration(took)}`));
      left += wide;
      return piece;
    });
    return svg("g", {}, text(56, y + step * 0.45, label, { "text-anchor": "end" }), pieces, text(left + 5, y + step * 0.45, duration(total(parts))));
  });
  const spoken = shown.map(([label, parts]) => `${label}: ${duration(total(parts))}`).join(", ");
  const listed = shown.map(([label, parts]) => [label, parts.map(([name, took]) => `${name.replaceAll("_", " ")} ${duration(took)}`).join(", "), duration(total(parts))]);
  return picture("How long a rescale takes", drawn(spoken, rows), "From the request until the backlog is gone, by phase.", ["Rescale", "Phases", "Total"], listed);
}

function weekPicture(learned) {
  const { week } = learned;
  if (!week?.length) return null;
  const factors = week.map(([, factor]) => factor);
  const [low, high] = [Math.min(...factors), Math.max(...factors)];
  const name = (hour) => `${DAYS[Math.floor(hour / 24) % 7]} ${String(hour % 24).padStart(2, "0")}:00`;
  const cells = week.map(([hour, factor]) =>
    svg(
      "rect",
      { x: 34 + (hour % 24) * 12.5, y: 4 + Math.floor(hour / 24) * 20, width: 11.5, height: 19, rx: 1.5, class: "cell", "fill-opacity": (0.08 + 0.92 * (high > low ? (factor - low) / (high - low) : 0.5)).toFixed(2) },
      svg("title", {}, `${name(hour)} UTC: ${short(factor)} times the mean`),
    ),
  );
  const labels = [...DAYS.map((day, index) => text(30, 17 + index * 20, day, { "text-anchor": "end" })), ...[0, 6, 12, 18].map((hour) => text(34 + hour * 12.5, HIGH - 12, `${String(hour).padStart(2, "0")}:00`))];
  const at = (value) => name(week[factors.indexOf(value)][0]);
  const spoken = `Busiest ${at(high)} UTC (${short(high)} times the mean), quietest ${at(low)} UTC (${short(low)} times).`;
  return picture("The usual week", drawn(spoken, cells, labels), spoken);
}
