"""PySpark's own ways beside ours: the same messages, from the first one on, as Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.bench.workload import write_parquet
from headrace.spark.ways import NATIVE, WAYS, rate

BATCHES = 2
PYTHON_ROWS = 10_000
NATIVE_ROWS = 1_000_000
WARM_UP_ROWS = 1_000


def compare(folder: Path, messages: npt.NDArray[np.int64], master: str) -> dict[str, float]:
    """Return the rows a second of each way.

    Each reads a small file to warm up and then two of equal size, 10,000 rows for the ways
    that call Python for each key and a million for the one that does not, or what there is.

    Args:
        folder: a new one.
        messages: id of each.
        master: of the session, where there is none yet.
    """
    rates = {}
    for way in WAYS:
        wanted = NATIVE_ROWS if way == NATIVE else PYTHON_ROWS
        each = max(1, min(wanted, (len(messages) - 1) // BATCHES))
        first = max(1, min(WARM_UP_ROWS, len(messages) - BATCHES * each))
        files = folder / way / "in"
        write_parquet(files, messages, [0, *(first + each * n for n in range(BATCHES + 1))])
        rates[way] = rate(master, way, files, folder / way)
    return rates
