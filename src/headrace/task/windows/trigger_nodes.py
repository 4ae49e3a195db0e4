"""Windows with triggers by kind: where a record waits, and for what."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from headrace.task.chunk import Chunk
from headrace.task.windows.partial_table import BUCKET
from headrace.task.windows.shapes import PLACE, SessionShape, WindowShape
from headrace.task.windows.spans import Hops
from headrace.task.windows.triggers import ALL, TriggerNode


class WindowTriggerNode(TriggerNode):
    """Tumbling and hopping windows with early results."""

    def __init__(self, *common: Any, hops: Hops, **more: Any) -> None:
        super().__init__(*common, shape=WindowShape(hops), **more)
        self._hops = hops

    def push(self, chunk: Chunk) -> None:
        """Gather rows by pane, and those that came after a window's end by window."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        marks = chunk.watermarks - self._delay
        panes, is_whole, is_partly = self._hops.placed(chunk.times, marks)
        is_timely = is_whole | is_partly
        self._set_aside(chunk, ~is_timely)
        is_plain = self._hops.first(panes) > marks
        plain = chunk.filter(is_plain)
        if plain.rows:
            seen = np.maximum(chunk.times, marks)[is_plain]
            self._wait(plain, self._steps(seen), panes[is_plain])
        behind = is_timely & ~is_plain
        if behind.any():
            rows, ends = self._hops.late_ends(panes[behind], marks[behind])
            some = chunk.filter(behind).take(rows)
            now = marks[behind][rows]
            assert some.times is not None
            steps = np.where(ends > now, self._steps(np.maximum(some.times, now)), 0)
            self._wait(some, steps, -ends)

    def _placed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Put what panes have into each of their windows."""
        places = frame[PLACE].to_numpy()
        steps = frame[BUCKET].to_numpy()
        panes = np.flatnonzero(places > 0)
        rows, ends = self._hops.made(places[panes], -ALL, ALL)
        singles = np.flatnonzero(places < 0)
        rows = np.concatenate([panes[rows], singles])
        ends = np.concatenate([ends, -places[singles]])
        clusters = self._clusters.waiting(steps[rows], ends)
        placed = frame[rows].with_columns(pl.Series(BUCKET, clusters)).drop(PLACE)
        if self._hops.pane_ms < self._hops.size_ms or len(singles):
            placed = self._aggregation.combined(placed, self._heads)
        return placed


class SessionTriggerNode(TriggerNode):
    """Sessions with early results, or such that late records change."""

    def __init__(self, *common: Any, gap_ms: int, **more: Any) -> None:
        shape = SessionShape(gap_ms)
        super().__init__(*common, shape=shape, **more)
        self._slices = shape.slices

    def push(self, chunk: Chunk) -> None:
        """Gather rows by slice; a late one is set aside."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        marks = chunk.watermarks - self._delay
        timely = chunk.times + self._grace >= marks
        self._set_aside(chunk, ~timely)
        kept = chunk.filter(timely)
        if kept.rows:
            assert kept.times is not None
            seen = np.maximum(kept.times, marks[timely])
            self._wait(kept, self._steps(seen), self._slices(kept.times))

    def _placed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Put each row under its slice."""
        clusters = self._clusters.waiting(frame[BUCKET].to_numpy(), frame[PLACE].to_numpy())
        return frame.with_columns(pl.Series(BUCKET, clusters)).drop(PLACE)
