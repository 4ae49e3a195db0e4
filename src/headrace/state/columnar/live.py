"""How much of a table's runs is still seen: an estimate from a sample of hashes.

Hashes are even, so the rows of a narrow range of them stand for all. Where a table has
clusters, the range is taken within a few of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.records.layout import TableLayout
from headrace.state.columnar.keys import HashRange
from headrace.state.columnar.merge import Part, merge_runs, rows_of
from headrace.state.columnar.run import Run

SAMPLE_ROWS = 4096
SAMPLE_CLUSTERS = 4
_RESOLUTION = 1 << 32


class LiveShare:
    """Keeps the estimate until the runs have grown or shrunk by an eighth, or time has.

    Args:
        layout: of the table.
    """

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._size = 0
        self._share = 1.0
        self._asked_ms = 0

    def live_bytes(self, runs: Sequence[Run], now_ms: int | None) -> int:
        """Return about how many bytes the live rows of the runs take."""
        size = sum(run.size for run in runs)
        ttl_ms = self._layout.ttl_ms
        aged = ttl_ms is not None and (now_ms or 0) - self._asked_ms > ttl_ms // 8
        if aged or abs(size - self._size) > self._size // 8:
            self._asked_ms = now_ms or 0
            self._size, self._share = size, _share(runs, self._layout, now_ms)
        return int(size * self._share)


def _share(runs: Sequence[Run], layout: TableLayout, now_ms: int | None) -> float:
    taken = live = 0
    for part in _parts(runs, layout):
        taken += rows_of(runs, part)
        live += sum(batch.num_rows for batch in merge_runs(runs, layout, True, now_ms, part))
    return live / taken if taken else 1.0


def _parts(runs: Sequence[Run], layout: TableLayout) -> list[Part]:
    rows = sum(run.rows for run in runs)
    infos = [piece.info for run in runs for piece in run.pieces]
    if not rows:
        return []
    low, high = min(i.low_hash for i in infos), max(i.high_hash for i in infos)
    wanted = min(_RESOLUTION, SAMPLE_ROWS * _RESOLUTION // rows)
    hashes = HashRange(low, low + (high - low) * wanted // _RESOLUTION)
    if not layout.cluster:
        return [Part(hashes=hashes)]
    if any(info.clusters is None for info in infos):
        return []
    present = sorted({cluster for info in infos for cluster in info.clusters or ()})
    chosen = present[:: -(-len(present) // SAMPLE_CLUSTERS)]
    share = len(chosen) / len(present)
    wide = HashRange(low, low + int((high - low) * min(1.0, wanted / _RESOLUTION / share)))
    return [Part((cluster, cluster + 1), wide) for cluster in chosen]
