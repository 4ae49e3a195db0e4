"""Numbers of inputs that stay what they are while streams come and go.

Rows say by the number of an input where they came from, and numbers move when a pattern matches
one more stream. So rows that are kept say it by the name of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from headrace.plan.dead_letters import PARTITION_BITS
from headrace.task.chunk import UNKNOWN, Ints

_NAME_BYTES = 5


class Origin:
    """Tells the numbers of partitions of inputs from those that are kept.

    Args:
        streams: of the job's inputs, by number.
    """

    def __init__(self, streams: Sequence[str]) -> None:
        self._kept = np.array([_kept(stream) for stream in streams], np.int64)
        self._order = np.argsort(self._kept, kind="stable")

    def kept(self, sources: npt.NDArray[np.int32]) -> Ints:
        """Return the numbers to keep."""
        if not len(self._kept):
            return np.full(len(sources), UNKNOWN, np.int64)
        names = self._kept[sources >> PARTITION_BITS] << PARTITION_BITS
        return np.where(sources == UNKNOWN, UNKNOWN, names | _partitions(sources))

    def known(self, kept: Ints) -> npt.NDArray[np.int32]:
        """Return the numbers as they are now; of streams that are gone ``UNKNOWN``."""
        if not len(self._kept):
            return np.full(len(kept), UNKNOWN, np.int32)
        names = kept >> PARTITION_BITS
        places = np.searchsorted(self._kept, names, sorter=self._order)
        inputs = self._order[np.minimum(places, len(self._order) - 1)]
        numbers = inputs << PARTITION_BITS | _partitions(kept)
        return np.where(self._kept[inputs] == names, numbers, UNKNOWN).astype(np.int32)


def _kept(stream: str) -> int:
    return int.from_bytes(blake2b(stream.encode(), digest_size=_NAME_BYTES).digest(), "big")


def _partitions(sources: npt.NDArray[np.int32] | Ints) -> Ints:
    return sources.astype(np.int64) & ((1 << PARTITION_BITS) - 1)
