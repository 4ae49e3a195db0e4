"""All that is asked about the streams of a home: the tailer and the engine behind one door.

The web application and the command are two users of it. Who may see what is theirs to check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.errors import InvalidInputError
from headrace.explore.columns import Column, find_column, listed
from headrace.explore.engine import Cancel, ExploreEngine, newest_rows
from headrace.explore.query import Filter, Metric, Query
from headrace.explore.results import Result
from headrace.explore.stream_tail import StreamTail, TailStatus
from headrace.explore.tailer import Tailer
from headrace.files import Files

VALUES = 20
MOST_VALUES = 200


class ExploreService:
    """The streams of a home, kept and queried.

    Args:
        bus: with the streams.
        settings: of the home.
        clock: for what is relative to now.
        files: the file system.
    """

    def __init__(
        self, bus: Bus, settings: Settings, clock: Clock, files: Files | None = None
    ) -> None:
        self.settings, self.bus, self._clock = settings, bus, clock
        self.tailer = Tailer(bus, settings, clock, files)
        self.engine = ExploreEngine(settings.explore_dir, settings.explore, clock)

    def answer(self, query: Query, cancel: Cancel | None = None) -> Result:
        """Answer a query; see ``ExploreEngine.answer``."""
        return self.engine.answer(self.tailer.tail(query.stream), query, cancel)

    def columns(self, stream: str) -> list[Column]:
        """Return the columns of a stream, those inside JSON among them."""
        tail = self.tailer.tail(stream)
        kept = tail.kept()
        return listed(kept.schema, tail.time_column, newest_rows(kept, 200))

    def values(self, stream: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return frequent values of a column, to complete what is typed.

        Args:
            stream: that has it.
            asked: ``column``, ``prefix``, ``from``, ``to`` and ``limit``.
        """
        tail, column = self.tailer.tail(stream), asked.get("column", "")
        find_column(column, tail.kept().schema, tail.time_column)
        prefix = asked.get("prefix", "")
        limit = asked.get("limit", str(VALUES))
        if not limit.isdigit() or not 1 <= int(limit) <= MOST_VALUES:
            raise InvalidInputError(f"limit is {limit!r}; expected 1 to {MOST_VALUES}")
        filters = (Filter(column, "starts with", prefix),) if prefix else ()
        query = Query(
            stream,
            asked.get("from", "-1h"),
            asked.get("to", "now"),
            filters=filters,
            group_by=(column,),
            metrics=(Metric("count"),),
            limit=int(limit),
        )
        found = self.answer(query)
        return [{"value": value, "count": count} for value, count in found.rows]

    def streams(self, sees: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return the streams of the home that somebody may see, kept or not."""
        kept = set(self.tailer.names())
        found = []
        for name in sorted({*self.bus.names(), *kept}):
            if sees(name):
                if name in kept:
                    found.append(self._stream(self.tailer.tail(name)))
                else:
                    found.append({"name": name, "kept": False, "columns": []})
        return found

    def _stream(self, tail: StreamTail) -> dict[str, Any]:
        kept = tail.kept()
        first, last = tail.time_span(kept)
        return {
            "name": tail.name,
            "kept": True,
            "rows": kept.rows,
            "bytes": kept.bytes,
            "first_ms": first,
            "last_ms": last,
            "sample_rate": kept.rate,
            "time_column": tail.time_column,
            "columns": self.columns(tail.name),
        }

    def status(self, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Return how the home is doing, for the frame of every page."""
        from headrace import __version__  # noqa: PLC0415 - reads the metadata of the package

        tails = [one for one in self.tailer.statuses() if sees(one.stream)]
        return {
            "version": __version__,
            "home": str(self.settings.home),
            "now_ms": self._clock.now_ms(),
            "is_writer": self.tailer.is_writer,
            "problem": self.tailer.problem,
            "tailers": [_tailer(one) for one in tails],
            "jobs": [],
        }


def _tailer(status: TailStatus) -> dict[str, Any]:
    found = status._asdict()
    return {name: value for name, value in found.items() if value is not None}
