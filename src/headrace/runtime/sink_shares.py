"""Slots pass on shares of a committed epoch: a file each, to a sink that takes them so.

What they open stays open for the next epoch of the same driver. A share that a slot did not pass
on, whatever happened, is passed on by the driver, so a failure here is an answer and no more.
"""

from __future__ import annotations

from pathlib import Path

from xxhash import xxh3_64_intdigest

from headrace.clock import Clock
from headrace.errors import CorruptDataError
from headrace.faults import fault
from headrace.files import Files, local_copy
from headrace.graph.sinks import Prepared, Receiver, SinkEpoch, SinkSite
from headrace.plan.stages import JobPlan
from headrace.runtime.orders import SinkPart, SlotOrder


def verified(files: Files, root: Path, part: SinkPart) -> Prepared:
    """Return a prepared file, whose bytes are those that the manifest names.

    Raises:
        CorruptDataError: they are others.
    """
    path = root / part.path
    content = files.map(path)
    if content.size != part.size or xxh3_64_intdigest(memoryview(content)) != part.checksum:
        raise CorruptDataError(
            f"file {path}, which operator {part.operator!r} sends to its sink, is damaged",
            file=str(path),
            operator=part.operator,
        )
    return Prepared(local_copy(path), part.rows)


class ShareSender:
    """The shares that this process has open, of the last drivers of jobs.

    Args:
        files, clock: where bytes and time come from.
        root: of the job's storage.
    """

    def __init__(self, files: Files, clock: Clock, root: Path) -> None:
        self._files, self._clock, self._root = files, clock, root
        self._open: dict[tuple[str, str, int], tuple[SinkSite, Receiver]] = {}

    def send(self, order: SlotOrder, plan: JobPlan) -> None:
        """Pass on the shares of an order, one after the other.

        Raises:
            HeadraceError: why one was not; those before it were.
        """
        bindings = {binding.operator: binding for binding in plan.sinks}
        for one in order.shares:
            binding = bindings[one.part.operator]
            site = SinkSite(
                order.job,
                one.part.operator,
                binding.schema,
                self._clock,
                self._files,
                order.generation,
                order.origin,
            )
            name = (order.job, one.part.operator, one.share)
            kept = self._open.get(name)
            if kept is None or kept[0] != site:
                if kept is not None:
                    kept[1].close()
                kept = self._open[name] = site, binding.sink.open_share(site, one.share)
            file = verified(self._files, self._root, one.part)
            kept[1].commit(SinkEpoch(order.lineage, order.epoch, (file,)))
            fault("sink.shared")

    def close(self) -> None:
        """Close them all."""
        opened, self._open = self._open, {}
        for _, receiver in opened.values():
            receiver.close()
