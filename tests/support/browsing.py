"""The web application as people see it: a home with streams, its server, a real browser."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)
from tests.support.processes import ROOT, Started, until

from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.demo.flights import Source, flight_source

__all__ = [
    "EVIL",
    "EVIL_COLUMN",
    "QUARTER_ROWS",
    "App",
    "StreamSpec",
    "Viewer",
    "append_clicks",
    "chromium",
    "click_schema",
    "flights",
    "make_home",
    "open_bus",
    "served",
]

AXE = ROOT / "tests" / "browser" / "axe.min.js"
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
EVIL_COLUMN = '<svg onload="window.pwned=1">'
QUARTER_ROWS = 80_789
"""Flights of January to March."""

TIMEOUT_MS = 30_000
_GO = """address => {
    document.querySelector("dialog[open]")?.close();
    document.querySelector(".toasts")?.replaceChildren();
    history.pushState(null, "", address);
    dispatchEvent(new PopStateEvent("popstate"));
}"""
_PUT = """([path, content]) => fetch(path, {
    method: "PUT", headers: {"X-Headrace": "1"}, body: JSON.stringify(content),
}).then(answer => answer.json())"""
_MINUTE_MS = 60_000


def make_home(home: Path, now_ms: int) -> None:
    """Make a home with flights of a quarter, clicks of the last minutes, and hostile texts."""
    with open_bus(home / "bus") as bus:
        every_flight().create(bus).append_rows(flights())
        clicks = bus.create(StreamSpec("clicks", 1, click_schema(), "at"))
        clicks.append_rows(click_rows(range(now_ms - 20 * _MINUTE_MS, now_ms, 10_000)))
        texts = {
            "at": pa.array([now_ms - 1000 * at for at in range(5)], pa.timestamp("ms", "UTC")),
            "message": [EVIL, "plain", "=cmd()", "\u202eright to left", None],
            EVIL_COLUMN: [EVIL] * 5,
            "payload": [json.dumps({EVIL: {"deep": EVIL}, "took_ms": 5 * at}) for at in range(5)],
        }
        table = pa.table(texts)
        bus.create(StreamSpec("hostile", 1, table.schema, "at")).append_rows(table)


def click_schema() -> pa.Schema:
    """Return the schema of the stream that grows while it is looked at."""
    at = pa.field("at", pa.timestamp("ms", "UTC"))
    return pa.schema([at, ("page", pa.string()), ("took_ms", pa.int64())])


def click_rows(times: range) -> pa.Table:
    """Return a click at each of these times."""
    pages = ["/", "/search", "/cart"]
    columns = [
        list(times),
        [pages[at % 3] for at in range(len(times))],
        [(at * 37) % 900 for at in range(len(times))],
    ]
    return pa.table(dict(zip(click_schema().names, columns, strict=True)), click_schema())


def append_clicks(home: Path, times: range) -> None:
    """Append clicks, as another process would."""
    with open_bus(home / "bus") as bus:
        bus.stream("clicks").append_rows(click_rows(times))


class App:
    """A server that runs: its home, and the address that signs in."""

    def __init__(self, home: Path, url: str, sign_in: str) -> None:
        self.home, self.url, self.sign_in = home, url, sign_in


@cache
def every_flight() -> Source:
    """Return the flights of the year, which take a third of a second to unpack."""
    return flight_source()


def flights() -> pa.Table:
    """Return the flights of the home."""
    return every_flight().table.slice(0, QUARTER_ROWS)


@contextmanager
def served(folder: Path, home: Path, port: int = 0, token: Path | None = None) -> Iterator[App]:
    """Run ``headrace ui`` over a home."""
    started = Started(folder, home)
    try:
        keep = ["--set", "explore.keep=36500d"]
        keep += [] if token is None else ["--set", f"ui.token_file={token}"]
        process = started.start("ui", "--json", "--port", str(port), *keep)
        until(lambda: '"open"' in started.said(0) or process.poll() is not None, "headrace ui")
        place = json.loads(started.said(0))
        yield App(home, place["url"], place["open"])
    finally:
        started.end()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's browser, the one without windows if it is there: it computes less."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    assert found is not None, "no chromium; tools/chromium.sh installs one"
    quiet = ["--disable-gpu", "--disable-extensions", "--no-first-run"]
    if os.geteuid() == 0:
        quiet.append("--no-sandbox")  # it refuses root otherwise
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=quiet)
        yield browser
        browser.close()


class Viewer:
    """Somebody with a browser window: a page, signed in, and what went wrong in it."""

    def __init__(self, app: App, context: BrowserContext) -> None:
        context.set_default_timeout(TIMEOUT_MS)
        self.app = app
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda one: self.wrong.append(str(one)))
        self.page.on("request", lambda one: self.hosts.add(one.url.split("/")[2]))
        self.page.goto(app.sign_in)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.wrong.append(message.text)

    def see(self, address: str) -> Page:
        """Go to an address as a link does, and wait until it shows an answer."""
        if self.page.url.startswith(self.app.url):
            self.page.evaluate(_GO, address)
        else:
            self.page.goto(self.app.url + address)
        return self.settled()

    def put(self, path: str, content: dict[str, Any]) -> Any:
        """Save something as the page does; return what is saved."""
        return self.page.evaluate(_PUT, [path, content])

    def settled(self) -> Page:
        """Wait until nothing is being asked."""
        busy = "body:not(:has(.bones)):not(:has(.waiting))"
        shown = ":is(.facts span, .empty, .schema details, .cards, .card .plot, .banner)"
        self.page.locator(f"{busy} {shown}").first.wait_for(state="attached")
        return self.page

    def faults(self) -> list[str]:
        """Return what axe finds to be serious, each with where it is."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text() + "; undefined")
        rules = "{resultTypes: ['violations'], rules: {region: {enabled: true}}}"
        found: dict[str, Any] = self.page.evaluate(f"() => axe.run(document, {rules})")
        return [
            f"{one['id']} ({one['impact']}): {node['target']} {node['failureSummary']}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"][:3]
        ]
