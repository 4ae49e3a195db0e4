"""``hr.read``: rows of streams as frames."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from tests.support.homes import Home

import headrace as hr

COLUMNS = {"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "who": pa.string()}


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "data") as made:
        made.create("orders", COLUMNS, partitions=2, time="at")
        for partition in (0, 1):
            for batch in range(3):
                ids = range(batch * 2, batch * 2 + 2)
                rows = [{"id": i + 100 * partition, "at": at(i), "who": "ann"} for i in ids]
                made.send("orders", rows, partition)
        yield made


def ids(rows: pl.DataFrame | pa.Table) -> list[int]:
    return rows["id"].to_list() if isinstance(rows, pl.DataFrame) else rows["id"].to_pylist()


def test_all_rows_come_in_every_form(home: Home) -> None:
    rows = hr.read("orders", home=home.home)
    wanted = [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]
    assert ids(rows.to_polars()) == ids(rows.to_arrow()) == wanted
    assert rows.to_pandas()["id"].tolist() == wanted
    assert rows.to_arrow().schema == rows.schema == pa.schema(list(COLUMNS.items()))
    assert ids(rows.head(3)) == [0, 1, 2]
    assert ids(rows.head(8)) == wanted[:8]
    assert rows.head(0).height == 0


def test_rows_are_read_when_they_are_asked_for(home: Home) -> None:
    rows = hr.read("orders", partition=0, home=home.home)
    home.send("orders", [{"id": 9, "at": at(9), "who": "bob"}], 0)
    assert ids(rows.to_polars())[-1] == 9
    first = next(rows.batches())
    assert first.num_rows == 2, "as they were appended"


def test_offsets_of_a_partition(home: Home) -> None:
    found = hr.read(
        "orders", partition=1, start=1, stop=5, columns=["id"], offsets=True, home=home.home
    ).to_polars()
    assert found.rows() == [(101, 1, 1), (102, 1, 2), (103, 1, 3), (104, 1, 4)]
    both = hr.read("orders", partition=[1, 0], columns=["id"], home=home.home)
    assert ids(both.to_polars())[:2] == [100, 101]
    assert hr.read("orders", start="latest", home=home.home).to_polars().height == 0


@pytest.mark.parametrize(
    ("start", "stop", "wanted"),
    [
        (at(3), None, [3, 4, 5]),
        ("1970-01-01T00:00:03", "1970-01-01T00:00:05", [3, 4]),
        (None, at(1), [0, 0.5]),
        (at(60), None, []),
    ],
)
def test_times_bound_rows_also_out_of_order(
    home: Home, start: object, stop: object, wanted: list[float]
) -> None:
    late = [{"id": -1, "at": at(0.5), "who": "x"}]
    home.send("orders", late, 0)
    rows = hr.read(
        "orders",
        start=start,  # type: ignore[arg-type]
        stop=stop,  # type: ignore[arg-type]
        partition=0,
        columns=["id"],
        home=home.home,
    )
    found = [0.5 if i == -1 else i for i in ids(rows.to_polars())]
    assert found == wanted


def test_the_home_is_found_as_by_the_command_line(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headrace.toml").write_text('home = "data"\n')
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    assert hr.read("orders").to_polars().height == 12
    home.bus.alias("paid", "orders")
    assert hr.read("paid").to_polars().height == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stream": "order"}, "order"),
        ({"partition": 2}, "has no partition 2; expected 0 to 1"),
        ({"columns": ["idd"]}, "has no column 'idd'"),
        ({"start": 3}, "an offset belongs to one partition"),
        ({"start": "soon"}, "start"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(
    home: Home, arguments: dict[str, object], message: str
) -> None:
    given = {"stream": "orders", "home": home.home, **arguments}
    with pytest.raises(hr.InvalidInputError, match=message):
        hr.read(**given)  # type: ignore[arg-type]


def test_what_is_not_there_is_told(home: Home) -> None:
    home.create("plain", {"id": pa.int64()})
    with pytest.raises(hr.InvalidInputError, match="has no event time"):
        hr.read("plain", start=at(1), home=home.home)
    with pytest.raises(hr.InvalidInputError, match="has no offset 9; expected 0 to 6"):
        hr.read("orders", partition=0, start=9, home=home.home).to_polars()


def test_notebooks_show_the_first_rows_and_escape_them(home: Home) -> None:
    rows = hr.read("orders", home=home.home)
    assert repr(rows) == (
        "<rows of stream 'orders': 12 in 2 partitions, columns id int64, at timestamp[us, "
        "tz=UTC], who string>"
    )
    home.create("a", {"<b>": pa.string()})
    home.send("a", [{"<b>": "<script>alert(1)</script>"}])
    shown = hr.read("a", home=home.home)._repr_html_()
    assert "<table" in shown
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown
    assert "<b>" not in shown
