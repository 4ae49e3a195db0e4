"""Writes the rows that one of Spark's tasks has to an Arrow file, in a Python worker.

The worker only copies the batches that Spark hands over, and loads little for it: what the rows
have to be is checked where the job reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

CHUNK_ROWS, CHUNK_BYTES = 1 << 20, 64 << 20
"""Of a batch of the file, which is what a reader takes at once."""

Batches = Iterator[pa.RecordBatch]
Placing = Callable[[pa.RecordBatch], Iterator[tuple[int, pa.RecordBatch]]]


def arrow_writer(
    folder: str, name: str, partitions: int, place: Placing | None = None
) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow`` that writes the rows of a task.

    It yields one row with JSON: the task, its file and bytes, and of each batch in the file its
    partition and rows; or the error of the disk.

    Args:
        folder: of the files, on a disk that all hosts have.
        name: what the names of files begin with; of one attempt to write the DataFrame.
        partitions: that tasks go to in turn.
        place: returns the rows of each partition instead, where it is by their key.
    """

    def write(batches: Batches) -> Batches:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        attempt = 0 if context is None else context.taskAttemptId()
        path = os.path.join(folder, f"{name}-{task:06d}-{attempt}.arrow")
        try:
            found = _written(path, batches, task % partitions, place)
            answer = {"task": task, "file": path, **found}
        except OSError as error:
            answer = {"task": task, "file": path, "error": str(error)}
        yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer).encode()]})

    return write


def _written(path: str, batches: Batches, partition: int, place: Placing | None) -> dict[str, Any]:
    """Write a file durably; of a task without rows none."""
    units: list[tuple[int, int]] = []
    sink = file = None
    try:
        for rows in map(joined, gathered(batches)):
            if sink is None:
                os.makedirs(folder := os.path.dirname(path), exist_ok=True)
                sink = open(path, "xb")  # noqa: SIM115 - closed below, once it is durable
                file = pa.ipc.new_file(sink, rows.schema)
            assert file is not None
            for number, batch in [(partition, rows)] if place is None else place(rows):
                file.write_batch(batch)
                units.append((number, batch.num_rows))
        if sink is None or file is None:
            return {"bytes": 0, "units": []}
        file.close()
        sink.flush()
        size = sink.tell()
        os.fsync(sink.fileno())
        _sync_folder(folder)
    except BaseException:
        if sink is not None:
            os.unlink(path)
        raise
    finally:
        if sink is not None:
            sink.close()
    return {"bytes": size, "units": units}


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def gathered(
    batches: Iterable[pa.RecordBatch], most: int = CHUNK_ROWS
) -> Iterator[list[pa.RecordBatch]]:
    """Yield small batches, as many together as a reader takes at once: ``most`` rows, about."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= most or size >= CHUNK_BYTES:
            yield held
            held, rows, size = [], 0, 0
    if held:
        yield held


def joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one."""
    if len(held) == 1:
        return held[0]
    pieces = zip(*(one.columns for one in held), strict=True)
    return pa.RecordBatch.from_arrays(list(map(pa.concat_arrays, pieces)), schema=held[0].schema)
