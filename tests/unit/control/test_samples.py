"""Samples that a job keeps of itself, and what ``jobs history`` makes of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.cli.jobs.history import bars
from headrace.control.history import (
    DAY_MS,
    FOLDER,
    KEEP_DAYS,
    MAX_PARTS,
    MINUTE_MS,
    THINNED_SUFFIX,
    InputSample,
    Sample,
    SampleLog,
    Sampler,
    job_history,
    sample_of,
    thinned,
)
from headrace.control.live_job import LiveJob
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_group import JobGroup
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
        live = LiveJob("shop", driver.settings, JobControl(), driver.clock)
        log = SampleLog(tmp_path)
        sampler = Sampler(live, log)
        sampler.take()  # before it has begun there is nothing to tell
        assert list(log.read(0)) == []
        summary = driver.advance()
        assert summary is not None
        live.ready(JobGroup(driver.parts))
        live.observe(summary)
        driver.feed("orders", [{"user": "bob"}] * 2)
        sampler.take()
    (found,) = log.read(0)
    assert (found.rows, found.lag, found.epoch, found.epochs, found.status) == (
        *(3, 2, 1, 1),
        "running",
    )
    assert found.state_bytes > 0
    assert found.inputs == {"orders": InputSample(3, 2)}
    assert found.output_rows == summary.output_rows > 0


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
    assert log.left_out == 1
    assert [one.at_ms for one in log.read(newest + 1)] == [newest + 5]


def test_stretches_sum_up_what_one_driver_did_from_sample_to_sample() -> None:
    samples = [
        sample(0, rows=10, epochs=1),
        sample(10_000, rows=30, epochs=3, lag=7),
        sample(20_000, rows=35, epochs=4, lag=2),
        sample(70_000, process=2, rows=40, epochs=1),  # another driver, a minute later
        sample(80_000, process=2, rows=90, epochs=3),
    ]
    first, second, third = job_history(samples, 0, 100_000, 4).stretches
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
    (found,) = job_history(samples, 0, 100_000, 1).stretches
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
        part = driver.parts[0]
        live = LiveJob("alarms", driver.settings, JobControl(), driver.clock)
        live.ready(JobGroup(driver.parts))

        def meanwhile() -> dict[str, list[int]]:
            patch.undo()
            found = part.ends()
            driver.create("errors.b", {"n": pa.int64()})
            driver.feed("errors.b", [{"n": 1}])
            driver.advance()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(part, "ends", meanwhile)
            assert live.current_lag() == 1
        driver.feed("errors.b", [{"n": 1}])
        assert live.current_lag() == 1


def test_of_a_day_that_is_over_a_sample_a_minute_is_left(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    first = 20_000 * DAY_MS
    every = [
        sample(first + n * 10_000, rows=n, epochs=n, lag=7 if n == 15 else 0, process=1 + n // 40)
        for n in range(60)
    ]
    for one in every:
        log.append(one)
    log.append(sample(first + DAY_MS))
    folder = tmp_path / FOLDER
    assert sorted(path.name for path in folder.iterdir()) == [
        f"020000{THINNED_SUFFIX}.jsonl",
        "020001.jsonl",
    ]
    *left, _ = log.read(0)
    # The last of each driver, too: none of its rows are lost.
    assert [one.rows for one in left] == [0, 6, 12, 18, 24, 30, 36, 39, 40, 42, 48, 54, 59]
    assert [one.lag for one in left if one.lag] == [7]
    whole, thin = (
        job_history(found, first, first + DAY_MS, 1).stretches[0] for found in (every, left)
    )
    assert (whole.rows, whole.epochs, whole.lag) == (thin.rows, thin.epochs, thin.lag)


@given(
    st.lists(
        st.tuples(st.integers(1, 200_000), st.integers(0, 50), st.integers(0, 9), st.booleans()),
        max_size=40,
    )
)
def test_thinning_loses_no_rows_and_no_highest_lag(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    at, rows, process, made = 0, 0, 1, list[Sample]()
    for passed, more, lag, dies in steps:
        at, rows, process = at + passed, rows + more, process + dies
        made.append(sample(at, rows=rows, lag=lag, process=process))
    left = thinned(made)
    sums = [
        [(s.rows, round(s.seconds, 3), s.lag) for s in job_history(found, 0, at + 1, 1).stretches]
        for found in (made, left)
    ]
    assert sums[0] == sums[1]
    assert len(left) <= at // MINUTE_MS + 2 * process
    assert thinned(left) == left


def test_a_crash_in_the_midst_of_thinning_leaves_both_and_one_counts(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    log.append(sample(5))
    thin = tmp_path / FOLDER / f"000000{THINNED_SUFFIX}.jsonl"
    thin.write_bytes((tmp_path / FOLDER / "000000.jsonl").read_bytes())
    assert [one.at_ms for one in log.read(0)] == [5]
    log.append(sample(DAY_MS))
    assert [one.at_ms for one in log.read(0)] == [5, DAY_MS]


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    log = SampleLog(tmp_path)
    log.append(sample(5))
    (tmp_path / FOLDER / "000001.jsonl").mkdir()
    log.append(sample(2 * DAY_MS))
    assert [one.at_ms for one in log.read(0)] == [5, 2 * DAY_MS]
    assert log.left_out > 0


def test_samples_of_before_inputs_were_in_them_can_be_read(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    line = b'[5,1,"running",1,10,2,3,5.0,100,null,1]\n'
    (tmp_path / FOLDER / "000000.jsonl").write_bytes(line)
    (found,) = SampleLog(tmp_path).read(0)
    assert (found.rows, found.lag, found.inputs) == (10, 2, {})


def test_inputs_and_stages_have_a_past_of_their_own() -> None:
    def whole(at_ms: int, rows: int, lag: int, mark: int | None) -> Sample:
        made = sample(at_ms, rows=rows)
        inputs = {"a": InputSample(rows, lag), "b": InputSample(0, 0)}
        return msgspec.structs.replace(made, inputs=inputs, stages={"s": mark})

    found = job_history(
        [whole(0, 0, 5, None), sample(10_000), whole(60_000, 120, 3, 20_000), sample(70_000)],
        *(0, 120_000, 2),
    )
    a, b = found.inputs
    assert [(s.rows, s.seconds, s.lag) for s in a.stretches] == [(0, 0.0, 5), (120, 60.0, 3)]
    assert (a.name, a.lag, b.name, b.lag) == ("a", 3, "b", 0)
    (stage,) = found.stages
    assert [s.behind_ms for s in stage.stretches] == [None, 40_000]
    assert (stage.watermark_ms, stage.behind_ms) == (20_000, 40_000)
    assert list(found.to_json()["inputs"]) == ["a", "b"]


def test_of_many_inputs_those_with_most_lag_are_kept() -> None:
    @hr.job("many")
    def many(g: hr.Graph) -> None:
        g.input("in.*").send_to(g.output("out"))

    with TestDriver(many) as driver:
        for n in range(MAX_PARTS + 10):
            driver.create(f"in.{n:03d}", {"n": pa.int64()})
        driver.start()
        driver.feed("in.070", [{"n": 1}] * 5)
        live = LiveJob("many", driver.settings, JobControl(), driver.clock)
        live.ready(JobGroup(driver.parts))
        found = sample_of(live, 0)
    assert len(found.inputs) == MAX_PARTS
    assert sum(one.lag for one in found.inputs.values()) == found.lag == 5


def test_bars_reach_from_nothing_to_the_most() -> None:
    assert bars([0, 5, 10]) == "▁▅█"
    assert bars([0, 0]) == "▁▁"
    assert bars([]) == ""
