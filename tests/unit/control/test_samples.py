"""Samples that a job keeps of itself, and what ``jobs history`` makes of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli.jobs.past import bars, stretches
from headrace.control.board import Board
from headrace.control.samples import DAY_MS, FOLDER, KEEP_DAYS, Sample, SampleLog, Sampler
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.testing import TestDriver


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user")
    orders.aggregate(n=hr.agg.count()).send_to(g.output("totals"))


def sample(
    at_ms: int,
    *,
    process: int = 1,
    rows: int = 0,
    lag: int = 0,
    epochs: int = 0,
    generation: int = 1,
) -> Sample:
    busy_ms = epochs * 5.0
    counted = (rows, lag, epochs, busy_ms, 100, None, generation)
    return Sample(at_ms, process, "running", 1, *counted)


def test_a_sample_tells_rows_and_what_lies_before_the_job_now(tmp_path: Path) -> None:
    with TestDriver(shop) as driver:
        driver.create("orders", {"user": pa.string()})
        driver.feed("orders", [{"user": "ann"}] * 3)
        board = Board("shop", driver.settings, Control(), driver.clock)
        log = SampleLog(tmp_path)
        sampler = Sampler(board, log, driver.clock)
        sampler.take()  # before it has begun there is nothing to tell
        assert list(log.read(0)) == []
        summary = driver.advance()
        assert summary is not None
        board.ready(JoinedParts(driver.parts))
        board.observe(summary)
        driver.feed("orders", [{"user": "bob"}] * 2)
        sampler.take()
    (found,) = log.read(0)
    assert (found.rows, found.lag, found.epoch, found.epochs, found.status) == (
        *(3, 2, 1, 1),
        "running",
    )
    assert found.state_bytes > 0


def test_days_go_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    first = 20_000 * DAY_MS
    for day in range(KEEP_DAYS + 2):
        log.append(sample(first + day * DAY_MS))
        log.append(sample(first + day * DAY_MS + 5))
    newest = first + (KEEP_DAYS + 1) * DAY_MS
    with open(tmp_path / FOLDER / f"{newest // DAY_MS:06d}.jsonl", "ab") as file:
        file.write(b'[1,2,"runn')
    found = [one.at_ms for one in log.read(0)]
    assert found[0] == first + 2 * DAY_MS
    assert found[-1] == newest + 5
    assert len(found) == 2 * KEEP_DAYS
    assert [one.at_ms for one in log.read(newest + 1)] == [newest + 5]


def test_stretches_sum_up_what_one_driver_did_from_sample_to_sample() -> None:
    samples = [
        sample(0, rows=10, epochs=1),
        sample(10_000, rows=30, epochs=3, lag=7),
        sample(20_000, rows=35, epochs=4, lag=2),
        sample(70_000, process=2, rows=40, epochs=1),  # another driver, a minute later
        sample(80_000, process=2, rows=90, epochs=3),
    ]
    first, second, third = stretches(samples, 0, 100_000, 4)
    assert (first.begin_ms, first.rows, first.seconds, first.epochs) == (0, 25, 20.0, 3)
    assert (first.lag, first.busy_ms) == (7, 15.0)
    assert (second.begin_ms, second.rows, second.seconds) == (50_000, 0, 0.0)
    assert (third.begin_ms, third.rows, third.seconds, third.epochs) == (75_000, 50, 10.0, 2)


def test_drivers_of_containers_are_told_apart_although_all_are_process_1() -> None:
    samples = [
        sample(0, rows=10, epochs=8),
        sample(10_000, rows=30, epochs=9),
        sample(70_000, rows=40, epochs=1, generation=2),
        sample(80_000, rows=90, epochs=3, generation=2),
    ]
    (found,) = stretches(samples, 0, 100_000, 1)
    assert (found.rows, found.seconds, found.epochs, found.busy_ms) == (70, 20.0, 3, 15.0)


def test_a_stream_that_comes_while_a_sample_is_taken_is_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hr.job("alarms")
    def alarms(g: hr.Graph) -> None:
        g.input("errors.*").send_to(g.output("out"))

    with TestDriver(alarms) as driver:
        driver.create("errors.a", {"n": pa.int64()})
        driver.feed("errors.a", [{"n": 1}])
        parts = JoinedParts(driver.parts)
        board = Board("alarms", driver.settings, Control(), driver.clock)
        board.ready(parts)
        asked = parts.ends

        def meanwhile() -> dict[str, list[int]]:
            found = asked()
            driver.create("errors.b", {"n": pa.int64()})
            driver.feed("errors.b", [{"n": 1}])
            driver.advance()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(parts, "ends", meanwhile)
            assert board.lag_now() == 1
        driver.feed("errors.b", [{"n": 1}])
        assert board.lag_now() == 1


def test_bars_reach_from_nothing_to_the_most() -> None:
    assert bars([0, 5, 10]) == "▁▅█"
    assert bars([0, 0]) == "▁▁"
    assert bars([]) == ""
