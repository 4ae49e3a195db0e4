// The time range: relative, absolute, beside an earlier one; one step back, on or out.

import { h, icon } from "../dom.js";
import { milliseconds, moment, stamp, utc, zone } from "../format.js";
import { closeOpen, openPopover } from "../menus.js";
import { COMPARISONS } from "../query.js";

const QUICK = [["-5m", "Last 5 minutes"], ["-15m", "Last 15 minutes"], ["-1h", "Last hour"], ["-6h", "Last 6 hours"], ["-1d", "Last day"], ["-7d", "Last 7 days"], ["-28d", "Last 4 weeks"]];

/** Return a time of a query in ms: absolute, `now`, or `-15m` before it. */
export function resolve(time, now = Date.now()) {
  if (typeof time === "number") return time;
  if (time === "now") return now;
  if (/^-?\d{9,}$/.test(time)) return Number(time);
  if (String(time).startsWith("-")) return now - (milliseconds(String(time).slice(1)) ?? 0);
  return Date.parse(time);
}

/** Return a range in words. */
export function rangeWords({ from, to, compare }) {
  const quick = to === "now" && QUICK.find(([key]) => key === from)?.[1];
  const beside = compare ? ` and ${COMPARISONS.find(([key]) => key === compare)?.[1] ?? `${compare} before`}` : "";
  if (quick) return quick + beside;
  const [low, high] = [stamp(resolve(from)), to === "now" ? "now" : stamp(resolve(to))];
  return `${low} to ${high.slice(0, 10) === low.slice(0, 10) ? high.slice(11) : high}${beside}`;
}

/** Return the controls of a range; `onchange({from, to, compare})` is called for another one. `whole` is all there is. */
export function timeRange(query, { onchange, whole, compares = true }) {
  const length = () => resolve(query.to) - resolve(query.from);
  const move = (by) => {
    const [from, to] = [resolve(query.from), resolve(query.to)];
    onchange({ from: Math.round(from + by * (to - from)), to: Math.round(to + by * (to - from)) });
  };
  const out = () => {
    const [middle, half] = [(resolve(query.from) + resolve(query.to)) / 2, length()];
    onchange({ from: Math.round(middle - half), to: Math.round(middle + half) });
  };
  const words = rangeWords(query);
  const button = h("button.button", { type: "button", "data-key": "time", "aria-haspopup": "dialog", "aria-expanded": "false",
    title: `${moment(resolve(query.from))} to ${moment(resolve(query.to))} in ${zone()}\n${utc(resolve(query.from))} to ${utc(resolve(query.to))}` },
  icon("clock"), h("span.what", {}, words), icon("down"));
  button.addEventListener("click", () => openPopover(button, "Time range", picker(query, { onchange, whole, compares })));
  const small = (name, label, act) => h("button.button.only-icon", { type: "button", "aria-label": label, title: label, "data-key": `time-${name}`, on: { click: act } }, icon(name));
  return h("div.joined.time-range", {}, small("left", "Earlier", () => move(-1)), button, small("right", "Later", () => move(1)), small("zoomout", "Zoom out", out));
}

function picker(query, { onchange, whole, compares }) {
  const choose = (range) => {
    closeOpen();
    onchange(range);
  };
  const quick = h("div.quick", { role: "group", "aria-label": "Relative" }, QUICK.map(([key, words]) =>
    h("button.button.plain", { type: "button", "aria-pressed": String(query.from === key && query.to === "now"), on: { click: () => choose({ from: key, to: "now" }) } }, words)),
  whole ? h("button.button.plain", { type: "button", on: { click: () => choose(whole) } }, "All that is kept") : null);
  const from = h("input.field", { type: "datetime-local", step: "1", value: local(resolve(query.from)), required: true });
  const to = h("input.field", { type: "datetime-local", step: "1", value: local(resolve(query.to)), required: true });
  const note = h("p.note", { role: "alert" });
  const submit = (event) => {
    event.preventDefault();
    const range = { from: Date.parse(from.value), to: Date.parse(to.value) };
    if (range.from < range.to) choose(range);
    else note.textContent = "The range must end after it begins.";
  };
  const compare = h("select.select", { on: { change: (event) => choose({ from: query.from, to: query.to, compare: event.target.value || undefined }) } },
    COMPARISONS.map(([key, words]) => h("option", { value: key, selected: (query.compare ?? "") === key }, words)));
  return h("div.picker", {}, quick, h("form.stack", { on: { submit } },
    h("label.labelled", {}, h("span", {}, "From"), from), h("label.labelled", {}, h("span", {}, "To"), to),
    h("p.note", {}, `Times are of ${zone()}.`), note, h("button.button.primary", { type: "submit" }, "Apply"),
    compares ? h("label.labelled", {}, h("span", {}, "Beside"), compare) : null));
}

function local(ms) {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().slice(0, 19);
}
