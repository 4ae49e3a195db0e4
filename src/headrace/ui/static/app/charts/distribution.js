// How the values of a column are spread: a histogram, with a line for each group where there are groups.

import { full, short, unitOf } from "../format.js";
import { styleOf } from "./palette.js";
import { makePlot, ticks } from "./plot.js";
import { columnsOf, groupName } from "./shape.js";

const LEFT = 52;
const BOTTOM = 22;

export function distribution(result, { label, column, onmark, onrange }) {
  const { low, high, groups } = columnsOf(result);
  const counted = result.columns.findIndex((one) => one.role === "metric" || one.role === "value" || one.name === "count");
  const rows = result.rows.filter((row) => row[low.at] !== null);
  const names = [...new Set(rows.map((row) => groupName(row, groups)))];
  const [from, to] = [Math.min(...rows.map((row) => row[low.at])), Math.max(...rows.map((row) => row[high.at]))];
  const most = Math.max(1, ...rows.map((row) => Number(row[counted])));
  const unit = unitOf(column);
  let scale = null;

  const draw = (context, width, height, colours) => {
    const [plotWidth, plotHeight] = [width - LEFT - 8, height - BOTTOM - 8];
    const x = (value) => LEFT + ((value - from) / (to - from || 1)) * plotWidth;
    const y = (value) => 8 + plotHeight * (1 - value / most);
    scale = { value: (pixel) => from + ((pixel - LEFT) / plotWidth) * (to - from) };
    axes(context, { x, y, from, to, most, width, height, colours, unit });
    const marks = [];
    names.forEach((name, at) => {
      const { colour, dash } = styleOf(at, name);
      const own = rows.filter((row) => groupName(row, groups) === name);
      context.fillStyle = context.strokeStyle = colour;
      context.lineWidth = 2;
      context.setLineDash(dash);
      context.beginPath();
      for (const row of own) {
        const [left, right, top] = [x(row[low.at]), x(row[high.at]), y(Number(row[counted]))];
        if (names.length > 1) {
          context.lineTo(left, top);
          context.lineTo(right, top);
        } else context.fillRect(left + 0.5, top, Math.max(1, right - left - 1), 8 + plotHeight - top);
        const heading = `${column} from ${short(row[low.at], unit)} to ${short(row[high.at], unit)}`;
        const count = full(row[counted]);
        marks.push({ x: left, y: names.length > 1 ? top - 5 : 8, width: Math.max(2, right - left), height: names.length > 1 ? 10 : plotHeight, heading,
          lines: [{ colour, name: name || "rows", value: count }], label: `${heading}: ${name} ${count} rows`,
          data: { values: Object.fromEntries(groups.map((one) => [one.name, row[one.at]])), range: { column, low: row[low.at], high: row[high.at] } } });
      }
      if (names.length > 1) context.stroke();
      context.setLineDash([]);
    });
    return marks;
  };
  const onbrush = ({ left, right }) => onrange?.({ column, low: scale.value(left), high: scale.value(right) });
  const plot = makePlot({ label: `${label}: distribution of ${column}`, draw, onmark, brush: onrange ? "x" : null, onbrush });
  plot.legend = names.length > 1 ? names.map((name, at) => ({ name, ...styleOf(at, name) })) : [];
  return plot;
}

function axes(context, { x, y, from, to, most, width, height, colours, unit }) {
  context.fillStyle = colours.soft;
  context.strokeStyle = colours.grid;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of ticks(0, most, Math.max(2, height / 50))) {
    context.fillText(short(tick), LEFT - 8, y(tick));
    context.beginPath();
    context.moveTo(LEFT, Math.round(y(tick)) + 0.5);
    context.lineTo(width - 8, Math.round(y(tick)) + 0.5);
    context.stroke();
  }
  context.textAlign = "center";
  for (const tick of ticks(from, to, Math.max(2, width / 90))) context.fillText(short(tick, unit), Math.min(width - 18, x(tick)), height - 9);
  context.textAlign = "left";
}
