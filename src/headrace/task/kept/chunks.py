"""Chunks put together, with what travels beside their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.task.chunk import Chunk

Number = TypeVar("Number", bound=np.generic)


def concatenated(chunks: Sequence[Chunk]) -> Chunk:
    """Return chunks of the same columns as one, without their origins."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        pa.concat_batches([chunk.batch for chunk in chunks]),
        _one([chunk.times for chunk in chunks]),
        _one([chunk.watermarks for chunk in chunks]),
        _one([chunk.groups for chunk in chunks]),
    )


def _one(parts: Sequence[npt.NDArray[Number] | None]) -> npt.NDArray[Number] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None
