// The columns of a stream, each with its most frequent values: what to look at when one does not know yet.

import { get, withParameters } from "../api.js";
import { kindMark, matching } from "../combobox.js";
import { fill, h, icon, roving } from "../dom.js";
import { text } from "../format.js";
import { closeOpen, openPopover } from "../menus.js";
import { valueFilter, withFilter, withGroup } from "../query.js";

/** Return the panel; `current()` is the query, `act(query)` shows another. */
export function columnsPanel({ current, act }) {
  const list = h("ul.columns-list", { "aria-label": "Columns" });
  const search = h("input.field", { type: "search", placeholder: "Find a column", "aria-label": "Find a column", autocomplete: "off" });
  let columns = [];
  const draw = () => {
    fill(list, matching([...columns], search.value).map((column) => {
      const button = h("button", { type: "button", "aria-haspopup": "dialog", "aria-expanded": "false" }, h("span.kind", { title: column.kind }, kindMark(column.kind)), h("span.what", {}, column.name));
      button.addEventListener("click", () => openPopover(button, column.name, details(column, current, act)));
      return h("li", {}, button);
    }));
  };
  search.addEventListener("input", draw);
  roving(list, "button", { vertical: true });
  return {
    root: h("aside.columns.panel", { "aria-label": "Columns of the stream" }, search, list),
    show(next) {
      columns = next;
      draw();
      list.querySelector("button")?.setAttribute("tabindex", "0");
    },
  };
}

function details(column, current, act) {
  const done = (query) => {
    closeOpen();
    act(query);
  };
  const chart = (query) => (query.view === "samples" ? { ...query, view: "series" } : query);
  const show = (fn, name) => h("button.button.small", { type: "button", on: { click: () => done({ ...chart(current()), metrics: [{ fn, column: column.name }], order: undefined }) } }, name);
  const actions = h("div.chips", {}, h("button.button.small", { type: "button", on: { click: () => done(withGroup(chart(current()), column.name)) } }, "Group by"),
    column.kind === "number" ? [show("avg", "Mean"), show("p95", "p95"), h("button.button.small", { type: "button", on: { click: () => done({ ...current(), view: "distribution", metrics: [{ fn: "avg", column: column.name }] }) } }, "Distribution")] : show("distinct", "Distinct"));
  const values = h("div.values", { "aria-live": "polite" }, h("p.note", {}, "Looking…"));
  const { stream, from, to } = current();
  get(withParameters(`/api/streams/${encodeURIComponent(stream)}/values`, { column: column.name, prefix: "", from, to, limit: 10 })).then(({ values: found }) => {
    const most = Math.max(1, ...found.map((one) => Number(one.count)));
    fill(values, found.length ? found.map(({ value, count }) => h("div.value", {},
      h("button.keep", { type: "button", title: "Only these rows", on: { click: () => done(withFilter(current(), valueFilter(column.name, value))) } },
        h("i", { style: { width: `${(100 * Number(count)) / most}%` } }), h("span.what", {}, text(value, column.kind)), h("b", {}, Number(count).toLocaleString("en"))),
      h("button.button.plain.small.only-icon", { type: "button", "aria-label": `Without ${text(value, column.kind)}`, title: "Without these rows", on: { click: () => done(withFilter(current(), valueFilter(column.name, value, false))) } }, icon("close")))) : h("p.note", {}, "No values at this time."));
  }, (problem) => fill(values, h("p.note", {}, problem.message)));
  return h("div.stack.column-details", {}, h("div", {}, h("h2", {}, column.name), h("p.note", {}, `${column.kind}${column.type ? `, ${column.type}` : ""}`)), actions, h("h3.label", {}, "Most frequent values"), values);
}
