"""Results of a run over old data in those of the live job: for each key one wins, once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import MergeResult, backfilled, merged, sends_keys_alike

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver, crash_at

BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@hr.job("hours")
def hours(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user")
    rows.window(hr.tumbling("1h"), total=hr.agg.sum("n")).send_to(g.output("out"), name="out")


def row(hour: int, user: str, n: int) -> dict[str, Any]:
    return {"at": BEGIN + dt.timedelta(hours=hour), "user": user, "n": n}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    """A live job that began in hour 2 of six, and old data before."""
    with TestDriver(hours, tasks=2, home=tmp_path, memory_bus=False, start="latest") as made:
        columns = {"at": pa.timestamp("us", "UTC"), "user": pa.string(), "n": pa.int64()}
        made.create("in", columns, time="at")
        made.feed("in", [row(h, user, h + 1) for h in range(3) for user in ("ann", "bob")])
        made.run()
        made.feed("in", [row(h, user, h + 1) for h in range(2, 7) for user in ("ann", "bob")])
        made.run()
        yield made


def results(driver: TestDriver, stream: str = "out") -> dict[tuple[str, int], int]:
    """The last total of each user and hour."""
    return {
        (one["user"], round(one["window_start"].timestamp() / 3600)): one["total"]
        for one in driver.output(stream)
    }


def backfill(driver: TestDriver, to_hour: int, key_groups: int = 64) -> str:
    """Run the job over what was before an hour, apart; return the name of the run."""
    span = {"in": {"from": "1970-01-01T00:00", "to": f"1970-01-01T0{to_hour}:00"}}
    return backfilled(driver, span, key_groups=key_groups)


def merge(driver: TestDriver, run: str, **more: Any) -> MergeResult:
    return merged(driver, run, "out", **more)


def test_the_live_rows_win_and_what_they_lack_comes_once(driver: TestDriver) -> None:
    assert {hour for _, hour in results(driver)} == {2, 3, 4, 5}
    run = backfill(driver, 3)
    old = results(driver, "out.backfill")
    assert old == {(user, h): h + 1 if h < 2 else 6 for user in ("ann", "bob") for h in range(3)}
    live = results(driver)

    done = merge(driver, run)

    assert (done.appended, done.there, done.kept) == (4, 0, 2)
    assert results(driver) == old | live
    again = merge(driver, run)
    assert (again.appended, again.kept) == (0, 6)
    driver.feed("in", [row(8, "ann", 1)])
    driver.run()
    assert {hour for _, hour in results(driver)} == {0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(("key_groups", "expected"), [(64, True), (100, False)])
def test_jobs_with_other_key_groups_send_keys_elsewhere(
    driver: TestDriver, key_groups: int, expected: bool
) -> None:
    backfill(driver, 3, key_groups)
    assert sends_keys_alike(driver, "hours-backfill") is expected


def test_a_function_chooses(driver: TestDriver) -> None:
    run = backfill(driver, 3)

    def larger(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any] | None:
        if live is None:
            return None
        return {**old, "total": max(live["total"], old["total"])}

    assert merge(driver, run, by=larger).appended == 2
    assert results(driver)["ann", 2] == 6
    assert ("ann", 0) not in results(driver)


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (lambda live, old: 1 / 0, "merge raised ZeroDivisionError: .* for output 'out'"),
        (lambda live, old: 7, "merge returned 7 for output 'out'; expected a dict"),
        (lambda live, old: {**old, "total": "many"}, "does not fit the columns of 'out'"),
    ],
)
def test_a_function_that_fails_changes_nothing(driver: TestDriver, by: Any, told: str) -> None:
    run, before = backfill(driver, 3), driver.output("out")
    with pytest.raises(InvalidInputError, match=told):
        merge(driver, run, by=by)
    assert driver.output("out") == before


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["merge.appended", "bus.frame_written", "bus.index_written"])
def test_who_dies_merging_merges_the_rest_later(driver: TestDriver, point: str, nth: int) -> None:
    """Also when the live job has gone on in between: nothing is there twice, nothing is lost."""
    run = backfill(driver, 3)
    expected = results(driver, "out.backfill") | results(driver)
    rows = len(driver.output("out"))
    with crash_at(point, nth, required=False):
        merge(driver, run)
    driver.crash()
    merge(driver, run)
    assert results(driver) == expected
    assert len(driver.output("out")) == rows + 4
