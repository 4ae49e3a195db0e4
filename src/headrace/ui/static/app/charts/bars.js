// Bars, one for each group, the longest first; with several metrics, a column of bars for each.

import { full, short } from "../format.js";
import { styleOf } from "./palette.js";
import { cut, makePlot } from "./plot.js";
import { columnsOf, groupName } from "./shape.js";

const ROW_PX = 28;

export function bars(result, { label, onmark }) {
  const { groups, metrics } = columnsOf(result);
  const before = new Map((result.compare?.rows ?? []).map((row) => [groupName(row, groups), row]));
  const rows = result.rows.map((row) => ({ row, name: groups.length ? groupName(row, groups) : "all rows", data: Object.fromEntries(groups.map((one) => [one.name, row[one.at]])) }));
  const ranges = metrics.map(({ at }) => {
    const all = [...result.rows, ...before.values()].map((row) => Number(row[at] ?? 0));
    return [Math.min(0, ...all), Math.max(0, ...all)];
  });

  const draw = (context, width, height, colours) => {
    const pitch = Math.max(12, Math.min(ROW_PX, (height - 22) / Math.max(1, rows.length)));
    const widest = Math.max(0, ...rows.map(({ name }) => context.measureText(name).width));
    const names = Math.min(widest + 14, width * 0.34);
    const each = (width - names) / metrics.length;
    context.textBaseline = "middle";
    const marks = [];
    metrics.forEach((metric, order) => {
      const left = names + each * order;
      context.fillStyle = colours.soft;
      context.font = context.font.replace(/^\d+/, "11");
      if (metrics.length > 1) context.fillText(cut(context, metric.name, each - 8), left, 9);
      const room = Math.max(10, each - 78);
      const [low, high] = ranges[order];
      const scale = room / (high - low || 1);
      const zero = left - low * scale;
      rows.forEach(({ row, name, data }, at) => {
        const y = 20 + at * pitch;
        if (y + pitch > height + 1) return;
        const value = row[metric.at];
        const { colour } = styleOf(metrics.length > 1 ? order : 0, name);
        const length = Number(value ?? 0) * scale;
        context.fillStyle = colour;
        context.fillRect(Math.min(zero, zero + length), y + 3, Math.max(1, Math.abs(length)), pitch - 6);
        const was = before.get(name)?.[metric.at];
        if (was !== undefined && was !== null) {
          context.fillStyle = colours.ink;
          context.fillRect(zero + was * scale - 1, y + 1, 2, pitch - 2);
        }
        context.fillStyle = colours.ink;
        if (pitch >= 11) context.fillText(short(value, metric.unit), Math.max(zero, zero + length) + 6, y + pitch / 2);
        if (order === 0 && pitch >= 11) context.fillText(cut(context, name, names - 12), 2, y + pitch / 2);
        const lines = [{ colour, name: metric.name, value: full(value, metric.unit) }];
        if (was !== undefined) lines.push({ name: "before", value: full(was, metric.unit) });
        marks.push({ x: order ? left : 0, y, width: order ? each : names + each, height: pitch, heading: name, lines, label: `${name}: ${metric.name} ${full(value, metric.unit)}`, data: { values: data } });
      });
      context.strokeStyle = colours.soft;
      context.beginPath();
      context.moveTo(zero + 0.5, 18);
      context.lineTo(zero + 0.5, Math.min(height, 22 + rows.length * pitch));
      context.stroke();
    });
    return marks;
  };
  const plot = makePlot({ label: `${label}: bars of ${rows.length} groups`, draw, onmark });
  plot.wanted = 30 + rows.length * ROW_PX;
  plot.fits = true;
  return plot;
}
