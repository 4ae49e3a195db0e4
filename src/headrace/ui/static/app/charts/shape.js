// Results as charts want them: columns by role, rows by group.

import { text, unitOf } from "../format.js";

/** Return the places of a result's columns by role. */
export function columnsOf(result) {
  const places = (role) => result.columns.flatMap((column, at) => (column.role === role ? [{ ...column, at, unit: unitOf(column.name) }] : []));
  return { time: places("time")[0], groups: places("group"), metrics: places("metric"), low: places("bucket_low")[0], high: places("bucket_high")[0] };
}

/** Return the name of a row's group: its values side by side. */
export const groupName = (row, groups) => groups.map(({ at, type }) => text(row[at], /time/i.test(type) ? "time" : "")).join(" · ");

/**
 * Return rows over time as one line for each group and metric.
 *
 * `times` rise; each line is `{name, values, metric, unit, data}` with a value, or null, for each time;
 * `data` is the group's values by column.
 */
export function lines(result) {
  const { time, groups, metrics } = columnsOf(result);
  const times = [...new Set(result.rows.map((row) => row[time.at]))].sort((one, other) => one - other);
  const places = new Map(times.map((one, at) => [one, at]));
  const found = new Map();
  for (const row of result.rows) {
    const name = groupName(row, groups);
    let group = found.get(name);
    if (!group) {
      const data = Object.fromEntries(groups.map((one) => [one.name, row[one.at]]));
      group = metrics.map((metric) => ({ name: groups.length ? name : metric.name, group: name, metric: metric.name, unit: metric.unit, data, values: new Array(times.length).fill(null) }));
      found.set(name, group);
    }
    metrics.forEach((metric, at) => {
      const value = row[metric.at];
      group[at].values[places.get(row[time.at])] = value === null ? null : Number(value);
    });
  }
  const ordered = [...found.entries()].sort(([one], [other]) => (one === "other") - (other === "other"));
  return { times, metrics, groups, lines: ordered.flatMap(([, group], order) => group.map((one) => ({ ...one, order }))) };
}

/** Return whether a metric is a count or a sum, whose groups may be stacked. */
export const isTotal = (name) => /^(count|rate|sum|sum_rate)\b/.test(name);
