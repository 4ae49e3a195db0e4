"""``headrace explore``: an answer as a table, a chart, CSV or JSON, over streams read up to now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace, refused
from tests.support.exploring import chart, kept_rows
from tests.support.homes import Home
from tests.support.processes import SOON_S, Started, until

SQL = "select route, count(*) as n from clicks group by route order by n desc"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with Home(tmp_path_factory.mktemp("explore")) as made:
        made.create("clicks", {"at": pa.int64(), "route": pa.string()}, time="at")
        yield made


def send(home: Home, *routes: str) -> None:
    home.send("clicks", [{"at": 1_700_000_000_000, "route": route} for route in routes], 0)


def test_an_answer_has_the_rows_of_this_moment_and_a_chart(home: Home) -> None:
    send(home, "/home", "/home", "/cart")
    shown = done("explore", SQL, "--home", home.home)
    assert shown.splitlines()[:3] == ["route  n", "/home  2", "/cart  1"]
    bars = [line for line in shown.splitlines() if "|#" in line]
    assert [line.split()[0] for line in bars] == ["/home", "/cart"]
    assert bars[0].count("#") == 2 * bars[1].count("#")
    send(home, "/cart", "/cart")
    assert done("explore", SQL, "--csv", "--home", home.home) == "route,n\n/cart,3\n/home,2\n"
    lines = done("explore", SQL, "--json", "--home", home.home).splitlines()
    assert [json.loads(one) for one in lines] == [
        {"route": "/cart", "n": 3},
        {"route": "/home", "n": 2},
    ]


def test_rows_beyond_the_limit_are_said_on_stderr(home: Home) -> None:
    send(home, "/a", "/b", "/c")
    ran = headrace("explore", "select route from clicks", "--limit", 2, "--home", home.home)
    assert (ran.code, len(ran.out.splitlines())) == (0, 3)
    assert "there are more rows: these are the first 2" in ran.err


def test_a_mistake_shows_its_place(home: Home, tmp_path: Path) -> None:
    said = refused("explore", "select rote from clicks", "--home", home.home)
    assert "query:1:8: no column 'rote'; did you mean 'route'?" in said
    assert "no stream 'clik' is kept" in refused(
        "explore", "select * from clik", "--home", tmp_path
    )


def _has_rows(home: Home, rows: int) -> bool:
    return kept_rows(home, "kept") == rows


def test_a_tailer_without_a_server_keeps_rows_until_it_is_told_to_end(
    home: Home, tmp_path: Path
) -> None:
    """Rows are in files while it runs, and it ends with the code of success."""
    home.create("kept", {"at": pa.int64(), "n": pa.int64()}, time="at")
    tailer = Started(tmp_path, home.home)
    try:
        often = (
            "--streams",
            "kept",
            "--set",
            "explore.flush_ms=50",
            "--set",
            "explore.keep=36500d",
        )
        process = tailer.start("explore", "--tail", *often)
        until(lambda: "keeping kept" in tailer.said(0) or process.poll() is not None, "a tailer")
        for rows in (1, 2, 7):
            before = kept_rows(home, "kept")
            home.send("kept", [{"at": 1_700_000_000_000, "n": rows}] * (rows - before), 0)
            until(partial(_has_rows, home, rows), "rows in files")
        process.terminate()
        assert process.wait(SOON_S) == 0
    finally:
        tailer.end()
    assert kept_rows(home, "kept") == 7


def test_a_chart_over_time_has_its_scale_and_no_more_width_than_there_is() -> None:
    rows = [[1_700_000_000_000 + at * 60_000, at] for at in range(60)]
    lines = chart([("t", True), ("n", False)], rows, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert (lines[1].split()[0], lines[10].split()[0]) == ("59", "0")
    begin = lines[1].index("|") + 1
    heights = [sum(line[begin + at :][:1] == "#" for line in lines[1:11]) for at in range(50)]
    assert heights == sorted(heights)
    assert "2023-11-14 22:13:20" in lines[-1]


def test_what_cannot_be_drawn_is_no_chart_and_text_moves_no_cursor() -> None:
    assert chart([("a", False)], [["x"], ["y"]], 80) == ""
    assert chart([("n", False)], [[1], [2]], 80) == ""
    assert "\x1b" not in chart([("a", False), ("n", False)], [["\x1b[2J", 1], ["b", 2]], 80)
