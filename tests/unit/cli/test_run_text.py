"""What ``run`` prints of epochs and inputs, from numbers alone."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from headrace.cli.output import count_text, rate_text, seconds_text, size_text, time_text
from headrace.cli.run.progress import Progress, end_json, end_line, epoch_json, epoch_line
from headrace.cli.run.reporters import TerminalSize, live_table
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK

NOON = 1_357_041_600_000
WIDE, NARROW = TerminalSize(110, 24), TerminalSize(80, 24)
SUMMARY = EpochSummary(
    epoch=7,
    rows=1500,
    took_ms=500.0,
    timings_ms={"plan": 1.0},
    counts={"in": 1500, "late": 2},
    watermark=NOON,
    lag=30,
    state_bytes=3_200_000,
    changelog_bytes=1000,
    output_rows=1400,
    ended=False,
)


def state_at(*offsets: int, time: int = NOON, epoch: int = 1) -> JobState:
    positions = {p: InputPosition(offset, time) for p, offset in enumerate(offsets)}
    return JobState(
        job="radar",
        lineage="l",
        generation=1,
        epoch=epoch,
        time_ms=0,
        digest="",
        key_groups=512,
        fingerprint={},
        inputs={"flights": positions},
    )


@pytest.fixture
def progress() -> Progress:
    """A run that began at 100 s with 10 and 20 rows read, and did one epoch in 2 s."""
    begun = Progress("radar", {"flights": "flights"}, {"flights": 60_000}, state_at(10, 20), 100.0)
    begun.observe(SUMMARY, state_at(1000, 530, epoch=7), 102.0)
    return begun


def shown(progress: Progress, ends: dict[str, list[int]], screen: TerminalSize) -> list[str]:
    console = Console(file=io.StringIO(), width=screen.width)
    console.print(live_table(progress, ends, 103.0, screen))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_an_epoch_is_a_line() -> None:
    assert epoch_line(SUMMARY) == (
        "epoch 7  1,500 rows  0.50 s  3,000 rows/s  1,400 out  lag 30  "
        "watermark 2013-01-01 12:00:00  state 3.1 MiB  2 late"
    )


def test_an_epoch_tells_copies_and_rows_that_no_branch_took() -> None:
    counts = {"in": 1500, "unmatched": 1200, "duplicates": 3, "filtered": 9}
    line = epoch_line(replace(SUMMARY, counts=counts))
    assert line.endswith("state 3.1 MiB  3 duplicates  1,200 unmatched")


def test_an_epoch_tells_what_part_of_its_values_was_in_memory() -> None:
    counts = {"cache.hits": 300, "cache.misses": 100}
    assert epoch_line(replace(SUMMARY, counts=counts)).endswith("state 3.1 MiB  cache 75%")


def test_a_merge_that_fails_is_told(progress: Progress) -> None:
    summary = replace(SUMMARY, merge_problems=("s/0: OSError: no space",), merged_bytes=5)

    assert epoch_line(summary).endswith("merge failed: s/0: OSError: no space")
    told = epoch_json(summary, progress, {"flights": [1000, 530]}, 102.0)
    assert (told["merge_problems"], told["merged_bytes"]) == (["s/0: OSError: no space"], 5)
    progress.observe(summary, state_at(1000, 530, epoch=8), 103.0)
    assert "merging fails" in shown(progress, {"flights": [1000, 530]}, WIDE)[0]


@pytest.mark.parametrize("watermark", [NO_WATERMARK, END_WATERMARK])
def test_a_watermark_that_is_no_time_is_a_dash(watermark: int, progress: Progress) -> None:
    summary = replace(SUMMARY, watermark=watermark)

    assert "watermark -" in epoch_line(summary)
    assert epoch_json(summary, progress, {"flights": [1000, 530]}, 102.0)["watermark_ms"] is None


def test_an_input_has_rate_lag_and_watermark(progress: Progress) -> None:
    """Its watermark is the least of its partitions, less the lateness it allows."""
    (found,) = progress.inputs({"flights": [1010, 560]}, 103.0)

    assert (found.rows, found.rows_per_s, found.lag) == (1500, 500.0, 40)
    assert found.watermark_ms == NOON - 60_000


def test_an_input_with_an_unread_partition_has_no_watermark(progress: Progress) -> None:
    progress.state = state_at(1000, 530, time=NO_WATERMARK)

    (found,) = progress.inputs({"flights": [1000, 530]}, 103.0)

    assert found.watermark_ms is None


def test_the_rate_of_an_idle_input_falls_to_nothing(progress: Progress) -> None:
    (found,) = progress.inputs({"flights": [1000, 530]}, 1000.0)

    assert found.rows_per_s == 0


def test_the_rate_is_that_of_the_last_seconds(progress: Progress) -> None:
    for second in range(3, 20):
        at = state_at(1000 + 100 * (second - 2), 530, epoch=7)
        progress.observe(SUMMARY, at, 100.0 + second)

    (found,) = progress.inputs({"flights": [3000, 530]}, 119.0)

    assert found.rows_per_s == pytest.approx(100, rel=0.25)


def test_a_bounded_run_knows_its_rows_and_its_lag(progress: Progress) -> None:
    assert progress.total() is None
    assert progress.left(103.0) is None
    told = epoch_json(SUMMARY, progress, {"flights": [1200, 600]}, 103.0)
    assert (told["left"], told["eta_s"]) == (None, None)

    progress.state = msgspec.structs.replace(progress.state, until={"flights": [1200, 600]})

    assert progress.total() == 1770
    left, eta_s = progress.left(103.0) or (0, None)
    assert left == 270
    assert eta_s == pytest.approx(270 / 500)
    told = epoch_json(SUMMARY, progress, {}, 103.0)
    assert (told["left"], told["eta_s"]) == (270, 0.5)
    assert progress.left(1000.0) == (270, None)  # paused, or its epoch takes long
    assert [found.lag for found in progress.inputs({"flights": [5000, 5000]}, 103.0)] == [270]
    progress.state = msgspec.structs.replace(progress.state, until={"flights": [1000, 530]})
    assert progress.left(1000.0) == (0, 0.0)


def test_the_live_table_has_a_line_for_each_input(progress: Progress) -> None:
    title, head, line = shown(progress, {"flights": [1010, 560]}, WIDE)

    assert title == "radar  1,400 out  2 late  keeping up  Ctrl-C ends the epoch and stops"
    assert head.split() == [
        "input", "rows/s", "rows", "lag", "watermark", "(UTC)", "epoch", "took", "state",
    ]  # fmt: skip
    assert line.split() == [
        "flights", "500", "1,500", "40", "2013-01-01", "11:59:00", "7", "0.50", "s", "3.1", "MiB",
    ]  # fmt: skip


def many(names: list[str], read: int = 1_234_567) -> Progress:
    """A run of many inputs, each of which has read so many rows."""
    positions = {0: InputPosition(read, NOON)}
    at = msgspec.structs.replace(state_at(0), inputs=dict.fromkeys(names, positions))
    begun = Progress("radar", dict(zip(names, names, strict=True)), {}, state_at(0), 100.0)
    begun.observe(SUMMARY, at, 102.0)
    return begun


def test_the_title_says_how_far_a_job_is_behind(progress: Progress) -> None:
    (title, *_) = shown(progress, {"flights": [9_000, 12_560]}, WIDE)
    assert "  20,030 rows behind, 40 s at this rate  Ctrl-C" in title


def test_a_narrow_terminal_has_what_is_of_the_job_in_the_title() -> None:
    names = ["flights", "weather_of_the_airports", "planes", "a" * 40, "airlines"]

    title, head, *lines = shown(many(names), {name: [2_000_000] for name in names}, NARROW)

    assert title == "radar  epoch 7 in 0.50 s  state 3.1 MiB  1,400 out  2 late  keeping up"
    assert head.split() == ["input", "rows/s", "rows", "lag", "watermark", "(UTC)"]
    assert max(map(len, [title, head, *lines])) <= 80
    assert [line.split()[0][:12] for line in lines] == [name[:12] for name in names]
    assert "…" in lines[3]
    assert all("1,234,567" in line and "2013-01-01 12:00:00" in line for line in lines)


def test_of_more_inputs_than_lines_those_behind_are_shown() -> None:
    names = [f"errors.{number}" for number in range(900)]
    ends = {name: [1_234_567] for name in names} | {"errors.500": [1_234_600]}

    _, _, *lines = shown(many(names), ends, TerminalSize(110, 8))

    assert [line.split()[0] for line in lines] == [
        "errors.0", "errors.1", "errors.2", "errors.500", "896",
    ]  # fmt: skip
    assert lines[-1].split()[1] == "more"
    assert f"{896 * 1_234_567:,}" in lines[-1]


def test_a_run_that_waits_says_so() -> None:
    waiting = Progress("radar", {"flights": "departures"}, {}, state_at(0, 0), 0.0)

    title, _, line = shown(waiting, {"departures": [0, 0]}, WIDE)

    assert "waiting for input" in title
    assert "flights (departures)" in line


def test_an_epoch_is_an_object(progress: Progress) -> None:
    found = epoch_json(SUMMARY, progress, {"flights": [1000, 560]}, 102.0)

    assert (found["type"], found["epoch"], found["rows_per_s"]) == ("epoch", 7, 3000)
    assert found["inputs"] == {
        "flights": {"stream": "flights", "rows": 1500, "lag": 30, "watermark_ms": NOON - 60_000}
    }


def test_the_end_is_a_line_and_an_object(progress: Progress) -> None:
    told = "radar: 1,500 rows in 1 epoch, 12 s (3,000 rows/s while busy), 1,400 out, 2 late; "

    assert end_line(progress, 12.0, interrupted=True) == (
        f"{told}stopped after epoch 7, nothing is lost: run it again to continue"
    )
    progress.state = msgspec.structs.replace(progress.state, ended=True)
    assert end_line(progress, 12.0, interrupted=False) == f"{told}ended in epoch 7"
    assert end_json(progress, 12.0, interrupted=False) == {
        "type": "end",
        "job": "radar",
        "epoch": 7,
        "epochs": 1,
        "rows": 1500,
        "output_rows": 1400,
        "late_rows": 2,
        "dropped": 0,
        "dead_letters": 0,
        "seconds": 12.0,
        "busy_seconds": 0.5,
        "rows_per_s": 3000,
        "ended": True,
        "interrupted": False,
    }


def test_a_run_that_had_ended_says_what_to_do() -> None:
    ended = msgspec.structs.replace(state_at(5, 5, epoch=9), ended=True)

    line = end_line(Progress("radar", {}, {}, ended, 0.0), 1.0, interrupted=False)

    assert line == (
        "radar: its run had ended in epoch 9; nothing was left to do. "
        "Begin its next run with --bounded, or follow its inputs under another name"
    )


def test_sizes_read_well() -> None:
    found = [size_text(size) for size in (999, 1536, 150 * 1024, 3 * 2**50)]

    assert found == ["999 B", "1.5 KiB", "150 KiB", "3,072.0 TiB"]


def test_durations_read_well() -> None:
    found = [seconds_text(seconds) for seconds in (0.44, 12.3, 59.7, 185, 3725)]

    assert found == ["0.4 s", "12 s", "1 min", "3 min 5 s", "1 h 2 min"]


def test_rates_and_counts_read_well() -> None:
    assert [rate_text(10, 0), rate_text(3000, 2)] == ["-", "1,500 rows/s"]
    assert [count_text(1, "row"), count_text(2000, "row")] == ["1 row", "2,000 rows"]


def test_times_read_well() -> None:
    found = [time_text(time) for time in (NOON, NOON + 5, None, -1, 10**17)]

    assert found == [
        "2013-01-01 12:00:00",
        "2013-01-01 12:00:00.005",
        "-",
        "1969-12-31 23:59:59.999",
        "-",
    ]
