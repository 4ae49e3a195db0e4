"""Triggers and accumulation modes: when results of a window are due, and what each one shows.

Event time of early results is that at which a record counts: its own, or the watermark it came with
if that is later. So their instants follow from the log, wherever epochs are cut. How many rows wait
is only looked at where an epoch ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import polars as pl

from headrace.graph.windows import GlobalWindow, Window
from headrace.runtime.chunk import Ints, Mask
from headrace.runtime.windows.assigners import chained
from headrace.runtime.windows.layouts import COUNT_COLUMN, FIRST_SEEN, LAST_SEEN, NEVER


@dataclass(frozen=True)
class Trigger:
    """When results are due: at the end of a window, again for late records, and early.

    At most one rule says when early results are due; ``within_ms`` goes with ``rows``.

    Args:
        waits_ms: how long after its end a window is sent.
        grace_ms: how long it takes records; more than ``waits_ms``: late ones change what was sent.
        every_ms: early at each multiple of event time.
        rows: early with the epoch in which so many rows of a unit have come to wait.
        idle_ms: early once a group had no row for so long.
        within_ms: early so long after the last result, or without one, after the first row that
            waits. What was sent has the instant at which it was as ``LAST_SEEN``.
    """

    waits_ms: int
    grace_ms: int
    every_ms: int = 0
    rows: int = 0
    idle_ms: int = 0
    within_ms: int = 0

    @classmethod
    def of(cls, window: Window) -> Trigger:
        """Return the trigger of a window."""
        rows = window.rows if isinstance(window, GlobalWindow) else window.early_rows
        return cls(
            0 if window.is_updated else window.grace_ms,
            window.grace_ms,
            window.early_ms or 0,
            rows or 0,
            window.early_idle_ms or 0,
            window.early_within_ms or 0,
        )

    @property
    def updates_late(self) -> bool:
        """Whether late records change results that were sent."""
        return self.waits_ms < self.grace_ms

    def instants(
        self, frame: pl.DataFrame, steps: Ints, waits: Mask, groups: Ints, units: Ints, now: int
    ) -> tuple[Ints, Ints]:
        """Return the instant of the early result of each row, and rows that may be kept as one.

        Args:
            frame: with the partials of rows.
            steps: the step of each; ``NEVER``: it waits for the end.
            waits: whether it was not sent.
            groups: of each: where rows have to be looked at together.
            units: of each: what may become one result.
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
            found = np.where(enough[units], now, NEVER)
            if self.within_ms:
                found = np.minimum(found, self._latest(frame, waits, units)[units])
            return np.where(waits, found, NEVER), bursts
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

    def _latest(self, frame: pl.DataFrame, waits: Mask, units: Ints) -> Ints:
        """Return for each unit when a result is due whatever the number of rows."""
        first, last = np.full(int(units.max()) + 1, NEVER), np.full(int(units.max()) + 1, -NEVER)
        np.minimum.at(first, units[waits], frame[FIRST_SEEN].to_numpy()[waits])
        np.maximum.at(last, units[~waits], frame[LAST_SEEN].to_numpy()[~waits])
        is_sent = last > -NEVER
        after: Ints = np.where(is_sent, np.maximum(first, last + self.within_ms), first)
        return np.where(is_sent, after, np.minimum(first, NEVER - self.within_ms) + self.within_ms)


class Changes(NamedTuple):
    """Rows to send: which are retractions, and which of the results now each belongs to."""

    rows: pl.DataFrame
    is_retraction: Mask
    results: Ints


class Accumulation(Enum):
    """What a result shows: all of its window, what was sent taken back before, or what is new."""

    ACCUMULATING = "replace"
    RETRACTING = "retract"
    DELTA = "add"

    @property
    def retracts(self) -> bool:
        """Whether results that others replace are taken back."""
        return self is Accumulation.RETRACTING

    def changes(self, now: pl.DataFrame, sent: pl.DataFrame, replaced_by: Ints) -> Changes:
        """Return what is to be sent, each retraction just before the result that follows it.

        Args:
            now: results; of deltas, what came since the last ones.
            sent: results that were sent, with the same columns; used if they are taken back.
            replaced_by: the place in ``now`` of that which replaces each of ``sent``.
        """
        results, is_new = np.arange(now.height), np.ones(now.height, bool)
        if not self.retracts or not sent.height:
            return Changes(now, ~is_new, results)
        results = np.concatenate([results, replaced_by])
        is_new = np.arange(len(results)) < now.height
        order = np.lexsort((is_new, results))
        both = pl.concat([now, sent[now.columns]], how="vertical_relaxed")
        return Changes(both[order], ~is_new[order], results[order])
