// Charts over time, by uPlot; what they show is also said in words.
/* global uPlot */

import { h } from "./dom.js";
import { rate } from "./format.js";

const HEIGHT = 190;
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Columns of samples: [times, …] with a gap where nobody wrote one. pick: functions of (sample, the
// one before it in the same run, or null), each of a line.
export function columns(series, picks) {
  const all = [[], ...picks.map(() => [])];
  let before = null;
  for (const sample of series.samples) {
    const gap = before && sample.at - before.at > 3.5 * series.resolution;
    if (gap) {
      all[0].push(before.at + series.resolution);
      picks.forEach((_, i) => all[i + 1].push(null));
    }
    const last = before && before.run === sample.run && !gap ? before : null;
    all[0].push(sample.at);
    picks.forEach((pick, i) => all[i + 1].push(pick(sample, last)));
    before = sample;
  }
  return all;
}

export const perMinute = (name) => (sample, before) =>
  before && sample.at > before.at
    ? Math.max(0, (60 * (sample[name] - before[name])) / (sample.at - before.at)) : null;

export const level = (name) => (sample) => sample[name];

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clockOf = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayOf = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

function ticks(plot, splits) {
  const [from, to] = [plot.scales.x.min, plot.scales.x.max];
  const format = to - from > 2 * 86400 ? dayOf : clockOf;
  return splits.map((at) => format.format(at * 1000));
}

function options(chart, width) {
  const [text, grid] = [colour("muted"), colour("line")];
  const axis = { stroke: text, font: "12px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: grid, width: 1 } };
  return {
    width, height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "redisq" }, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: true, range: () => chart().range }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 4)] } },
    axes: [
      { ...axis, values: ticks, size: 30, space: 60, grid: { show: false } },
      { ...axis, size: 48, space: 30, values: (_, splits) => splits.map((n) => compact.format(n)) },
    ],
    series: [{}, ...chart().lines.map((line) => ({
      label: line.label, stroke: colour(line.colour), width: 1.8, spanGaps: false, points: { show: false },
      fill: line.area ? `${colour(line.colour)}22` : undefined,
    }))],
    hooks: {
      draw: [(plot) => drawMarks(plot, chart().marks)],
      setCursor: [(plot) => chart().tell?.(plot.cursor.idx)],
    },
  };
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([4, 4]);
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    if (mark.at < plot.scales.x.min || mark.at > plot.scales.x.max) continue;
    const x = Math.round(plot.valToPos(mark.at, "x", true));
    ctx.strokeStyle = colour(mark.kind === "release" || mark.kind === "configuration" ? "violet" : "muted");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

const last = (values) => values.findLast((value) => value !== null && value !== undefined);

// chart: {title, lines: [{label, colour, area}], data, range: [from, to], marks, show(n)}
export function chart(given) {
  const show = given.show || rate;
  const words = given.lines.map((line, i) => {
    const values = given.data[i + 1].filter((value) => value !== null);
    return values.length ? `${line.label}: ${show(last(values))} now, at most ${show(Math.max(...values))}` : `${line.label}: nothing yet`;
  });
  const latest = given.lines.map((_, i) => last(given.data[i + 1]));
  return h("figure", { class: "chart", key: given.title },
    h("figcaption", null, h("h3", null, given.title), h("ul", { class: "legend" },
      given.lines.map((line, i) => h("li", { class: `key ${line.colour}` }, `${line.label} `,
        h("b", { "data-line": String(i) }, latest[i] === undefined ? "–" : show(latest[i])))))),
    h("div", { class: "plot", role: "img", "aria-label": `${given.title}. ${words.join("; ")}.`, hook: hookOf(given, show) }));
}

function hookOf(given, show) {
  return {
    create(node) {
      node.given = given;
      node.show = show;
      const chartOf = () => ({ ...node.given, tell: (at) => tell(node, at) });
      const build = () => {
        node.plot?.destroy();
        node.plot = new uPlot(options(chartOf, Math.max(node.clientWidth, 200)), node.given.data, node);
      };
      // Only when it is in the document does it have a width.
      node.seen = new ResizeObserver(() => {
        if (!node.plot) build();
        else if (node.plot.width !== node.clientWidth) node.plot.setSize({ width: node.clientWidth, height: HEIGHT });
      });
      node.seen.observe(node);
      node.rebuild = build;
      dark.addEventListener("change", build);
    },
    update(node) {
      node.given = given;
      node.plot?.setData(given.data);
    },
    remove(node) {
      node.seen.disconnect();
      dark.removeEventListener("change", node.rebuild);
      node.plot?.destroy();
    },
  };
}

// What the legend says where the pointer is, else now.
function tell(node, at) {
  for (const place of node.closest("figure").querySelectorAll("[data-line]")) {
    const values = node.given.data[Number(place.dataset.line) + 1];
    const value = at === null || at === undefined ? last(values) : values[at];
    place.textContent = value === null || value === undefined ? "–" : node.show(value);
  }
}
