// What charts drawn by hand share: a canvas that fits its box, marks that can be pointed at, reached with the
// arrow keys and chosen, and a brush.

import { h } from "../dom.js";
import { token } from "../theme.js";
import { hideTip, showTip } from "./tip.js";

const BRUSH_PX = 6;

/**
 * Make a plot.
 *
 * `draw(context, width, height, colours)` draws, and returns marks `{x, y, width, height, label, heading, lines, data}`;
 * `onmark(data, point)` is called for a mark that was clicked, or entered on the keyboard, and
 * `onbrush(from, to, point)` for a rectangle that was drawn, in pixels; `brush` is "x", "xy" or nothing.
 */
export function makePlot({ label, draw, onmark, onbrush, brush }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const said = h("span.unseen", { "aria-live": "polite" });
  const ring = h("div.ring", { hidden: true });
  const band = h("div.brush", { hidden: true });
  const keys = `${onmark ? "Arrow keys move between marks, Enter chooses one." : ""}`;
  const root = h("div.plot", { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": `${label}. ${keys}` }, canvas, band, ring, said);
  const state = { marks: [], at: -1, from: null, width: 0, height: 0 };

  const render = () => {
    const { width, height } = root.getBoundingClientRect();
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = `12px ${token("--font")}`;
    Object.assign(state, { width, height, marks: draw(context, width, height, colours()) });
    root.dataset.marks = state.marks.length;
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
    if (event.button !== 0 || !brush || event.pointerType === "touch") return;
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
    if (moved) onbrush(box, { x: event.clientX, y: event.clientY });
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
  const seen = new ResizeObserver(render);
  seen.observe(root);
  const repaint = () => render();
  document.addEventListener("theme", repaint);
  return {
    root, render,
    canvases: () => [canvas],
    destroy() {
      seen.disconnect();
      document.removeEventListener("theme", repaint);
      hideTip();
    },
  };
}

const colours = () => ({ ink: token("--ink"), soft: token("--ink-3"), grid: token("--grid"), panel: token("--panel"), first: token("--series-1") });

/** Return at most `count` round numbers from `low` to `high`. */
export function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((one) => one * power >= raw) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

/** Return a text cut to a width, with an ellipsis. */
export function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
