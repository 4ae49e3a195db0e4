"""Two latencies of a message: as the paper has it, and as a user sees it.

``fetched to processed``: the paper's. Tasks fetch messages in chunks; a message's time is that
from the end of the one before it, the first one's from when its chunk was there, so what is
done for a whole chunk, such as a batched read, is the first one's. Where messages overtake each
other it is the time from a message's call to that of its answer. Where columns are worked on
each message takes as long as its task's part of the epoch does.

``appended to visible``: from before the append until the epoch with the message is committed and
its outputs are published, at a steady rate of appends.
"""

from __future__ import annotations

import shutil
import threading
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.readwrite import PARTITIONS, STREAM, random_ids
from headrace.bench.store_jobs import (
    EPOCHS,
    Case,
    Size,
    Workload,
    create_streams,
    feed,
    make_job,
    messages_of,
)
from headrace.bench.store_rates import prepare, server_of, settings_of, url_of
from headrace.bus import Stream, open_bus
from headrace.clock import SystemClock
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.manifest import InputPosition
from headrace.spark.run import run_job

Floats = npt.NDArray[np.float64]
TICK_S = 0.02
QUANTILES = (0.5, 0.9, 0.99, 0.999)
POINTS = 100
"""Of a distribution, in the JSON: evenly spaced quantiles and the tail."""


def distribution(micros: Floats, weights: npt.NDArray[np.int64] | None = None) -> dict[str, Any]:
    """Return mean, quantiles and the points of a distribution, in microseconds."""
    if weights is None:
        weights = np.ones(len(micros), np.int64)
    order = np.argsort(micros)
    values, share = micros[order], np.cumsum(weights[order]) / weights.sum()

    def at(quantile: float) -> float:
        found = values[min(len(values) - 1, int(np.searchsorted(share, quantile)))]
        return round(float(found), 2)

    marks = [*np.linspace(0, 0.99, POINTS).tolist(), 0.995, 0.999, 0.9995, 0.9999, 1.0]
    return {
        "mean_us": round(float(np.average(micros, weights=weights)), 2),
        **{f"p{str(q * 100).removesuffix('.0').replace('.', '_')}_us": at(q) for q in QUANTILES},
        "points": [[round(mark, 4), at(mark)] for mark in marks],
        "messages": int(weights.sum()),
    }


def processed(case: Case, workload: Workload, size: Size, home: Path) -> dict[str, Any]:
    """Measure ``fetched to processed``.

    Args:
        case: which store.
        workload: which job.
        size: how much.
        home: a new folder, removed at the end.
    """
    rows = size.rows(case, size.latency_seconds)
    epoch_rows = max(1, min(size.epoch_rows, rows // EPOCHS))
    settings = settings_of(home, case, epoch_rows=epoch_rows, bounded=True)
    marks = home / "marks"
    marks.mkdir(parents=True)
    runs: list[EpochSummary] = []
    try:
        with server_of(case, home / "server") as server, open_bus(settings.bus_dir) as bus:
            stream = create_streams(bus, case, workload)
            if workload == "readonly":
                prepare(bus, stream, case, size, server)
            feed(stream, random_ids(rows, size.ids), workload)
            work = make_job(case, workload, url=url_of(server), marks=marks)
            run_job(work, settings, bus=bus, on_epoch=runs.append)
        if case.is_batch:
            return _of_epochs([epoch for epoch in runs if epoch.rows][1:])
        return distribution(_of_marks(marks))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _of_epochs(runs: list[EpochSummary]) -> dict[str, Any]:
    took = np.array([epoch.slot_timings_ms.get("run", 0.0) * 1000 for epoch in runs])
    return distribution(took, np.array([epoch.rows for epoch in runs]))


def _of_marks(folder: Path) -> Floats:
    """Read what was noted, without the first part of it, in which all is new."""
    spans = sorted(folder.glob("spans-*.npy"))
    if spans:
        return np.concatenate([np.load(path) for path in spans[len(spans) // EPOCHS :]]) / 1000
    paths = sorted(folder.glob("marks-*.npy"))
    found = []
    for path in paths[len(paths) // EPOCHS :]:
        times = np.abs(np.load(path))
        found.append(np.diff(times))
    return np.concatenate(found) / 1000


class Feeder:
    """Appends at a steady rate and notes when; runs in a thread of its own.

    Args:
        stream: of the messages.
        workload: which job.
        size: how many ids there are.
        offered: rows a second.
        stop: ends it early.
    """

    def __init__(
        self,
        stream: Stream,
        workload: Workload,
        size: Size,
        offered: int,
        stop: threading.Event,
    ) -> None:
        self._stream, self._workload, self._ids = stream, workload, size.ids
        self._stop, seconds = stop, size.latency_seconds
        self._rows = max(1, int(offered * TICK_S))
        self._count = max(EPOCHS, int(seconds / TICK_S))
        self._clock = SystemClock()
        self.appends: list[tuple[int, int, float, int]] = []
        self.ends = list(stream.ends())

    def run(self) -> None:
        """Append until the time is over."""
        began = self._clock.monotonic()
        ids = random_ids(self._rows * self._count, self._ids, seed=3)
        for turn in range(self._count):
            due = began + turn * TICK_S
            if self._stop.wait(max(0.0, due - self._clock.monotonic())):
                return
            batch = messages_of(ids[turn * self._rows : (turn + 1) * self._rows], self._workload)
            partition = turn % PARTITIONS
            at = self._clock.monotonic()
            self._stream.append(partition, batch)
            self.ends[partition] += self._rows
            self.appends.append((partition, self.ends[partition], at, self._rows))


class Watcher:
    """Notes how far each epoch read, when it was committed and cleaned up after."""

    def __init__(self, control: JobControl) -> None:
        self._control, self._clock = control, SystemClock()
        self._coordinator: Coordinator | None = None
        self.until: list[int] | None = None
        self.seen: list[tuple[float, list[int]]] = []
        self.ready = threading.Event()

    def start(self, coordinator: Coordinator) -> None:
        """Take hold of the driver."""
        self._coordinator = coordinator

    def note(self, _: EpochSummary) -> None:
        """Note an epoch; ask the job to stop once all is read."""
        at, reached = self._clock.monotonic(), self.reached()
        self.seen.append((at, reached))
        self.ready.set()
        if self.until is not None and _covers(reached, self.until):
            self._control.stop.set()

    def reached(self) -> list[int]:
        """Return the offset that each partition is read to."""
        assert self._coordinator is not None
        held = self._coordinator.state.inputs.get(STREAM, {})
        return [held.get(p, InputPosition(0)).next_offset for p in range(PARTITIONS)]


def visible(
    case: Case, workload: Workload, size: Size, home: Path, rows_per_s: int
) -> dict[str, Any]:
    """Measure ``appended to visible``.

    Args:
        case: which store.
        workload: which job.
        size: how much.
        home: a new folder, removed at the end.
        rows_per_s: that the store reaches: at most half of it is offered.
    """
    offered = max(50, min(size.offered, rows_per_s // 2))
    settings = settings_of(home, case, epoch_rows=size.epoch_rows, bounded=False)
    control = JobControl()
    watcher = Watcher(control)
    try:
        with server_of(case, home / "server") as server, open_bus(settings.bus_dir) as bus:
            stream = create_streams(bus, case, workload)
            if workload == "readonly":
                prepare(bus, stream, case, size, server)
            feed(stream, random_ids(PARTITIONS, size.ids), workload)
            feeder = Feeder(stream, workload, size, offered, control.stop)
            thread = threading.Thread(target=_feed, args=(feeder, watcher, control), daemon=True)
            thread.start()
            try:
                run_job(
                    make_job(case, workload, url=url_of(server)),
                    settings,
                    bus=bus,
                    control=control,
                    on_start=watcher.start,
                    on_epoch=watcher.note,
                )
            finally:
                control.stop.set()
                thread.join()
        return {**_waits(feeder, watcher), "offered_rows_per_s": offered}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _feed(feeder: Feeder, watcher: Watcher, control: JobControl) -> None:
    """Begin when what was there before is read, and say where the end is."""
    while not _has_reached(watcher, feeder.ends):
        if control.stop.is_set():
            return
        watcher.ready.wait(1.0)
        watcher.ready.clear()
    feeder.run()
    watcher.until = list(feeder.ends)
    if _has_reached(watcher, feeder.ends):
        control.stop.set()


def _has_reached(watcher: Watcher, ends: list[int]) -> bool:
    return bool(watcher.seen) and _covers(watcher.seen[-1][1], ends)


def _covers(reached: list[int], ends: list[int]) -> bool:
    return all(have >= want for have, want in zip(reached, ends, strict=True))


def _waits(feeder: Feeder, watcher: Watcher) -> dict[str, Any]:
    took, rows = [], []
    for partition, end, appended, count in feeder.appends:
        at = bisect_left(watcher.seen, end, key=lambda seen: seen[1][partition])
        took.append((watcher.seen[at][0] - appended) * 1e6)
        rows.append(count)
    return distribution(np.array(took), np.array(rows))
