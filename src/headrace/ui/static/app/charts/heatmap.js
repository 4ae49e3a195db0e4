// How the values of a column are spread over time: a cell for each bucket of both, darker for more rows.

import { full, short, stamp, unitOf, utc } from "../format.js";
import { heat } from "./palette.js";
import { makePlot, ticks } from "./plot.js";
import { columnsOf } from "./shape.js";
import { timeTicks } from "./time_axis.js";

const LEFT = 56;
const BOTTOM = 24;
const KEY = 68;

export function heatmap(result, { label, column, onmark, onrange }) {
  const { time, low, high } = columnsOf(result);
  const counted = result.columns.findIndex((one) => one.role === "metric" || one.role === "value" || one.name === "count");
  const rows = result.rows.filter((row) => row[low.at] !== null);
  const step = result.bucket_ms || 1;
  const [begin, end] = [result.from_ms, result.to_ms];
  const [bottom, top] = [Math.min(...rows.map((row) => row[low.at])), Math.max(...rows.map((row) => row[high.at]))];
  const most = Math.max(1, ...rows.map((row) => Number(row[counted])));
  const unit = unitOf(column);
  let scale = null;

  const draw = (context, width, height, colours) => {
    const [plotWidth, plotHeight] = [width - LEFT - KEY, height - BOTTOM - 6];
    const x = (ms) => LEFT + Math.max(0, Math.min(1, (ms - begin) / (end - begin || 1))) * plotWidth;
    const y = (value) => 6 + plotHeight * (1 - (value - bottom) / (top - bottom || 1));
    scale = { time: (pixel) => begin + ((pixel - LEFT) / plotWidth) * (end - begin), value: (pixel) => top - ((pixel - 6) / plotHeight) * (top - bottom) };
    const shade = heat();
    const marks = rows.map((row) => {
      const [left, right] = [x(row[time.at]), x(row[time.at] + step)];
      const [above, below] = [y(row[high.at]), y(row[low.at])];
      const count = Number(row[counted]);
      const box = { x: Math.floor(left), y: Math.floor(above), width: Math.max(1, Math.ceil(right) - Math.floor(left)), height: Math.max(1, Math.ceil(below) - Math.floor(above)) };
      if (count > 0) {
        // Counts of cells differ by orders of magnitude: few rows must be seen beside many.
        context.fillStyle = shade(Math.log1p(count) / Math.log1p(most));
        context.fillRect(box.x, box.y, box.width, box.height);
      }
      const heading = stamp(row[time.at], step < 60000);
      const range = `${short(row[low.at], unit)} to ${short(row[high.at], unit)}`;
      return { ...box, heading: `${heading} · ${utc(row[time.at])}`, lines: [{ colour: shade(Math.log1p(count) / Math.log1p(most)), name: `${column} ${range}`, value: `${full(row[counted])} rows` }],
        label: `${heading}, ${column} ${range}: ${full(row[counted])} rows`, data: { time: { from: row[time.at], to: row[time.at] + step }, range: { column, low: row[low.at], high: row[high.at] } } };
    });
    context.fillStyle = colours.soft;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of ticks(bottom, top, Math.max(2, height / 50))) context.fillText(short(tick, unit), LEFT - 8, Math.max(8, y(tick)));
    context.textAlign = "center";
    for (const tick of timeTicks(begin, end, plotWidth / 90)) context.fillText(tick.label, Math.min(LEFT + plotWidth - 20, x(tick.at)), height - 10);
    context.textAlign = "left";
    drawKey(context, { left: width - KEY + 14, top: 22, height: Math.min(plotHeight - 24, 160), most, shade, colours });
    return marks.filter((one) => one.width > 0);
  };
  const onbrush = (box) => onrange?.({ time: { from: scale.time(box.left), to: scale.time(box.right) }, column, low: scale.value(box.bottom), high: scale.value(box.top) });
  return makePlot({ label: `${label}: heat map of ${column} over time`, draw, onmark, brush: onrange ? "xy" : null, onbrush });
}

/** Draw what the shades mean: from one row at the foot to the most at the head. */
function drawKey(context, { left, top, height, most, shade, colours }) {
  if (height < 40) return;
  for (let at = 0; at < height; at += 1) {
    context.fillStyle = shade(1 - at / height);
    context.fillRect(left, top + at, 10, 1.5);
  }
  context.fillStyle = colours.soft;
  context.fillText("rows", left, top - 12);
  const labels = most < 3 ? [most] : [most, Math.round(Math.expm1(Math.log1p(most) / 2)), 1];
  for (const count of labels) context.fillText(short(count), left + 14, Math.min(top + height - 4, Math.max(top + 6, top + height * (1 - Math.log1p(count) / Math.log1p(most)))));
}
