"""How soon the page is there, and how soon a row is on it, in a real browser, as JSON.

    python bench/pixel.py [--loads 10] [--beats 40]

Serves a home with a stream of 100,000 rows by ``headrace ui``, and opens its page in a browser with
an empty cache: from the begin of the navigation until the chart is painted, beside a document of
one line from the same server. Then single rows are appended while a chart is live, at any moment:
from the append until the browser has painted a chart with the row, beside asking the API again and
again until an answer has it. Needs Chromium: docs/guide/explore.md.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec

ROWS = 100_000
SCHEMA = pa.schema([("at", pa.int64()), ("route", pa.string()), ("ms", pa.float64())])
PAINTED = """
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
    if (window.painted || !document.querySelector(".plot canvas")) return;
    window.painted = true;
    requestAnimationFrame(() => setTimeout(() => { window.paintedMs = performance.now(); }));
}).observe(document, {childList: true, subtree: true}));
"""
"""Notes when the first chart is on the screen: the task behind the frame in which it is drawn."""

FIRST = """() => new Promise(resolve => {
    const look = () => window.paintedMs ? resolve(window.paintedMs) : requestAnimationFrame(look);
    look();
})"""
SEEN = r"""wanted => new Promise(resolve => {
    const look = () => {
        const facts = document.querySelector(".facts")?.textContent ?? "";
        const rows = / of ([\d,]+) rows scanned/.exec(facts)?.[1].replaceAll(",", "");
        if (!rows || Number(rows) < wanted) requestAnimationFrame(look);
        else requestAnimationFrame(() => setTimeout(() => resolve(Date.now())));
    };
    look();
})"""
QUERY = {"stream": "beats", "from": "2000-01-01", "to": "2100-01-01", "view": "bars"}


def clicks(begin_ms: int) -> pa.RecordBatch:
    """Return rows of the last hour."""
    dice = np.random.default_rng(1)
    routes = [f"/route/{one}" for one in dice.integers(0, 20, ROWS)]
    times = begin_ms + np.sort(dice.integers(0, 3_600_000, ROWS))
    return pa.record_batch([times, routes, dice.exponential(50, ROWS)], schema=SCHEMA)


@contextmanager
def serving(home: Path) -> Iterator[dict[str, str]]:
    """Run ``headrace ui`` over a home; yield its addresses."""
    command = [sys.executable, "-m", "headrace.cli.main", "ui", "--json", "--port", "0"]
    with subprocess.Popen(
        [*command, "--home", str(home)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def summary(times: list[float]) -> dict[str, float]:
    return {
        "p50": round(float(np.percentile(times, 50))),
        "p95": round(float(np.percentile(times, 95))),
    }


def first_views(browser: Browser, place: dict[str, str], loads: int) -> dict[str, Any]:
    """Open the page in new browsers, and a document of one line in each before it."""
    page_ms, bare_ms = [], []
    for _ in range(loads):
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        context.add_init_script(PAINTED)
        page = context.new_page()
        context.request.get(place["open"])
        page.goto(place["url"] + "/api/status")
        bare_ms.append(
            page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
        )
        page.goto(place["url"] + "/")
        page_ms.append(page.evaluate(FIRST))
        context.close()
    return {"first_view_ms": summary(page_ms), "bare_document_ms": summary(bare_ms)}


def beat(bus: Bus, number: int) -> float:
    """Append one row; return when, in ms."""
    bus.stream("beats").append(0, pa.record_batch([pa.array([1_700_000_000_000 + number])], ["at"]))
    return time.time() * 1000


def beats(page: Page, bus: Bus, url: str, count: int) -> dict[str, Any]:
    """Return how long after its append a row was painted, and how long until the API had it."""
    dice = random.Random(1)
    pixel, answer, rows = [], [], 1
    for number in range(2 * count):
        time.sleep(dice.uniform(0.2, 1.8))
        begun, rows = beat(bus, number), rows + 1
        if number % 2:
            pixel.append(page.evaluate(SEEN, rows) - begun)
            continue
        while True:
            found = page.request.post(f"{url}/api/query", data=json.dumps(QUERY)).json()
            if found["rows"][0][0] >= rows:
                break
        answer.append(time.time() * 1000 - begun)
        page.evaluate(SEEN, rows)
    return {"event_to_pixel_ms": summary(pixel), "event_to_answer_ms": summary(answer)}


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--loads", type=int, default=10)
    words.add_argument("--beats", type=int, default=40)
    asked = words.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with open_bus(home / "bus") as bus:
            bus.create(StreamSpec("clicks", 1, SCHEMA, "at")).append(
                0, clicks(int(time.time() * 1000) - 3_600_000)
            )
            bus.create(StreamSpec("beats", 1, pa.schema([("at", pa.int64())]), "at"))
            beat(bus, 0)
            with serving(home) as place, sync_playwright() as playwright:
                quiet = ["--disable-gpu", "--no-sandbox", "--no-first-run"]
                browser = playwright.chromium.launch(executable_path=path, args=quiet)
                report = first_views(browser, place, asked.loads)
                page = browser.new_page(viewport={"width": 1280, "height": 860})
                page.goto(place["open"])
                times = f"from={QUERY['from']}&to={QUERY['to']}"
                page.goto(
                    f"{place['url']}/explore?stream=beats&{times}&view=bars&show=count&live=1"
                )
                report |= beats(page, bus, place["url"], asked.beats)
                browser.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
