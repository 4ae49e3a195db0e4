"""A clock that is not believed: who is told, and how somebody accepts it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import done

import headrace as hr
from headrace.clock import SteadyClock
from headrace.config import load_settings
from headrace.control.alert_rules import load_alerts
from headrace.control.alerts import AlertWatch
from headrace.control.live_job import LiveJob
from headrace.coordinator.driver_loop import JobControl
from headrace.files import Files
from headrace.testing import ManualClock, TestDriver

DAY = 86_400_000
FILES = Files(sync=False)


class Watched:
    """A driver's alerts, with a clock that a test moves."""

    def __init__(self, folder: Path, *sets: str) -> None:
        from headrace.bus.memory import MemoryBus

        self.clock, self.told = ManualClock(), list[str]()
        self.steady, self.storage = SteadyClock(self.clock), folder / "jobs" / "shop"
        self.storage.mkdir(parents=True)
        settings = load_settings(None, [f"home={folder}", *sets], {})
        self.live = LiveJob("shop", settings, JobControl(), self.steady)
        self.watch = AlertWatch(
            self.live,
            MemoryBus(),
            storage=self.storage,
            files=FILES,
            notify=self.told.append,
        )

    def look(self) -> list[str]:
        """What is told at a look, a second later."""
        self.clock.advance(1_000)
        self.steady.now_ms()  # as the driver's thread does
        before = len(self.told)
        self.watch.look()
        return self.told[before:]


def test_a_clock_that_is_right_leaves_nothing_behind(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert (watched.look(), watched.watch.now()) == ([], [])
    assert list(watched.storage.iterdir()) == []


@pytest.mark.parametrize(
    ("by", "words"), [(30 * DAY, "30d ahead of"), (-30 * DAY, "30d behind"), (7_260_000, "2h1m")]
)
def test_it_is_told_once_and_again_when_it_is_over(tmp_path: Path, by: int, words: str) -> None:
    watched = Watched(tmp_path)
    watched.look()
    watched.clock.jump(by)
    (said,) = watched.look()
    assert said.startswith("alert clock: job shop: the clock of the driver's host is not believed")
    assert words in said
    assert said.endswith("headrace jobs accept-clock shop")
    assert watched.look() == []
    (now,) = watched.watch.now()
    assert (now.rule, now.kind, now.value) == ("clock", "clock_jump", by)
    watched.clock.jump(-by)
    (over,) = watched.look()
    assert "is over, after" in over
    assert watched.watch.now() == []
    assert [one.state for one in load_alerts(watched.storage, watched.clock).events] == [
        "firing",
        "over",
    ]


def test_accepting_it_ends_the_alert(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.look()
    watched.clock.jump(DAY)
    assert len(watched.look()) == 1
    doubt = watched.live.accept_clock()
    assert doubt is not None
    assert doubt.off_ms == DAY
    assert "is over" in watched.look()[0]
    assert watched.live.accept_clock() is None


def test_a_rule_of_its_kind_says_who_is_told_and_when(tmp_path: Path) -> None:
    rules = '[{"name": "ours", "kind": "clock_jump", "for": "10s"}]'
    watched = Watched(tmp_path, f"alerts.rules={rules}")
    watched.look()
    watched.clock.jump(DAY)
    assert watched.look() == []
    watched.clock.advance(10_000)
    (said,) = watched.look()
    assert said.startswith("alert ours: job shop: the clock of the driver's host")


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    g.input("orders").partition_by("user").aggregate(n=hr.agg.count()).send_to(g.output("n"))


def test_the_command_writes_down_that_this_host_believes_its_clock(tmp_path: Path) -> None:
    """For a job that does not run, or whose driver has no API."""
    with TestDriver(shop, home=tmp_path, memory_bus=False) as driver:
        driver.create("orders", {"user": pa.string()})
        driver.feed("orders", [{"user": "ann"}])
        driver.run()
    said = done("jobs", "accept-clock", "shop", "--home", tmp_path)
    assert said == "this host believes its clock, which was believed already\n"
    assert (tmp_path / "bus" / "clock.json").exists()
