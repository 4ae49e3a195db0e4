// The builder of a query: what is shown, of which rows, by what; one row of chips for each.

import { combobox, kindMark, matching } from "../combobox.js";
import { h, icon, refill } from "../dom.js";
import { BUCKETS, FUNCTIONS, isGrouped, metricName, metricOf, TIMELESS, withGroup } from "../query.js";
import { filterRow } from "./filters.js";

/** Draw the builder into an element; `onchange(query)` is called with each other query. */
export function drawBuilder(root, query, columns, { onchange }) {
  const set = (patch) => onchange({ ...query, ...patch });
  const raw = query.view === "samples";
  const single = query.view === "distribution" || query.view === "heatmap";
  const line = (label, ...parts) => h("div.line", {}, h("span.label", {}, label), parts);
  refill(root,
    raw ? null : line(single ? "Values of" : "Show", metrics(query, columns, set, single)),
    line("Where", filterRow(query, columns, { onchange: (filters) => set({ filters }), range: { from: query.from, to: query.to } })),
    raw || query.view === "heatmap" ? null : line("Group by", groups(query, columns, onchange, set)),
    h("div.line.options", {}, options(query, set, raw, single)));
}

function chip(label, { key, remove, act, title }) {
  return h("span.chip", {}, h("button", { type: "button", "data-key": key, title, on: { click: act } }, label),
    remove ? h("button", { type: "button", "aria-label": `Remove ${label}`, title: "Remove", on: { click: remove } }, icon("close")) : null);
}

function metrics(query, columns, set, single) {
  let editing = null;
  const change = (metric) => {
    const others = query.metrics.filter((one, at) => at !== editing && metricName(one) !== metricName(metric));
    if (single) return set({ metrics: [metric] });
    set({ metrics: editing === null ? [...others, metric] : [...others.slice(0, editing), metric, ...others.slice(editing)], order: undefined });
  };
  const suggest = (text) => suggestions(text, columns, single).slice(0, 60).map((metric) => ({
    label: single ? metric.column : metricName(metric), hint: single ? null : FUNCTIONS[metric.fn], commit: () => change(metric) }));
  const enter = (text) => {
    const metric = metricOf(text);
    if (!metric || (metric.column && !columns.some(({ name }) => name === metric.column))) return false;
    input.value = "";
    change(metric);
    return true;
  };
  const field = combobox({ label: single ? "Values of a column" : "Add a metric", placeholder: single ? "another column…" : "count, p95, avg…", key: "metrics", suggest, enter });
  const input = field.firstChild;
  const chips = (single ? query.metrics.slice(0, 1) : query.metrics).map((metric, at) => chip(single ? (metric.column ?? "choose a column") : metricName(metric), {
    key: `metric-${at}`, title: FUNCTIONS[metric.fn],
    remove: query.metrics.length > 1 && !single ? () => set({ metrics: query.metrics.filter((_, index) => index !== at), order: undefined }) : null,
    act: () => {
      editing = at;
      input.focus();
    },
  }));
  return h("div.chips", {}, chips, field);
}

/** Return the metrics that a text may mean: `p95 del` finds p95(dep_delay). */
function suggestions(text, columns, single) {
  const numbers = columns.filter((one) => one.kind === "number");
  if (single) return matching(numbers, text).map(({ name }) => ({ fn: "avg", column: name }));
  const words = text.toLowerCase().split(/[\s()]+/).filter(Boolean);
  const all = Object.keys(FUNCTIONS).flatMap((fn) => (TIMELESS.has(fn) ? [{ fn }] : (fn === "distinct" ? columns : numbers).map(({ name }) => ({ fn, column: name }))));
  const fits = (metric) => words.every((word, at) => (at === 0 && metric.fn.startsWith(word)) || FUNCTIONS[metric.fn].includes(word) || (metric.column ?? "").toLowerCase().includes(word));
  return all.filter(fits);
}

function groups(query, columns, onchange, set) {
  const suggest = (text) => matching(columns.filter(({ name }) => !query.group_by.includes(name)), text).map(({ name, kind }) => ({
    label: name, kind: kindMark(kind), hint: kind, commit: () => onchange(withGroup(query, name)) }));
  const enter = (text) => {
    if (!columns.some(({ name }) => name === text)) return false;
    input.value = "";
    onchange(withGroup(query, text));
    return true;
  };
  const without = (at) => set({ group_by: query.group_by.filter((_, index) => index !== at), order: undefined });
  const field = combobox({ label: "Add a column to group by", placeholder: query.group_by.length ? "and…" : "any column…", key: "groups", suggest, enter,
    erase: () => query.group_by.length && without(query.group_by.length - 1) });
  const input = field.firstChild;
  return h("div.chips", {}, query.group_by.map((name, at) => chip(name, { key: `group-${at}`, title: "Remove", remove: () => without(at), act: () => without(at) })), field);
}

function options(query, set, raw, single) {
  const select = (label, key, values, current, act) => h("label.option-field", {}, h("span", {}, label), h("select.select", { "data-key": key, on: { change: (event) => act(event.target.value) } },
    values.map(([value, text]) => h("option", { value, selected: String(value) === String(current) }, text))));
  const parts = [];
  if (["series", "area", "heatmap"].includes(query.view)) {
    const known = BUCKETS.includes(query.bucket ?? "auto") ? BUCKETS : [query.bucket, ...BUCKETS];
    parts.push(select("Bucket", "bucket", known.map((one) => [one, one]), query.bucket ?? "auto", (bucket) => set({ bucket })));
  }
  if (!raw && !single && query.group_by.length) {
    const names = query.metrics.map((metric, at) => [String(at), metricName(metric)]).concat(query.group_by.map((name) => [name, name]));
    const { by = 0, descending = true } = query.order ?? {};
    const order = (value, down) => set({ order: { by: /^\d+$/.test(value) ? Number(value) : value, descending: down } });
    if (query.view === "table" || query.view === "bars") {
      parts.push(select("Order", "order", names, by, (value) => order(value, descending)),
        h("button.button.small.only-icon", { type: "button", "data-key": "direction", "aria-label": descending ? "Largest first" : "Smallest first", title: descending ? "Largest first" : "Smallest first", on: { click: () => order(String(by), !descending) } }, icon(descending ? "down" : "up")));
    }
  }
  if (raw || isGrouped(query)) {
    const limits = [5, 8, 10, 20, 50, 100, 200, 500, 1000];
    const current = query.limit ?? (raw ? 100 : 10);
    parts.push(select(raw ? "Rows" : "Groups", "limit", (limits.includes(current) ? limits : [current, ...limits]).map((one) => [one, one]), current, (value) => set({ limit: Number(value) })));
  }
  return parts;
}
