// A chart as a PNG, with its title and its source, as it is on the screen.

import { token } from "../theme.js";

const EDGE = 16;

/** Download the canvases of a chart below each other as one picture. */
export function savePicture(canvases, { title, note, legend = [] }) {
  const ratio = devicePixelRatio || 1;
  const sized = canvases.map((canvas) => [canvas, canvas.width, canvas.height]);
  const width = Math.max(...sized.map(([, one]) => one)) + 2 * EDGE * ratio;
  const heads = 46 * ratio;
  const names = legend.length ? 22 * ratio : 0;
  const height = heads + names + sized.reduce((sum, [, , one]) => sum + one + 6 * ratio, 0) + EDGE * ratio;
  const picture = document.createElement("canvas");
  Object.assign(picture, { width, height });
  const context = picture.getContext("2d");
  context.fillStyle = token("--panel");
  context.fillRect(0, 0, width, height);
  context.fillStyle = token("--ink");
  context.font = `600 ${15 * ratio}px ${token("--font")}`;
  context.fillText(title, EDGE * ratio, 22 * ratio);
  context.fillStyle = token("--ink-3");
  context.font = `${11 * ratio}px ${token("--font")}`;
  context.fillText(note, EDGE * ratio, 39 * ratio);
  let x = EDGE * ratio;
  for (const { name, colour } of legend) {
    context.fillStyle = colour;
    context.fillRect(x, heads + 3 * ratio, 9 * ratio, 9 * ratio);
    context.fillStyle = token("--ink-2");
    context.fillText(name, x + 13 * ratio, heads + 12 * ratio);
    x += context.measureText(name).width + 28 * ratio;
  }
  let y = heads + names;
  for (const [canvas, , one] of sized) {
    context.drawImage(canvas, EDGE * ratio, y);
    y += one + 6 * ratio;
  }
  return new Promise((resolve) => {
    picture.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${title.replace(/[^\w.-]+/g, "-").replace(/^-|-$/g, "") || "chart"}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      resolve(blob.size);
    }, "image/png");
  });
}
