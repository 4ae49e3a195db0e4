"""The demo's dashboard: ``headrace ui`` in a process of its own, with charts of the flights.

It shows the flights while they are appended and the job runs, and stays after that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from headrace.errors import UnavailableError

NAME = "flights"
PACE_S = 90.0
"""How long the feeder takes for the whole year when somebody watches."""

ENDING_S = 10
_REQUEST_S = 60
# The kernel ends the server with the demo, even where that one is killed.
_LAUNCHER = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(1)
from headrace.cli.main import main
main()
"""
_KEEP = "36500d"  # the flights are of 2013
_YEAR = {"from": "2013-01-01T00:00:00Z", "to": "2014-01-01T00:00:00Z"}


def _chart(
    title: str, width: int, height: int, view: str, *metrics: str, **more: Any
) -> dict[str, Any]:
    shown = []
    for metric in metrics:
        fn, _, column = metric.partition(" ")
        shown.append({"fn": fn, "column": column} if column else {"fn": fn})
    query = {"stream": "flights", **_YEAR, "view": view, "metrics": shown, **more}
    return {"title": title, "width": width, "height": height, "query": query}


def _filter(column: str, op: str, value: object) -> dict[str, object]:
    return {"column": column, "op": op, "value": value}


def flights_dashboard() -> dict[str, Any]:
    """Return the dashboard as ``PUT /api/dashboards/flights`` takes it."""
    charts = [
        _chart("Flights by airport", 8, 4, "area", "count", group_by=["origin"]),
        _chart(
            "Departure delays, minutes", 4, 4, "distribution", "avg dep_delay",
            filters=[_filter("dep_delay", "<", 180)],
        ),
        _chart(
            "Late departures over the year", 6, 5, "heatmap", "avg dep_delay",
            filters=[_filter("dep_delay", ">=", 0), _filter("dep_delay", "<", 240)],
        ),
        _chart(
            "Mean and 95th percentile of the delay", 6, 5, "series", "avg dep_delay",
            "p95 dep_delay", group_by=["origin"],
        ),
        _chart(
            "Airlines", 5, 5, "table", "count", "avg dep_delay", "p95 arr_delay",
            group_by=["carrier"], limit=20,
        ),
        _chart(
            "Destinations with the longest delays", 4, 5, "bars", "avg arr_delay",
            group_by=["dest"], limit=12,
        ),
        _chart(
            "Rows that the job has sent", 3, 5, "bars", "count",
            stream="route_delays", group_by=["origin"],
        ),
    ]  # fmt: skip
    return {
        "title": "Flights from New York City",
        "description": "The year 2013, live while the demo runs.",
        "variables": [
            {"column": "origin", "title": "Airport"},
            {"column": "carrier", "title": "Airline"},
        ],
        "charts": charts,
    }


@contextmanager
def served(home: Path) -> Iterator[str]:
    """Serve the web application of a home with the dashboard in it; yield the address to open.

    Args:
        home: of the demo.

    Raises:
        UnavailableError: the server did not start; the reason is on stderr.
    """
    command = [sys.executable, "-c", _LAUNCHER, str(os.getpid()), "ui", "--json", "--port", "0"]
    command += ["--home", str(home), "--set", f"explore.keep={_KEEP}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _with_dashboard(process)
        finally:
            process.terminate()
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _with_dashboard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise UnavailableError("headrace ui ended before it could be opened; see its message above")
    place = json.loads(line)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(place["open"], timeout=_REQUEST_S).close()
    request = urllib.request.Request(
        f"{place['url']}/api/dashboards/{NAME}",
        data=json.dumps(flights_dashboard()).encode(),
        headers={"Origin": place["url"], "X-Headrace": "1", "Content-Type": "application/json"},
        method="PUT",
    )
    opener.open(request, timeout=_REQUEST_S).close()
    return f"{place['open']}&next=/dashboards/{NAME}"
