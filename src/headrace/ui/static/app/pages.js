// The pages of the frame, in the order of the navigation. A new page is a module with `mount` and a line here.
//
// `mount(root, {path, search, go, replace})` draws the page into an empty element and returns
// `{address(path, search), unmount()}`: the first is called when only the address within the page changed.

export const PAGES = [
  { path: "/explore", title: "Explore", icon: "explore", key: "g e", load: () => import("./explore/page.js") },
  { path: "/dashboards", title: "Dashboards", icon: "dashboards", key: "g d", load: () => import("./dashboards/page.js") },
  { path: "/sql", title: "SQL", icon: "sql", key: "g s", load: () => import("./sql/page.js") },
];

/** Return the page of a path; the first for `/`, none for what is no page. */
export function pageOf(path) {
  if (path === "/") return PAGES[0];
  return PAGES.find((page) => path === page.path || path.startsWith(`${page.path}/`)) ?? null;
}
