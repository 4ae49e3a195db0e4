"""``hr.read(...).live()``: the newest rows, refreshed while they are committed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.homes import Home

import headrace as hr
from headrace.bus import BusOptions, StreamSpec, open_bus
from headrace.testing import TestDriver

ROOT = Path(__file__).parents[3]
NOTEBOOKS = ROOT / "examples" / "notebooks"
COLUMNS = {"user": pa.string(), "cents": pa.int64()}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "data") as made:
        made.create("totals", COLUMNS, partitions=2)
        yield made


def send(home: Home, partition: int = 0, **totals: int) -> None:
    rows = [{"user": user, "cents": cents} for user, cents in totals.items()]
    home.send("totals", rows, partition)


def cents(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return frame.select("user", "cents").rows()


def test_the_newest_row_of_each_key_is_kept(home: Home) -> None:
    send(home, ann=5, bob=7)
    live = hr.read("totals", home=home.home).live(key="user")
    assert cents(live.frame) == [("ann", 5), ("bob", 7)]
    assert not live.refresh()
    send(home, ann=6)
    send(home, 1, eve=1)
    assert live.refresh()
    assert cents(live.frame) == [("bob", 7), ("ann", 6), ("eve", 1)]
    assert repr(live) == "<3 keys of stream 'totals'>"


def test_without_a_key_the_last_rows_are_shown(home: Home) -> None:
    for n in range(5):
        send(home, ann=n)
    live = hr.read("totals", partition=0, columns=["cents"], home=home.home).live(rows=2)
    assert live.frame.rows() == [(3,), (4,)]
    send(home, ann=9)
    live.refresh()
    assert live.frame.rows() == [(4,), (9,)]
    html = live._repr_html_()
    assert html.index(">9<") < html.index(">4<"), "the newest first"


def test_it_begins_where_the_rows_begin(home: Home) -> None:
    send(home, ann=1, bob=2)
    later = hr.read("totals", start="latest", home=home.home).live()
    from_second = hr.read("totals", start=1, partition=0, offsets=True, home=home.home).live()
    assert later.frame.height == 0
    assert from_second.frame.rows() == [("bob", 2, 0, 1)]
    send(home, eve=3)
    assert later.refresh()
    assert cents(later.frame) == [("eve", 3)]


def test_rows_that_retention_took_are_not_missed(tmp_path: Path) -> None:
    spec = StreamSpec("totals", 1, pa.schema(list(COLUMNS.items())))
    with open_bus(tmp_path / "bus", BusOptions(segment_bytes=1)) as bus:
        stream = bus.create(spec)
        stream.append(0, pa.table({"user": ["ann"], "cents": [1]}))
        live = hr.read("totals", home=tmp_path).live(key="user")
        for n in range(3):
            stream.append(0, pa.table({"user": ["bob"], "cents": [n]}))
        assert stream.trim(0, 3) > 1
        assert live.refresh()
    assert cents(live.frame) == [("ann", 1), ("bob", 2)]


def test_only_what_is_committed_is_shown(tmp_path: Path) -> None:
    @hr.job("spent")
    def spent(g: hr.Graph) -> None:
        sums = g.input("orders").partition_by("user").aggregate(cents=hr.agg.sum("cents"))
        sums.send_to(g.output("totals"))

    with TestDriver(spent, home=tmp_path, memory_bus=False) as driver:
        driver.create("orders", COLUMNS)
        driver.feed("orders", [{"user": "ann", "cents": 5}])
        driver.run()
        live = hr.read("totals", home=tmp_path).live(key="user")
        driver.feed("orders", [{"user": "ann", "cents": 2}])
        assert driver.advance_with_crash("epoch.before_commit")
        assert not live.refresh()
        driver.run()
        assert live.refresh()
        assert cents(live.frame) == [("ann", 7)]


def test_a_stream_that_goes_away_leaves_its_rows(home: Home) -> None:
    send(home, ann=1)
    live = hr.read("totals", home=home.home).live()
    home.bus.remove("totals")
    with pytest.raises(hr.HeadraceError, match="totals"):
        live.refresh()
    assert cents(live.frame) == [("ann", 1)]


def test_text_of_rows_is_escaped(home: Home) -> None:
    home.send("totals", [{"user": "<script>alert(1)</script>", "cents": 1}])
    bundle = hr.read("totals", home=home.home).live()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "<script" not in bundle["text/html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "name"}, r"stream 'totals' has no column 'name'; found \['user', 'cents'\]"),
        ({"rows": 0}, "rows: expected at least 1, found 0"),
        ({"every": "soon"}, "every is 'soon'; expected a duration"),
    ],
)
def test_what_cannot_be_shown_is_refused(home: Home, options: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.InvalidInputError, match=message):
        hr.read("totals", home=home.home).live(**options)


def test_rows_with_an_end_are_not_live(home: Home) -> None:
    with pytest.raises(hr.InvalidInputError, match="live rows have no end"):
        hr.read("totals", stop=1, partition=0, home=home.home).live()


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    own = {"PYTHONPATH": str(ROOT / "src"), "JUPYTER_PLATFORM_DIRS": "1", "HOME": str(tmp_path)}
    return {**kept, **own, **more}


@pytest.mark.soak
def test_jupyter_refreshes_a_table_while_the_job_runs(tmp_path: Path) -> None:
    """The notebook of the guide is executed; its second last cell waits for the thread."""
    import nbclient  # for this test alone
    import nbformat

    book = nbformat.read(NOTEBOOKS / "live.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(book, timeout=120, resources=resources)
    client.execute(env=environment(tmp_path))
    shown = {cell.id: cell.outputs for cell in book.cells if cell.cell_type == "code"}
    [drawn] = shown["job"]
    assert "<svg" in drawn.data["text/html"]
    [table] = shown["live"]
    assert table.output_type == "display_data"
    assert table.data["text/plain"] == "<3 keys of stream 'totals'>", "as of stop"
    assert table.data["text/html"].count("<tr>") >= 4
    [rows] = shown["more"]
    assert [text in rows.data["text/plain"] for text in ("ann", "bob", "eve")] == [True] * 3


@pytest.mark.soak
def test_marimo_shows_the_rows_of_the_moment(home: Home, tmp_path: Path) -> None:
    """The app of the guide is run without a browser, in a process of its own."""
    app, page = tmp_path / "live_app.py", tmp_path / "page.html"
    shutil.copy(NOTEBOOKS / app.name, app)  # marimo keeps what it has run beside it
    export = [sys.executable, "-m", "marimo", "export", "html", str(app)]
    send(home, ann=6_023)
    subprocess.run(
        [*export, "--output", str(page), "--force"],
        env={**os.environ, "HEADRACE_HOME": str(home.home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert "6023" in page.read_text()
