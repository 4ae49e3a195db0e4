// Light or dark: what the system says, until the viewer chooses.

const KEY = "headrace.theme";
const DARK = matchMedia("(prefers-color-scheme: dark)");

const chosen = () => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
};

/** Return the theme that is shown. */
export const theme = () => chosen() ?? (DARK.matches ? "dark" : "light");

function apply() {
  document.documentElement.dataset.theme = theme();
  document.dispatchEvent(new CustomEvent("theme"));
}

/** Show the other theme from here on. */
export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  document.documentElement.dataset.theme = next;
  document.dispatchEvent(new CustomEvent("theme"));
}

/** Return a design token's value as it is now. */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

DARK.addEventListener("change", apply);
apply();
