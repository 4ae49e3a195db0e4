// The pages of dashboards: the list of them, and one with its charts.

import { get, put } from "../api.js";
import { fill, h, icon } from "../dom.js";
import { nameOf } from "../explore/page.js";
import { askFor, notify } from "../menus.js";
import { forPage } from "../shortcuts.js";
import { Board } from "./board.js";

export function mount(root, context) {
  let board = null;
  const show = (path, search) => {
    const name = decodeURIComponent(path.split("/")[2] ?? "");
    if (board && board.name === name) return board.address(search);
    board?.unmount();
    board = null;
    fill(root);
    forPage([]);
    if (name) board = new Board(root, name, context, search);
    else list(root, context);
  };
  show(context.path, context.search);
  return { address: show, unmount: () => board?.unmount() };
}

async function list(root, context) {
  document.title = "Dashboards · Headrace";
  const body = h("div", { "aria-live": "polite" }, h("p.note", {}, "Looking…"));
  const create = async () => {
    const answer = await askFor("A new dashboard", [{ name: "title", label: "Title" }, { name: "description", label: "What it shows", required: false }], "Create");
    if (!answer) return;
    const name = nameOf(answer.title);
    try {
      await put(`/api/dashboards/${encodeURIComponent(name)}`, { title: answer.title, description: answer.description, refresh: "", charts: [] });
      context.go(`/dashboards/${encodeURIComponent(name)}`);
    } catch (problem) {
      notify(problem.message);
    }
  };
  fill(root, h("div.sheet", {}, h("div.head", {}, h("h1", {}, "Dashboards"), h("span.grow"), h("button.button.primary", { type: "button", on: { click: create } }, icon("add"), "New dashboard")), body));
  try {
    const { dashboards } = await get("/api/dashboards");
    fill(body, dashboards.length ? h("ul.cards", {}, dashboards.map(({ name, title, description, charts }) => h("li", {}, h("a.panel.card-link", { href: `/dashboards/${encodeURIComponent(name)}` },
      h("span.title", {}, title || name), description ? h("span.note", {}, description) : null,
      charts === undefined ? null : h("span.badge", {}, `${Array.isArray(charts) ? charts.length : charts} charts`)))))
      : h("div.empty", {}, icon("dashboards"), h("p.title", {}, "No dashboards yet"), h("p", {}, "Make one here, or add a chart from Explore.")));
  } catch (problem) {
    fill(body, h("div.empty", { role: "alert" }, icon("warn"), h("p.title", {}, "Dashboards could not be read"), h("p", {}, problem.message)));
  }
}
