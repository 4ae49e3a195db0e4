// A text field that completes what is typed: a combobox as ARIA describes it.

import { freshId, h, icon } from "./dom.js";
import { place } from "./menus.js";

const DELAY_MS = 90;

/**
 * Make a field with suggestions.
 *
 * `suggest(text, signal)` returns, or promises, suggestions `{label, hint, kind, icon, text, commit}`:
 * one with `commit` ends the entry, one with `text` replaces what was typed and suggests again.
 * `enter(text)` takes what was typed without a suggestion; false says that it cannot be understood.
 * `erase()` is called for Backspace in an empty field.
 */
export function combobox({ label, placeholder, key, value = "", suggest, enter, erase }) {
  const id = freshId("list");
  const input = h("input.field", {
    type: "text", role: "combobox", "aria-label": label, "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id,
    placeholder, autocomplete: "off", spellcheck: "false", autocapitalize: "off", "data-key": key, "data-draft": "", value,
  });
  const root = h("div.combobox", {}, input);
  const state = { list: null, items: [], at: -1, timer: 0, asked: null, isOld: false, first: false };

  const close = () => {
    state.asked?.abort();
    clearTimeout(state.timer);
    state.list?.remove();
    Object.assign(state, { list: null, items: [], at: -1, isOld: false });
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = (at) => {
    state.at = at;
    [...state.list.children].forEach((row, index) => row.setAttribute("aria-selected", String(index === at)));
    const row = state.list.children[at];
    if (row) {
      input.setAttribute("aria-activedescendant", row.id);
      row.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const choose = (item) => {
    if (item.commit) {
      input.value = "";
      close();
      item.commit();
      return;
    }
    input.value = item.text;
    look();
  };
  const draw = (items) => {
    close();
    if (!items.length || document.activeElement !== input) return;
    state.items = items;
    const first = state.first;
    state.list = h("div.listbox", { id, role: "listbox", "aria-label": label }, items.map((item, index) =>
      h("div.option", { role: "option", id: `${id}-${index}`, "aria-selected": "false", on: {
        pointerdown: (event) => event.preventDefault(), click: () => choose(item),
      } }, item.icon ? icon(item.icon) : null, item.kind ? h("span.kind", {}, item.kind) : null,
      h("span.what", {}, item.label), item.hint ? h("span.hint", {}, item.hint) : null)));
    document.body.append(state.list);
    place(state.list, input);
    input.setAttribute("aria-expanded", "true");
    if (first) mark(0);
  };
  const look = () => {
    state.asked?.abort();
    const asked = (state.asked = new AbortController());
    Promise.resolve(suggest(input.value, asked.signal)).then((items) => !asked.signal.aborted && draw(items), () => {});
  };
  const soon = () => {
    clearTimeout(state.timer);
    // Who types fast must not choose from what was suggested for less.
    Object.assign(state, { at: -1, isOld: true, first: false });
    input.removeAttribute("aria-invalid");
    state.timer = setTimeout(look, DELAY_MS);
  };
  const keys = (event) => {
    const last = state.items.length - 1;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!state.list || state.isOld) {
        clearTimeout(state.timer);
        state.first = event.key === "ArrowDown";
        return look();
      }
      const step = event.key === "ArrowDown" ? state.at + 1 : state.at - 1;
      mark(step > last ? 0 : step < 0 ? last : step);
    } else if (event.key === "Enter" || (event.key === "Tab" && state.list && state.at >= 0)) {
      if (event.key === "Enter" && event.ctrlKey) return;
      event.preventDefault();
      if (state.at >= 0) return choose(state.items[state.at]);
      if (!input.value.trim()) return;
      if (enter(input.value.trim()) === false) {
        if (state.items.length && !state.isOld) choose(state.items[0]);
        else input.setAttribute("aria-invalid", "true");
      }
    } else if (event.key === "Escape" && (state.list || input.value)) {
      event.preventDefault();
      event.stopPropagation();
      if (!state.list) input.value = "";
      close();
    } else if (event.key === "Backspace" && !input.value) erase?.();
  };
  input.addEventListener("input", soon);
  input.addEventListener("focus", look);
  input.addEventListener("click", () => !state.list && look());
  input.addEventListener("blur", close);
  input.addEventListener("keydown", keys);
  return root;
}

const KINDS = { number: "#", string: "a", bool: "?", time: "t", json: "{}", bytes: "01" };

/** Return the mark of a kind of column. */
export const kindMark = (kind) => KINDS[kind] ?? "·";

/** Return the columns whose names have all the words of a text, those that begin with it first. */
export function matching(columns, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = columns.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const first = ({ name }) => (words[0] && name.toLowerCase().startsWith(words[0]) ? 0 : 1);
  return found.sort((one, other) => first(one) - first(other)).slice(0, 60);
}
