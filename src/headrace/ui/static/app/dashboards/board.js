// A dashboard: charts in a grid of twelve columns, with one time and filters for all, live through one connection.

import { Problem, get, listen, put, remove, runQuery, streams } from "../api.js";
import { fill, h, icon, refill } from "../dom.js";
import { openDrill } from "../explore/drill.js";
import { filterRow } from "../explore/filters.js";
import { timeRange } from "../explore/time_range.js";
import { askFor, notify, openMenu } from "../menus.js";
import { complete, forServer, fromAddress, toAddress } from "../query.js";
import { forPage } from "../shortcuts.js";
import { Card } from "./card.js";
import { otherFilters, variableEditor, variableRow } from "./variables.js";

const AT_ONCE = 4;

export class Board {
  constructor(root, name, context, search) {
    Object.assign(this, { root, name, context, cards: [], board: null, isEditing: false, stop: null, known: [], connection: "warn" });
    this.override = readOverride(search);
    this.live = new URLSearchParams(search).get("live") !== "0";
    this.head = h("div.head");
    this.strip = h("div.builder.panel.strip", { role: "group", "aria-label": "Filters of all charts" });
    this.grid = h("div.grid");
    fill(root, h("div.sheet.wide", {}, this.head, this.strip, this.grid));
    forPage([["/", "add a filter", () => this.strip.querySelector("[data-key=filters]")?.focus()], ["e", "edit the dashboard", () => this.board && this.edit(!this.isEditing)], ["l", "live or not", () => this.setLive(!this.live)],
      ["r", "ask again", () => this.run()], ["Arrow keys", "move or resize a chart, on its handles in edit mode", null]]);
    this.begin();
  }

  async begin() {
    fill(this.head, h("h1", {}, this.name));
    try {
      [this.board, this.known] = await Promise.all([get(`/api/dashboards/${encodeURIComponent(this.name)}`), streams()]);
    } catch (problem) {
      return fill(this.grid, h("div.empty", { role: "alert" }, icon("warn"), h("p.title", {}, "The dashboard could not be opened"), h("p", {}, problem.message), h("a", { href: "/dashboards" }, "All dashboards")));
    }
    for (const spec of this.board.charts) spec.query = complete(spec.query);
    this.rebuild();
  }

  address(search) {
    this.override = readOverride(search);
    this.live = new URLSearchParams(search).get("live") !== "0";
    this.draw();
    this.run();
  }

  /** Make the cards again: charts were added, or what was edited is given up. */
  rebuild() {
    this.cards.forEach((card) => card.destroy());
    const on = {
      editing: () => this.isEditing, move: (card, by) => this.move(card, by), resize: (card, width, height) => this.resize(card, width, height),
      drag: (card, event) => this.drag(card, event), stretch: (card, event) => this.stretch(card, event), rename: (card) => this.rename(card), remove: (card) => this.drop(card),
      zoom: (from, to) => this.setOverride({ ...this.override, from: Math.round(from), to: Math.round(to) }),
      drill: (card, data, point) => openDrill(card.query, data, point, (query) => this.context.go(`/explore?${toAddress(query)}`), this.columnsOf(card.query.stream)),
    };
    this.cards = this.board.charts.map((spec) => new Card(spec, on));
    this.draw();
    this.arrange();
    this.run();
  }

  columnsOf = (stream) => this.known.find((one) => one.name === stream)?.columns ?? [];

  draw() {
    document.title = `${this.board.title} · Headrace`;
    const first = this.board.charts[0]?.query;
    const range = { from: this.override.from ?? first?.from ?? "-1h", to: this.override.to ?? first?.to ?? "now" };
    const stream = this.known.find((one) => one.name === first?.stream);
    const whole = stream?.first_ms === undefined || stream.first_ms === null ? null : { from: stream.first_ms, to: stream.last_ms + 1 };
    const more = h("button.button.only-icon", { type: "button", "aria-label": "Menu of the dashboard", "aria-haspopup": "menu", "aria-expanded": "false", "data-key": "board-menu" }, icon("more"));
    more.addEventListener("click", () => openMenu(more, [
      { label: "Add a chart from Explore", icon: "add", href: "/explore" }, { label: "Edit title and description…", icon: "edit", act: () => this.describe() }, { label: "Copy the link", icon: "share", act: () => navigator.clipboard?.writeText(location.href) },
      null, { label: "Delete the dashboard…", icon: "close", act: () => this.destroy() }], "Menu of the dashboard"));
    refill(this.head,
      h("div.names", {}, h("h1", {}, this.board.title), this.board.description ? h("p.note", {}, this.board.description) : null), h("span.grow"),
      this.isEditing ? [h("button.button", { type: "button", on: { click: () => this.cancel() } }, "Cancel"), h("button.button.primary", { type: "button", "data-key": "edit", on: { click: () => this.save() } }, "Save")] : [
        timeRange(range, { whole, compares: false, onchange: ({ from, to }) => this.setOverride({ ...this.override, from, to }) }),
        this.override.from !== undefined ? h("button.button.plain", { type: "button", on: { click: () => this.setOverride({ filters: this.override.filters }) } }, "Each chart's own time") : null,
        h("button.button", { type: "button", "aria-pressed": String(this.live), "data-key": "live", on: { click: () => this.setLive(!this.live) } }, this.live ? h("span.dot", { "data-state": this.connection }) : icon("live"), "Live"),
        h("button.button", { type: "button", "data-key": "edit", on: { click: () => this.edit(true) } }, icon("edit"), "Edit"), more]);
    this.strip.hidden = !first;
    if (first) refill(this.strip, this.stripParts(first, range));
    this.root.firstChild.classList.toggle("editing", this.isEditing);
  }

  /** Return the variables and the filters of all charts; in edit mode, which variables there are. */
  stripParts(first, range) {
    const variables = this.board.variables ?? [];
    if (this.isEditing) {
      const change = (next) => {
        this.board.variables = next;
        this.draw();
      };
      return h("div.line", {}, h("span.label", {}, "Variables"), h("div.chips", {}, variableEditor(variables, this.columnNames(), { onchange: change })));
    }
    const { filters } = this.override;
    const set = (next) => this.setOverride({ ...this.override, filters: next });
    const others = otherFilters(filters, variables);
    const held = filters.filter((one) => !others.includes(one));
    return [
      variables.length ? h("div.variables", {}, variableRow(variables, filters, { streamOf: (column) => this.streamOf(column), range, onchange: set })) : null,
      h("div.line", {}, h("span.label", {}, "Where"), filterRow({ stream: first.stream, filters: others }, this.columnsOf(first.stream), { onchange: (next) => set([...held.filter((one) => !next.some(({ column, op }) => column === one.column && op === one.op)), ...next]), range })),
    ];
  }

  columnNames() {
    return [...new Set(this.board.charts.flatMap(({ query }) => this.columnsOf(query.stream).map((one) => one.name)))].sort();
  }

  /** Return a stream of a chart that has a column. */
  streamOf(column) {
    return this.board.charts.map(({ query }) => query.stream).find((stream) => this.columnsOf(stream).some((one) => one.name === column));
  }

  arrange() {
    if (!this.cards.length) return fill(this.grid, h("div.empty", {}, icon("dashboards"), h("p.title", {}, "No charts yet"), h("p", {}, "Ask something in Explore, then choose Add to a dashboard."), h("a.button.primary", { href: "/explore" }, "Explore")));
    return fill(this.grid, this.cards.map((card) => card.root));
  }

  setOverride(override) {
    this.override = override;
    this.context.replace(`/dashboards/${encodeURIComponent(this.name)}${writeOverride(override, this.live)}`, true);
    this.draw();
    this.run();
  }

  setLive(live) {
    this.live = live;
    this.setOverride(this.override);
  }

  /** Return the query of a card with the time and the filters of the whole board. */
  queryOf({ query }) {
    const names = new Set(this.columnsOf(query.stream).map((one) => one.name));
    const { from, to, filters } = this.override;
    const time = from === undefined ? {} : { from, to, bucket: "auto" };
    return { ...query, ...time, filters: [...query.filters, ...filters.filter((one) => names.has(one.column))] };
  }

  async run() {
    this.stop?.();
    this.stop = null;
    for (const card of this.cards) {
      card.query = this.queryOf(card.spec);
      card.place();
    }
    if (!this.cards.length) return;
    if (this.live) {
      this.stop = listen(this.cards.map((card) => forServer(card.query)), {
        result: (at, result) => this.show(this.cards[at], result),
        problem: (at, problem) => this.cards[at]?.fail(problem),
        state: (state) => {
          this.connection = { live: "good", connecting: "warn", lost: "bad" }[state];
          this.head.querySelector("[data-key=live] .dot")?.setAttribute("data-state", this.connection);
        },
      });
      return;
    }
    await this.know();
    const left = this.cards.filter((card) => this.isKept(card) || card.fail(new Problem(404)));
    const work = async () => {
      for (let card = left.shift(); card; card = left.shift()) await runQuery(forServer(card.query)).then((result) => card.show(result), (problem) => card.fail(problem));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
  }

  isKept = (card) => this.known.some((one) => one.name === card.query.stream && one.kept);

  /** Ask which streams there are, where a chart's was not there before. */
  async know() {
    if (this.cards.every(this.isKept)) return;
    this.known = await streams(true).catch(() => this.known);
    this.draw();
  }

  /** Show an answer; the first one of a stream that is new brings its columns to the filters. */
  show(card, result) {
    if (!card) return;
    card.show(result);
    if (!this.isKept(card)) this.know();
  }

  edit(on) {
    if (on) this.before = structuredClone(this.board);
    this.isEditing = on;
    this.draw();
  }

  cancel() {
    this.board = this.before;
    this.isEditing = false;
    this.rebuild();
  }

  async save() {
    try {
      const saved = await put(`/api/dashboards/${encodeURIComponent(this.name)}`, this.board);
      this.board.version = saved.version ?? this.board.version;
      this.isEditing = false;
      this.draw();
      notify("The dashboard is saved.");
    } catch (problem) {
      if (problem.status === 409) notify("Somebody else saved this dashboard meanwhile.", { label: "Show theirs", action: () => ((this.isEditing = false), this.begin()) });
      else notify(problem.message);
    }
  }

  move(card, by) {
    const at = this.cards.indexOf(card);
    const to = Math.max(0, Math.min(this.cards.length - 1, at + by));
    if (at === to) return;
    this.cards.splice(to, 0, ...this.cards.splice(at, 1));
    this.board.charts.splice(to, 0, ...this.board.charts.splice(at, 1));
    this.arrange();
    if (this.live) this.run(); // the connection knows charts by their place
  }

  resize(card, width, height) {
    card.spec.width = Math.max(2, Math.min(12, width));
    card.spec.height = Math.max(2, Math.min(12, height));
    card.place();
  }

  drag(card, event) {
    if (!this.isEditing || event.button !== 0) return;
    card.root.classList.add("dragged");
    const over = ({ clientX, clientY }) => {
      const target = document.elementFromPoint(clientX, clientY)?.closest(".card");
      const to = this.cards.findIndex((one) => one.root === target);
      if (to >= 0 && this.cards[to] !== card) this.move(card, to - this.cards.indexOf(card));
    };
    follow(event, over, () => card.root.classList.remove("dragged"));
  }

  stretch(card, event) {
    if (!this.isEditing || event.button !== 0) return;
    const column = this.grid.clientWidth / 12;
    const { width, height } = card.spec;
    const row = card.root.clientHeight / height;
    follow(event, ({ clientX, clientY }) => this.resize(card, width + Math.round((clientX - event.clientX) / column), height + Math.round((clientY - event.clientY) / row)));
  }

  async rename(card) {
    const answer = await askFor("Edit the title", [{ name: "title", label: "Title", value: card.title.textContent }]);
    if (!answer) return;
    card.spec.title = answer.title;
    card.place();
  }

  drop(card) {
    const at = this.cards.indexOf(card);
    this.cards.splice(at, 1);
    this.board.charts.splice(at, 1);
    card.destroy();
    this.arrange();
    this.run();
  }

  async describe() {
    const answer = await askFor("Edit the dashboard", [{ name: "title", label: "Title", value: this.board.title }, { name: "description", label: "What it shows", value: this.board.description ?? "", required: false }]);
    if (!answer) return;
    Object.assign(this.board, answer);
    this.draw();
    await this.save();
  }

  async destroy() {
    const answer = await askFor(`Delete ${this.board.title}?`, [], "Delete");
    if (!answer) return;
    try {
      await remove(`/api/dashboards/${encodeURIComponent(this.name)}`);
      this.context.go("/dashboards");
    } catch (problem) {
      notify(problem.message);
    }
  }

  unmount() {
    this.stop?.();
    this.cards.forEach((card) => card.destroy());
  }
}

/** Follow the pointer until it is let loose: on the document, as the handle moves with its chart. */
function follow(event, onmove, onend) {
  event.preventDefault();
  const end = () => {
    document.removeEventListener("pointermove", onmove);
    for (const name of ["pointerup", "pointercancel"]) document.removeEventListener(name, end);
    onend?.();
  };
  document.addEventListener("pointermove", onmove);
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, end);
}

function readOverride(search) {
  const parameters = new URLSearchParams(search);
  parameters.set("stream", "any");
  const { from, to, filters } = fromAddress(parameters);
  return parameters.has("from") ? { from, to, filters } : { filters };
}

function writeOverride({ from, to, filters }, live) {
  const search = new URLSearchParams();
  if (from !== undefined) {
    search.set("from", from);
    search.set("to", to);
  }
  for (const { column, op, value } of filters) search.append("where", JSON.stringify(value === undefined ? [column, op] : [column, op, value]));
  if (!live) search.set("live", "0");
  return search.size ? `?${search}` : "";
}
