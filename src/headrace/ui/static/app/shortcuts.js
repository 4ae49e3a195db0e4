// Keys of the whole page, and the sheet that lists them.

import { h } from "./dom.js";
import { openDialog } from "./menus.js";

const general = [];
let ofPage = [];

/** Add keys `[key, what, act]`; `act` is null where a part handles the key by itself. */
export const always = (...keys) => general.push(...keys);

/** Replace the keys of the page that is shown. */
export const forPage = (keys) => {
  ofPage = keys;
};

const typing = (target) => target.closest?.("input, textarea, select, [contenteditable]");
let prefix = "";

document.addEventListener("keydown", (event) => {
  const name = `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.key}`;
  if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]")) return;
  if (typing(event.target) && !name.startsWith("Ctrl+")) return;
  const whole = prefix ? `${prefix} ${name}` : name;
  prefix = "";
  const found = [...ofPage, ...general].find(([key, , act]) => key === whole && act);
  if (found) {
    event.preventDefault();
    found[2]();
  } else if (name === "g") {
    prefix = "g";
  }
});

/** Show all keys. */
export function showShortcuts() {
  const rows = (keys) => h("dl.keys", {}, keys.map(([key, what]) => [
    h("dt", {}, key.split(" ").map((one, at) => [at ? " " : "", h("kbd", {}, one)])), h("dd", {}, what)]));
  openDialog("Keyboard shortcuts", (close) => [
    h("div.stack", {}, ofPage.length ? [h("h3", {}, "This page"), rows(ofPage)] : null, h("h3", {}, "Everywhere"), rows(general),
      h("div.actions", {}, h("button.button.primary", { type: "button", autofocus: true, on: { click: close } }, "Close")))]);
}
