"""Combines ranges of rows of partials that overlap, each step for all of them at once.

The rows of a window are a range among the panes of its key, and a pane is in many windows. Blocks
of 1, 2, 4 ... rows are combined once, those that some range needs and no others, and a range is
put together of a block for each bit of its length: so n rows cost n log n steps, not n for each
window. Earlier rows stay before later ones, which user monoids may rely on.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from headrace.task.chunk import Ints
from headrace.task.windows.aggregation import Aggregation


def combine_ranges(
    aggregation: Aggregation, rows: pl.DataFrame, starts: Ints, stops: Ints
) -> pl.DataFrame:
    """Return one row of partials for each range, in the order of the ranges.

    Args:
        aggregation: of the partials.
        rows: partial columns alone; shape (n,).
        starts: the first row of each range; shape (m,).
        stops: the row after its last, at least one further; shape (m,).
    """
    uses = _uses(starts, stops)
    needed = _needed(uses)
    blocks, made, places = rows[needed[0]], rows.clear(), np.full(len(starts), -1)
    for level, (chosen, begins) in enumerate(uses):
        ranges = chosen
        if level:
            halves = [
                blocks[np.searchsorted(needed[level - 1], needed[level] + begin)]
                for begin in (0, 1 << level - 1)
            ]
            blocks = aggregation.paired(*halves)
        if not len(ranges):
            continue
        own = blocks[np.searchsorted(needed[level], begins)]
        before = places[ranges]
        follows = before >= 0
        if follows.any():
            joined = aggregation.paired(made[before[follows]], own.filter(pl.Series(follows)))
            own = pl.concat([own.filter(pl.Series(~follows)), joined], how="vertical_relaxed")
            ranges = np.concatenate([ranges[~follows], ranges[follows]])
        places[ranges] = np.arange(made.height, made.height + len(ranges))
        made = pl.concat([made, own], how="vertical_relaxed")
    return made[places]


def _uses(starts: Ints, stops: Ints) -> list[tuple[Ints, Ints]]:
    """For each size of blocks which ranges use one, and at which row it begins."""
    lengths, at, uses = stops - starts, starts.copy(), []
    for level in range(int(lengths.max()).bit_length()):
        own = np.flatnonzero(lengths >> level & 1)
        uses.append((own, at[own]))
        at[own] += 1 << level
    return uses


def _needed(uses: list[tuple[Ints, Ints]]) -> list[Ints]:
    """For each size the rows at which blocks begin that are used, or are half of one that is."""
    needed: list[Ints] = []
    above = np.empty(0, np.int64)
    for level in range(len(uses) - 1, -1, -1):
        halves = [above, above + (1 << level)]
        above = np.unique(np.concatenate([uses[level][1], *halves]))
        needed.append(above)
    return needed[::-1]
