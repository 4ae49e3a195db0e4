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

/**
 * Return the buckets of values that rows are in, which are even, or grow as 1, 2, 5, 10.
 *
 * `bounds` rise; `placeOf(row)` is the place of a row's bucket; `around(from, to)` is the range of the
 * buckets between two places; `labels(count, text)` are options for an axis of places, with about `count` round bounds.
 */
export function bucketsOf(rows, low, high) {
  const known = [...new Set(rows.flatMap((row) => [row[low], row[high]]))].sort((one, other) => one - other);
  const step = rows.length ? rows[0][high] - rows[0][low] : 1;
  const isWhole = (number) => Math.abs(number - Math.round(number)) < 1e-6;
  const isEven = rows.every((row) => isWhole((row[high] - row[low]) / step));
  const bounds = known.slice(0, 1);
  for (const one of known.slice(1)) {
    // A bucket without rows may not be in the answer.
    for (let left = isEven ? Math.round((one - bounds.at(-1)) / step) : 1; left > 1; left -= 1) bounds.push(bounds.at(-1) + step);
    bounds.push(one);
  }
  const places = new Map(bounds.map((bound, at) => [bound, at]));
  const last = Math.max(1, bounds.length - 1);
  return {
    bounds, last,
    placeOf: (row) => places.get(row[low]),
    around: (from, to) => ({ low: bounds[Math.max(0, Math.floor(from))], high: bounds[Math.min(last, Math.ceil(to))] }),
    labels(count, text) {
      const every = (isEven ? [1, 2, 4, 5, 10, 20, 40] : [1, 3, 6, 9]).find((one) => one >= last / Math.max(1, count)) ?? last;
      const first = Math.max(0, bounds.findIndex((one) => isWhole(isEven ? one / step / every : Math.log10(one))));
      return { customValues: bounds.flatMap((_, at) => (at >= first && (at - first) % every === 0 ? [at] : [])), formatter: (at) => text(bounds[at]) };
    },
  };
}

/** Return whether a metric is a count or a sum, whose groups may be stacked. */
export const isTotal = (name) => /^(count|rate|sum|sum_rate)\b/.test(name);
