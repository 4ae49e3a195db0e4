"""When early results are due: instants of rows that wait, by event time, by number or when quiet.

Event time here is that at which a record counts: its own, or the watermark it came with if that is
later. So the instants of a log follow from the log, wherever epochs are cut. How many rows wait is
only looked at where an epoch ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.extremes import Extreme
from headrace.task.chunk import Ints
from headrace.task.windows.clusters import NEVER
from headrace.task.windows.counting import COUNT_COLUMN
from headrace.task.windows.sessions import chained

SEEN = "__seen"
_FIRST, _LAST = "__since", "__until"
FIRST_SEEN, LAST_SEEN = f"{_FIRST}.min", f"{_LAST}.max"


def seen_aggregates(source: pa.Schema) -> tuple[tuple[str, Aggregate], ...]:
    """Return what is kept of rows that wait until it is quiet; ``source`` has ``SEEN``."""
    first, last = Extreme(SEEN).bind(source), Extreme(SEEN, is_max=True).bind(source)
    return ((_FIRST, first), (_LAST, last))


@dataclass(frozen=True)
class Instants:
    """Which rule early results follow; with none of them there are none.

    Args:
        every_ms: at each multiple of event time.
        rows: with the epoch in which so many rows of a unit have come to wait.
        idle_ms: once a group had no row for so long.
    """

    every_ms: int = 0
    rows: int = 0
    idle_ms: int = 0

    @property
    def step_ms(self) -> int:
        """The length of the pieces of event time in which rows wait; 0: in one."""
        return self.every_ms or self.idle_ms

    def of(
        self,
        frame: pl.DataFrame,
        steps: Ints,
        waits: npt.NDArray[np.bool_],
        groups: Ints,
        units: Ints,
        now: int,
    ) -> tuple[Ints, Ints]:
        """Return the instant of each row, and rows that may be kept as one.

        Args:
            frame: with the partials of rows.
            steps: the step of each; ``NEVER``: it waits for the end.
            waits: whether it was not sent.
            groups: of each.
            units: of each.
            now: the watermark.

        Returns:
            ``NEVER`` where a row is not early; and the burst that each row is of, or -1.
        """
        found, bursts = np.full(frame.height, NEVER), np.full(frame.height, -1)
        if self.every_ms:
            return np.where(waits, steps, NEVER), bursts
        if self.rows:
            counts = np.where(waits, frame[COUNT_COLUMN].to_numpy(), 0)
            enough = np.bincount(units, weights=counts) >= self.rows
            return np.where(waits & enough[units], now, NEVER), bursts
        at = np.flatnonzero(waits & (steps < NEVER))
        if self.idle_ms and len(at):
            first, last = (frame[name].to_numpy()[at] for name in (FIRST_SEEN, LAST_SEEN))
            order = np.lexsort((first, groups[at]))
            at, last = at[order], last[order]
            own = chained(groups[at], first[order], last, self.idle_ms)
            ends = np.full(own[-1] + 1, -NEVER)
            np.maximum.at(ends, own, last)
            found[at], bursts[at] = ends[own] + self.idle_ms, own
        return found, bursts
