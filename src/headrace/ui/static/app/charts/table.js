// A result as a table: a grid with one stop of the Tab key, whose cells are chosen by click or Enter.

import { h, icon } from "../dom.js";
import { change, full, moment, short, text, unitOf, utc } from "../format.js";
import { columnsOf, groupName } from "./shape.js";

const MOST = 1000;

/**
 * Return a table.
 *
 * `oncell(row, column, value, anchor)` is called for a cell that was chosen; `onsort(name)` for a head, and
 * `order` says `{by, descending}`; `swatches` are colours by group name.
 */
export function table(result, { label, oncell, onsort, order, swatches, choosable = () => true }) {
  const { groups, metrics } = columnsOf(result);
  const before = new Map((result.compare?.rows ?? []).map((row) => [groupName(row, groups), row]));
  const shows = result.view === "table" || result.view === "bars" ? before : new Map();
  const largest = metrics[0] ? Math.max(0, ...result.rows.map((row) => Number(row[metrics[0].at] ?? 0))) : 0;
  const columns = result.columns.map((column, at) => ({ ...column, at, unit: unitOf(column.name), number: isNumber(column) }));
  const head = columns.map((column) => {
    const sorted = order && (order.by === column.name || (typeof order.by === "number" && metrics[order.by]?.at === column.at));
    const inner = onsort ? h("button", { type: "button", "data-key": `sort-${column.name}`, on: { click: () => onsort(column) } }, column.name, sorted ? icon(order.descending ? "down" : "up") : null) : column.name;
    return h("th", { scope: "col", class: column.number ? "num" : "", title: column.unit ? `${column.name}, ${column.unit}` : null, "aria-sort": sorted ? (order.descending ? "descending" : "ascending") : null }, inner);
  });
  const cell = (row, column) => {
    const value = row[column.at];
    const can = oncell && choosable(column);
    const made = h("td", { class: `${column.number ? "num" : ""} ${can ? "can" : ""}`.trim(), tabindex: "-1", title: titleOf(value, column) });
    if (column.at === groups[0]?.at && swatches) {
      const colour = swatches.get(groupName(row, groups));
      if (colour) made.append(h("span.swatch", { style: { background: colour } }), " ");
    }
    if (column.at === metrics[0]?.at && groups.length && result.view === "table" && largest > 0 && Number(value) > 0) {
      made.append(h("span.share", { style: { width: `${(Math.max(1, 64 * Number(value)) / largest).toFixed(1)}px` } }));
    }
    made.append(value === null || value === undefined ? h("span.null", {}, "null") : shown(value, column));
    if (column.role === "metric" && shows.size) {
      const was = shows.get(groupName(row, groups))?.[column.at];
      made.append(h("span.was", {}, was === undefined ? "new" : change(Number(value), Number(was)) || `was ${short(was, column.unit)}`));
    }
    if (can) made.addEventListener("click", () => oncell(row, column, value, made, result));
    return made;
  };
  const body = h("tbody", {}, result.rows.slice(0, MOST).map((row) => h("tr", {}, columns.map((column) => cell(row, column)))));
  const grid = h("table.rows", { role: "grid", "aria-label": label, "aria-rowcount": result.rows.length + 1 }, h("thead", {}, h("tr", {}, head)), body);
  walk(grid, body);
  const more = result.rows.length > MOST ? h("p.note", {}, `The first ${MOST.toLocaleString("en")} of ${result.rows.length.toLocaleString("en")} rows; the export has all.`) : null;
  return h("div.scroll", {}, grid, more);
}

const isNumber = ({ type, role }) => role === "metric" || /int|float|double|decimal|number|bigint|hugeint|real/i.test(type ?? "");
const isTime = ({ type, role }) => role === "time" || /time|date/i.test(type ?? "");

function shown(value, column) {
  if (isTime(column) && typeof value === "number") return text(value, "time");
  if (column.role === "metric" && typeof value === "number") return short(value, column.unit);
  return text(value);
}

function titleOf(value, column) {
  if (value === null || value === undefined) return null;
  if (isTime(column) && typeof value === "number") return `${moment(value)} · ${utc(value)}`;
  if (typeof value === "number") return full(value, column.unit);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Arrow keys move through the cells, Enter chooses one. */
function walk(grid, body) {
  const first = body.querySelector("td");
  first?.setAttribute("tabindex", "0");
  body.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    body.querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
  });
  grid.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("td");
    if (!cell) return;
    const at = [...cell.parentNode.children].indexOf(cell);
    const to = {
      ArrowRight: () => cell.nextElementSibling, ArrowLeft: () => cell.previousElementSibling,
      ArrowDown: () => cell.parentNode.nextElementSibling?.children[at], ArrowUp: () => cell.parentNode.previousElementSibling?.children[at],
      Home: () => cell.parentNode.firstElementChild, End: () => cell.parentNode.lastElementChild,
    }[event.key];
    if (to) {
      event.preventDefault();
      to()?.focus();
    } else if (event.key === "Enter") {
      event.preventDefault();
      cell.click();
    }
  });
}
