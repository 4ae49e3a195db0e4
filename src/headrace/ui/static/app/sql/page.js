// The page SQL: one SELECT over the streams that are kept, its answer as a table or a chart.

import { get, post, withParameters } from "../api.js";
import { fill, h, icon } from "../dom.js";
import { resultPanel } from "../explore/result.js";
import { openMenu } from "../menus.js";
import { forPage } from "../shortcuts.js";
import { editor } from "./editor.js";

const HISTORY = "headrace.sql.history";
const KEPT = 50;

export function mount(root, context) {
  document.title = "SQL · Headrace";
  const state = { names: [], result: null, view: "table", asked: null };
  const panel = resultPanel({});
  const wrong = h("div", { role: "alert" });
  const outcome = h("div.panel.outcome", { hidden: true }, panel.root);
  const schema = h("aside.panel.schema", { "aria-label": "Tables" }, h("h2", {}, "Tables"), h("p.note", {}, "Looking…"));
  const views = h("div.joined", { role: "group", "aria-label": "Show as" });
  const edit = editor({ names: () => state.names, onrun: () => run(), onchange: () => fill(wrong) });
  const past = h("button.button", { type: "button", "aria-haspopup": "menu", "aria-expanded": "false" }, icon("history"), "History");
  past.addEventListener("click", () => openMenu(past, historyItems(edit), "History"));
  const download = h("button.button", { type: "button", "aria-haspopup": "menu", "aria-expanded": "false" }, icon("export"), "Export");
  download.addEventListener("click", () => openMenu(download, ["csv", "parquet"].map((format) => ({ label: format === "csv" ? "CSV" : "Parquet", href: withParameters("/api/export", { sql: edit.text(), format }), download: "" })), "Export"));
  const foot = h("div.editor-foot", {}, h("button.button.primary", { type: "button", on: { click: () => run() } }, icon("run"), "Run", h("span.unseen", {}, "the statement")), h("kbd", { "aria-hidden": "true" }, "Ctrl Enter"), past, download, h("span.grow"), views);
  fill(root, h("h1.unseen", {}, "SQL"), h("div.sql", {}, schema, h("div.main", {}, h("section.panel.editor", { "aria-label": "Editor" }, edit.root, foot), wrong, outcome)));
  forPage([["/", "go to the editor", edit.focus], ["Ctrl+Enter", "run the statement", () => run()], ["Ctrl+Space", "complete a name", null], ["Esc Tab", "leave the editor", null]]);

  const draw = () => {
    const query = chartOf(state.result);
    const choices = query ? [["table", "Table"], [query.view, query.view === "series" ? "Time series" : "Bars"]] : [["table", "Table"]];
    if (!choices.some(([name]) => name === state.view)) state.view = "table";
    fill(views, choices.length < 2 ? [] : choices.map(([name, title]) => h("button.button.small", { type: "button", "aria-pressed": String(state.view === name), on: { click: () => ((state.view = name), draw()) } }, icon(name), title)));
    const plain = { stream: "the statement", view: "table", filters: [], group_by: [], metrics: [{ fn: "count" }] };
    outcome.hidden = false;
    if (state.view === "table") panel.show(plain, state.result);
    else panel.show({ ...plain, ...query, metrics: query.names.map((fn) => ({ fn })) }, query.result);
  };
  async function run() {
    const sql = edit.text().trim();
    if (!sql) return edit.focus();
    fill(wrong);
    outcome.hidden = false;
    panel.wait();
    context.replace(`/sql?${new URLSearchParams({ sql })}`, true);
    remember(sql);
    state.asked?.abort();
    const asked = (state.asked = new AbortController());
    try {
      state.result = await post("/api/sql", { sql: edit.text() }, { signal: asked.signal });
      draw();
    } catch (problem) {
      if (asked.signal.aborted) return undefined;
      outcome.hidden = true;
      fill(wrong, complaint(problem, edit));
      if (problem.line) edit.mark(problem.line, problem.column ?? 1);
    }
    return undefined;
  }

  get("/api/sql/schema").then(({ tables }) => {
    state.names = namesOf(tables);
    fill(schema, h("h2", {}, "Tables"), tables.map((one) => tableOf(one, edit)));
    if (!edit.text() && tables.length) edit.setText(firstStatement(tables));
  }, (problem) => fill(schema, h("h2", {}, "Tables"), h("p.note", {}, problem.message)));
  const address = (path, search) => {
    const sql = new URLSearchParams(search).get("sql");
    if (!sql || sql === edit.text().trim()) return;
    edit.setText(sql);
    run();
  };
  address(context.path, context.search);
  return { address, unmount: () => (state.asked?.abort(), panel.destroy()) };
}

function complaint(problem, edit) {
  const where = problem.line ? h("button.button.small", { type: "button", on: { click: () => edit.mark(problem.line, problem.column ?? 1) } }, `Line ${problem.line}, column ${problem.column ?? 1}`) : null;
  return h("div.banner.bad", {}, icon("warn"), h("span", {}, problem.message, " ", problem.code ? h("span.note.mono", {}, problem.code) : null), h("span.grow"), where);
}

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

function tableOf({ name, columns }, edit) {
  const insert = (text) => h("button", { type: "button", title: `Insert ${text}`, on: { click: () => edit.insert(quoted(text)) } });
  return h("details", {}, h("summary", {}, name), h("ul", {}, columns.map((column) => {
    const button = insert(column.name);
    button.append(h("span.what", {}, column.name), h("span.note", {}, String(column.type).toLowerCase()));
    return h("li", {}, button);
  })));
}

function namesOf(tables) {
  const names = new Map();
  for (const { name, columns } of tables) {
    names.set(name, "table");
    for (const column of columns) if (!names.has(column.name)) names.set(column.name, column.type);
  }
  return [...names].map(([name, hint]) => ({ name, hint: String(hint).toLowerCase() }));
}

function firstStatement(tables) {
  const table = tables.reduce((one, other) => (other.columns.length > one.columns.length ? other : one));
  const by = table.columns.find((one) => /char|string|text/i.test(one.type));
  return by ? `select ${quoted(by.name)}, count(*) as n\nfrom ${quoted(table.name)}\ngroup by 1\norder by n desc\nlimit 20` : `select *\nfrom ${quoted(table.name)}\nlimit 100`;
}

/** Return how an answer can be drawn: a time and numbers as lines, a text and numbers as bars; else null. */
export function chartOf(result) {
  if (!result?.rows.length) return null;
  const typed = result.columns.map((one) => (/time|date/i.test(one.type) ? "time" : /int|float|double|decimal|number|real|bigint/i.test(one.type) ? "number" : "text"));
  const numbers = typed.flatMap((one, at) => (one === "number" ? [at] : []));
  if (!numbers.length) return null;
  const time = typed.indexOf("time");
  const text = typed.indexOf("text");
  const role = (at) => (at === time ? "time" : numbers.includes(at) ? "metric" : at === text ? "group" : "none");
  const columns = result.columns.map((one, at) => ({ ...one, role: role(at) }));
  const names = numbers.map((at) => result.columns[at].name);
  if (time >= 0) {
    const times = result.rows.map((row) => Number(row[time])).filter(Number.isFinite);
    return { view: "series", names, group_by: text >= 0 ? [result.columns[text].name] : [], result: { ...result, columns, view: "series", from_ms: Math.min(...times), to_ms: Math.max(...times), rows: result.rows.map((row) => row.map((one, at) => (at === time ? Number(one) : one))) } };
  }
  return text < 0 ? null : { view: "bars", names, group_by: [result.columns[text].name], result: { ...result, columns, view: "bars" } };
}

function remember(sql) {
  try {
    const past = [sql, ...history().filter((one) => one !== sql)].slice(0, KEPT);
    localStorage.setItem(HISTORY, JSON.stringify(past));
  } catch {
    // Without storage there is no history.
  }
}

function history() {
  try {
    const past = JSON.parse(localStorage.getItem(HISTORY) ?? "[]");
    return Array.isArray(past) ? past.filter((one) => typeof one === "string") : [];
  } catch {
    return [];
  }
}

function historyItems(edit) {
  const past = history();
  return past.length ? past.map((sql) => ({ label: sql.replace(/\s+/g, " "), act: () => edit.setText(sql) })) : [{ label: "Nothing was run yet", act: () => edit.focus() }];
}
