// The page Explore: one query, whose whole state is the address, and its answer.

import { get, listen, put, remove, runQuery, streams, withParameters } from "../api.js";
import { savePicture } from "../charts/picture.js";
import { fill, h, icon, refill, roving } from "../dom.js";
import { moment, short } from "../format.js";
import { askFor, notify, openMenu } from "../menus.js";
import { complete, describe, firstQuery, firstRange, forServer, fromAddress, toAddress, VIEWS, withView } from "../query.js";
import { forPage } from "../shortcuts.js";
import { drawBuilder } from "./builder.js";
import { columnsPanel } from "./columns.js";
import { openDrill, withRange } from "./drill.js";
import { resultPanel } from "./result.js";
import { timeRange } from "./time_range.js";

export function mount(root, context) {
  return new Explore(root, context);
}

class Explore {
  constructor(root, context) {
    this.context = context;
    this.known = [];
    this.query = null;
    this.live = false;
    this.stop = null;
    this.asked = null;
    this.panel = resultPanel({
      mark: (data, point) => openDrill(this.query, data, point, (query) => this.change(query), this.columns()),
      zoom: (from, to) => this.change({ ...this.query, from: Math.round(from), to: Math.round(to), bucket: "auto" }),
      range: (range) => this.change(withRange(this.query, range)),
      cell: (row, column, value, anchor, result) => this.cell(row, column, value, anchor, result),
      sort: (column) => this.sort(column),
      widen: () => this.change({ ...this.query, ...this.whole() }),
    });
    this.side = columnsPanel({ current: () => this.query, act: (query) => this.change(query) });
    this.bar = h("div.bar");
    this.builder = h("section.builder.panel", { "aria-label": "Query" });
    this.tabs = h("div.tabs", { role: "tablist", "aria-label": "View" });
    const stage = h("div.panel.outcome", { role: "tabpanel", id: "view", "aria-label": "View" }, this.panel.root);
    this.main = h("div.main", {}, this.builder, h("div.views", {}, this.tabs), stage);
    fill(root, h("h1.unseen", {}, "Explore"), h("div.explore", {}, this.bar, h("div.split", {}, this.side.root, this.main)));
    forPage([["/", "add a filter", () => this.focus("filters")], ["m", "add a metric", () => this.focus("metrics")], ["b", "group by", () => this.focus("groups")],
      ["r", "ask again", () => this.run()], ["l", "live or not", () => this.setLive(!this.live)], ["[", "earlier", () => this.press("time-left")], ["]", "later", () => this.press("time-right")],
      ["-", "zoom out", () => this.press("time-zoomout")], ...VIEWS.map(([name, title], at) => [String(at + 1), title, () => this.change(withView(this.query, name, this.columns()))]),
      ["Arrow keys", "move in a chart, a table, the views", null], ["Enter", "what to do with a mark or a value", null]]);
    this.begin();
  }

  async begin() {
    this.panel.wait(true);
    try {
      this.known = await streams(true);
    } catch (problem) {
      return this.panel.fail(problem, () => this.begin());
    }
    this.address(location.pathname, location.search);
  }

  /** Show what the address says; without a stream, the one with the newest rows. */
  address(path, search) {
    const query = fromAddress(search);
    if (query) return this.show(query, new URLSearchParams(search).get("live") === "1");
    const kept = this.known.filter((one) => one.kept);
    if (!kept.length) return this.nothing();
    const stream = kept.reduce((one, other) => (weight(other) > weight(one) ? other : one));
    const first = firstQuery(stream.name, firstRange(stream));
    this.context.replace(`/explore?${toAddress(first)}`);
    return this.show(first, false);
  }

  show(query, live) {
    this.query = query;
    this.live = live;
    this.draw();
    this.run();
  }

  /** Show another query, which back undoes. */
  change(query) {
    this.query = query;
    this.context.replace(`/explore?${toAddress(query, this.live)}`, true);
    this.draw();
    this.run();
  }

  stream = () => this.known.find((one) => one.name === this.query?.stream);
  columns = () => this.stream()?.columns ?? [];

  whole() {
    const { first_ms: from, last_ms: to } = this.stream() ?? {};
    return from === undefined || from === null ? { from: "-7d", to: "now" } : { from, to: to + 1 };
  }

  focus(key) {
    this.builder.querySelector(`[data-key="${key}"]`)?.focus();
  }

  press(key) {
    this.bar.querySelector(`[data-key="${key}"]`)?.click();
  }

  draw() {
    document.title = `${describe(this.query)} · Headrace`;
    refill(this.bar, this.barParts());
    drawBuilder(this.builder, this.query, this.columns(), { onchange: (query) => this.change(query) });
    this.side.show(this.columns());
    const had = this.tabs.contains(document.activeElement);
    const tabs = h("div.tabs", { role: "tablist", "aria-label": "View" }, VIEWS.map(([name, title]) => h("button", { role: "tab", type: "button", "aria-selected": String(name === this.query.view), "aria-controls": "view",
      on: { click: () => this.change(withView(this.query, name, this.columns())) } }, icon(name), title)));
    roving(tabs, "[role=tab]", { onmove: (tab) => tab.click() });
    this.tabs.replaceWith(tabs);
    this.tabs = tabs;
    const selected = tabs.querySelector("[aria-selected=true]");
    if (had) selected.focus();
    tabs.scrollLeft += selected.getBoundingClientRect().left - tabs.getBoundingClientRect().left - 60; // for telephones
  }

  barParts() {
    const names = this.known.filter((one) => one.kept || one.name === this.query.stream);
    if (!names.some((one) => one.name === this.query.stream)) names.push({ name: this.query.stream });
    const choose = (event) => {
      const stream = this.known.find((one) => one.name === event.target.value);
      this.change(firstQuery(stream.name, firstRange(stream)));
    };
    const { sample_rate: rate, rows, first_ms: first } = this.stream() ?? {};
    const about = rows === undefined ? "" : `${short(rows)} rows kept since ${moment(first)}${rate && rate !== 1 ? ", sampled" : ""}`;
    const tool = (name, label, act, extra = {}) => h("button.button.only-icon", { type: "button", "aria-label": label, title: label, on: { click: act }, ...extra }, icon(name));
    const menu = (name, label, items) => {
      const button = tool(name, label, () => openMenu(button, items(), label), { "aria-haspopup": "menu", "aria-expanded": "false", "data-key": `menu-${name}` });
      return button;
    };
    return [
      h("label.stream", { title: about }, h("span.unseen", {}, "Stream"), h("select.select", { "data-key": "stream", on: { change: choose } }, names.map(({ name }) => h("option", { value: name, selected: name === this.query.stream }, name)))),
      h("span.note.about", {}, about),
      h("span.grow"),
      timeRange(this.query, { whole: this.whole(), onchange: (range) => this.change({ ...this.query, compare: this.query.compare, ...range, bucket: "auto" }) }),
      h("button.button", { type: "button", "aria-pressed": String(this.live), "data-key": "live", title: "Show new rows as they come", on: { click: () => this.setLive(!this.live) } }, this.live ? h("span.dot", { "data-state": "good" }) : icon("live"), "Live"),
      tool("run", "Ask again", () => this.run(), { "data-key": "run" }),
      menu("save", "Saved views and dashboards", () => this.savedItems()),
      menu("export", "Share and export", () => this.exportItems()),
    ];
  }

  setLive(live) {
    this.live = live;
    this.context.replace(`/explore?${toAddress(this.query, live)}`, true);
    this.draw();
    this.run();
  }

  /** Ask the server; what was asked before and has not answered is given up. */
  async run() {
    this.asked?.abort();
    this.stop?.();
    this.stop = null;
    const query = this.query;
    this.panel.wait();
    if (this.live) {
      this.stop = listen([forServer(query)], {
        result: (_, result) => this.panel.show(query, result),
        problem: (_, problem) => this.panel.fail(problem, () => this.run()),
        state: (state) => this.bar.querySelector("[data-key=live] .dot")?.setAttribute("data-state", { live: "good", connecting: "warn", lost: "bad" }[state]),
      });
      return;
    }
    const asked = (this.asked = new AbortController());
    try {
      const result = await runQuery(forServer(query), { signal: asked.signal });
      if (!asked.signal.aborted) this.panel.show(query, result);
    } catch (problem) {
      if (!asked.signal.aborted) this.panel.fail(problem, () => this.run());
    }
  }

  sort(column) {
    const at = this.query.metrics.findIndex((metric) => column.name === (metric.column ? `${metric.fn}(${metric.column})` : metric.fn));
    const by = at >= 0 ? at : column.name;
    const same = this.query.order && this.query.order.by === by;
    this.change({ ...this.query, order: { by, descending: same ? !this.query.order.descending : at >= 0 } });
  }

  cell(row, column, value, anchor, result = null) {
    if (this.query.view === "samples") return openDrill(this.query, { values: { [column.name]: value }, row: { columns: result.columns, row } }, anchor, (query) => this.change(query), this.columns());
    const columns = result?.columns ?? null;
    const values = columns ? Object.fromEntries(columns.flatMap((one, at) => (one.role === "group" ? [[one.name, row[at]]] : []))) : column.role === "group" ? { [column.name]: value } : {};
    return openDrill(this.query, { values }, anchor, (query) => this.change(query), this.columns());
  }

  savedItems() {
    const items = [{ label: "Save this view…", icon: "save", act: () => this.saveView() }, { label: "Add to a dashboard…", icon: "dashboards", act: () => this.addToDashboard() }];
    if (this.views?.length) items.push(null, { heading: "Saved views" }, ...this.views.map(({ name, title }) => ({ label: title || name, act: () => this.openView(name) })),
      null, ...this.views.map(({ name, title }) => ({ label: `Delete ${title || name}`, icon: "close", act: () => this.deleteView(name) })));
    else if (this.views === undefined) get("/api/views").then(({ views }) => ((this.views = views), views.length && this.bar.querySelector("[data-key=menu-save]")?.getAttribute("aria-expanded") === "true" && this.press("menu-save") === undefined && this.press("menu-save")), () => {});
    return items;
  }

  async openView(name) {
    try {
      const { query } = await get(`/api/views/${encodeURIComponent(name)}`);
      this.change(complete(query));
    } catch (problem) {
      notify(problem.message);
    }
  }

  async saveView() {
    const answer = await askFor("Save this view", [{ name: "title", label: "Title", value: describe(this.query) }]);
    if (!answer) return;
    try {
      const name = nameOf(answer.title);
      const { views } = await get("/api/views");
      const version = views.find((one) => one.name === name)?.version ?? 0;
      await put(`/api/views/${encodeURIComponent(name)}`, { title: answer.title, query: this.query, version });
      this.views = undefined;
      notify(`Saved as ${answer.title}.`);
    } catch (problem) {
      notify(problem.message);
    }
  }

  async deleteView(name) {
    try {
      await remove(`/api/views/${encodeURIComponent(name)}`);
      this.views = undefined;
      notify("The saved view was deleted.");
    } catch (problem) {
      notify(problem.message);
    }
  }

  async addToDashboard() {
    try {
      const { dashboards } = await get("/api/dashboards");
      const options = [...dashboards.map(({ name, title }) => [name, title || name]), ["", "A new dashboard"]];
      const answer = await askFor("Add to a dashboard", [{ name: "dashboard", label: "Dashboard", options, value: options[0][0] },
        { name: "new_title", label: "Title of a new dashboard", value: "", required: dashboards.length === 0 }, { name: "title", label: "Title of the chart", value: describe(this.query) }], "Add");
      if (!answer) return;
      const name = answer.dashboard || nameOf(answer.new_title || "dashboard");
      const board = answer.dashboard ? await get(`/api/dashboards/${encodeURIComponent(name)}`) : { title: answer.new_title || "Dashboard", description: "", refresh: "", charts: [] };
      const wide = ["series", "area", "heatmap"].includes(this.query.view) ? 6 : 4;
      board.charts.push({ title: answer.title, query: this.query, width: wide, height: 4 });
      await put(`/api/dashboards/${encodeURIComponent(name)}`, board);
      notify(`Added to ${board.title}.`, { label: "Open", action: () => this.context.go(`/dashboards/${encodeURIComponent(name)}`) });
    } catch (problem) {
      notify(problem.message);
    }
  }

  exportItems() {
    const file = (format) => withParameters("/api/export", { q: JSON.stringify(forServer(this.query)), format });
    const title = describe(this.query);
    const items = [{ label: "Copy the link", icon: "share", act: () => copy(location.href) }, null,
      { label: "Download CSV", icon: "export", href: file("csv"), download: "" }, { label: "Download Parquet", icon: "export", href: file("parquet"), download: "" }];
    if (this.panel.canvases().length) items.push({ label: "Download PNG", icon: "export", act: () => savePicture(this.panel.canvases(), { title, note: `${this.query.stream}, ${new Date().toISOString()}`, legend: this.panel.legend() }) });
    return items;
  }

  nothing() {
    fill(this.bar);
    this.builder.hidden = true;
    this.panel.root.classList.remove("waiting");
    const names = this.known.map((one) => one.name);
    fill(this.panel.root, h("div.empty", {}, icon("explore"), h("p.title", {}, "No stream is kept for exploring yet"),
      h("p", {}, names.length ? `Streams of this home: ${names.slice(0, 12).join(", ")}. ` : "This home has no streams yet. "),
      h("p.note", {}, "Name the streams to keep in the section [explore] of headrace.toml, or with headrace ui --streams NAME.")));
  }

  unmount() {
    this.asked?.abort();
    this.stop?.();
    this.panel.destroy();
  }
}

const weight = (stream) => (stream.rows ? stream.rows : 0);

/** Return a name for addresses and files of a title. */
export const nameOf = (title) => title.toLowerCase().normalize("NFKD").replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "view";

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("The link is copied: it holds the whole view.");
  } catch {
    notify("The browser does not allow copying; the address bar has the link.");
  }
}

