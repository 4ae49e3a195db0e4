// How the values of a column are spread: a histogram, with a line for each group where there are groups.

import { full, short, unitOf } from "../format.js";
import { styleOf } from "./palette.js";
import { makePlot, plainAxis } from "./plot.js";
import { bucketsOf, columnsOf, groupName } from "./shape.js";

const BUCKETS = { xAxisIndex: 1, yAxisIndex: 0 };

export function distribution(result, { label, column, onmark, onrange }) {
  const { low, high, groups, metrics: [counted] } = columnsOf(result);
  const rows = result.rows.filter((row) => row[low.at] !== null);
  const buckets = bucketsOf(rows, low.at, high.at);
  const names = [...new Set(rows.map((row) => groupName(row, groups)))];
  const unit = unitOf(column);
  const several = names.length > 1;
  const of = (name) => rows.filter((row) => groupName(row, groups) === name);

  const draw = (look) => ({
    grid: { left: 52, right: 14, top: 10, bottom: 22, outerBoundsMode: "none" },
    // Buckets may be of any width: they lie side by side, with their bounds below.
    xAxis: [{ type: "category", show: false, data: buckets.bounds.slice(1) },
      plainAxis(look, { position: "bottom", min: 0, max: buckets.last, axisLabel: { margin: 6, ...buckets.labels(look.width / 80, (value) => short(value, unit)) } })],
    yAxis: plainAxis(look, { splitNumber: Math.max(2, Math.round(look.height / 60)), minInterval: 1, splitLine: { lineStyle: { color: look.colours.grid } }, axisLabel: { formatter: (value) => short(value) } }),
    series: names.map((name, at) => {
      const { colour, dash } = styleOf(at, name);
      if (!several) return { type: "bar", silent: true, barCategoryGap: 1, itemStyle: { color: colour }, data: of(name).map((row) => [buckets.placeOf(row), Number(row[counted.at])]) };
      const data = of(name).flatMap((row) => [0, 1].map((end) => [buckets.placeOf(row) + end, Number(row[counted.at])]));
      return { type: "line", xAxisIndex: 1, silent: true, showSymbol: false, lineStyle: { color: colour, width: 2, type: dash.length ? dash : "solid" }, data };
    }),
  });
  const marksOf = (pixel) => names.flatMap((name, order) => of(name).map((row) => {
    const [left, top] = pixel([buckets.placeOf(row), Number(row[counted.at])], BUCKETS);
    const [right, foot] = pixel([buckets.placeOf(row) + 1, 0], BUCKETS);
    const [heading, count] = [`${column} from ${short(row[low.at], unit)} to ${short(row[high.at], unit)}`, full(row[counted.at])];
    return { x: left, y: several ? top - 5 : 10, width: Math.max(2, right - left), height: several ? 10 : foot - 10, heading,
      lines: [{ colour: styleOf(order, name).colour, name: name || "rows", value: count }], label: `${heading}: ${name} ${count} rows`,
      data: { values: Object.fromEntries(groups.map((one) => [one.name, row[one.at]])), range: { column, low: row[low.at], high: row[high.at] } } };
  }));
  const onbrush = ([from], [to]) => onrange({ column, ...buckets.around(from, to) });
  const plot = makePlot({ label: `${label}: distribution of ${column}`, draw, marksOf, onmark, brush: onrange ? "x" : null, onbrush, brushed: BUCKETS });
  plot.legend = several ? names.map((name, at) => ({ name, ...styleOf(at, name) })) : [];
  return plot;
}
