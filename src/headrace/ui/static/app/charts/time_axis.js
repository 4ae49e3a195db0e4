// Ticks of a time axis in the viewer's zone: at full minutes, hours, days, months.

const STEPS_S = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800];
const MONTH = new Intl.DateTimeFormat(undefined, { month: "short", year: "numeric" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const SECOND = new Intl.DateTimeFormat(undefined, { minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Return about `count` ticks `{at, label}` between two times, in ms. */
export function timeTicks(from, to, count) {
  const wanted = (to - from) / 1000 / Math.max(1, count);
  if (wanted > 604800) return months(from, to, Math.max(1, Math.ceil(wanted / 2629800)));
  const step = (STEPS_S.find((one) => one >= wanted) ?? 604800) * 1000;
  const offset = new Date(from).getTimezoneOffset() * 60000;
  const ticks = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) ticks.push({ at, label: labelOf(at, step) });
  return ticks;
}

function labelOf(at, step) {
  const date = new Date(at);
  if (step >= 86400000 || (date.getHours() === 0 && date.getMinutes() === 0 && step >= 60000)) return DAY.format(date);
  return step >= 60000 ? TIME.format(date) : SECOND.format(date);
}

function months(from, to, step) {
  const date = new Date(from);
  const ticks = [];
  for (let year = date.getFullYear(), month = date.getMonth(); ; month += step) {
    const at = new Date(year, month, 1).getTime();
    if (at > to) return ticks;
    if (at >= from) ticks.push({ at, label: MONTH.format(new Date(at)) });
  }
}
