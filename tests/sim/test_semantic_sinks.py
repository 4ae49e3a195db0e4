"""Sinks that are handed each epoch once: what a crash loses, and what a receiver that is away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import Job
from headrace.sinks import Receiver, ReceiverAwayError, Sink, SinkEpoch, SinkSite
from headrace.testing import TestDriver


@dataclass(frozen=True)
class Lines(Sink):
    """A receiver without transactions: it appends what it is handed, however often."""

    path: str

    @property
    def label(self) -> str:
        return "lines"

    @property
    def identity(self) -> str:
        return f"lines {self.path}"

    @property
    def promise(self) -> str:
        return "what it is handed is appended"

    @property
    def suffix(self) -> str:
        return "txt"

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Any:
        rows = [str(row) for batch in batches for row in batch.column("id").to_pylist()]
        return ["".join(f"{row}\n" for row in rows).encode()]

    def open(self, site: SinkSite) -> Receiver:
        return Appender(Path(self.path))


class Appender(Receiver):
    def __init__(self, path: Path) -> None:
        self.path = path

    def commit(self, epoch: SinkEpoch) -> None:
        if self.path.with_suffix(".away").exists():
            raise ReceiverAwayError("the disk of the lines is away")
        with self.path.open("ab") as out:
            for file in epoch.files:
                out.write(file.path.read_bytes())


def job(path: Path, semantics: str) -> Job:
    @hr.job("lines")
    def lines(g: hr.Graph) -> None:
        g.input("in").send_to(g.output_sink(Lines(str(path)), semantics=semantics))

    return lines


def found(path: Path) -> list[int]:
    return sorted(int(line) for line in path.read_text().split())


@pytest.mark.parametrize(
    ("point", "nth", "lost"),
    [
        ("commit.step_begins", 1, 0),
        ("commit.written", 1, 0),
        ("commit.published", 1, 10),
        ("commit.step_begins", 2, 10),
        ("sink.committed", 1, 0),
    ],
)
def test_an_epoch_is_handed_over_once_or_not_at_all(
    point: str, nth: int, lost: int, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    with TestDriver(job(path, "at_most_once")) as driver:
        driver.create("in", {"id": pa.int64()})
        for begin in (0, 10, 20):
            driver.feed("in", [{"id": n} for n in range(begin, begin + 10)])
            if begin == 10:
                assert driver.advance_with_crash(point, nth)
            else:
                driver.advance()
        driver.finish()
    kept = [n for n in range(30) if not lost or not 10 <= n < 20]
    assert found(path) == kept


def test_a_receiver_without_transactions_sees_rows_twice_by_default(tmp_path: Path) -> None:
    """So what at-most-once avoids is real: the default hands over until a commit has returned."""
    path = tmp_path / "lines"
    with TestDriver(job(path, "exactly_once")) as driver:
        driver.create("in", {"id": pa.int64()})
        driver.feed("in", [{"id": n} for n in range(10)])
        assert driver.advance_with_crash("sink.committed")
        driver.finish()
    assert found(path) == sorted([*range(10)] * 2)


def test_a_receiver_that_is_away_loses_the_epoch_and_not_the_job(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with TestDriver(job(path, "at_most_once")) as driver:
        driver.create("in", {"id": pa.int64()})
        driver.start()
        path.with_suffix(".away").touch()
        driver.feed("in", [{"id": 1}])
        with pytest.raises(ReceiverAwayError):
            driver.advance()
        path.with_suffix(".away").unlink()
        driver.feed("in", [{"id": 2}])
        driver.finish()
    assert found(path) == [2]
