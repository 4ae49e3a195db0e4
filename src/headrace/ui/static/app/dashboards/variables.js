// The variables of a dashboard: columns of which one value, chosen here, filters every chart that has them.

import { get, withParameters } from "../api.js";
import { h, icon } from "../dom.js";
import { text } from "../format.js";
import { askFor, notify, openMenu } from "../menus.js";
import { valueFilter } from "../query.js";

const MOST = 20;

const isChosen = (filter, { column }) => filter.column === column && ["=", "is null"].includes(filter.op);

/** Return the filters that no variable holds: these are shown as chips. */
export const otherFilters = (filters, variables) => filters.filter((filter) => !variables.some((one) => isChosen(filter, one)));

/**
 * Return a button for each variable: its menu has all, then the most frequent values at the time that is shown.
 *
 * `streamOf(column)` names a stream with the column, and `onchange(filters)` is called for others.
 */
export function variableRow(variables, filters, { streamOf, range, onchange }) {
  return variables.map((variable) => {
    const { column, title } = variable;
    const chosen = filters.find((filter) => isChosen(filter, variable));
    const shown = chosen ? text(chosen.op === "is null" ? null : chosen.value) : "All";
    const button = h(`button.button.variable${chosen ? ".chosen" : ""}`, { type: "button", "aria-haspopup": "menu", "aria-expanded": "false", "data-key": `variable-${column}`, title: `Show only one ${column}` },
      h("span.label", {}, title || column), h("span.what", {}, shown), icon("down"));
    const choose = (filter) => onchange([...filters.filter((one) => !isChosen(one, variable)), ...(filter ? [filter] : [])]);
    const open = async () => {
      if (button.getAttribute("aria-expanded") === "true") return openMenu(button, [], "");
      const stream = streamOf(column);
      if (!stream) return notify(`No chart of this dashboard has a column ${column}.`);
      let values = [];
      button.setAttribute("aria-busy", "true");
      try {
        ({ values } = await get(withParameters(`/api/streams/${encodeURIComponent(stream)}/values`, { column, prefix: "", from: range.from, to: range.to, limit: MOST })));
      } catch (problem) {
        return notify(problem.message);
      } finally {
        button.removeAttribute("aria-busy");
      }
      const isThis = (value) => Boolean(chosen) && (value === null ? chosen.op === "is null" : String(chosen.value) === String(value));
      const items = values.map(({ value, count }) => ({ label: text(value), hint: Number(count).toLocaleString("en"), checked: isThis(value), act: () => choose(valueFilter(column, value)) }));
      if (chosen && !values.some(({ value }) => isThis(value))) items.unshift({ label: shown, checked: true, act: () => {} });
      return openMenu(button, [{ label: "All", checked: !chosen, act: () => choose(null) }, null, ...items], title || column);
    };
    button.addEventListener("click", open);
    return button;
  });
}

/** Return what is shown instead while the dashboard is edited: each with a button to remove it, and one to add. */
export function variableEditor(variables, columns, { onchange }) {
  const left = columns.filter((name) => !variables.some((one) => one.column === name));
  const add = async () => {
    const answer = await askFor("Add a variable", [{ name: "column", label: "Column", options: left.map((name) => [name, name]), value: left[0] }, { name: "title", label: "Title", required: false }], "Add");
    if (answer) onchange([...variables, { column: answer.column, title: answer.title }]);
  };
  return [
    variables.map(({ column, title }) => h("span.chip", {}, h("span.chip-text", {}, title ? `${title}: ${column}` : column),
      h("button", { type: "button", "aria-label": `Remove the variable ${column}`, title: "Remove", on: { click: () => onchange(variables.filter((one) => one.column !== column)) } }, icon("close")))),
    left.length ? h("button.button.small", { type: "button", "data-key": "add-variable", on: { click: add } }, icon("add"), "Add a variable") : null,
  ];
}
