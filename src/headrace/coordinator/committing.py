"""Walks the steps of a commit in the order that the job's semantics ask for.

The orders are data (``graph.semantics``). By the first step results lie in durable files; from
there on everything is one of two acts: a manifest, which may name outputs that are to appear
exactly once and brings these out, or output by itself, which nothing notes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.levels import check_files
from headrace.coordinator.publishing import Appending, appendings
from headrace.coordinator.receivers import Receivers
from headrace.coordinator.reign import Reign
from headrace.coordinator.storage import JobStorage
from headrace.faults import fault
from headrace.graph.semantics import Act, Semantics
from headrace.plan.semantics import commit_acts
from headrace.task.orders import SinkPart

BASE_EVERY = 64


class LostRaceError(Exception):
    """The epoch was committed by an older driver, whose last it was; the next one is ours."""


class Committing:
    """Commits the epochs of one driver.

    Args:
        reign: publishes manifests.
        storage: of the job's files.
        bus: outputs.
        receivers: of sinks, as they are by then.
        publish: brings out what the last manifest names, and returns the rows.
        clock: for how long each step takes.
    """

    def __init__(
        self,
        reign: Reign,
        storage: JobStorage,
        bus: Bus,
        receivers: Callable[[], Receivers],
        publish: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._reign, self._storage, self._bus = reign, storage, bus
        self._receivers, self._publish, self._clock = receivers, publish, clock
        self._left: deque[Callable[[], int]] = deque()

    def commit(self, run: EpochRun, timings: dict[str, float]) -> int:
        """Do all steps after the first; returns the rows that left the job.

        Args:
            run: whose levels have run.
            timings: takes how long the steps took, ms.

        Raises:
            LostRaceError: an older driver's manifest was there; plan again.
            NotOwnerError: a newer generation has begun.
            ReceiverAwayError: a sink does not answer; what the manifest names waits.
        """
        check_files(run, self._storage)
        order = commit_acts(run.plan)
        last = max(number for number, act in enumerate(order) if act.saves)
        rows = 0
        for number, act in enumerate(order):
            fault("commit.step_begins")
            began = self._clock.monotonic()
            if act.saves:
                self._save(run, act, is_last=number == last)
                began = self._timed(timings, "commit", began)
                fault("commit.published")
                rows += self._publish()
                self._timed(timings, "publish", began)
            else:
                rows += self._emit(run, act)
                self._timed(timings, "emit", began)
            fault("commit.step_done")
        return rows

    def emit_left(self) -> int:
        """Emit what an at-most-once output has not been tried with; returns the rows.

        What was tried is not tried again: nobody knows whether a failed append is there.
        """
        rows = 0
        while self._left:
            rows += self._left.popleft()()
        return rows

    def _timed(self, timings: dict[str, float], what: str, began: float) -> float:
        now = self._clock.monotonic()
        timings[what] = round(timings.get(what, 0.0) + (now - began) * 1000, 2)
        return now

    def _save(self, run: EpochRun, act: Act, *, is_last: bool) -> None:
        manifest = run.manifest(act, self._reign.state, is_last=is_last)
        is_base = manifest.epoch % BASE_EVERY == 0
        publish = self._reign.publish_base if is_base else self._reign.publish
        if not publish(manifest):
            raise LostRaceError

    def _emit(self, run: EpochRun, act: Act) -> int:
        emits = list(self._emissions(run, act))
        if Semantics.AT_MOST_ONCE in act.outputs:
            self._left.extend(emits)
            return self.emit_left()
        return sum(emit() for emit in emits)

    def _emissions(self, run: EpochRun, act: Act) -> Iterator[Callable[[], int]]:
        for one in appendings(run.outputs_of(act.outputs)):
            yield partial(self._append, one)
        by_sink: dict[str, list[SinkPart]] = {}
        for part in run.sinks_of(act.outputs):
            by_sink.setdefault(part.operator, []).append(part)
        for parts in by_sink.values():
            lineage, epoch = run.state.lineage, run.epoch
            yield partial(self._receivers().hand_over, lineage, epoch, tuple(parts))

    def _append(self, one: Appending) -> int:
        """Append without a producer: nothing remembers that it was done."""
        stream = self._bus.stream(one.stream)
        stream.append_file(one.partition, self._storage.root / one.path, one.ranges)
        fault("output.emitted")
        return one.rows
