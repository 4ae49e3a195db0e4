// How the values of a column are spread over time: a cell for each bucket of both, darker for more rows.

import { full, short, stamp, unitOf, utc } from "../format.js";
import { heat } from "./palette.js";
import { makePlot, plainAxis, words } from "./plot.js";
import { bucketsOf, columnsOf } from "./shape.js";
import { timeTicks } from "./time_axis.js";

const KEY_PX = 68;
const READ = { xAxisIndex: 1, yAxisIndex: 1 };

export function heatmap(result, { label, column, onmark, onrange }) {
  const { time, low, high, metrics: [counted] } = columnsOf(result);
  const rows = result.rows.filter((row) => row[low.at] !== null && Number(row[counted.at]) > 0);
  const buckets = bucketsOf(rows, low.at, high.at);
  const step = result.bucket_ms || 1;
  const some = rows[0]?.[time.at] ?? result.from_ms;
  const begin = some - Math.ceil((some - result.from_ms) / step) * step;
  const times = Math.max(1, Math.ceil((result.to_ms - begin) / step));
  const end = begin + times * step;
  // Counts of cells differ by orders of magnitude: few rows must be seen beside many.
  const most = Math.max(1, ...rows.map((row) => Number(row[counted.at])));
  const share = (count) => Math.log1p(count) / Math.log1p(most);
  const unit = unitOf(column);

  const draw = (look) => {
    const ticks = timeTicks(begin, end, (look.width - KEY_PX) / 90);
    const labels = new Map(ticks.map((tick) => [tick.at, tick.label]));
    return {
      grid: { left: 56, right: KEY_PX, top: 8, bottom: 24, outerBoundsMode: "none" },
      // Cells are places of two hidden axes; what is read has axes of its own.
      xAxis: [{ type: "category", show: false, data: Array.from({ length: times }, (_, at) => at) },
        plainAxis(look, { position: "bottom", min: begin, max: end, axisLabel: { margin: 7, customValues: ticks.map((tick) => tick.at), formatter: (at) => labels.get(at) ?? "" } })],
      yAxis: [{ type: "category", show: false, data: buckets.bounds.slice(1) },
        plainAxis(look, { position: "left", min: 0, max: buckets.last, axisLabel: buckets.labels(look.height / 50, (value) => short(value, unit)) })],
      ...key(look, most, share),
      series: { type: "heatmap", silent: true, progressive: 0, data: rows.map((row) => [Math.round((row[time.at] - begin) / step), buckets.placeOf(row), share(Number(row[counted.at]))]) },
    };
  };
  const marksOf = (pixel) => rows.map((row) => {
    const [at, place, count] = [row[time.at], buckets.placeOf(row), full(row[counted.at])];
    const [[left, bottom], [right, top]] = [pixel([at, place], READ), pixel([at + step, place + 1], READ)];
    const [heading, range] = [stamp(at, step < 60000), `${short(row[low.at], unit)} to ${short(row[high.at], unit)}`];
    return { x: left, y: top, width: right - left, height: bottom - top, heading: `${heading} · ${utc(at)}`, lines: [{ name: `${column} ${range}`, value: `${count} rows` }],
      label: `${heading}, ${column} ${range}: ${count} rows`, data: { time: { from: at, to: at + step }, range: { column, low: row[low.at], high: row[high.at] } } };
  });
  const onbrush = ([from, bottom], [to, top]) => onrange({ time: { from, to }, column, ...buckets.around(bottom, top) });
  return makePlot({ label: `${label}: heat map of ${column} over time`, draw, marksOf, onmark, brush: onrange ? "xy" : null, onbrush, brushed: READ });
}

/** Return what the shades mean: from one row at the foot to the most at the head. */
function key(look, most, share) {
  const [left, top, long] = [look.width - KEY_PX + 14, 24, Math.min(look.height - 56, 160)];
  const counts = most < 3 ? [most] : [most, Math.round(Math.expm1(Math.log1p(most) / 2)), 1];
  const show = long >= 40;
  return {
    visualMap: { type: "continuous", show, min: 0, max: 1, dimension: 2, inRange: { color: heat() }, left, top, padding: 0, itemWidth: 10, itemHeight: long, hoverLink: false },
    title: show ? [words(look, "rows", left, 4), ...counts.map((count) => words(look, short(count), left + 14, top + Math.min(long - 12, long * (1 - share(count)))))] : [],
  };
}
