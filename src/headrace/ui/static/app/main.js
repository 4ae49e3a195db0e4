// Where everything begins: the frame, and the page that the address names.

import { fill, h, icon } from "./dom.js";
import { closeOpen, notify } from "./menus.js";
import { PAGES, pageOf } from "./pages.js";
import { always, forPage, showShortcuts } from "./shortcuts.js";
import { statusLine } from "./status.js";
import { switchTheme, theme } from "./theme.js";

const page = h("main", { id: "page", tabindex: "-1" });
let shown = { page: null, mounted: null };
let turn = 0;

/** Show another address, as a link would; back leads to the one before. */
function go(address) {
  if (address !== location.pathname + location.search) history.pushState(null, "", address);
  return show();
}

/** Have the address say what is shown already. */
function replace(address, push = false) {
  if (address === location.pathname + location.search) return;
  if (push) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  links();
}

function links() {
  for (const link of document.querySelectorAll(".rail nav a")) {
    const current = pageOf(location.pathname)?.path === link.getAttribute("href");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function show() {
  closeOpen(false);
  links();
  const found = pageOf(location.pathname);
  if (found && found === shown.page && shown.mounted) return shown.mounted.address(location.pathname, location.search);
  turn += 1;
  const mine = turn;
  shown.mounted?.unmount();
  shown = { page: found, mounted: null };
  forPage([]);
  fill(page);
  document.title = found ? `${found.title} · Headrace` : "Headrace";
  if (!found) return fill(page, nowhere());
  try {
    const module = await found.load();
    if (mine === turn) shown.mounted = module.mount(page, { path: location.pathname, search: location.search, go, replace: (...to) => mine === turn && replace(...to) });
  } catch (error) {
    if (mine === turn) fill(page, failed(error));
    throw error;
  }
}

const nowhere = () => h("div.empty", {}, icon("search"), h("h1.title", {}, "There is no such page"), h("p", {}, h("a", { href: "/explore" }, "Explore the streams")));
const failed = (error) => h("div.empty", {}, icon("warn"), h("h1.title", {}, "The page could not be loaded"), h("p", {}, error.message),
  h("button.button", { type: "button", on: { click: () => location.reload() } }, "Load it again"));

function frame() {
  const look = h("button.rail-tool", { type: "button" });
  const word = () => fill(look, icon(theme() === "dark" ? "sun" : "moon"), h("span.word", {}, theme() === "dark" ? "Light theme" : "Dark theme"));
  look.addEventListener("click", switchTheme);
  document.addEventListener("theme", word);
  word();
  const link = ({ path, title, icon: name, key }) => h("a", { href: path, title }, icon(name), h("span.word", {}, title), h("kbd.only-wide", { "aria-hidden": "true" }, key));
  return h("div.frame", {},
    h("header.rail", {},
      h("a.brand", { href: "/explore" }, h("img", { src: document.querySelector("link[rel=icon]").href, alt: "" }), h("span.word", {}, "Headrace")),
      h("nav", { "aria-label": "Pages" }, PAGES.map(link)),
      h("div.grow"),
      h("button.rail-tool.only-wide", { type: "button", on: { click: showShortcuts } }, icon("keys"), h("span.word", {}, "Shortcuts"), h("kbd", { "aria-hidden": "true" }, "?")),
      look, statusLine()),
    page);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  if (link.hasAttribute("download") || link.target || !pageOf(new URL(link.href).pathname)) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", show);
document.addEventListener("session-ended", () => notify("You are signed out.", { label: "Sign in", action: () => location.reload() }), { once: true });
always(...PAGES.map(({ path, title, key }) => [key, `go to ${title}`, () => go(path)]), ["t", "light or dark", switchTheme], ["?", "this sheet", showShortcuts], ["Esc", "close what is open", null]);
document.getElementById("frame").replaceWith(frame());
show();
