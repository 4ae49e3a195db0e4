// What charts by ECharts share: the library, loaded when the first of them is shown; a drawing that fits its box; and
// above it marks that can be pointed at, reached with the arrow keys and chosen, and a brush.

import { h } from "../dom.js";
import { token } from "../theme.js";
import { hideTip, showTip } from "./tip.js";

const BRUSH_PX = 6;
let library = null;
let loading = null;

const load = () => (loading ??= import("../../vendor/echarts.js").then((module) => (library = module)));

/**
 * Make a plot.
 *
 * `draw({width, height, colours, font})` returns the options of ECharts, and `marksOf(pixel)` the marks
 * `{x, y, width, height, label, heading, lines, data}`, where `pixel(point, axes)` says where a point is.
 * `onmark(data, point)` is called for a mark that was clicked, or entered on the keyboard, and `onbrush(from, to)`
 * for a rectangle that was drawn, with points of the axes `brushed`; `brush` is "x", "xy" or nothing. Axes are
 * `{xAxisIndex, yAxisIndex}`.
 */
export function makePlot({ label, draw, marksOf, onmark, onbrush, brush, brushed }) {
  const drawing = h("div.drawing", { "aria-hidden": "true" });
  const said = h("span.unseen", { "aria-live": "polite" });
  const ring = h("div.ring", { hidden: true });
  const band = h("div.brush", { hidden: true });
  const keys = `${onmark ? "Arrow keys move between marks, Enter chooses one." : ""}`;
  const root = h("div.plot", { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": `${label}. ${keys}` }, drawing, band, ring, said);
  const state = { chart: null, marks: [], at: -1, from: null, width: 0, height: 0, over: false };

  const render = () => {
    const { width, height } = root.getBoundingClientRect();
    if (state.over || !width || !height) return;
    // The size is given, and nothing moves: what is live changes twice a second.
    state.chart ??= library.init(drawing, null, { renderer: "canvas", locale: "EN", width, height });
    state.chart.resize({ width, height, silent: true });
    const look = { width, height, colours: colours(), font: token("--font") };
    state.chart.setOption({ animation: false, textStyle: { fontFamily: look.font }, ...draw(look) }, { notMerge: true, silent: true });
    Object.assign(state, { width, height, marks: marksOf((point, axes) => state.chart.convertToPixel(axes, point)) });
    root.dataset.marks = state.marks.length;
  };
  const renderOnceLoaded = () => {
    if (library) return render();
    if (!root.querySelector(".bones")) root.append(h("div.bones", { "aria-hidden": "true" }, h("i")));
    const loaded = () => root.querySelector(".bones")?.remove();
    return load().then(() => (loaded(), render()), () => {
      loading = null;
      loaded();
      root.append(h("p.note", { role: "alert" }, "What draws this chart could not be loaded: load the page again. Its numbers are there as a table."));
    });
  };
  const hit = ({ offsetX: x, offsetY: y }) => state.marks.findIndex((one) => x >= one.x && x < one.x + one.width && y >= one.y && y < one.y + one.height);
  const point = (mark) => {
    const box = root.getBoundingClientRect();
    return { x: box.left + mark.x + Math.min(mark.width, 240), y: box.top + mark.y + Math.min(mark.height, 30) };
  };
  const focusMark = (at) => {
    state.at = at;
    const mark = state.marks[at];
    ring.hidden = !mark;
    if (!mark) return;
    const box = { left: mark.x, top: mark.y, width: mark.width, height: mark.height };
    for (const [name, value] of Object.entries(box)) ring.style.setProperty(name, `${value}px`);
    said.textContent = mark.label;
    const where = point(mark);
    showTip(where.x, where.y, mark.heading, mark.lines);
  };

  root.addEventListener("pointermove", (event) => {
    if (state.from) return stretch(event);
    const mark = state.marks[hit(event)];
    root.style.setProperty("cursor", mark && onmark ? "pointer" : brush ? "crosshair" : "default");
    if (mark) showTip(event.clientX, event.clientY, mark.heading, mark.lines);
    else hideTip();
  });
  root.addEventListener("pointerleave", hideTip);
  root.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !brush || !state.chart || event.pointerType === "touch") return;
    state.from = { x: event.offsetX, y: event.offsetY };
    root.setPointerCapture(event.pointerId);
  });
  const corners = (event) => {
    const [x, y] = [Math.max(0, Math.min(event.offsetX, state.width)), Math.max(0, Math.min(event.offsetY, state.height))];
    const [left, right] = [Math.min(x, state.from.x), Math.max(x, state.from.x)];
    const [top, bottom] = brush === "x" ? [0, state.height] : [Math.min(y, state.from.y), Math.max(y, state.from.y)];
    return { left, right, top, bottom };
  };
  function stretch(event) {
    hideTip();
    const { left, right, top, bottom } = corners(event);
    band.hidden = right - left < BRUSH_PX;
    for (const [name, value] of Object.entries({ left, top, width: right - left, height: bottom - top })) band.style.setProperty(name, `${value}px`);
  }
  root.addEventListener("pointerup", (event) => {
    if (!state.from) return;
    const box = corners(event);
    const moved = box.right - box.left >= BRUSH_PX;
    state.from = null;
    band.hidden = true;
    state.brushed = moved;
    const values = (x, y) => state.chart.convertFromPixel(brushed, [x, y]);
    if (moved) onbrush(values(box.left, box.bottom), values(box.right, box.top));
  });
  root.addEventListener("pointercancel", () => {
    state.from = null;
    band.hidden = true;
  });
  root.addEventListener("click", (event) => {
    if (state.brushed) return (state.brushed = false);
    const mark = state.marks[hit(event)];
    hideTip();
    if (mark && onmark) onmark(mark.data, { x: event.clientX, y: event.clientY });
  });
  root.addEventListener("keydown", (event) => {
    const last = state.marks.length - 1;
    if (last < 0) return;
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (event.key in steps || event.key === "Home" || event.key === "End") {
      event.preventDefault();
      const to = event.key === "Home" ? 0 : event.key === "End" ? last : state.at + steps[event.key];
      focusMark(Math.max(0, Math.min(last, to)));
    } else if ((event.key === "Enter" || event.key === " ") && state.marks[state.at] && onmark) {
      event.preventDefault();
      hideTip();
      onmark(state.marks[state.at].data, point(state.marks[state.at]));
    }
  });
  root.addEventListener("blur", () => {
    focusMark(-1);
    hideTip();
  });
  const seen = new ResizeObserver(renderOnceLoaded);
  seen.observe(root);
  const repaint = () => state.chart && render();
  document.addEventListener("theme", repaint);
  return {
    root,
    canvases: () => (state.chart ? [state.chart.renderToCanvas({ pixelRatio: devicePixelRatio || 1 })] : []),
    destroy() {
      state.over = true;
      seen.disconnect();
      document.removeEventListener("theme", repaint);
      state.chart?.dispose();
      hideTip();
    },
  };
}

const colours = () => ({ ink: token("--ink"), soft: token("--ink-3"), grid: token("--grid"), line: token("--line-strong"), other: token("--series-other") });

/** Return options of an axis of which only the labels are seen, and what `more` adds. */
export const plainAxis = ({ colours: { soft } }, more) => ({ type: "value", axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false }, ...more, axisLabel: { color: soft, showMinLabel: true, showMaxLabel: true, ...more.axisLabel } });

/** Return options of a text that is small, beside the axes. */
export const words = ({ colours: { soft }, font }, text, left, top, more) => ({ text, left, top, padding: 0, textVerticalAlign: "top", textStyle: { color: soft, fontFamily: font, fontSize: 12, fontWeight: 400, ...more } });
