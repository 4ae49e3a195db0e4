// A result on the page: its chart, its legend, its numbers below, and what it was made of.

import { asTable, chart, summary } from "../charts/chart.js";
import { fill, h, icon } from "../dom.js";
import { duration, full, moment, short, utc } from "../format.js";

/** Return the panel of results: `show(query, result)`, `wait()`, `fail(problem)`. */
export function resultPanel(on) {
  const body = h("div.result-body");
  const facts = h("div.facts", { role: "status" });
  const root = h("section.result", { "aria-label": "Result" }, body, facts);
  const hidden = new Set();
  let shown = null;

  const draw = () => {
    const { query, result } = shown;
    const held = body.contains(document.activeElement) ? document.activeElement.closest(".plot, td")?.className : null;
    shown.chart?.destroy();
    const made = (shown.chart = chart(query, result, on, { hidden }));
    const isTable = query.view === "table" || query.view === "samples" || !result.rows.length;
    const box = h(`div.stage${isTable ? ".tall" : ""}`, {}, made.root);
    if (made.wanted) box.style.setProperty("--wanted", `${Math.max(260, Math.min(made.wanted, 720))}px`);
    if (made.fits) box.classList.add("fits"); // more height would be empty
    fill(body, notes(result), box, legend(made), isTable ? null : below(query, result, made));
    if (held) body.querySelector(held.includes("plot") ? ".plot" : "td[tabindex='0']")?.focus({ preventScroll: true });
    fill(facts, factsOf(result));
  };

  const legend = (made) => (made.legend?.length > 1 ? h("div.legend", { role: "group", "aria-label": "Lines" }, made.legend.map(({ name, colour }) =>
    h("button", { type: "button", "aria-pressed": String(!hidden.has(name)), title: "Show or hide; Alt-click shows only this", on: { click: (event) => toggle(name, made.legend, event.altKey) } },
      h("span.swatch", { style: { background: colour } }), h("span.what", {}, name || "(empty)")))) : null);
  const toggle = (name, all, alone) => {
    if (alone) all.forEach((one) => (one.name === name ? hidden.delete(one.name) : hidden.add(one.name)));
    else if (!hidden.delete(name)) hidden.add(name);
    draw();
  };
  const below = (query, result, made) => {
    const over = query.view === "series" || query.view === "area";
    const swatches = new Map((made.legend ?? []).map((one) => [one.name, one.colour]));
    const rows = over ? { ...summary(result), view: "table" } : result;
    const cell = on.cell && ((row, column, value, anchor) => on.cell(row, column, value, anchor, over && query.group_by.length ? rows : result));
    const table = h("details.numbers", { open: over && query.group_by.length > 0 }, h("summary", {}, over && query.group_by.length ? "Groups" : "The same as a table"));
    const shownTable = () => {
      if (!table.open || table.childElementCount > 1) return;
      table.append(asTable(query, over && query.group_by.length ? rows : result, { cell, swatches }));
      if (over && query.group_by.length) table.append(points(query, result, cell));
    };
    table.addEventListener("toggle", shownTable);
    shownTable();
    return table;
  };

  return {
    root,
    canvases: () => shown?.chart?.canvases() ?? [],
    legend: () => shown?.chart?.legend ?? [],
    wait(first) {
      root.setAttribute("aria-busy", "true");
      root.classList.add("waiting");
      if (first || !shown) fill(body, h("div.bones", { "aria-hidden": "true" }, h("i"), h("i"), h("i")));
    },
    show(query, result) {
      root.removeAttribute("aria-busy");
      root.classList.remove("waiting");
      if (shown && shown.query.stream !== query.stream) hidden.clear();
      shown = { query, result, chart: shown?.chart };
      draw();
    },
    fail(problem, again) {
      root.removeAttribute("aria-busy");
      root.classList.remove("waiting");
      shown?.chart?.destroy();
      shown = null;
      fill(facts);
      fill(body, h("div.empty", { role: "alert" }, icon("warn"), h("p.title", {}, problem.status === 0 ? "No connection" : "The question could not be answered"),
        h("p", {}, problem.message), problem.code ? h("p.note.mono", {}, problem.code) : null, h("button.button", { type: "button", on: { click: again } }, "Ask again")));
    },
    destroy: () => shown?.chart?.destroy(),
  };
}

/** Return all points of lines as a table, made when it is opened. */
function points(query, result, cell) {
  const table = h("details.numbers", {}, h("summary", {}, "All points as a table"));
  table.addEventListener("toggle", () => table.open && table.childElementCount < 2 && table.append(asTable(query, result, { cell })));
  return table;
}

/** Return what a reader must know of a result before trusting it. */
export function notes(result) {
  const said = [];
  if (result.complete === false) said.push(result.warning ?? "This is a part of the answer: the limit of time or rows was reached. Ask for a shorter time or fewer groups.");
  else if (result.warning) said.push(result.warning);
  return said.map((text) => h("div.banner", { role: "note" }, icon("warn"), h("span", {}, text)));
}

/** Return the line below a result: as of when, of how many rows, how long it took. */
export function factsOf(result) {
  const fact = (text, title) => h("span", { title }, text);
  return [
    result.sampled ? h("span.badge.warn", { title: "Rows are sampled; counts and sums are scaled by each row's rate, so they are estimates." }, "sampled") : null,
    result.complete === false ? h("span.badge.warn", {}, "partial") : null,
    fact(`as of ${moment(result.as_of_ms)}`, utc(result.as_of_ms)),
    fact(`${short(result.rows_scanned)} of ${short(result.rows_total)} rows scanned`, `${full(result.rows_scanned)} of ${full(result.rows_total)}`),
    fact(`took ${duration(result.took_ms)}`),
    result.bucket_ms ? fact(`bucket ${duration(result.bucket_ms)}`) : null,
    result.other_groups ? fact(`${full(result.other_groups)} more groups`) : null,
  ];
}
