// Time charts, stacked, with a common cursor.

import { el, setText } from "./dom.js";
import { seconds, time } from "./format.js";

const { uPlot } = globalThis;
const LEFT = 76; // as wide as "12 min 30 s"
const RIGHT = 58;
const DAY = "\n{D} {MMM}";
/** Formats of the time axis by the seconds between two ticks: the format, and an extra line where a new day begins. */
const TICKS = [
  [86_400, "{D} {MMM}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DAY, null, DAY, null, null, null, 1],
];

/**
 * Make charts in a place.
 *
 * A panel has a title, series ({key, label, colour, format, stepped, fill, dash, right}) and optionally a limit ({value, label}).
 * `onZoom(from, until)` is called when the user selects a time range; null, null: zoom back. `onDecision(decision)` is
 * called when the user selects the mark of a decision.
 */
export function makeCharts(place, panels, { onZoom = null, onDecision = null } = {}) {
  const sync = uPlot.sync(Symbol("charts").toString() + Math.random());
  const clock = el("output", { class: "clock", "aria-live": "off" });
  const root = el(
    "div",
    {
      class: "charts",
      tabindex: 0,
      role: "group",
      "aria-label": `Charts: left and right move through time${onDecision ? ", Enter opens the decision at that time" : ""}${onZoom ? ", plus and minus zoom, 0 goes back" : ""}`,
      onkeydown: onKey,
    },
    clock,
  );
  const parts = panels.map((panel, index) => makePanel(panel, index === panels.length - 1));
  root.append(...parts.map((part) => part.figure));
  place.append(root);
  let data = null;
  let marks = { decisions: [], rescales: [] };
  const watching = new ResizeObserver(() => parts.forEach(({ plot, canvas }) => plot?.setSize({ width: canvas.clientWidth, height: canvas.clientHeight })));
  watching.observe(root);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", remake);
  document.addEventListener("theme", remake);
  return {
    /** Show columns by their keys, including `at` in seconds, and marks: decisions and rescales. */
    set(columns, marked = marks) {
      const again = data !== null;
      data = columns;
      marks = marked;
      for (const part of parts) {
        if (again && part.plot) part.plot.setData(part.columns());
        else part.make();
        part.rest();
      }
      setText(clock, spanOf(data.at));
    },
    end() {
      watching.disconnect();
      dark.removeEventListener("change", remake);
      document.removeEventListener("theme", remake);
      parts.forEach(({ plot }) => plot?.destroy());
    },
  };

  function remake() {
    if (data) parts.forEach((part) => part.make());
  }

  function makePanel({ title, series, limit = null }, lowest) {
    const values = series.map(() => el("output", { "aria-live": "off" }));
    const swatches = series.map(({ colour }) => el("i", { class: `swatch ${colour}` }));
    const spoken = el("p", { class: "unseen" });
    const canvas = el("div", { class: lowest ? "canvas lowest" : "canvas", "aria-hidden": "true" });
    const limits = limit ? [el("span", { class: "key" }, el("i", { class: "swatch limit" }), limit.label)] : [];
    const keys = series.map(({ label }, index) => el("span", { class: "key" }, swatches[index], `${label} `, values[index]));
    const figure = el("figure", {}, el("figcaption", {}, el("h3", {}, title), el("span", { class: "keys" }, keys, limits), spoken), canvas);
    const part = { figure, canvas, plot: null, columns, make, rest };
    return part;

    function columns() {
      return [data.at, ...series.map(({ key }) => data[key] ?? data.at.map(() => null))];
    }

    function rest() {
      showValues(null);
      setText(spoken, series.map((each) => summaryOf(each, data)).join(" "));
    }

    function showValues(index) {
      series.forEach(({ key, format }, number) => {
        const column = data[key] ?? [];
        setText(values[number], format(column[index ?? lastKnown(column)] ?? null));
      });
    }

    function make() {
      part.plot?.destroy();
      const styles = getComputedStyle(figure);
      const grid = getComputedStyle(root).borderTopColor;
      const ink = swatches.map((swatch) => getComputedStyle(swatch).color);
      const axis = (more) => ({ stroke: styles.color, font: `11px ${styles.fontFamily}`, grid: { stroke: grid, width: 1 }, ticks: { show: false }, ...more });
      const shownBy = (right) => series.find((each) => Boolean(each.right) === right)?.format;
      const right = series.some((each) => each.right);
      const axes = [
        axis(lowest ? { size: 38, gap: 5, values: TICKS } : { size: 4, values: (_, ticks) => ticks.map(() => "") }),
        axis({ size: LEFT, gap: 6, space: 34, values: (_, ticks) => ticks.map(shownBy(false)) }),
        ...(right ? [axis({ scale: "right", side: 1, size: RIGHT, gap: 6, space: 34, grid: { show: false }, values: (_, ticks) => ticks.map(shownBy(true)) })] : []),
      ];
      const fromZero = (least) => (_, low, high) => [0, Math.max(high ?? 0, least, limit?.value ?? 0) * 1.08 || 1];
      const options = {
        width: canvas.clientWidth || 600,
        height: canvas.clientHeight,
        padding: [6, right ? 0 : RIGHT, 0, 0],
        legend: { show: false },
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
        cursor: {
          y: false,
          points: { size: 6 },
          drag: { x: Boolean(onZoom), y: false, setScale: false },
          sync: { key: sync.key, setSeries: false },
          bind: { dblclick: () => () => onZoom?.(null, null) },
        },
        scales: { x: { time: true }, y: { range: fromZero(series.some((each) => each.stepped) ? 2 : 0) }, right: { range: (_, low, high) => [0, (high ?? 0) * 1.08 || 1] } },
        axes,
        series: [
          {},
          ...series.map((each, index) => ({
            scale: each.right ? "right" : "y",
            stroke: ink[index],
            width: each.thin ? 1 : 1.75,
            dash: each.dash,
            fill: each.fill ? faint(ink[index]) : undefined,
            paths: each.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
            points: { show: false },
            spanGaps: false,
          })),
        ],
        hooks: {
          drawAxes: [drawRescales],
          draw: [drawLimit, drawDecisions],
          setCursor: [(plot) => (showValues(plot.cursor.idx ?? null), showTime(plot.cursor.idx ?? null))],
          setSelect: [chosen],
          ready: [(plot) => plot.over.addEventListener("click", (event) => clicked(plot, event))],
        },
      };
      part.plot = new uPlot(options, columns(), canvas);

      function drawRescales(plot) {
        const { ctx } = plot;
        ctx.save();
        for (const each of marks.rescales) {
          const left = plot.valToPos(seconds(each.at), "x", true);
          const end = each.ended_at ? plot.valToPos(seconds(each.ended_at), "x", true) : plot.bbox.left + plot.bbox.width;
          const from = Math.max(left, plot.bbox.left);
          const to = Math.min(Math.max(end, left + 1), plot.bbox.left + plot.bbox.width);
          if (to <= from) continue;
          ctx.fillStyle = faint(styles.color, 0.09);
          ctx.fillRect(from, plot.bbox.top, to - from, plot.bbox.height);
        }
        ctx.restore();
      }

      function drawLimit(plot) {
        if (!limit) return;
        const { ctx } = plot;
        const y = Math.round(plot.valToPos(limit.value, "y", true));
        ctx.save();
        ctx.strokeStyle = getComputedStyle(figure.querySelector(".swatch.limit")).color;
        ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.lineWidth = devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(plot.bbox.left, y);
        ctx.lineTo(plot.bbox.left + plot.bbox.width, y);
        ctx.stroke();
        ctx.restore();
      }

      // Draw triangles on the lower edge that point up or down, as the size changed.
      function drawDecisions(plot) {
        const { ctx } = plot;
        const half = 4 * devicePixelRatio;
        const bottom = plot.bbox.top + plot.bbox.height;
        let drawn = 0;
        ctx.save();
        ctx.fillStyle = styles.color;
        for (const each of marks.decisions) {
          const x = plot.valToPos(seconds(each.at), "x", true);
          if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
          const up = each.to > each.from;
          ctx.beginPath();
          ctx.moveTo(x - half, up ? bottom : bottom - 2 * half);
          ctx.lineTo(x + half, up ? bottom : bottom - 2 * half);
          ctx.lineTo(x, up ? bottom - 2 * half : bottom);
          ctx.fill();
          drawn++;
        }
        ctx.restore();
        figure.dataset.marks = drawn;
      }
    }
  }

  function chosen(plot) {
    const { left, width } = plot.select;
    if (width < 6 || !onZoom) return;
    const [from, until] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    onZoom(from, until);
  }

  function clicked(plot, event) {
    if (event.detail > 1) return;
    const at = plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x");
    const reach = plot.posToVal(12, "x") - plot.posToVal(0, "x");
    const near = nearest(at);
    if (near && Math.abs(seconds(near.at) - at) <= reach) onDecision?.(near);
  }

  function nearest(at) {
    const away = (each) => Math.abs(seconds(each.at) - at);
    return marks.decisions.reduce((best, each) => (best && away(best) <= away(each) ? best : each), null);
  }

  function showTime(index) {
    setText(clock, index === null ? spanOf(data.at) : `${time(data.at[index])} UTC`);
  }

  function onKey(event) {
    const plot = parts[0].plot;
    if (!plot || event.target !== root || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = data.at.length - 1;
    const index = plot.cursor.idx ?? last;
    const step = Math.max(1, Math.round(last / (event.shiftKey ? 10 : 60)));
    const to = { ArrowLeft: index - step, ArrowRight: index + step, Home: 0, End: last }[event.key];
    if (to !== undefined) {
      const at = data.at[Math.min(Math.max(to, 0), last)];
      plot.setCursor({ left: plot.valToPos(at, "x"), top: 10 }, true);
    } else if (event.key === "Enter" && onDecision && marks.decisions.length) onDecision(nearest(data.at[index]));
    else if (["+", "=", "-"].includes(event.key) && onZoom) {
      const half = ((data.at[last] - data.at[0]) / 2) * (event.key === "-" ? 2 : 0.5);
      onZoom(data.at[index] - half, data.at[index] + half);
    } else if (["0", "Escape"].includes(event.key) && onZoom) onZoom(null, null);
    else return;
    event.preventDefault();
  }
}

function faint(colour, alpha = 0.16) {
  return colour.replace(/rgba?\(([^)]+)\)/, (_, parts) => `rgba(${parts.split(/[, /]+/).slice(0, 3).join(",")},${alpha})`);
}

function spanOf(at) {
  return at.length ? `${time(at[0])} to ${time(at.at(-1))} UTC` : "";
}

function lastKnown(column) {
  let index = column.length - 1;
  while (index > 0 && column[index] === null) index--;
  return index;
}

function summaryOf({ key, label, format }, data) {
  const known = (data[key] ?? []).filter((value) => value !== null);
  if (!known.length) return `${label}: not read.`;
  const [low, high] = known.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  return `${label}: ${format(low)} to ${format(high)}, last ${format(known.at(-1))}.`;
}

