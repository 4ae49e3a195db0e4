// The status line: whether streams are read and jobs run, asked every few seconds while the page is seen.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { duration, short } from "./format.js";
import { openPopover } from "./menus.js";

const EVERY_MS = 5000;
const LATE_MS = 30000;

/** Return the state of a whole home, good, warn or bad, with a sentence: what any console page shows first. */
export function overall(status) {
  const problems = [...status.tailers, ...status.jobs].filter((one) => one.problem);
  if (problems.length) return ["bad", `${problems.length} ${problems.length === 1 ? "problem" : "problems"}`];
  const lag = Math.max(0, ...status.tailers.map((one) => one.lag_ms ?? 0));
  if (lag > LATE_MS) return ["warn", `${duration(lag)} behind`];
  const rate = status.tailers.reduce((sum, one) => sum + (one.rows_per_s ?? 0), 0);
  const count = status.tailers.length;
  return ["good", `${count} ${count === 1 ? "stream" : "streams"}, ${short(rate, "per second")}`];
}

/** Return the element of the status line. */
export function statusLine() {
  const dot = h("span.dot");
  const word = h("span.word", {}, "connecting");
  const button = h("button.rail-tool", { type: "button", "aria-haspopup": "dialog", "aria-expanded": "false", title: "Status of streams and jobs" }, dot, word);
  let last = null;
  const draw = (state, text) => {
    dot.dataset.state = state;
    fill(word, text);
    button.setAttribute("aria-label", `Status: ${text}`);
  };
  const look = async () => {
    if (document.hidden) return;
    try {
      last = await get("/api/status");
      draw(...overall(last));
    } catch (problem) {
      draw("bad", problem.status === 401 ? "signed out" : "no connection");
    }
  };
  button.addEventListener("click", () => last && openPopover(button, "Status", details(last)));
  document.addEventListener("visibilitychange", look);
  look();
  setInterval(look, EVERY_MS);
  return h("div.status", {}, button);
}

function details({ home, version, tailers, jobs }) {
  const line = (state, name, what, problem) => h("tr", {}, h("td", {}, h("span.dot", { "data-state": state }), " ", name), h("td", {}, what, problem ? h("div.note", {}, problem) : null));
  return h("div.stack", {},
    h("div", {}, h("h2", {}, "Headrace ", version ?? ""), h("p.note.mono", {}, home ?? "")),
    h("table.rows", {}, h("caption.unseen", {}, "Streams and jobs"), h("tbody", {},
      tailers.map((one) => line(one.problem ? "bad" : (one.lag_ms ?? 0) > LATE_MS ? "warn" : "good", one.stream,
        `${short(one.rows_per_s ?? 0, "per second")}, ${duration(one.lag_ms ?? 0)} behind`, one.problem)),
      jobs.map((one) => line(one.problem ? "bad" : one.state === "running" ? "good" : "", `job ${one.name}`, `${one.state}${one.epoch === undefined || one.epoch === null ? "" : `, epoch ${one.epoch}`}`, one.problem)))));
}
