// The server's API: questions, and the stream of live answers. See docs/guide/explore.md.

export class Problem extends Error {
  constructor(status, error = {}) {
    super(error.message || `the server answered ${status}`);
    Object.assign(this, { status, code: error.code, line: error.line, column: error.column });
  }
}

/** Ask the server; an answer that is an error is thrown as a Problem. */
export async function ask(method, path, body, { signal } = {}) {
  const headers = { Accept: "application/json", "X-Headrace": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { message: "the server does not answer; it may have been stopped" });
  }
  const answer = response.status === 204 ? {} : await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 401) sessionEnded();
  throw new Problem(response.status, answer.error ?? {});
}

function sessionEnded() {
  document.dispatchEvent(new CustomEvent("session-ended"));
}

export const get = (path, options) => ask("GET", path, undefined, options);
export const post = (path, body, options) => ask("POST", path, body, options);
export const put = (path, body) => ask("PUT", path, body);
export const remove = (path) => ask("DELETE", path);
export const runQuery = (query, options) => post("/api/query", query, options);

/** Return a path with parameters; what is undefined is left out. */
export function withParameters(path, parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, value);
  }
  return `${path}?${search}`;
}

/**
 * Listen to the answers of queries as their streams grow, through one connection for all.
 *
 * The browser connects again by itself; where the server refused, this tries again after a while.
 * `on.result(index, result)`, `on.problem(index, problem)` and `on.state("connecting" | "live" | "lost")`.
 * Returns a function that ends it.
 */
export function listen(queries, on) {
  const search = new URLSearchParams();
  for (const query of queries) search.append("q", JSON.stringify(query));
  let [source, timer, wait, ended] = [null, 0, 1000, false];
  const connect = () => {
    on.state("connecting");
    source = new EventSource(`/api/live?${search}`);
    source.addEventListener("open", () => {
      wait = 1000;
      on.state("live");
    });
    source.addEventListener("result", (event) => {
      const result = JSON.parse(event.data);
      on.result(result.q ?? 0, result);
    });
    source.addEventListener("problem", (event) => {
      const problem = JSON.parse(event.data);
      on.problem(problem.q ?? 0, new Problem(problem.status, problem.error));
    });
    source.addEventListener("error", () => {
      if (ended) return;
      on.state("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      timer = setTimeout(connect, wait);
      wait = Math.min(wait * 2, 30000);
    });
  };
  connect();
  return () => {
    ended = true;
    clearTimeout(timer);
    source.close();
  };
}

let known = null;

/** Return the streams that can be looked at; asked once, until `again`. */
export async function streams(again = false) {
  if (again || known === null) known = get("/api/streams").then((answer) => answer.streams);
  try {
    return await known;
  } catch (error) {
    known = null;
    throw error;
  }
}
