// The small window beside the pointer that says what a mark is. Its texts are data, so they are text nodes.

import { fill, h } from "../dom.js";

let tip = null;

/** Show lines `{colour, name, value}` below a heading, beside a point of the screen. */
export function showTip(x, y, heading, lines) {
  if (!tip) document.body.append((tip = h("div.tip", { "aria-hidden": "true" })));
  fill(tip, h("div.when", {}, heading), lines.map(({ colour, name, value }) =>
    h("div.line", {}, colour ? h("span.swatch", { style: { background: colour } }) : null, h("span.name", {}, name), h("b", {}, value))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - width - 16 : x + 16;
  tip.style.setProperty("left", `${Math.max(4, left)}px`);
  tip.style.setProperty("top", `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`);
}

export function hideTip() {
  if (tip) tip.hidden = true;
}
