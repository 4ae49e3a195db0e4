// Bars, one for each group, the longest first; with several metrics, a column of bars for each. What is compared has
// a grey bar below.

import { full, short } from "../format.js";
import { styleOf } from "./palette.js";
import { makePlot, plainAxis, words } from "./plot.js";
import { columnsOf, groupName } from "./shape.js";

const ROW_PX = 28;
const LEAST_PX = 13;
const NUMBER_PX = 78;
const MORE_PX = 18;

export function bars(result, { label, onmark }) {
  const { groups, metrics } = columnsOf(result);
  const before = new Map((result.compare?.rows ?? []).map((row) => [groupName(row, groups), row]));
  const all = result.rows.map((row) => ({ row, name: groups.length ? groupName(row, groups) : "all rows", data: Object.fromEntries(groups.map((one) => [one.name, row[one.at]])) }))
    .map((one) => ({ ...one, was: before.get(groups.length ? one.name : "") }));
  const several = metrics.length > 1;
  const colourOf = (order, name) => styleOf(several ? order : 0, name).colour;
  const top = several ? 20 : 4;
  let [rows, names, each, pitch] = [all, 0, 0, 0];

  const draw = (look) => {
    const { width, height, colours } = look;
    const fit = (room) => Math.max(1, Math.floor((height - top - room) / LEAST_PX));
    const isCut = all.length > fit(0);
    rows = all.slice(0, fit(isCut ? MORE_PX : 0));
    pitch = Math.min(ROW_PX * (before.size ? 1.4 : 1), (height - top - 2 - (isCut ? MORE_PX : 0)) / rows.length);
    names = Math.min(widest(rows, look.font) + 14, width * 0.34);
    each = (width - names) / metrics.length;
    const place = (order) => ({ left: names + each * order, top, width: Math.max(10, each - NUMBER_PX), height: pitch * rows.length });
    const number = (metric) => ({ show: true, position: "right", color: colours.ink, fontSize: 12, formatter: ({ dataIndex }) => short(rows[dataIndex].row[metric.at], metric.unit) });
    return {
      title: [
        ...(several ? metrics.map(({ name }, order) => words(look, name, names + each * order, 2, { width: each - 8, overflow: "truncate" })) : []),
        ...(isCut ? [words(look, `and ${all.length - rows.length} more`, 2, top + pitch * rows.length + 3)] : []),
      ],
      grid: metrics.map((_, order) => ({ ...place(order), outerBoundsMode: "none" })),
      xAxis: metrics.map((metric, order) => {
        const values = all.flatMap(({ row, was }) => [Number(row[metric.at] ?? 0), Number(was?.[metric.at] ?? 0)]);
        return plainAxis(look, { gridIndex: order, min: Math.min(0, ...values), max: Math.max(0, ...values) || 1, axisLabel: { show: false } });
      }),
      yAxis: metrics.map((_, order) => plainAxis(look, { type: "category", gridIndex: order, inverse: true, data: rows.map(({ name }) => name.replace(/\s+/g, " ")), axisLine: { show: true, lineStyle: { color: colours.line } },
        axisLabel: { show: order === 0, color: colours.ink, interval: 0, align: "left", margin: names - 2, width: names - 12, overflow: "truncate" } })),
      series: metrics.flatMap((metric, order) => {
        const bar = { type: "bar", xAxisIndex: order, yAxisIndex: order, silent: true, barGap: "8%", barCategoryGap: pitch > 20 ? "24%" : "14%" };
        const now = rows.map(({ row, name }) => ({ value: numberOf(row[metric.at]), itemStyle: { color: colourOf(order, name) } }));
        const past = rows.map(({ was }) => numberOf(was?.[metric.at]));
        return [{ ...bar, data: now, barMinHeight: 1, label: number(metric) }, ...(before.size ? [{ ...bar, data: past, itemStyle: { color: colours.other, opacity: 0.6 } }] : [])];
      }),
    };
  };
  const marksOf = (pixel) => metrics.flatMap((metric, order) => rows.map(({ row, name, data, was }, at) => {
    const value = full(row[metric.at], metric.unit);
    const lines = [{ colour: colourOf(order, name), name: metric.name, value }];
    if (was) lines.push({ colour: styleOf(0, "other").colour, name: "before", value: full(was[metric.at], metric.unit) });
    return { x: order ? names + each * order : 0, y: pixel([0, at], { xAxisIndex: order, yAxisIndex: order })[1] - pitch / 2, width: order ? each : names + each, height: pitch, heading: name, lines, label: `${name}: ${metric.name} ${value}`, data: { values: data } };
  }));
  const plot = makePlot({ label: `${label}: bars of ${all.length} groups`, draw, marksOf, onmark });
  plot.wanted = top + 8 + all.length * ROW_PX * (before.size ? 1.4 : 1);
  plot.fits = true;
  return plot;
}

/** Return a value that is drawn; whole numbers that are large come as text. */
const numberOf = (value) => (value === null || value === undefined ? null : Number(value));

/** Return how wide the widest name is. */
function widest(rows, font) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `12px ${font}`;
  return Math.max(0, ...rows.map(({ name }) => context.measureText(name).width));
}
