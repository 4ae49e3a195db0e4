"""Messages whose calls have not taken effect by the end of an epoch, kept in the task's state.

They are in the store of the operator's timers, as entries of a kind of their own: key group,
then (kind, epoch, number) of their arrival. So they move with their key group, and come back in
the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.plan.stages import OFFSET, ORIGIN, TIME, WATERMARK
from headrace.records.keys import decode_key, encode_key, encode_value
from headrace.state.store import KeyValueStore
from headrace.task.chunk import Chunk, Groups, Ints, from_exchange
from headrace.task.dead_letters import from_record, to_record
from headrace.task.origins import Origin

KIND = 2
"""After those of event and wall timers."""


class Place(NamedTuple):
    """Where a message stands: the epoch that brought it, and its number in that."""

    group: int
    epoch: int
    number: int

    @property
    def full(self) -> bytes:
        """The key of its entry."""
        return self.group.to_bytes(2, "big") + encode_key((KIND, self.epoch, self.number))


class Kept(NamedTuple):
    """Rows that were kept, in the order in which they came, and the place of each."""

    chunk: Chunk
    epochs: Ints
    numbers: Ints


class PendingRows:
    """Those of one operator of one task.

    Args:
        store: of the operator's timers.
        groups: of the task, first and after last.
        origin: of what came from inputs.
    """

    def __init__(self, store: KeyValueStore, groups: tuple[int, int], origin: Origin) -> None:
        self._store, self._groups, self._origin = store, groups, origin

    def put(self, chunk: Chunk, rows: Iterable[tuple[int, Place]]) -> None:
        """Keep rows of a chunk."""
        wanted = list(rows)
        if not wanted:
            return
        batch = self._bare(chunk.take(np.array([row for row, _ in wanted], np.int64)))
        records = [to_record(batch, at) for at in range(batch.num_rows)]
        self._store.put_many([place.full for _, place in wanted], records)

    def remove(self, places: Iterable[Place]) -> None:
        """Let go of rows whose calls have taken effect."""
        keys = [place.full for place in places]
        if keys:
            self._store.put_many(keys, [None] * len(keys))

    def read(self) -> list[Kept]:
        """Return what is kept, by runs of rows with the same columns."""
        found = sorted(
            ((epoch, number, group), record)
            for group, epoch, number, record in _entries(self._store, self._groups)
        )
        runs: list[Kept] = []
        begin = 0
        batches = [from_record(record) for _, record in found]
        for end in range(1, len(found) + 1):
            if end < len(found) and batches[end].schema.equals(batches[begin].schema):
                continue
            places = [place for place, _ in found[begin:end]]
            whole = pa.concat_batches(batches[begin:end])
            groups = np.array([group for _, _, group in places], np.uint16)
            epochs, numbers = (np.array([p[at] for p in places], np.int64) for at in (0, 1))
            runs.append(Kept(self._whole(whole, groups), epochs, numbers))
            begin = end
        return runs

    def _bare(self, chunk: Chunk) -> pa.RecordBatch:
        fields = list(chunk.batch.schema)
        if chunk.times is not None:
            fields += [pa.field(TIME, pa.int64()), pa.field(WATERMARK, pa.int64())]
        if chunk.origins is None:
            return chunk.to_exchange(pa.schema(fields))
        fields += [pa.field(ORIGIN, pa.int32()), pa.field(OFFSET, pa.int64())]
        batch = chunk.to_exchange(pa.schema(fields))
        sources = pa.array(self._origin.kept(chunk.origins.sources))
        return batch.set_column(batch.schema.get_field_index(ORIGIN), ORIGIN, sources)

    def _whole(self, batch: pa.RecordBatch, groups: Groups) -> Chunk:
        if ORIGIN in batch.schema.names:
            at = batch.schema.get_field_index(ORIGIN)
            sources = self._origin.known(batch.column(at).to_numpy())
            batch = batch.set_column(at, ORIGIN, pa.array(sources))
        return from_exchange(batch, groups)


def _entries(
    store: KeyValueStore, groups: tuple[int, int]
) -> Iterator[tuple[int, int, int, bytes]]:
    for group in range(*groups):
        head = group.to_bytes(2, "big") + encode_value(KIND)
        for full, record in store.scan(head, head + b"\xff"):
            _, epoch, number = decode_key(full[2:])
            yield group, epoch, number, record


def has_pending(store: KeyValueStore, groups: tuple[int, int]) -> bool:
    """Say whether messages wait in the state of a task, left by asynchronous calls."""
    return any(True for _ in _entries(store, groups))
