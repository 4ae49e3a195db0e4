// Lines or stacked areas over time, by uPlot: one plot for each metric, all with the same cursor.

import uPlot from "../../vendor/uplot.js";
import { h } from "../dom.js";
import { full, moment, short, utc } from "../format.js";
import { token } from "../theme.js";
import { faded, mixed, styleOf } from "./palette.js";
import { lines } from "./shape.js";
import { timeTicks } from "./time_axis.js";
import { hideTip, showTip } from "./tip.js";

const TIP_LINES = 12;

/** Return series or areas; `stacked` puts groups on each other. */
export function series(result, { label, stacked, onmark, onzoom, hidden = new Set() }) {
  const shaped = lines(result);
  const compared = result.compare ? lines({ ...result, rows: result.compare.rows }) : null;
  const root = h("div.chart");
  const plots = shaped.metrics.map((metric) => {
    const own = shaped.lines.filter((line) => line.metric === metric.name && !hidden.has(line.group));
    const past = compared ? shift(compared, metric.name, result, shaped.times).filter((line) => !hidden.has(line.group)) : [];
    return metricPlot({ metric, own, past, times: shaped.times, result, label, stacked, onmark, onzoom, single: shaped.metrics.length === 1 });
  });
  root.append(...plots.map((plot) => plot.figure));
  const repaint = () => plots.forEach((plot) => plot.again());
  document.addEventListener("theme", repaint);
  return {
    root, wanted: 60 + 190 * plots.length,
    legend: legendOf(shaped),
    canvases: () => plots.map((plot) => plot.canvas()),
    destroy() {
      document.removeEventListener("theme", repaint);
      plots.forEach((plot) => plot.destroy());
      hideTip();
    },
  };
}

function legendOf({ lines: all, groups }) {
  if (!groups.length) return [];
  const seen = new Map();
  for (const line of all) if (!seen.has(line.group)) seen.set(line.group, { name: line.group, data: line.data, ...styleOf(line.order, line.group) });
  return [...seen.values()];
}

/** Bring lines of another time over the times that are shown. */
function shift(compared, metric, result, times) {
  const by = result.from_ms - result.compare.from_ms;
  const values = new Map();
  return compared.lines.filter((line) => line.metric === metric).map((line) => {
    values.clear();
    compared.times.forEach((time, at) => values.set(time + by, line.values[at]));
    return { ...line, values: times.map((time) => values.get(time) ?? null) };
  });
}

function metricPlot({ metric, own, past, times, result, label, stacked, onmark, onzoom, single }) {
  const said = h("span.unseen", { "aria-live": "polite" });
  const box = h("div.plot", { tabindex: "0", role: "application", "aria-roledescription": "chart", "data-marks": times.length,
    "aria-label": `${label}: ${metric.name} over time, ${own.length} lines. Arrow keys move through time, Enter chooses.` }, said);
  const figure = h("figure", {}, single ? null : h("figcaption", {}, metric.name), box);
  const drawn = stacked ? stack(own) : own.map((line) => line.values);
  const data = [times.map((time) => time / 1000), ...(stacked ? drawn.slice().reverse() : drawn), ...past.map((line) => line.values)];
  const ordered = stacked ? own.slice().reverse() : own;
  let plot = null;
  const build = () => {
    plot?.destroy();
    const { width, height } = box.getBoundingClientRect();
    plot = new uPlot(options({ width: width || 600, height: height || 200, ordered, past, metric, result, stacked, onzoom }), data, box);
  };
  const nearest = (at, y) => {
    let best = null;
    ordered.forEach((line, index) => {
      const value = data[index + 1][at];
      if (value === null || value === undefined) return;
      const pixel = plot.valToPos(value, "y");
      const distance = stacked ? (pixel <= y ? y - pixel : Infinity) : Math.abs(pixel - y);
      if (distance < (best?.distance ?? Infinity)) best = { line, distance };
    });
    return best?.line ?? own[0];
  };
  const tell = (at, point) => {
    const rows = own.map((line) => ({ colour: styleOf(line.order, line.group).colour, name: line.name, number: line.values[at], value: full(line.values[at], metric.unit) }))
      .concat(past.map((line) => ({ colour: token("--ink-3"), name: `${line.name}, before`, number: line.values[at], value: full(line.values[at], metric.unit) })))
      .filter((row) => row.number !== null && row.number !== undefined).sort((one, other) => other.number - one.number);
    const more = rows.length > TIP_LINES ? [{ name: `and ${rows.length - TIP_LINES} more`, value: "" }] : [];
    showTip(point.x, point.y, `${moment(times[at])} · ${utc(times[at])}`, [...rows.slice(0, TIP_LINES), ...more]);
    return rows;
  };
  const choose = (at, line, point) => onmark?.({ values: line?.data ?? {}, time: { from: times[at], to: times[at] + (result.bucket_ms || 1) } }, point);
  const screen = (at) => {
    const over = plot.over.getBoundingClientRect();
    return { x: over.left + plot.valToPos(times[at] / 1000, "x"), y: over.top + 20 };
  };
  box.addEventListener("pointermove", (event) => {
    const at = plot?.cursor.idx;
    if (at === null || at === undefined || event.buttons || !event.composedPath().includes(plot.over)) return hideTip();
    tell(at, { x: event.clientX, y: event.clientY });
  });
  box.addEventListener("pointerleave", hideTip);
  let pressed = null;
  box.addEventListener("pointerdown", (event) => (pressed = event.clientX));
  box.addEventListener("click", (event) => {
    const at = plot?.cursor.idx;
    if (at === null || at === undefined || (pressed !== null && Math.abs(event.clientX - pressed) > 4)) return;
    hideTip();
    choose(at, nearest(at, plot.cursor.top), { x: event.clientX, y: event.clientY });
  });
  let at = -1;
  box.addEventListener("keydown", (event) => {
    const last = times.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to !== undefined && last >= 0) {
      event.preventDefault();
      at = Math.max(0, Math.min(last, to));
      const point = screen(at);
      plot.setCursor({ left: plot.valToPos(times[at] / 1000, "x"), top: 20 });
      const rows = tell(at, point);
      said.textContent = `${moment(times[at])}: ${rows.slice(0, 5).map((row) => `${row.name} ${row.value}`).join(", ")}`;
    } else if ((event.key === "Enter" || event.key === " ") && at >= 0) {
      event.preventDefault();
      hideTip();
      choose(at, own[0], screen(at));
    }
  });
  box.addEventListener("blur", hideTip);
  const seen = new ResizeObserver(() => {
    const { width, height } = box.getBoundingClientRect();
    if (!width || !height) return;
    if (plot) plot.setSize({ width, height });
    else build();
  });
  seen.observe(box);
  return {
    figure, again: () => plot && build(), canvas: () => box.querySelector("canvas"),
    destroy() {
      seen.disconnect();
      plot?.destroy();
    },
  };
}

/** Return lines added up, the first lowest. */
function stack(own) {
  let below = own[0]?.values.map(() => 0) ?? [];
  return own.map((line) => (below = below.map((value, at) => value + (line.values[at] ?? 0))));
}

function options({ width, height, ordered, past, metric, result, stacked, onzoom }) {
  const axis = { stroke: token("--ink-3"), grid: { stroke: token("--grid"), width: 1 }, ticks: { show: false }, font: `12px ${token("--font")}` };
  const few = result.rows.length && result.bucket_ms ? (result.to_ms - result.from_ms) / result.bucket_ms < 60 : false;
  return {
    width, height, padding: [10, 26, 0, 0], legend: { show: false },
    cursor: { drag: { x: Boolean(onzoom), y: false, setScale: false, dist: 6 }, points: { size: 7 }, y: false },
    scales: { x: { time: true, range: () => [result.from_ms / 1000, result.to_ms / 1000] }, y: { range: (_, low, high) => span(low, high, stacked || /^(count|rate|distinct)/.test(metric.name)) } },
    axes: [
      { ...axis, size: 28, splits: (self, _, low, high) => timeTicks(low * 1000, high * 1000, self.bbox.width / devicePixelRatio / 100).map((tick) => tick.at / 1000),
        values: (self) => timeTicks(self.scales.x.min * 1000, self.scales.x.max * 1000, self.bbox.width / devicePixelRatio / 100).map((tick) => tick.label) },
      { ...axis, size: 58, values: (_, splits) => splits.map((one) => short(one, metric.unit)) },
    ],
    series: [{}, ...ordered.map((line) => {
      const { colour, dash } = styleOf(line.order, line.group);
      return { stroke: colour, dash: stacked ? [] : dash, width: stacked ? 1 : 1.75, fill: stacked ? mixed(colour, 0.75) : ordered.length === 1 ? faded(colour, 0.1) : undefined,
        points: { show: few && !stacked ? undefined : false, size: 5 }, spanGaps: false };
    }), ...past.map((line) => ({ stroke: faded(past.length === 1 ? token("--series-other") : styleOf(line.order, line.group).colour, past.length === 1 ? 1 : 0.6), dash: [4, 4], width: 1.5, points: { show: false } }))],
    hooks: { setSelect: [(self) => {
      if (!onzoom || self.select.width < 6) return;
      const [from, to] = [self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x")];
      self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      onzoom(from * 1000, to * 1000);
    }] },
  };
}

function span(low, high, fromZero) {
  if (low === null || high === null || !Number.isFinite(low)) return [0, 1];
  const bottom = fromZero || (low >= 0 && low < high * 0.6) ? Math.min(0, low) : low;
  const room = (high - bottom || Math.abs(high) || 1) * 0.06;
  return [bottom === 0 ? 0 : bottom - room, high + room];
}
