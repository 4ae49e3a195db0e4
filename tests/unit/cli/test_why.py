"""``headrace jobs why``: the partition that waits, what was filtered or late, where rows stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, refused

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "at": pa.int64()}


def check(row: Any) -> bool:
    return bool(10 // row.id)


@hr.job("asked")
def asked(g: Any) -> None:
    events = g.input("events", time="at", out_of_orderness="1s", idle="1m")
    kept = events.filter(hr.col("id") < 7, name="small").filter(
        check, on_error="dead_letter", name="checked"
    )
    kept.send_to(g.output("kept"))
    windows = kept.partition_by("id", name="by-id").window(
        hr.tumbling("10s"), n=hr.agg.count(), name="counts"
    )
    windows.send_to(g.output("windows"))


def rows(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"id": key, "at": at} for key, at in pairs]


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    with TestDriver(asked, tasks=2, home=tmp_path, memory_bus=False) as made:
        made.create("events", COLUMNS, partitions=3, time="at")
        yield made


def ask(driver: TestDriver) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        done("jobs", "why", "asked", "--json", "--home", driver.home)
    )
    return found


def standing(found: dict[str, Any]) -> list[str]:
    return [one["standing"] for one in found["partitions"]]


def ends(found: dict[str, Any]) -> dict[str, Any]:
    return {one["operator"].rpartition("to_")[2]: one for one in found["ends"]}


def test_the_partition_that_waits_is_named_until_it_is_idle(driver: TestDriver) -> None:
    driver.feed("events", rows((1, 5_000), (1, 40_000)), partition=0)
    driver.feed("events", rows((2, 12_000)), partition=1)
    driver.run()
    found = ask(driver)
    assert standing(found) == ["counts", "counts", "holds back"]
    assert [one["watermark_ms"] for one in found["partitions"]] == [39_000, 11_000, None]
    assert {one["behind"] for one in found["stages"]} == {"input events, partition 2"}
    stop = ends(found)["windows"]
    assert (stop["stopped_at"], stop["epoch"]) == ("counts", -1)
    assert (stop["due"]["due_ms"], stop["due"]["watermark_ms"]) == (10_000, None)
    assert ends(found)["kept"]["stopped_at"] is None
    driver.clock.advance(60_000)
    driver.feed("events", rows((1, 41_000)), partition=0)
    driver.run()
    found = ask(driver)
    assert standing(found) == ["holds back", "idle", "idle"]
    assert [one["watermark_ms"] for one in found["stages"]] == [40_000, 40_000]
    assert ends(found)["windows"]["stopped_at"] is None


def test_what_each_operator_did_with_its_rows_is_counted(driver: TestDriver) -> None:
    driver.feed("events", rows((1, 30_000), (9, 30_000), (1, 2_000), (0, 30_000), (2, 30_001)))
    driver.finish()
    found = {one["name"]: one for one in ask(driver)["operators"]}
    flow = {name: (one["received"], one["sent"], one["others"]) for name, one in found.items()}
    assert flow == {
        "events": (0, 5, {}),
        "small": (5, 4, {"filtered": 1}),
        "checked": (4, 3, {"dead_letters": 1}),
        "checked.to_kept": (3, 3, {}),
        "by-id": (0, 3, {}),
        "counts": (3, 2, {"late": 1}),
        "counts.to_windows": (2, 2, {}),
    }
    assert found["small"]["text"].startswith("filter")


def test_where_rows_stop_is_told_with_the_reason(driver: TestDriver) -> None:
    for partition in range(3):
        driver.feed("events", rows((1, 5_000)), partition=partition)
    driver.run()
    driver.feed("events", rows((8, 6_000)), partition=0)
    driver.run()
    stop = ends(ask(driver))["kept"]
    assert (stop["epoch"], stop["stopped_at"]) == (1, "small")
    assert stop["reason"] == "it sent none of the rows that it got since"
    shown = done("jobs", "why", "asked", "--home", driver.home)
    assert "counts.to_windows: never any row; rows stop at counts: it waits for a wat" in shown
    assert "1970-01-01 00:00:10; it is 1970-01-01 00:00:04, held back by input events" in shown
    assert "partition 1 and 1 more" in shown


@hr.job("asked")
def aside(g: Any) -> None:
    events = g.input("events", time="at").partition_by("id", name="by-id")
    counts = events.window(hr.tumbling("10s", late="side_output"), n=hr.agg.count(), name="counts")
    counts.send_to(g.output("windows"))
    counts.side("late").send_to(g.output("late"))


def test_rows_at_a_side_do_not_pass_for_results(tmp_path: Path) -> None:
    """And what only a side would bring is not missed where there is none."""
    with TestDriver(aside, tasks=1, home=tmp_path, memory_bus=False) as driver:
        driver.create("events", COLUMNS, partitions=2, time="at")
        driver.feed("events", rows((1, 60_000), (1, 5_000)), partition=0)
        driver.run()
        found = ends(ask(driver))
        assert found["late"]["stopped_at"] is None
        assert found["windows"]["stopped_at"] == "counts"
        assert found["windows"]["reason"] == "it waits for a watermark"
        read = [one["read_ms"] for one in ask(driver)["partitions"]]
        assert [at is None for at in read] == [False, True]
        texts = {one["name"]: one["text"] for one in ask(driver)["operators"]}
        assert texts["by-id"] == "partition by id"


@hr.job("asked")
def met(g: Any) -> None:
    first = g.input("events", time="at").partition_by("id", name="by-first")
    second = g.input("others", time="at", idle="1m").partition_by("id", name="by-second")
    first.merge(second, name="both").window(hr.tumbling("10s"), n=hr.agg.count(), name="counts")


def test_an_input_that_is_idle_is_not_blamed(tmp_path: Path) -> None:
    with TestDriver(met, tasks=1, home=tmp_path, memory_bus=False) as driver:
        for name in ("events", "others"):
            driver.create(name, COLUMNS, time="at")
        driver.feed("others", rows((1, 5_000)))
        driver.feed("events", rows((1, 7_000)))
        driver.run()
        assert {one["behind"] for one in ask(driver)["stages"][2:]} == {"input others, partition 0"}
        driver.clock.advance(60_000)
        driver.run()
        found = ask(driver)["stages"]
        assert [one["watermark_ms"] for one in found] == [7_000] * 3
        assert [one["behind"] for one in found] == [
            "input events, partition 0",
            "nothing: all are idle or at their end",
            "input events, partition 0",
        ]


def test_rows_that_are_all_late_or_refused_are_told(driver: TestDriver) -> None:
    driver.feed("events", rows((0, 60_000), (0, 61_000)), partition=0)
    driver.run()
    stop = ends(ask(driver))
    assert stop["kept"]["stopped_at"] == stop["windows"]["stopped_at"] == "checked"
    assert stop["kept"]["reason"] == "it refused all of its rows"


def test_a_job_that_never_ran_is_refused(tmp_path: Path) -> None:
    assert "no committed epoch of job 'asked'" in refused(
        "jobs", "why", "asked", "--home", tmp_path
    )


def test_counts_survive_a_crash_and_are_counted_once(driver: TestDriver) -> None:
    for at, point in enumerate(["slot.ran", "epoch.before_commit", "commit.published"], 1):
        driver.feed("events", rows((1, at * 1_000), (8, at * 1_000)), partition=0)
        assert driver.advance_with_crash(point)
        driver.run()
    held = driver.coordinator.state.operators["small"]
    assert held.counts == {"received": 6, "sent": 3, "filtered": 3}
