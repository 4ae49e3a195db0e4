// Numbers with units, and times in the zone of who looks, with UTC beside them.

const LONG = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Return the unit of a column by the end of its name, the way metrics are named: `took_ms`, `size_bytes`. */
export function unitOf(name = "") {
  const inner = name.match(/^(\w+)\((.*)\)$/);
  if (inner?.[1] === "distinct") return "";
  if (name === "rate" || inner?.[1] === "sum_rate") return "per second";
  const column = (inner?.[2] ?? name).toLowerCase();
  if (/(^|[_.])(ms|millis|milliseconds)$/.test(column)) return "ms";
  if (/(^|[_.])(us|micros|microseconds)$/.test(column)) return "us";
  if (/(^|[_.])(s|secs?|seconds)$/.test(column)) return "s";
  if (/(^|[_.])bytes$/.test(column)) return "bytes";
  if (/(^|[_.])(percent|pct)$/.test(column)) return "percent";
  return "";
}

/** Return a number in few characters: 1.2K, 3.4 GB, 1.5 s. */
export function short(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(Number(value))) return "–";
  const number = Number(value);
  if (unit === "bytes") return scaled(number, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  if (unit === "us") return duration(number / 1000);
  if (unit === "ms") return duration(number);
  if (unit === "s") return duration(number * 1000);
  const text = Math.abs(number) >= 10000 ? SHORT.format(number) : plain(number);
  if (unit === "percent") return `${text} %`;
  return unit === "per second" ? `${text}/s` : text;
}

function plain(number) {
  const size = Math.abs(number);
  if (Number.isInteger(number)) return WHOLE.format(number);
  if (size !== 0 && size < 0.001) return number.toExponential(2);
  return new Intl.NumberFormat("en", { maximumFractionDigits: size < 1 ? 3 : size < 100 ? 2 : 1 }).format(number);
}

function scaled(number, step, names) {
  let [left, at] = [number, 0];
  while (Math.abs(left) >= step && at < names.length - 1) [left, at] = [left / step, at + 1];
  return `${plain(Math.round(left * 10) / 10)} ${names[at]}`;
}

/** Return a number with all its digits; a string is a whole number too large for this language. */
export function full(value, unit = "") {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value;
  if (unit === "bytes" && Math.abs(value) >= 1024) return `${short(value, unit)} (${WHOLE.format(value)} bytes)`;
  const text = LONG.format(value);
  const after = { "per second": "/s", percent: " %", ms: " ms", us: " µs", s: " s", bytes: " bytes" }[unit] ?? "";
  return text + after;
}

/** Return a duration given in milliseconds: 850 ms, 2.5 s, 3 min, 1.5 h, 7 d. */
export function duration(ms) {
  const size = Math.abs(ms);
  for (const [name, unit] of [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]]) {
    if (size >= unit) return `${plain(Math.round((ms / unit) * 10) / 10)} ${name}`;
  }
  return size !== 0 && size < 0.1 ? `${plain(Math.round(ms * 1000))} µs` : `${plain(Math.round(ms * 10) / 10)} ms`;
}

/** Return a moment in the viewer's zone. */
export const moment = (ms) => (ms === null || ms === undefined ? "–" : DATE_TIME.format(new Date(Number(ms))));

/** Return a moment in UTC, which is shown on hover. */
export function utc(ms) {
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().replace("T", " ").replace(".000Z", "Z")} (UTC)`;
}

/** Return the name of the viewer's zone. */
export const zone = () => ZONE;

/** Return a moment as `2013-01-31 14:05`, with seconds where they matter. */
export function stamp(ms, precise = false) {
  const date = new Date(Number(ms));
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return precise ? `${day} ${time}:${two(date.getSeconds())}` : `${day} ${time}`;
}

/** Return milliseconds of a duration such as `15m`, or null. */
export function milliseconds(text) {
  const match = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)$/.exec(String(text ?? "").trim());
  if (!match) return null;
  return Number(match[1]) * { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000, w: 604800000 }[match[2]];
}

/** Return a value of any kind as text of one line. */
export function text(value, kind) {
  if (value === null || value === undefined) return "null";
  if (kind === "time" && (typeof value === "number" || /^-?\d+$/.test(value))) return stamp(value, true);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Return how much changed against an earlier value, as text with a sign. */
export function change(now, before) {
  if (!before || now === null || before === null) return "";
  const share = (now - before) / Math.abs(before);
  return `${share > 0 ? "+" : ""}${plain(Math.round(share * 1000) / 10)} %`;
}
