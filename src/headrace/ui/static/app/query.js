// A query: what the address bar holds, how it is described, and what drilling into a mark makes of it.

export const VIEWS = [
  ["table", "Table"], ["series", "Time series"], ["area", "Stacked area"], ["bars", "Bars"],
  ["distribution", "Distribution"], ["heatmap", "Heat map"], ["samples", "Raw samples"],
];
export const COMPARISONS = [["", "nothing"], ["1h", "the hour before"], ["1d", "the day before"], ["7d", "the week before"], ["28d", "four weeks before"]];
export const BUCKETS = ["auto", "1s", "10s", "1m", "5m", "15m", "1h", "6h", "1d", "7d"];
export const TIMELESS = new Set(["count", "rate"]);
export const FUNCTIONS = {
  count: "rows", rate: "rows per second", sum: "total", avg: "mean", min: "smallest", max: "largest", p50: "median",
  p75: "75th percentile", p90: "90th percentile", p95: "95th percentile", p99: "99th percentile", distinct: "distinct values",
  sum_rate: "total per second",
};
export const OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "not contains", "starts with", "matches", "is null", "is not null"];
const BARE = new Set(["is null", "is not null"]);

/** Return a query over a stream that shows how many rows there are over time. */
export function firstQuery(stream, range) {
  return { stream, ...range, filters: [], group_by: [], metrics: [{ fn: "count" }], view: "series", bucket: "auto", limit: 10 };
}

/** Return the range to begin with: the last hour, or everything where the stream's times are older. */
export function firstRange(stream, now = Date.now()) {
  if (stream?.first_ms === null || stream?.first_ms === undefined || stream.last_ms > now - 3600000) return { from: "-1h", to: "now" };
  return { from: stream.first_ms, to: stream.last_ms + 1 };
}

/** Return a query with all its fields: saved ones leave out what is usual. */
export const complete = (query) => ({ from: "-1h", to: "now", filters: [], group_by: [], metrics: [{ fn: "count" }], view: "table", bucket: "auto", ...query });

export const metricName = (metric) => (metric.column ? `${metric.fn}(${metric.column})` : metric.fn);

/** Return a metric of its name, or null where it is none. */
export function metricOf(text) {
  const match = /^(\w+)(?:\((.*)\))?$/s.exec(text.trim());
  if (!match || !(match[1] in FUNCTIONS)) return null;
  const needs = !TIMELESS.has(match[1]);
  if (needs !== Boolean(match[2])) return null;
  return needs ? { fn: match[1], column: match[2] } : { fn: match[1] };
}

export const filterName = ({ column, op, value }) =>
  BARE.has(op) ? `${column} ${op}` : `${column} ${op} ${Array.isArray(value) ? value.join(", ") : value}`;

/** Return the parameters of the address that hold a query and whether it is live. */
export function toAddress(query, live = false) {
  const search = new URLSearchParams();
  search.set("stream", query.stream);
  search.set("from", query.from);
  search.set("to", query.to);
  if (query.compare) search.set("compare", query.compare);
  for (const { column, op, value } of query.filters) search.append("where", JSON.stringify(value === undefined ? [column, op] : [column, op, value]));
  for (const column of query.group_by) search.append("by", column);
  for (const metric of query.metrics) search.append("show", metricName(metric));
  search.set("view", query.view);
  if (query.bucket && query.bucket !== "auto") search.set("bucket", query.bucket);
  if (query.order) search.set("order", `${query.order.descending ? "-" : ""}${query.order.by}`);
  if (query.limit) search.set("limit", query.limit);
  if (live) search.set("live", "1");
  return search.toString();
}

/** Return the query of an address; null where it names no stream. What cannot be read is left out. */
export function fromAddress(text) {
  const search = new URLSearchParams(text);
  if (!search.get("stream")) return null;
  const time = (name, otherwise) => {
    const value = search.get(name) ?? otherwise;
    return /^-?\d{9,}$/.test(value) ? Number(value) : value;
  };
  const view = VIEWS.some(([name]) => name === search.get("view")) ? search.get("view") : "series";
  const query = { stream: search.get("stream"), from: time("from", "-1h"), to: time("to", "now"), view, bucket: search.get("bucket") ?? "auto" };
  query.filters = search.getAll("where").map(readFilter).filter(Boolean);
  query.group_by = search.getAll("by");
  query.metrics = search.getAll("show").map(metricOf).filter(Boolean);
  if (!query.metrics.length) query.metrics = [{ fn: "count" }];
  if (search.get("compare")) query.compare = search.get("compare");
  const order = search.get("order");
  if (order) query.order = { by: /^-?\d+$/.test(order) ? Math.abs(Number(order)) : order.replace(/^-/, ""), descending: order.startsWith("-") };
  const limit = Number(search.get("limit"));
  if (Number.isInteger(limit) && limit > 0) query.limit = limit;
  return query;
}

function readFilter(text) {
  try {
    const [column, op, value] = JSON.parse(text);
    if (typeof column !== "string" || !OPERATORS.includes(op)) return null;
    return BARE.has(op) ? { column, op } : { column, op, value };
  } catch {
    return null;
  }
}

/** Return a query with a filter more; one that says the same, or the opposite, is replaced. */
export function withFilter(query, filter) {
  const against = { "=": "!=", "!=": "=", "is null": "is not null", "is not null": "is null" };
  const same = (one) => one.column === filter.column && String(one.value) === String(filter.value) && [filter.op, against[filter.op]].includes(one.op);
  const single = (one) => one.column === filter.column && filter.op === "=" && one.op === "=";
  return { ...query, filters: [...query.filters.filter((one) => !same(one) && !single(one)), filter] };
}

/** Return the filter that keeps rows of this value, or drops them. */
export function valueFilter(column, value, keep = true) {
  if (value === null || value === undefined) return { column, op: keep ? "is null" : "is not null" };
  return { column, op: keep ? "=" : "!=", value };
}

export const withGroup = (query, column) =>
  query.group_by.includes(column) ? query : { ...query, group_by: [...query.group_by, column] };

export const zoomed = (query, from, to) => ({ ...query, from: Math.floor(from), to: Math.ceil(to), bucket: "auto" });

/** Return a query with another view, and what that view cannot do without. */
export function withView(query, view, columns) {
  const next = { ...query, view };
  if (view === "distribution" || view === "heatmap") {
    const numeric = (name) => columns.some((one) => one.name === name && one.kind === "number");
    if (!numeric(query.metrics[0]?.column)) {
      const column = query.metrics.find((one) => numeric(one.column))?.column ?? likelyMeasure(columns);
      if (column) next.metrics = [{ fn: "avg", column }, ...query.metrics.filter((one) => one.column)];
    }
  }
  return next;
}

/** Return the number that people most likely want to measure: a duration, a delay, a size; else the first. */
export function likelyMeasure(columns) {
  const numbers = columns.filter((one) => one.kind === "number").map((one) => one.name);
  return numbers.find((name) => /(_ms|_us|_s|_bytes|delay|latency|duration|took|size|amount|price|value)$/i.test(name)) ?? numbers[0];
}

/** Whether rows are grouped: samples and heat maps keep the groups of the view before for the next one. */
export const isGrouped = (query) => query.group_by.length > 0 && !["samples", "heatmap"].includes(query.view);

/** Return the query as the server wants it: without what its view does not use. */
export function forServer(query) {
  const { bucket, limit, ...sent } = query;
  if (bucket && bucket !== "auto") sent.bucket = bucket;
  else sent.bucket = "auto";
  if (limit) sent.limit = limit;
  if (!isGrouped(query)) sent.group_by = [];
  return sent;
}

/** Return the first words for a query that has no title. */
export function describe(query) {
  const shown = query.view === "samples" ? "Raw samples" : query.metrics.map(metricName).join(", ");
  const by = isGrouped(query) ? ` by ${query.group_by.join(", ")}` : "";
  return `${shown}${by} of ${query.stream}`;
}
