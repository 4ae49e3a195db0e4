// One chart of a dashboard: its title, its answer, and in edit mode its place and size.

import { asTable, chart } from "../charts/chart.js";
import { savePicture } from "../charts/picture.js";
import { fill, h, icon } from "../dom.js";
import { duration, moment, short, utc } from "../format.js";
import { openMenu } from "../menus.js";
import { describe, toAddress } from "../query.js";

/** Return the card of a chart `{title, query, width, height}`; `on` are the acts of the board. */
export class Card {
  constructor(spec, on) {
    Object.assign(this, { spec, on, query: spec.query, result: null, made: null, isTable: false });
    this.title = h("a.title", { href: "#" });
    this.state = h("span.note.state");
    this.body = h("div.card-body", {}, h("div.bones", { "aria-hidden": "true" }, h("i"), h("i")));
    this.more = h("button.button.plain.small.only-icon", { type: "button", "aria-haspopup": "menu", "aria-expanded": "false", on: { click: () => this.menu() } }, icon("more"));
    this.handle = h("button.button.plain.small.only-icon.grip", { type: "button", title: "Drag to move; arrow keys move too" }, icon("grip"));
    this.corner = h("button.corner", { type: "button", title: "Drag to resize; arrow keys resize too" });
    this.root = h("article.panel.card", {}, h("header", {}, this.handle, h("h2", {}, this.title), this.state, this.more), this.body, this.corner);
    this.keys();
    this.place();
  }

  /** Take the size, the title and the query from the spec. */
  place() {
    const { title, width, height } = this.spec;
    this.root.style.setProperty("--width", Math.max(1, Math.min(12, width || 6)));
    this.root.style.setProperty("--height", Math.max(2, height || 4));
    const name = title || describe(this.spec.query);
    fill(this.title, name);
    this.title.title = name;
    this.title.href = `/explore?${toAddress(this.query)}`;
    this.root.setAttribute("aria-label", name);
    this.more.setAttribute("aria-label", `Menu of ${name}`);
    this.handle.setAttribute("aria-label", `Move ${name}`);
    this.corner.setAttribute("aria-label", `Resize ${name}`);
  }

  keys() {
    this.handle.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.on.move(this, by);
      this.handle.focus();
    });
    this.corner.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!by) return;
      event.preventDefault();
      this.on.resize(this, this.spec.width + by[0], this.spec.height + by[1]);
    });
    this.handle.addEventListener("pointerdown", (event) => this.on.drag(this, event));
    this.corner.addEventListener("pointerdown", (event) => this.on.stretch(this, event));
  }

  show(result) {
    this.result = result;
    this.draw();
  }

  draw() {
    const held = this.body.contains(document.activeElement);
    this.made?.destroy();
    const drill = (data, point) => this.on.drill(this, data, point);
    const on = { mark: drill, zoom: this.on.zoom, cell: (row, column, value, anchor) => drill({ values: column.role === "group" || this.query.view === "samples" ? { [column.name]: value } : {} }, anchor) };
    const shown = this.isTable ? { root: asTable(this.query, this.result, on), destroy() {}, canvases: () => [], legend: [] } : chart(this.query, this.result, on);
    this.made = shown;
    const legend = shown.legend?.length > 1 ? h("div.legend", {}, shown.legend.slice(0, 12).map(({ name, colour }) => h("span.line", {}, h("span.swatch", { style: { background: colour } }), h("span.what", {}, name)))) : null;
    fill(this.body, shown.root, legend);
    if (held) this.body.querySelector(".plot, td[tabindex='0']")?.focus({ preventScroll: true });
    const { as_of_ms: at, took_ms: took, rows_scanned: rows, sampled, complete } = this.result;
    fill(this.state, sampled ? h("span.badge.warn", {}, "sampled") : null, complete === false ? h("span.badge.warn", {}, "partial") : null);
    this.state.title = `as of ${moment(at)}, ${utc(at)}; ${short(rows)} rows in ${duration(took)}`;
  }

  fail(problem) {
    this.made?.destroy();
    this.made = null;
    if (problem.status === 404) return fill(this.body, h("div.empty", {}, icon("live"), h("p", {}, `No stream ${this.query.stream} yet.`)));
    return fill(this.body, h("div.empty", { role: "alert" }, icon("warn"), h("p", {}, problem.message)));
  }

  menu() {
    const items = [{ label: "Open in Explore", icon: "explore", href: this.title.getAttribute("href") },
      { label: this.isTable ? "Show as a chart" : "Show as a table", icon: "table", act: () => this.result && ((this.isTable = !this.isTable), this.draw()) }];
    if (this.made?.canvases().length) items.push({ label: "Download PNG", icon: "export", act: () => savePicture(this.made.canvases(), { title: this.title.textContent, note: `as of ${moment(this.result.as_of_ms)}`, legend: this.made.legend }) });
    if (this.on.editing()) {
      const { width, height } = this.spec;
      items.push(null, { label: "Edit the title…", icon: "edit", act: () => this.on.rename(this) }, { label: "Earlier", icon: "left", act: () => this.on.move(this, -1) }, { label: "Later", icon: "right", act: () => this.on.move(this, 1) },
        { label: "Wider", act: () => this.on.resize(this, width + 1, height) }, { label: "Narrower", act: () => this.on.resize(this, width - 1, height) },
        { label: "Taller", act: () => this.on.resize(this, width, height + 1) }, { label: "Lower", act: () => this.on.resize(this, width, height - 1) },
        null, { label: "Remove", icon: "close", act: () => this.on.remove(this) });
    }
    openMenu(this.more, items, `Menu of ${this.title.textContent}`);
  }

  destroy() {
    this.made?.destroy();
  }
}
