// The door to all charts: an answer becomes what its view shows, or says why there is nothing to see.

import { h, icon } from "../dom.js";
import { describe } from "../query.js";
import { bars } from "./bars.js";
import { distribution } from "./distribution.js";
import { heatmap } from "./heatmap.js";
import { series } from "./series.js";
import { columnsOf, groupName, isTotal } from "./shape.js";
import { table } from "./table.js";

/**
 * Return the chart of an answer: `{root, destroy, canvases, wanted, legend}`.
 *
 * `on.mark({values, time, range}, point)` is called for a mark that was chosen, `on.zoom(from, to)` and
 * `on.range({column, low, high, time})` for what was brushed, `on.cell` and `on.sort` as `table` says.
 */
export function chart(query, result, on = {}, { hidden } = {}) {
  const label = describe(query);
  if (!result.rows.length) return nothing(query, result, on);
  const column = query.metrics[0]?.column;
  const made = {
    series: () => series(result, { label, onmark: on.mark, onzoom: on.zoom, hidden }),
    area: () => series(result, { label, stacked: isTotal(result.columns.find((one) => one.role === "metric")?.name ?? ""), onmark: on.mark, onzoom: on.zoom, hidden }),
    bars: () => bars(result, { label, onmark: on.mark }),
    distribution: () => distribution(result, { label, column, onmark: on.mark, onrange: on.range }),
    heatmap: () => heatmap(result, { label, column, onmark: on.mark, onrange: on.range }),
  }[query.view];
  if (made) return made();
  const rows = query.view === "samples" ? timeFirst(result) : result;
  const root = table(rows, { label, oncell: on.cell, onsort: on.sort, order: query.order });
  return { root, destroy() {}, canvases: () => [], legend: [] };
}

/** Return what is drawn as a table, for those who cannot see it or want the numbers. */
export const asTable = (query, result, { cell, swatches } = {}) => table(result, { label: `${describe(query)}, as a table`, oncell: cell, swatches });

/** Return one row for each group of an answer over time, with what is asked of a line most: last, mean, largest. */
export function summary(result) {
  const { time, groups, metrics } = columnsOf(result);
  const found = new Map();
  for (const row of result.rows) {
    const name = groupName(row, groups);
    if (!found.has(name)) found.set(name, { row, values: metrics.map(() => []) });
    metrics.forEach((metric, at) => {
      const value = row[metric.at];
      if (value !== null && value !== undefined) found.get(name).values[at].push([row[time.at], Number(value)]);
    });
  }
  const columns = groups.map(({ name, type }) => ({ name, type, role: "group" }));
  metrics.forEach(({ name }) => {
    const words = isTotal(name) && !/rate/.test(name) ? ["total"] : ["mean"];
    for (const word of [...words, "smallest", "largest", "last"]) columns.push({ name: metrics.length > 1 || word !== "total" ? `${name}: ${word}` : name, type: "float64", role: "metric" });
  });
  const rows = [...found.values()].map(({ row, values }) => [
    ...groups.map((one) => row[one.at]),
    ...values.flatMap((all, at) => {
      const numbers = all.map(([, value]) => value);
      if (!numbers.length) return [null, null, null, null];
      const sum = numbers.reduce((one, other) => one + other, 0);
      const last = all.reduce((one, other) => (other[0] > one[0] ? other : one))[1];
      const total = isTotal(metrics[at].name) && !/rate/.test(metrics[at].name);
      return [total ? sum : sum / numbers.length, Math.min(...numbers), Math.max(...numbers), last];
    }),
  ]);
  return { view: "summary", columns, rows };
}

/** Return raw rows with their time as the first column. */
function timeFirst(result) {
  const at = result.columns.findIndex((one) => one.role === "time");
  if (at <= 0) return result;
  const first = (row) => [row[at], ...row.slice(0, at), ...row.slice(at + 1)];
  return { ...result, columns: first(result.columns), rows: result.rows.map(first) };
}

function nothing(query, result, on) {
  const why = result.rows_total === 0 ? `Nothing has arrived in ${query.stream} yet.`
    : query.filters.length ? `Nothing in ${query.stream} at this time has what the filters ask: remove one, or choose another time.`
      : `${query.stream} has no rows at this time: choose another one.`;
  const root = h("div.empty", {}, icon("search"), h("p.title", {}, result.rows_total === 0 ? "No rows yet" : "No rows match"), h("p", {}, why),
    on.widen && result.rows_total ? h("button.button", { type: "button", on: { click: on.widen } }, "Show all times") : null);
  return { root, destroy() {}, canvases: () => [], legend: [] };
}
