"""What a terminal, a file and a program see of a run; the terminal is left as it was."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from tests.unit.cli.test_run_text import SUMMARY, state_at

from headrace.cli.run.progress import Progress, epoch_json, epoch_line
from headrace.cli.run.reporters import JsonReporter, QuietReporter, Reporter, TerminalReporter
from headrace.clock import SystemClock
from headrace.coordinator.epoch_records import BackupLag
from headrace.coordinator.recovery import Recovery
from headrace.testing import ManualClock

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def screen() -> Console:
    kind = {"TERM": "xterm"}  # whatever terminal the tests are run in
    return Console(
        file=io.StringIO(), force_terminal=True, width=140, highlight=False, _environ=kind
    )


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def play(reporter: Reporter, *, bounded: bool = False, stop: bool = False) -> None:
    """One epoch from start to end."""
    state = state_at(0, 0)
    if bounded:
        state = msgspec.structs.replace(state, until={"flights": [1000, 500]})
    progress = Progress("radar", {"flights": "flights"}, {}, state, SystemClock().monotonic())
    reporter.starting("loading radar.py")
    reporter.starting("starting Spark (local[2])")
    reporter.started(progress, lambda: {"flights": [1000, 530]})
    after = msgspec.structs.replace(state_at(1000, 500, epoch=7), until=state.until, ended=bounded)
    summary = replace(SUMMARY, ended=bounded)
    progress.observe(summary, after, SystemClock().monotonic())
    reporter.epoch(summary)
    if stop:
        reporter.stopping()
    reporter.finished(2.0, interrupted=stop)
    reporter.close()


def test_a_terminal_shows_a_line_for_each_input(screen: Console) -> None:
    play(TerminalReporter(SystemClock(), console=screen), stop=True)

    text = shown(screen)
    erased = "\x1b[0m\x1b[2K\r"
    steps = ("loading radar.py", "starting Spark (local[2])")
    assert text.startswith("".join(f"\x1b[2m{step} …{erased}" for step in steps))
    assert "watermark (UTC)" in text
    assert "ending the epoch…" in text
    assert "stopped after epoch 7, nothing is lost" in text


def test_a_terminal_shows_a_bar_for_a_run_that_ends(screen: Console) -> None:
    play(TerminalReporter(SystemClock(), console=screen), bounded=True)

    text = shown(screen)
    assert "100 %" in text
    assert "1,500 rows" in text
    assert "ended in epoch 7" in text


def test_a_run_that_ends_says_how_much_is_left_and_for_how_long(
    screen: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the pace of the last seconds, on the terminal beside the bar and for a program."""
    until = {"flights": [1000, 1000]}
    begun = msgspec.structs.replace(state_at(500, 100), until=until)
    clock = ManualClock()
    bar, program = TerminalReporter(clock, console=screen), JsonReporter(clock)
    progress = Progress("radar", {"flights": "flights"}, {}, begun, clock.monotonic())
    for reporter in (bar, program):
        reporter.started(progress, dict)
    for number, read in enumerate((600, 700)):
        clock.advance(1000)
        state = msgspec.structs.replace(state_at(500, read - 300, epoch=number), until=until)
        progress.observe(replace(SUMMARY, rows=200), state, clock.monotonic())
        for reporter in (bar, program):
            reporter.epoch(replace(SUMMARY, rows=200))
    bar.close()
    assert re.search(r"29 %.*\d:\d\d:\d\d.*left", shown(screen))
    _, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (last["left"], last["eta_s"]) == (1100, 7.3)


@pytest.mark.parametrize("bounded", [True, False])
def test_the_cursor_is_back_before_a_second_signal_can_end_the_process(
    screen: Console, bounded: bool
) -> None:
    reporter = TerminalReporter(SystemClock(), console=screen)
    state = msgspec.structs.replace(state_at(0), until={"flights": [9]} if bounded else None)
    reporter.started(Progress("radar", {"flights": "flights"}, {}, state, 0.0), dict)
    assert HIDE in shown(screen)

    reporter.stopping()

    assert SHOW in shown(screen).rpartition(HIDE)[2]


def test_a_file_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    play(QuietReporter(SystemClock()))

    assert capsys.readouterr().out.startswith("radar: 1,500 rows in 1 epoch, 2.0 s")


def test_a_file_gets_a_line_an_epoch_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    play(QuietReporter(SystemClock(), verbose=True), stop=True)

    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["epoch", "radar:"]
    assert [line.split()[0] for line in err.splitlines()] == ["radar:", "ending"]


def test_a_log_gets_the_start_and_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    reporter = QuietReporter(clock)
    progress = Progress("radar", {"flights": "flights"}, {}, state_at(0, epoch=6), 0.0)
    reporter.started(progress, dict)
    for number in range(7, 7 + 24 * 3):
        clock.advance(5_000)
        reporter.epoch(replace(SUMMARY, epoch=number))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "radar: running, epoch 7 is next"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["epoch", str(6 + minute * 12)] for minute in range(1, 7)
    ]


def test_a_program_gets_objects(capsys: pytest.CaptureFixture[str]) -> None:
    play(JsonReporter(SystemClock()))

    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in found] == ["epoch", "end"]
    assert found[0]["inputs"]["flights"]["lag"] == 30


RECOVERY = Recovery(7, 1, 4, 30 << 20, 80 << 20, 1_000, 5 << 20, 10.0, "s", 2, "segment/x.seg")


def test_a_recovery_and_a_notice_are_shown_everywhere(
    screen: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table's title, beside the bar, as a line, and as objects for a program."""
    line = "bringing state back: 1 of 4 tasks  30.0 MiB of 80.0 MiB  1,000 changes  5.0 MiB/s"
    for bounded in (False, True):
        reporter = TerminalReporter(SystemClock(), console=screen)
        state = msgspec.structs.replace(state_at(0), until={"flights": [9]} if bounded else None)
        reporter.started(Progress("radar", {"flights": "flights"}, {}, state, 0.0), dict)
        reporter.recovering(RECOVERY)
        reporter.notice("no copy in /jobs/radar")
        reporter.close()
    assert shown(screen).count("bringing state back") >= 2
    assert "no copy in /jobs/radar" in shown(screen)
    quiet = QuietReporter(SystemClock(), verbose=True)
    quiet.recovering(RECOVERY)
    quiet.notice("no room")
    told = capsys.readouterr()
    assert told.out == f"{line}  10 s left\n"
    assert told.err == "no room\n"
    as_json = JsonReporter(SystemClock())
    as_json.recovering(RECOVERY)
    as_json.recovering(None)
    as_json.notice("no room")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["type"], first["bytes_total"], first["eta_s"]) == ("recovery", 80 << 20, 10.0)
    assert second == {"type": "notice", "text": "no room"}


def test_a_copy_that_is_behind_is_told() -> None:
    copy = BackupLag(3, 12.5, 2, "no answer")
    assert "copy 3 epochs, 12 s behind" in epoch_line(replace(SUMMARY, copy=copy))
    assert "copy" not in epoch_line(replace(SUMMARY, copy=BackupLag(1, 0.2, 0, "")))
    told = epoch_json(replace(SUMMARY, copy=copy), Progress("r", {}, {}, state_at(0), 0.0), {}, 1.0)
    assert told["copy"]["lag_epochs"] == 3
