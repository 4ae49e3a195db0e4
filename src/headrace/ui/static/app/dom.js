// Elements made by script. Whatever comes from data becomes a text node or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `h("a.button.small", {href, on: {click}}, "text", child)`; null children are left out. */
export function h(what, options = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(options)) set(element, name, value);
  add(element, children);
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === "on") {
    for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
  } else if (name === "style") {
    for (const [property, one] of Object.entries(value)) element.style.setProperty(property, one);
  } else if (name === "class") {
    element.className = `${element.className} ${value}`.trim();
  } else if (name === "value") {
    element.value = value;
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Have an element hold these children and no others. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/**
 * Draw a part again without losing the place of who types in it: the element with the same `data-key`
 * has the focus afterwards, with the same selection.
 */
export function refill(element, ...children) {
  const held = element.contains(document.activeElement) ? document.activeElement : null;
  const key = held?.closest("[data-key]")?.dataset.key;
  const range = held && "selectionStart" in held ? [held.selectionStart, held.selectionEnd] : null;
  const text = held?.tagName === "INPUT" ? held.value : null;
  fill(element, ...children);
  if (!key) return;
  const again = [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  if (!again) return;
  if (text !== null && again.tagName === "INPUT" && again.dataset.draft === "") again.value = text;
  again.focus({ preventScroll: true });
  if (range && range[0] !== null && "setSelectionRange" in again && again.type === "text") again.setSelectionRange(...range);
}

/** Move through children with the arrow keys, so that a group is one stop of the Tab key. */
export function roving(group, selector, { vertical = false, onmove } = {}) {
  const items = () => [...group.querySelectorAll(selector)].filter((one) => !one.disabled && !one.hidden);
  const settle = (current) => items().forEach((one) => one.setAttribute("tabindex", one === current ? "0" : "-1"));
  settle(items().find((one) => one.getAttribute("aria-selected") === "true") ?? items()[0]);
  group.addEventListener("focusin", (event) => {
    if (items().includes(event.target)) settle(event.target);
  });
  group.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const [back, on] = vertical ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
    const to = { [back]: at - 1, [on]: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    settle(next);
    next.focus();
    onmove?.(next);
  });
}

const PATHS = {
  explore: "M3 3v10h10M5.5 10V7.500M8 10V5M10.5 10V6.5",
  dashboards: "M2.5 2.500h5v6h-5zM9.5 2.500h4v3.500h-4zM9.5 8h4v5.500h-4zM2.5 10.500h5v3h-5z",
  sql: "M5.5 4.5 2 8l3.5 3.500M10.5 4.5 14 8l-3.5 3.500M9 3 7 13",
  table: "M2.5 3.500h11v9h-11zM2.5 6.500h11M6.5 6.500v6",
  series: "M2 12.5 5.5 7l3 3L14 3.5",
  bars: "M3 3v10M3 4.500h9M3 8h6M3 11.500h3.5",
  area: "M2 12.500V9l3.5-3 3 2L14 4v8.500z",
  distribution: "M2.5 13v-2h2.200V7h2.200V3h2.200v4h2.200v4h2.200v2z",
  heatmap: "M2.5 2.500h11v11h-11zM2.5 6.200h11M2.5 9.800h11M6.2 2.500v11M9.8 2.500v11",
  samples: "M3 4h10M3 8h10M3 12h6",
  close: "m4 4 8 8M12 4l-8 8",
  add: "M8 3v10M3 8h10",
  down: "m4 6 4 4 4-4",
  up: "m4 10 4-4 4 4",
  left: "m10 4-4 4 4 4",
  right: "m6 4 4 4-4 4",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  clock: "M8 2.500a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3l2 1.5",
  run: "M5 3.500v9l7-4.500z",
  live: "M8 7.300a.7.7 0 1 0 0 1.4.7.7 0 0 0 0-1.400M5 5a4.2 4.2 0 0 0 0 6M11 5a4.2 4.2 0 0 1 0 6M3 3a7 7 0 0 0 0 10M13 3a7 7 0 0 1 0 10",
  save: "M4 2.500h8v11L8 10.500l-4 3z",
  share: "M6.5 9.500l3-3M7 4.500l1-1a3.2 3.2 0 0 1 4.5 4.500l-1 1M9 11.500l-1 1A3.2 3.2 0 0 1 3.5 8l1-1",
  export: "M8 2.500v7M5 7l3 3 3-3M3 13.500h10",
  sun: "M8 5.200a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.600M8 1.500v1.200M8 13.300v1.200M1.5 8h1.200M13.3 8h1.200M3.4 3.400l.9.900M11.7 11.700l.9.900M3.4 12.600l.9-.9M11.7 4.300l.9-.9",
  moon: "M13 9.500A5.5 5.5 0 1 1 6.5 3a4.5 4.5 0 0 0 6.5 6.500z",
  keys: "M2 4.500h12v7H2zM4.5 7h.01M7 7h.01M9.5 7h.01M11.8 7h.01M5 9.300h6",
  warn: "M8 2.5 14 13H2zM8 6.500v3M8 11.300h.01",
  search: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM10 10l3.5 3.5",
  columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  edit: "M3 13l.7-3L10.5 3.200l2.3 2.300L6 12.300zM9 4.7 11.3 7",
  zoomout: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM5.2 7h3.600M10 10l3.5 3.5",
  history: "M3 8a5 5 0 1 0 1.5-3.500L3 6M3 3v3h3M8 5.500V8l1.8 1",
  grip: "M6 4h.01M10 4h.01M6 8h.01M10 8h.01M6 12h.01M10 12h.01",
};

/** Return an icon of 16 pixels, hidden from screen readers: the word beside it says what it is. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

let made = 0;

/** Return an id that no other element has. */
export function freshId(word) {
  made += 1;
  return `${word}-${made}`;
}
