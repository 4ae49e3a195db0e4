"""What every epoch sink must do, as tests: subclass ``EpochSinkContract`` for another one.

An epoch sink is a ``Sink`` whose receiver publishes epoch N once, however often it is asked, and
anyone who asks after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import NotOwnerError
from headrace.faults import injected
from headrace.files import Files
from headrace.graph.sinks import Prepared, Receiver, Sink, SinkEpoch, SinkSite
from headrace.testing.script import ManualClock

SINK_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SinkRow = tuple[int, str]


class CrashError(Exception):
    """Raised by a hook where a process would have died."""


def named(first: int, count: int) -> list[SinkRow]:
    """Return rows with ids from ``first`` on."""
    return [(n, f"n{n}") for n in range(first, first + count)]


class EpochSinkContract(ABC):
    """The contract of an epoch sink."""

    fences = True
    """Whether the receiver refuses drivers of older generations."""

    points: tuple[str, ...] = ("sink.sent",)
    """Fault points that a commit passes, up to which no row of the epoch is visible."""

    @abstractmethod
    def make_sink(self, folder: Path) -> Sink:
        """Return a sink to an empty place, made for this call."""

    @abstractmethod
    def rows(self, sink: Sink) -> list[SinkRow]:
        """Return what a reader sees there, in any order."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        """Make a sink to an empty place."""
        return self.make_sink(tmp_path / "place")

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> Path:
        """Make the folder of prepared files."""
        self._folder = tmp_path / "prepared"
        self._folder.mkdir()
        self._number = 0
        return self._folder

    def opened(self, sink: Sink, generation: int = 1, origin: str = "origin") -> Receiver:
        """Return the receiver of a driver."""
        files = Files(sync=False)
        clock = ManualClock(seed=generation)
        return sink.open(SinkSite("job", "out", SINK_SCHEMA, clock, files, generation, origin))

    def epoch(
        self, sink: Sink, number: int, *files: Sequence[SinkRow], lineage: str = "one"
    ) -> SinkEpoch:
        """Return an epoch with a file for each list of rows, made as a slot makes it."""
        made = []
        for rows in files:
            columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
            batch = pa.record_batch(columns, schema=SINK_SCHEMA)
            path = self._folder / f"{self._number}.{sink.suffix}"
            Files(sync=False).write_new(path, sink.prepare([batch], SINK_SCHEMA))
            made.append(Prepared(path, len(rows)))
            self._number += 1
        return SinkEpoch(lineage, number, tuple(made))

    def test_an_epoch_is_there_once_however_often_it_is_committed(self, sink: Sink) -> None:
        """By the same driver, and by the next one."""
        first = self.epoch(sink, 1, named(0, 5), named(5, 3))
        receiver = self.opened(sink)
        assert self.rows(sink) == []
        for _ in range(2):
            receiver.commit(first)
            assert sorted(self.rows(sink)) == named(0, 8)
        receiver.close()
        receiver.commit(first)
        receiver.close()
        again = self.opened(sink, 2)
        again.commit(first)
        assert sorted(self.rows(sink)) == named(0, 8)
        again.commit(self.epoch(sink, 2, named(8, 4)))
        again.close()
        assert sorted(self.rows(sink)) == named(0, 12)

    def test_an_epoch_that_is_over_comes_too_late(self, sink: Sink) -> None:
        """Epochs of a lineage only grow, and some send nothing."""
        first, last = self.epoch(sink, 1, named(0, 3)), self.epoch(sink, 4, named(3, 3))
        receiver = self.opened(sink)
        receiver.commit(first)
        receiver.commit(last)
        receiver.commit(first)
        receiver.close()
        again = self.opened(sink, 2)
        again.commit(first)
        again.close()
        assert sorted(self.rows(sink)) == named(0, 6)

    def test_another_lineage_begins_anew(self, sink: Sink) -> None:
        """After a rewind, lower numbers are other epochs."""
        receiver = self.opened(sink)
        receiver.commit(self.epoch(sink, 7, named(0, 2)))
        receiver.commit(self.epoch(sink, 3, named(2, 2), lineage="two"))
        receiver.close()
        assert sorted(self.rows(sink)) == named(0, 4)

    def test_a_crash_before_the_commit_shows_nothing_and_loses_nothing(self, sink: Sink) -> None:
        """At each point; the next driver commits the epoch once."""
        receiver, seen = self.opened(sink), 2
        receiver.commit(self.epoch(sink, 1, named(0, seen)))
        for number, point in enumerate(self.points, 2):
            epoch = self.epoch(sink, number, named(seen, 3))

            def hook(name: str, point: str = point) -> None:
                if name == point:
                    raise CrashError(point)

            with injected(hook, (point,)), pytest.raises(CrashError):
                receiver.commit(epoch)
            assert sorted(self.rows(sink)) == named(0, seen)
            receiver = self.opened(sink, number)
            receiver.commit(epoch)
            seen += 3
            assert sorted(self.rows(sink)) == named(0, seen)
        receiver.close()

    def test_an_older_driver_is_refused(self, sink: Sink) -> None:
        """It was frozen, and wakes when another drives the job: before or while it sends."""
        if not self.fences:
            pytest.skip("it takes epochs of a job from any driver")
        old = self.opened(sink, 1)
        old.commit(self.epoch(sink, 1, named(0, 2)))
        new = self.opened(sink, 2)
        with pytest.raises(NotOwnerError):
            old.commit(self.epoch(sink, 2, named(50, 2), lineage="other"))
        new.commit(self.epoch(sink, 2, named(2, 2)))
        with pytest.raises(NotOwnerError):
            self.opened(sink, 1)
        new.commit(self.epoch(sink, 3, named(4, 2)))
        new.close()
        assert sorted(self.rows(sink)) == named(0, 6)
