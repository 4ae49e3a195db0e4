"""Results over old data for streams without a key: where the live job would have sent them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import headrace
from tests.support.homes import load_settings

import headrace as hr
from headrace.testing import TestDriver

USERS = "abcdefghijkl"
TARGET = f"tests.unit.cli.{Path(__file__).stem}:names"


@hr.job("names")
def names(g: hr.Graph) -> None:
    """What is sent has no column that it is partitioned by, so the stream has no key."""
    rows = g.input("in", time="at").partition_by("user")
    totals = rows.aggregate(n=hr.agg.sum("n"))
    totals.map(hr.col("user").alias("name"), "n").send_to(g.output("out"), name="out")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[TestDriver]:
    """A job of three tasks that began after the first row of each user."""
    settings = {"tasks": 3, "home": tmp_path, "memory_bus": False, "start": "latest"}
    settings["key_groups"] = load_settings(None, [], {}).job.key_groups  # as the backfill will have
    with TestDriver(names, **settings) as made:  # type: ignore[arg-type]
        made.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        made.feed("in", [{"user": user, "n": 1, "at": 0} for user in USERS])
        made.run()
        made.feed("in", [{"user": "a", "n": 1, "at": 99}])
        made.run()
        made.crash()
        yield made


def places(driver: TestDriver) -> dict[str, list[tuple[int, int]]]:
    """Partition and value of each row of a name, in the order of their partition."""
    stream, found = driver.bus.stream("out"), dict[str, list[tuple[int, int]]]()
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin):
            for row in part.batch.to_pylist():
                found.setdefault(row["name"], []).append((partition, row["n"]))
    return found


def asked(driver: TestDriver, tasks: int) -> tuple[object, ...]:
    span = ("--from", "1970-01-01", "--to", "1970-01-01T00:00:00.050")
    cut = ("--set", f"job.tasks={tasks}", "--key", "name")
    return ("backfill", TARGET, *span, *cut, "--merge", "--standalone", "--home", driver.home)


def test_rows_go_where_the_live_job_sends_those_of_their_key_later(live: TestDriver) -> None:
    assert live.bus.stream("out").spec.key == ()
    assert list(places(live)) == ["a"]
    ran = headrace(*asked(live, 3))
    assert ran.code == 0, ran.err
    assert "out: 11 rows appended, 1 keys stay" in ran.out
    assert set(places(live)) == set(USERS)
    live.feed("in", [{"user": user, "n": 7, "at": 100} for user in USERS if user != "a"])
    live.run()
    for name, rows in places(live).items():
        assert len({partition for partition, _ in rows}) == 1, name
        assert [n for _, n in rows] == ([1] if name == "a" else [1, 7])


def test_a_run_that_is_cut_otherwise_cannot_tell(live: TestDriver) -> None:
    before = places(live)
    ran = headrace(*asked(live, 2))
    assert ran.code == 1
    assert "stream 'out' has no key of its own, and it has no row of key ['" in ran.err
    assert places(live) == before
