// Colours of groups: each keeps its own as long as the chart is shown, and the rest is grey.

import { token } from "../theme.js";

const COLOURS = 8;
const DASHES = [[], [7, 4], [2, 3]];

/** Return the colour and the dash of a group by its place; `other` is always grey. */
export function styleOf(at, name) {
  if (name === "other") return { colour: token("--series-other"), dash: [4, 3] };
  return { colour: token(`--series-${(at % COLOURS) + 1}`), dash: DASHES[Math.floor(at / COLOURS) % DASHES.length] };
}

/** Return the colours of few to many, evenly apart. */
export const heat = () => [0, 1, 2, 3, 4].map((at) => token(`--heat-${at}`));

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Return a colour as it looks with an opacity on a panel; areas that lie on each other must not show through. */
export function mixed(hex, opacity) {
  const below = rgb(token("--panel"));
  return `rgb(${rgb(hex).map((one, at) => Math.round(one * opacity + below[at] * (1 - opacity))).join(" ")})`;
}

/** Return a colour with another opacity. */
export function faded(hex, opacity) {
  return `rgb(${rgb(hex).join(" ")} / ${opacity})`;
}
