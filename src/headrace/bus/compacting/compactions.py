"""The compactions of a stream: up to where they may go, and when one is worth its work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from headrace.bus.compacting.compaction import CompactionStoppedError, is_due, limit_of
from headrace.bus.compacting.holds import HoldStore
from headrace.bus.entries import View
from headrace.bus.log import Log, Order
from headrace.bus.options import BusOptions
from headrace.bus.retention import Segments
from headrace.bus.spec import Compacted


class Compactions:
    """Compacts the partitions of one stream. Safe for many threads.

    Args:
        log: returns the log of a partition.
        order: returns what a compaction is to do, by the settings of now.
        holds: of the stream's readers.
        options: of the bus.
    """

    def __init__(
        self,
        log: Callable[[int], Log],
        order: Callable[[], Order],
        holds: HoldStore,
        options: BusOptions,
    ) -> None:
        self._log, self._order = log, order
        self._holds, self._options = holds, options
        self._uncompacted: dict[int, int] = {}

    def compact(self, partition: int) -> Compacted:
        """Compact a partition as far as may be, after any compaction that is under way."""
        order = self._order()._replace(wait_s=self._options.lock_timeout_s)
        return self._log(partition).compact(
            order, partial(self._limit, partition, order), self._holds
        )

    def note(self, partition: int, size: int) -> bool:
        """Count bytes that were appended; says whether a compaction may be due by now.

        The first append of a process always says so, for nobody knows what came before.
        """
        least = self._options.compact_bytes
        noted = self._uncompacted.get(partition, least) + size
        self._uncompacted[partition] = noted if noted < least else 0
        return noted >= least

    def compact_if_due(self, partition: int) -> None:
        """Compact all but the segment that is written if enough is new."""
        order, log = self._order(), self._log(partition)
        limit = partial(self._closed_limit, partition, order)
        view = log.view()
        if is_due(view, limit(view), self._options.compact_bytes):
            with contextlib.suppress(CompactionStoppedError):  # whoever was first does it
                log.compact(order, limit, self._holds)

    def _limit(self, partition: int, order: Order, view: View) -> int:
        held = self._holds.lowest(partition, order.now_ms, order.settings.hold_ms)
        return limit_of(view, order.settings, held, order.now_ms)

    def _closed_limit(self, partition: int, order: Order, view: View) -> int:
        firsts = Segments.of(view).firsts
        last = int(firsts[-1]) if len(firsts) else view.begin
        return min(last, self._limit(partition, order, view))
