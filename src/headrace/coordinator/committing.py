"""Does the acts of a commit, in the order that ``machines.turn`` asks for them.

The orders are data (``graph.semantics``). By the first step results lie in durable files; from
there on everything is one of two acts: a manifest, which may name outputs that are to appear
exactly once, or output by itself, which nothing notes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from headrace.bus.bus import Bus
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.publishing import Appending, appendings
from headrace.coordinator.receivers import Receivers
from headrace.coordinator.reign import Reign
from headrace.coordinator.storage import JobStorage
from headrace.faults import fault
from headrace.graph.semantics import Act, Semantics
from headrace.task.orders import SinkPart

BASE_EVERY = 64


class Committing:
    """Commits the epochs of one driver.

    Args:
        reign: publishes manifests.
        storage: of the job's files.
        bus: outputs.
        receivers: of sinks, as they are by then.
    """

    def __init__(
        self,
        reign: Reign,
        storage: JobStorage,
        bus: Bus,
        receivers: Callable[[], Receivers],
    ) -> None:
        self._reign, self._storage, self._bus = reign, storage, bus
        self._receivers = receivers
        self._left: deque[Callable[[], int]] = deque()

    def emit_left(self) -> int:
        """Emit what an at-most-once output has not been tried with; returns the rows.

        What was tried is not tried again: nobody knows whether a failed append is there.
        """
        rows = 0
        while self._left:
            rows += self._left.popleft()()
        return rows

    def append(self, run: EpochRun, act: Act, *, is_last: bool) -> bool:
        """Append the manifest of an act; False when another driver's was there.

        Args:
            run: whose levels have run.
            act: that saves something.
            is_last: no other manifest of the epoch follows.
        """
        manifest = run.manifest(act, self._reign.state, is_last=is_last)
        if manifest.epoch % BASE_EVERY == 0:
            return self._reign.append_base(manifest)
        return self._reign.append(manifest)

    def emit(self, run: EpochRun, act: Act) -> int:
        """Bring out what an act names without a manifest; returns the rows.

        Raises:
            ReceiverAwayError: a sink does not answer.
        """
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
