"""What a driver does between two epochs, by what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.coordinator import driver_loop
from headrace.coordinator.commands import CommandQueue
from headrace.coordinator.driver_loop import JobControl, run_epochs
from headrace.coordinator.job_events import MERGING, PAUSED, RESUMED
from headrace.testing import TestDriver


@hr.job("copies")
def copies(g: hr.Graph) -> None:
    g.input("in").send_to(g.output("out"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(copies, home=tmp_path) as made:
        made.create("in", {"v": pa.int64()})
        made.feed("in", [{"v": 1}])
        yield made


def loop(
    driver: TestDriver, control: JobControl, on_serve: Callable[[], None] = lambda: None
) -> tuple[int, list[tuple[str, str]]]:
    """Run the driver's loop to its end; returns how many epochs it ran and its job events."""
    part, epochs, events = driver.parts[0], list[object](), list[tuple[str, str]]()

    def serve(*, is_paused: bool = True) -> None:
        if is_paused:
            on_serve()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part.event_log, "record", lambda what, detail: events.append((what, detail)))
        patch.setattr(part, "serve_requests", serve)
        run_epochs(part, driver.bus, driver.clock, control, epochs.append, tick_ms=1)
    return len(epochs), events


def test_stop_wins_over_a_pause_and_a_finish(driver: TestDriver) -> None:
    control = JobControl()
    for asked in (control.stop, control.finish, control.paused):
        asked.set()
    assert loop(driver, control) == (0, [])
    assert driver.parts[0].state.until is None


@pytest.mark.parametrize(
    ("name", "event"), [("paused", PAUSED), ("merging", MERGING)], ids=["paused", "merging"]
)
def test_a_pause_wins_over_a_finish(driver: TestDriver, name: str, event: tuple[str, str]) -> None:
    control, part, served = JobControl(), driver.parts[0], list[int]()
    control.finish.set()
    getattr(control, name).set()

    def serve() -> None:
        served.append(part.state.epoch)
        assert part.state.until is None
        if len(served) == 3:
            getattr(control, name).clear()

    begun = part.state.epoch
    epochs, events = loop(driver, control, serve)
    assert served == [begun] * 3
    assert events[:2] == [event, RESUMED]
    assert epochs >= 1
    assert part.state.ended


def test_a_stop_ends_a_pause(driver: TestDriver) -> None:
    control = JobControl()
    control.paused.set()
    assert loop(driver, control, control.stop.set) == (0, [PAUSED, RESUMED])


def test_a_job_that_has_ended_is_not_paused(driver: TestDriver) -> None:
    control = JobControl()
    control.finish.set()
    loop(driver, control)
    control.paused.set()
    assert loop(driver, control) == (0, [])


def test_after_an_epoch_it_rests_and_without_one_it_waits_for_news(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, waited = JobControl(), list[str]()

    def wait_for_news(*given: object) -> None:
        waited.append("news")
        control.stop.set()

    monkeypatch.setattr(CommandQueue, "wait", lambda self, timeout_s: waited.append("rest"))
    monkeypatch.setattr(driver_loop, "wait_for_news", wait_for_news)
    part = driver.parts[0]
    run_epochs(part, driver.bus, driver.clock, control, lambda summary: None, interval_ms=1000)
    assert waited == ["rest", "news"]
