"""Which keys a task sends most rows of: a sketch of a sample, for people to look at.

It changes nothing that is sent, and is kept in memory only. A sketch that takes one call for each
item costs more than all of this; so rows are drawn, and counted by NumPy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.records.keys import UInt64s, encode_columns
from headrace.task.chunk import Chunk
from headrace.task.orders import TOLD_KEYS, HotKey, HotKeys

COUNTERS = 256
BLOCK_ROWS = 64
DRAWN_ROWS = 2048
DRAWN_A_SECOND = 500
PACE_S = 2.0
TELL_EVERY_S = 10.0
HALF_LIFE_S = 60.0
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HIGH = np.uint64(32)

Floats = npt.NDArray[np.float64]


class KeySketch:
    """A Misra-Gries sketch of the keys of some rows, each of which stands for as many as it was.

    A key with more than ``rows / (COUNTERS + 1)`` of the drawn rows is in it.

    Args:
        operator: the ``partition_by``.
        columns: of its key, at least one.
    """

    def __init__(self, operator: str, columns: tuple[str, ...]) -> None:
        self._operator, self._columns = operator, columns
        self._hashes: UInt64s = np.zeros(0, np.uint64)
        self._counts: Floats = np.zeros(0)
        self._keys: pa.RecordBatch | None = None
        self._rows = self._slack = 0.0
        self._drawn: list[pa.RecordBatch] = []
        self._weights: list[Floats] = []
        self._held, self._step, self._passed, self._lots = 0, 1.0, 0, 0
        self._paced_at: float | None = None
        self._paced_rows = 0
        self._told_at: float | None = None
        self._told_rows, self._new_rows = 0.0, 0

    def see(self, chunk: Chunk) -> None:
        """Draw from the rows of a chunk; holds on to none of its memory."""
        self._new_rows += chunk.rows
        self._passed += chunk.rows
        wanted = self._passed / self._step
        if wanted < BLOCK_ROWS and self._step > 1:  # so few from a chunk cost as much as more
            return
        places = self._places(chunk.rows, min(int(wanted), DRAWN_ROWS))
        rows = pa.array(places)
        columns = [chunk.batch.column(name).take(rows) for name in self._columns]
        self._drawn.append(pa.RecordBatch.from_arrays(columns, names=list(self._columns)))
        self._weights.append(np.full(len(places), self._passed / len(places)))
        self._held += len(places)
        self._paced_rows += self._passed
        self._passed = 0
        if self._held >= DRAWN_ROWS:
            self._fold()
            self._step *= 2  # so that many rows in a short time are drawn from more seldom

    def _places(self, rows: int, wanted: int) -> npt.NDArray[np.int64]:
        """Choose rows of a chunk: one of each of so many runs, at a place that does not repeat."""
        if wanted >= rows:
            return np.arange(rows)
        self._lots += wanted
        runs = np.arange(wanted)
        with np.errstate(over="ignore"):
            lots = (runs + self._lots).astype(np.uint64) * _GOLDEN >> _HIGH
        ends = (runs + 1) * rows // wanted
        begins = runs * rows // wanted
        return begins + (lots * (ends - begins).astype(np.uint64) >> _HIGH).astype(np.int64)

    def _fold(self) -> None:
        """Take in what was drawn."""
        if not self._drawn:
            return
        drawn = pa.concat_batches(self._drawn)
        weights = np.concatenate(self._weights)
        self._drawn, self._weights, self._held = [], [], 0
        hashes = np.concatenate([self._hashes, encode_columns(drawn.columns).hashes()])
        known = drawn if self._keys is None else pa.concat_batches([self._keys, drawn])
        every, places, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        sums = np.bincount(inverse, np.concatenate([self._counts, weights]))
        counts: Floats = np.asarray(sums, np.float64)
        self._rows += float(weights.sum())
        if len(counts) > COUNTERS:
            least = len(counts) - COUNTERS - 1
            cut = float(np.partition(counts, least)[least])
            counts, self._slack = counts - cut, self._slack + cut
        keep = counts > 0
        self._hashes, self._counts = every[keep], counts[keep]
        self._keys = known.take(pa.array(places[keep]))

    def tell(self, now: float) -> HotKeys | None:
        """Return the heaviest keys, now and then; ``None`` when there is no news.

        First at once, then every ten seconds, or when there are twice as many rows.

        Args:
            now: of a monotonic clock, s.
        """
        self._pace(now)
        if not self._new_rows:
            return None
        since = TELL_EVERY_S if self._told_at is None else now - self._told_at
        if since < TELL_EVERY_S and self._new_rows < self._told_rows:
            return None
        self._fold()
        if self._keys is None:
            return None
        if self._told_at is not None:
            self._age(since)
        self._told_at, self._told_rows, self._new_rows = now, self._rows, 0
        order = np.lexsort((self._hashes, -self._counts))[:TOLD_KEYS]
        names = encode_columns(self._keys.take(pa.array(order)).columns).to_list()
        pairs = zip(names, self._counts[order].tolist(), strict=True)
        keys = [HotKey(name, round(count, 1)) for name, count in pairs]
        rows, slack = round(self._rows, 1), round(self._slack, 1)
        return HotKeys(self._operator, self._columns, rows, slack, keys)

    def _pace(self, now: float) -> None:
        """Draw about so many rows a second, whatever goes through."""
        if self._paced_at is None or now - self._paced_at >= PACE_S:
            if self._paced_at is not None:
                rows = self._paced_rows + self._passed
                self._step = max(1.0, rows / (now - self._paced_at) / DRAWN_A_SECOND)
            self._paced_at, self._paced_rows = now, 0

    def _age(self, seconds: float) -> None:
        left = 0.5 ** (seconds / HALF_LIFE_S)
        self._counts = self._counts * left
        self._rows, self._slack = self._rows * left, self._slack * left
