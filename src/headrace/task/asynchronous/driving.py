"""Runs the calls of all tasks of a slot on the one loop of its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace.plan.stages import CallLimits
from headrace.task.asynchronous.loop import CallLoop, Pumped
from headrace.task.asynchronous.source import AskNode
from headrace.task.chunk import Chunk, source_of
from headrace.task.source import SourceReader

Push = Callable[[str, Chunk], None]
Stops = dict[tuple[str, int], int]
"""Where to stop reading, by input and partition."""


class Asking:
    """Brings the rows of a source task up to its calls, as many as these need at a time.

    Args:
        asks: where calls are made.
        push: feeds rows to what comes before them.
        readers: of the ranges.
    """

    def __init__(
        self, asks: Sequence[AskNode], push: Push, readers: Sequence[SourceReader]
    ) -> None:
        self.asks, self._push, self._readers = asks, push, readers
        self._parts = self._all()
        for ask in asks:
            ask.feed = self._more
        for reader in readers:
            source = source_at(reader)
            for ask in asks:
                ask.forget(source, reader.wanted.start)

    def _all(self) -> Iterator[None]:
        for reader in self._readers:
            for chunk in reader.chunks(lambda: False):
                self._push(reader.wanted.operator, chunk)
                yield

    def _more(self) -> bool:
        return next(self._parts, self) is None

    def stops(self) -> Stops:
        """Return how far all calls have ended, for each range."""
        found = {}
        for reader in self._readers:
            source = source_at(reader)
            lows = [low for ask in self.asks if (low := ask.low(source)) is not None]
            wanted = reader.wanted
            found[wanted.operator, wanted.partition] = min([reader.reached().next_offset, *lows])
        return found


def source_at(reader: SourceReader) -> int:
    """Return the number that the rows of a reader have in ``Origins``."""
    assert reader.binding.origin is not None
    return source_of(reader.binding.origin, reader.wanted.partition)


def run_calls(
    loop: CallLoop,
    pumped: Iterable[Pumped],
    limits: CallLimits,
    *,
    should_stop: Callable[[], bool],
    to_the_end: bool = False,
) -> None:
    """Let calls run, as long as an epoch takes; at the end of the inputs until all have ended."""
    if to_the_end:
        loop.run(pumped, begin_s=None, wait_s=None, limit_s=limits.timeout_s)
        return
    loop.run(
        pumped,
        begin_s=limits.begin_s,
        wait_s=limits.wait_s,
        limit_s=limits.timeout_s,
        should_stop=should_stop,
    )
