// Drilling: what can be done with a mark or a value. The same menu for every chart, cell and bar.

import { h } from "../dom.js";
import { moment, stamp, text, utc } from "../format.js";
import { openDialog, openMenu } from "../menus.js";
import { valueFilter, withFilter, withGroup, zoomed } from "../query.js";

/** Round an end of a brushed range to as many digits as the range needs. */
function rounded(value, span) {
  const digits = Math.max(0, Math.min(12, 2 - Math.floor(Math.log10(Math.abs(span) || 1))));
  return Number(value.toFixed(digits));
}

/** Return a query with filters that keep a range of a column. */
export function withRange(query, { column, low, high, time }) {
  const span = high - low;
  const others = query.filters.filter((one) => !(one.column === column && [">=", "<"].includes(one.op)));
  const filters = [...others, { column, op: ">=", value: rounded(low, span) }, { column, op: "<", value: rounded(high, span) }];
  const next = { ...query, filters };
  return time ? zoomed(next, time.from, time.to) : next;
}

/** Open the menu of a mark `{values, time, range}` at a point; `act(query)` shows what was chosen. */
export function openDrill(query, { values = {}, time, range, row }, point, act, columns = []) {
  const known = new Set(columns.map((one) => one.name));
  const items = [];
  const named = Object.entries(values).filter(([column]) => known.has(column));
  const isRest = named.length > 0 && named.every(([, value]) => value === "other");
  for (const [column, value] of isRest ? [] : named) {
    items.push({ heading: `${column}: ${text(value)}` },
      { label: "Only these rows", hint: "=", icon: "add", act: () => act(withFilter(query, valueFilter(column, value))) },
      { label: "Without these rows", hint: "≠", icon: "close", act: () => act(withFilter(query, valueFilter(column, value, false))) });
    if (!query.group_by.includes(column)) items.push({ label: `Group by ${column}`, icon: "bars", act: () => act(grouped(query, column)) });
  }
  const kept = isRest ? query : named.reduce((one, [column, value]) => withFilter(one, valueFilter(column, value)), query);
  const within = range ? withRange(kept, { ...range, time }) : time ? zoomed(kept, time.from, time.to) : kept;
  if (range) items.push({ heading: `${range.column}: ${text(range.low)} to ${text(range.high)}` }, { label: "Only this range", icon: "add", act: () => act(withRange(query, range)) });
  if (time) items.push({ heading: stamp(time.from, true) }, { label: "Zoom to this time", icon: "search", act: () => act(zoomed(query, time.from, time.to)) });
  if (query.view !== "samples") items.push(null, { label: "See the rows", hint: "raw samples", icon: "samples", act: () => act({ ...within, view: "samples", limit: 100 }) });
  if (row) items.push(null, { label: "Show the whole row", icon: "table", act: () => showRow(row) });
  const others = columns.filter((one) => one.kind === "string" && !query.group_by.includes(one.name) && !(one.name in values)).slice(0, 6);
  if (others.length && query.view !== "samples") items.push({ heading: "Break these rows down by" }, ...others.map(({ name }) => ({ label: name, icon: "bars", act: () => act(grouped(within, name)) })));
  openMenu(point, items, "What to do with this mark");
}

/** Show all values of a row below each other, JSON with its indentation. */
function showRow({ columns, row }) {
  const value = (one, at) => {
    const plain = row[at];
    if (plain === null || plain === undefined) return h("span.note", {}, "null");
    if (typeof plain === "object") return JSON.stringify(plain, null, 2);
    return /time|date/i.test(one.type) ? `${moment(plain)} · ${utc(plain)}` : pretty(text(plain));
  };
  openDialog("A row", (close) => [h("div.scroll.row", { tabindex: "0" }, h("dl.details", {}, columns.map((one, at) => [h("dt", {}, one.name), h("dd", {}, value(one, at))]))),
    h("div.actions", {}, h("button.button.primary", { type: "button", autofocus: true, on: { click: close } }, "Close"))]);
}

function pretty(value) {
  if (!/^[[{]/.test(value)) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

function grouped(query, column) {
  const next = withGroup(query, column);
  return ["samples", "heatmap", "distribution"].includes(query.view) ? { ...next, view: "bars", limit: 10 } : next;
}
