// What opens over the page: menus, popovers, dialogs, notices. All close with Escape and give the focus back.

import { freshId, h, icon, roving } from "./dom.js";

let open = null;

/** Close what is open; the focus goes back to where it was unless something else has it. */
export function closeOpen(restore = true) {
  if (!open) return;
  const { element, from, anchor } = open;
  open = null;
  const inside = element.contains(document.activeElement) || document.activeElement === document.body;
  element.remove();
  if (anchor instanceof Element) anchor.setAttribute("aria-expanded", "false");
  if (!restore || !inside) return;
  // The part was perhaps drawn again meanwhile: then what stands for the same thing gets the focus.
  const key = from?.closest?.("[data-key]")?.dataset.key;
  const again = from?.isConnected ? from : key && [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  again?.focus?.({ preventScroll: true });
}

document.addEventListener("pointerdown", (event) => {
  if (!open || open.element.contains(event.target) || event.target.closest?.(".listbox")) return;
  if (open.anchor instanceof Element && open.anchor.contains(event.target)) return;
  closeOpen(false);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !open || event.defaultPrevented) return;
  event.preventDefault();
  closeOpen();
});
addEventListener("resize", () => closeOpen(false));

/** Put an element beside an anchor, an element or a point, where it fits on the screen. */
export function place(element, anchor) {
  const box = anchor instanceof Element ? anchor.getBoundingClientRect() : { left: anchor.x, right: anchor.x, top: anchor.y, bottom: anchor.y };
  const { width, height } = element.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const below = box.bottom + 4;
  const top = below + height <= innerHeight - 8 ? below : Math.max(8, Math.min(box.top - height - 4, innerHeight - height - 8));
  element.style.setProperty("left", `${left}px`);
  element.style.setProperty("top", `${top}px`);
}

function show(element, anchor) {
  const from = document.activeElement;
  closeOpen(false);
  document.body.append(element);
  open = { element, from, anchor };
  if (anchor instanceof Element) anchor.setAttribute("aria-expanded", "true");
  place(element, anchor);
}

/**
 * Open a menu at an element or at a point `{x, y}`.
 *
 * An item is `{label, hint, icon, act, checked, href}`, `{heading}` or `null`, a line.
 */
export function openMenu(anchor, items, label) {
  if (open?.anchor === anchor && anchor instanceof Element) return closeOpen();
  const rows = items.map((item) => {
    if (item === null) return h("hr");
    if (item.heading !== undefined) return h("div.heading", { role: "presentation" }, item.heading);
    const role = item.checked === undefined ? "menuitem" : "menuitemradio";
    const choose = (event) => {
      if (!item.href) event.preventDefault();
      closeOpen();
      item.act?.();
    };
    return h(item.href ? "a" : "button", {
      role, type: item.href ? null : "button", tabindex: "-1", href: item.href, download: item.download,
      "aria-checked": item.checked === undefined ? null : String(item.checked), on: { click: choose },
    }, item.icon ? icon(item.icon) : null, h("span.what", {}, item.label), item.hint ? h("span.hint", {}, item.hint) : null);
  });
  const menu = h("div.menu", { role: "menu", "aria-label": label, on: { keydown: (event) => event.key === "Tab" && closeOpen() } }, rows);
  show(menu, anchor);
  roving(menu, "[role^=menuitem]", { vertical: true });
  menu.querySelector("[role^=menuitem]")?.focus();
  return menu;
}

/** Open a small window beside an element, with the focus on its first field. */
export function openPopover(anchor, label, ...children) {
  if (open?.anchor === anchor && anchor instanceof Element) return closeOpen();
  const popover = h("div.popover", { role: "dialog", "aria-label": label, tabindex: "-1" }, children);
  show(popover, anchor);
  (popover.querySelector("[autofocus], input, button, select") ?? popover).focus();
  return popover;
}

/** Open a dialog that must be answered; `build(close)` returns what it shows. */
export function openDialog(title, build) {
  const from = document.activeElement;
  const id = freshId("dialog");
  const dialog = h("dialog", { "aria-labelledby": id }, h("h2", { id }, title));
  const close = () => dialog.close();
  dialog.append(...[build(close)].flat());
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (from?.isConnected) from.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Ask for a few texts; resolves to their values by name, or null where it was given up. */
export function askFor(title, fields, action = "Save") {
  return new Promise((resolve) => {
    let answer = null;
    const dialog = openDialog(title, (close) => {
      const inputs = fields.map(({ name, label, value = "", options, required = true }) => {
        const input = options
          ? h("select.select", { name }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)))
          : h("input.field", { name, value, required, maxlength: 200, autocomplete: "off" });
        return h("label.labelled", {}, h("span", {}, label), input);
      });
      const submit = (event) => {
        event.preventDefault();
        answer = Object.fromEntries(new FormData(event.target));
        close();
      };
      return h("form", { on: { submit } }, inputs, h("div.actions", {},
        h("button.button", { type: "button", on: { click: close } }, "Cancel"), h("button.button.primary", { type: "submit" }, action)));
    });
    dialog.addEventListener("close", () => resolve(answer));
  });
}

let toasts = null;

/** Say something for some seconds; screen readers hear it. */
export function notify(message, { action, label } = {}) {
  if (!toasts) document.body.append((toasts = h("div.toasts", { role: "status", "aria-live": "polite" })));
  const toast = h("div.toast", {}, h("span", {}, message));
  const gone = () => toast.remove();
  if (action) {
    const press = () => {
      gone();
      action();
    };
    toast.append(h("button.button.small", { type: "button", on: { click: press } }, label));
  }
  toasts.append(toast);
  setTimeout(gone, action ? 10000 : 5000);
}
