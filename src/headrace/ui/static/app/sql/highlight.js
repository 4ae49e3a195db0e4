// SQL in colours: the text is cut into pieces, and each becomes a text node in an element.

import { h } from "../dom.js";

const WORDS = new Set(("select from where group by order having limit offset join left right full inner outer cross on using as and or not in is null like ilike between case when then else end " +
  "union all except intersect distinct with recursive asc desc nulls first last over partition rows range filter qualify interval true false cast values exists any sample unnest lateral window").split(" "));
const PIECE = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$))|(\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)|([A-Za-z_][A-Za-z0-9_]*)/gi;

/** Return the offset in a text of a line and a column, both from 1. */
export function offsetOf(text, line, column) {
  const before = text.split("\n").slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  return Math.min(text.length, before + column - 1);
}

/** Return nodes of a text; the word at `wrong`, an offset, is marked. */
export function highlight(text, wrong = -1) {
  const nodes = [];
  let at = 0;
  const plain = (end) => {
    if (end > at) nodes.push(document.createTextNode(text.slice(at, end)));
    at = end;
  };
  for (const match of text.matchAll(PIECE)) {
    const end = match.index + match[0].length;
    const name = match[1] ? "note" : match[2] ? "text" : match[3] ? "number" : WORDS.has(match[4].toLowerCase()) ? "word" : "";
    const isWrong = wrong >= match.index && wrong < end;
    if (!name && !isWrong) continue;
    if (wrong >= at && wrong < match.index) {
      plain(wrong);
      nodes.push(h("span.code-wrong", {}, text.slice(wrong, wrong + 1)));
      at = wrong + 1;
    }
    plain(match.index);
    nodes.push(h("span", { class: `${name ? `code-${name}` : ""} ${isWrong ? "code-wrong" : ""}`.trim() }, match[0]));
    at = end;
  }
  if (wrong >= at && wrong < text.length) {
    plain(wrong);
    nodes.push(h("span.code-wrong", {}, text.slice(wrong, wrong + 1)));
    at = wrong + 1;
  }
  plain(text.length);
  nodes.push(document.createTextNode("\n"));
  return nodes;
}
