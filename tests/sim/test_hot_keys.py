"""Looking for heavy keys changes nothing: state and outputs are the same bytes without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import JobState
from tests.support.hosts import look_for_hot_keys

import headrace as hr
from headrace.testing import SlotCrash, TestDriver, each_at


def job_of(via: str) -> hr.Job:
    @hr.job("spending")
    def spending(g: hr.Graph) -> None:
        orders = g.input("orders", time="at", out_of_orderness="1s")
        by_user: Any = (
            orders.partition_by("user", via="bus", name="by_user")
            if via == "bus"
            else orders.partition_by("user", name="by_user")
        )
        spent = by_user.window(hr.tumbling("10s"), n=hr.agg.sum("n"), name="spent")
        spent.send_to(g.output("out"))

    return spending


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"user": "ann" if n % 3 else f"user {n}", "n": n, "at": 1_000_000 + 700 * n}
        for n in range(count)
    ]


def ran(
    via: str, home: Path, *, hot: bool, crash: bool = False
) -> tuple[list[Any], JobState, list[Any]]:
    told: list[Any] = []
    with TestDriver(job_of(via), home=home, max_rows=40) as driver:
        look_for_hot_keys(driver, looks=hot)
        driver.create("orders", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        driver.feed("orders", rows(200))
        died: list[str] = []

        def die() -> None:
            if crash and len(died) < 3:
                died.append("slot.ran")
                raise SlotCrash

        with each_at("slot.ran", die):
            while any(told_of(driver.advance(part=n), told) for n in range(len(driver.parts))):
                pass
        driver.finish()
        return driver.output("out"), driver.coordinator.state, told


def told_of(summary: Any, told: list[Any]) -> bool:
    if summary is not None:
        told += [one for found in summary.observed.hot_keys.values() for one in found]
    return summary is not None


@pytest.mark.parametrize("via", ["files", "bus"])
@pytest.mark.parametrize("crash", [False, True])
def test_results_are_the_same_with_and_without(tmp_path: Path, via: str, crash: bool) -> None:
    out, state, told = ran(via, tmp_path / "with", hot=True, crash=crash)
    plain, before, nothing = ran(via, tmp_path / "without", hot=False)
    assert sorted(map(repr, out)) == sorted(map(repr, plain))
    assert (state.epoch, state.counts, state.inputs.keys()) == (
        *(before.epoch, before.counts),
        before.inputs.keys(),
    )
    assert nothing == []
    assert {one.operator for one in told} == {"by_user"}
    assert told[0].keys[0].key.strip(b"\0")[1:] == b"ann"
