// The editor: a text area over its own text in colours, with line numbers and completion of names.

import { fill, freshId, h } from "../dom.js";
import { place } from "../menus.js";
import { highlight, offsetOf } from "./highlight.js";

/** Return `{root, text, setText, mark, insert, focus}`; `names()` are `{name, hint}` to complete. */
export function editor({ names, onrun, onchange }) {
  const id = freshId("names");
  const gutter = h("div.gutter", { "aria-hidden": "true" });
  const shown = h("pre", { "aria-hidden": "true" });
  const area = h("textarea", { "aria-label": "SQL, one SELECT", spellcheck: "false", autocapitalize: "off", autocomplete: "off", autocorrect: "off", "aria-describedby": `${id}-how` });
  const root = h("div.editor-box", {}, gutter, h("div.layers", {}, shown, area), h("span.unseen", { id: `${id}-how` }, "Control and Enter run it. Control and Space complete a name. Escape, then Tab leaves."));
  const state = { wrong: -1, list: null, items: [], at: 0, leaves: false };

  const draw = () => {
    fill(shown, highlight(area.value, state.wrong));
    fill(gutter, area.value.split("\n").map((_, at) => at + 1).join("\n"));
  };
  const word = () => /[\w.$]*$/.exec(area.value.slice(0, area.selectionStart))[0];
  const close = () => {
    state.list?.remove();
    state.list = null;
  };
  const take = (item) => {
    const typed = word().split(".").pop();
    const bare = /^[a-z_][\w]*$/i.test(item.name) ? item.name : `"${item.name.replaceAll('"', '""')}"`;
    area.setRangeText(bare, area.selectionStart - typed.length, area.selectionStart, "end");
    close();
    changed();
  };
  const select = (at) => {
    state.at = (at + state.items.length) % state.items.length;
    [...state.list.children].forEach((row, index) => row.setAttribute("aria-selected", String(index === state.at)));
    area.setAttribute("aria-activedescendant", `${id}-${state.at}`);
    state.list.children[state.at].scrollIntoView({ block: "nearest" });
  };
  const complete = (asked) => {
    close();
    area.removeAttribute("aria-activedescendant");
    const typed = word().split(".").pop().toLowerCase();
    if (!asked && typed.length < 2) return;
    state.items = names().filter(({ name }) => name.toLowerCase().startsWith(typed) && name.toLowerCase() !== typed).slice(0, 12);
    if (!state.items.length) return;
    const before = area.value.slice(0, area.selectionStart).split("\n");
    const box = area.getBoundingClientRect();
    const y = box.top + 12 + before.length * 20;
    state.list = h("div.listbox", { id, role: "listbox", "aria-label": "Names" }, state.items.map((item, at) => h("div.option", { role: "option", id: `${id}-${at}`, "aria-selected": "false",
      on: { pointerdown: (event) => event.preventDefault(), click: () => take(item) } }, h("span.what", {}, item.name), h("span.hint", {}, item.hint))));
    document.body.append(state.list);
    place(state.list, { x: box.left + 12 + Math.min(before.at(-1).length * 7.8, box.width - 220), y });
    select(0);
  };
  const changed = () => {
    state.wrong = -1;
    draw();
    onchange(area.value);
  };
  area.addEventListener("input", () => {
    changed();
    complete(false);
  });
  area.addEventListener("blur", close);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      close();
      return onrun();
    }
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      return complete(true);
    }
    if (state.list) {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        return select(state.at + (event.key === "ArrowDown" ? 1 : -1));
      }
      if (event.key === "Enter" || event.key === "Tab") {
        event.preventDefault();
        return take(state.items[state.at]);
      }
      if (event.key === "Escape") {
        event.preventDefault();
        return close();
      }
    }
    if (event.key === "Escape") state.leaves = true;
    else if (event.key === "Tab" && !event.shiftKey && !state.leaves) {
      event.preventDefault();
      area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end");
      changed();
    } else if (event.key !== "Shift") state.leaves = false;
    return undefined;
  });
  draw();
  return {
    root,
    text: () => area.value,
    focus: () => area.focus(),
    setText(text) {
      area.value = text;
      changed();
    },
    insert(text) {
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      area.focus();
      changed();
    },
    /** Mark what is wrong at a line and a column, and put the cursor there. */
    mark(line, column) {
      state.wrong = offsetOf(area.value, line, column);
      draw();
      area.focus();
      area.setSelectionRange(state.wrong, state.wrong);
    },
  };
}
