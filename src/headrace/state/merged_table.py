"""Rows of a table read straight from committed files: the newest row of each key counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.records.layout import TableLayout
from headrace.state.columnar.files import open_runs
from headrace.state.columnar.merge import Part, merge_runs
from headrace.state.columnar.run import Run
from headrace.state.merged import Source
from headrace.state.segment import SegmentHeader

EVERY_ROW = Part()
SLICE_ROWS = 1 << 17
"""Rows that are merged at once, about."""


class MergedTable:
    """One table over several files.

    Args:
        store: its name.
        sources: oldest first, where they hold the same key groups.
        now_ms: the wall clock of the epoch, for rows that live for a time.
        ttl_ms: how long they do now; by default as when the newest file was written.
        watermarks: of stages, for a table that goes by event time.
    """

    def __init__(
        self,
        store: str,
        sources: Sequence[Source],
        now_ms: int | None = None,
        ttl_ms: int | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self._now_ms, self._ttl_ms = now_ms, ttl_ms
        held = [source for source in sources if _has(source, store)]
        self._runs: list[Run] = []
        for source in held:
            self._runs += open_runs(source.reader, store, groups=source.groups)
        if watermarks is not None and self._runs and self._runs[-1].layout.by_event:
            stages = {source.stage for source in held if source.stage is not None}
            self._now_ms = min((watermarks.get(stage, 0) for stage in stages), default=0)
        self._files = {source.reader.path: source.reader.header for source in held}

    @property
    def layout(self) -> TableLayout | None:
        """The columns of the table; ``None`` where nothing was ever written."""
        if not self._runs:
            return None
        layout = self._runs[-1].layout
        if layout.ttl_ms is None or self._ttl_ms is None:
            return layout
        return replace(layout, ttl_ms=self._ttl_ms)

    @property
    def headers(self) -> list[SegmentHeader]:
        """Of each file that holds something of the table."""
        return list(self._files.values())

    @property
    def rows(self) -> int:
        """How many rows and deletions the files hold together: at least the live rows."""
        return sum(run.rows for run in self._runs)

    @property
    def size(self) -> int:
        """About how many bytes of the files these are."""
        return sum(run.size for run in self._runs)

    @property
    def is_exact(self) -> bool:
        """Say whether ``rows`` is the number of live rows, for nothing can be overwritten."""
        return not self._runs

    def batches(self, part: Part = EVERY_ROW) -> Iterator[pa.RecordBatch]:
        """Yield the live rows, by cluster and hash, in bounded batches.

        Args:
            part: only these.
        """
        layout = self.layout
        if layout is not None:
            yield from merge_runs(
                self._runs, layout, True, self._now_ms, part, slice_rows=SLICE_ROWS
            )


def _has(source: Source, store: str) -> bool:
    """Say whether a file has the store, and counts for its stage: it serves several."""
    return any(source.stage in (None, section.stage) for section in source.reader.tables(store))
