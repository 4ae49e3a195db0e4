// Filters as chips that can be edited and removed, and a field that completes columns, operators and values.

import { get, withParameters } from "../api.js";
import { combobox, kindMark, matching } from "../combobox.js";
import { h, icon } from "../dom.js";
import { filterName, OPERATORS, withFilter } from "../query.js";

const BY_KIND = {
  number: ["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null"],
  time: ["<", "<=", ">", ">=", "=", "is null", "is not null"],
  bool: ["=", "!=", "is null", "is not null"],
};
const LONGEST_FIRST = [...OPERATORS].sort((one, other) => other.length - one.length);

/** Return `{column, op, value}` of a text as far as it goes; what is missing is undefined. */
export function readFilter(text, columns) {
  const trimmed = text.trimStart();
  const column = columns.filter(({ name }) => trimmed.startsWith(`${name} `) || trimmed === name).sort((one, other) => other.name.length - one.name.length)[0];
  if (!column || !trimmed.startsWith(`${column.name} `)) return { text: trimmed.trim() };
  const rest = trimmed.slice(column.name.length).trimStart();
  const op = LONGEST_FIRST.find((one) => rest.toLowerCase() === one || rest.toLowerCase().startsWith(`${one} `) || (/^\W+$/.test(one) && rest.startsWith(one)));
  if (!op) return { column, text: rest };
  const value = rest.slice(op.length).trim();
  if (op.startsWith("is ")) return { column, op, done: true };
  return { column, op, text: value, value: valueOf(value, op, column.kind), done: value !== "" };
}

function valueOf(text, op, kind) {
  const one = (word) => {
    const bare = word.trim().replace(/^"(.*)"$/s, "$1");
    if (kind === "number" && bare !== "" && Number.isFinite(Number(bare))) return Number.isSafeInteger(Number(bare)) || /[.e]/i.test(bare) ? Number(bare) : bare;
    if (kind === "bool" && /^(true|false)$/i.test(bare)) return bare.toLowerCase() === "true";
    return bare;
  };
  return op === "in" || op === "not in" ? text.split(",").map(one).filter((word) => word !== "") : one(text);
}

/** Return the row of filters; `onchange(filters)` is called for others. */
export function filterRow(query, columns, { onchange, key = "filters", range }) {
  let editing = null;
  const commit = (filter) => {
    const left = editing === null ? query.filters : query.filters.filter((_, at) => at !== editing);
    onchange(editing === null ? withFilter(query, filter).filters : [...left, filter]);
  };
  const suggest = async (text, signal) => {
    const read = readFilter(text, columns);
    if (!read.column) return matching(columns, read.text).map(({ name, kind }) => ({ label: name, kind: kindMark(kind), hint: kind, text: `${name} ` }));
    if (!read.op) {
      const fitting = (BY_KIND[read.column.kind] ?? OPERATORS).filter((op) => op.startsWith(read.text.toLowerCase()));
      return fitting.map((op) => (op.startsWith("is ") ? { label: `${read.column.name} ${op}`, commit: () => commit({ column: read.column.name, op }) } : { label: `${read.column.name} ${op}`, text: `${read.column.name} ${op} ` }));
    }
    if (read.op.startsWith("is ")) return [];
    const prefix = read.text.split(",").pop().trim();
    const { values } = await get(withParameters(`/api/streams/${encodeURIComponent(query.stream)}/values`, { column: read.column.name, prefix, from: range?.from, to: range?.to, limit: 20 }), { signal });
    const many = read.op === "in" || read.op === "not in";
    return values.filter(({ value }) => value !== null).map(({ value, count }) => {
      const item = { label: String(value), hint: Number(count).toLocaleString("en") };
      if (!many) return { ...item, commit: () => commit({ column: read.column.name, op: read.op, value }) };
      const before = read.text.split(",").slice(0, -1).map((word) => word.trim());
      return { ...item, text: `${read.column.name} ${read.op} ${[...before, value].join(", ")}, ` };
    });
  };
  const enter = (text) => {
    const read = readFilter(text, columns);
    if (!read.done) return false;
    commit(read.op.startsWith("is ") ? { column: read.column.name, op: read.op } : { column: read.column.name, op: read.op, value: read.value });
    input.value = "";
    return true;
  };
  const erase = () => query.filters.length && onchange(query.filters.slice(0, -1));
  const field = combobox({ label: "Add a filter", placeholder: query.filters.length ? "and…" : `${example(columns)} = …`, key, suggest, enter, erase });
  const input = field.firstChild;
  const chips = query.filters.map((filter, at) => {
    const name = filterName(filter);
    const edit = () => {
      editing = at;
      input.value = name;
      input.focus();
      input.setSelectionRange(name.length, name.length);
    };
    return h(`span.chip${/^(!=|not|is not)/.test(filter.op) ? ".not" : ""}`, {},
      h("button", { type: "button", title: `Edit ${name}`, "data-key": `filter-${at}`, on: { click: edit } }, filter.column, " ", h("span.op", {}, filter.op), filter.value === undefined ? null : ` ${Array.isArray(filter.value) ? filter.value.join(", ") : filter.value}`),
      h("button", { type: "button", "aria-label": `Remove the filter ${name}`, title: "Remove", on: { click: () => onchange(query.filters.filter((_, index) => index !== at)) } }, icon("close")));
  });
  return h("div.chips", {}, chips, field);
}

const example = (columns) => (columns.find((one) => one.kind === "string") ?? columns[0])?.name ?? "column";
