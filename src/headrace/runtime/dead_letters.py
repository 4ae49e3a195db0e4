"""What happens to rows that an operator refuses: counted, and kept as dead letters if wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.bus.read_only import skipping_bad_rows
from headrace.errors import CallTimeoutError, HeadraceError, InvalidInputError
from headrace.plan.dead_letters import DEAD_SCHEMA, PARTITION_BITS
from headrace.runtime.chunk import UNKNOWN, Chunk

MOST_TRIES = 4096
"""Calls of a batch function on parts of one batch; beyond, something else than rows is bad."""

_NEAR = 1000  # records between two wanted ones that are read along, to read once
T = TypeVar("T")


class Refused(NamedTuple):
    """A row of a chunk, and why it was refused."""

    row: int
    error: HeadraceError


class DeadLetters:
    """Makes dead letters of the rows that the operators of one task refuse.

    Args:
        job: its name.
        keys: columns of the task's partition key.
        origins: streams of the job's inputs, by number.
        bus: where the records are that rows were made of.
        send: takes the letters.
    """

    def __init__(
        self,
        job: str,
        keys: Sequence[str],
        origins: Sequence[str],
        bus: Bus,
        send: Callable[[Chunk], None],
    ) -> None:
        self._job, self._keys, self._origins, self._bus = job, keys, origins, bus
        self._take = send
        self._epoch = self._at = 0

    def begin(self, epoch: int, wall_ms: int) -> None:
        """Turn to an epoch: its number and its wall clock are those of the letters."""
        self._epoch, self._at = epoch, wall_ms

    def add(
        self,
        operator: str,
        chunk: Chunk,
        refused: Sequence[Refused],
        keys: Sequence[str] | None = None,
    ) -> None:
        """Keep the records that rows of a chunk were made of, or else the rows."""
        rows = [one.row for one in refused]
        found = self._records(chunk, rows)
        shown = list(self._keys_of(chunk, rows, self._keys if keys is None else keys))
        letters = [
            self._letter(operator, one.error, shown[at])
            | found.get(one.row, {})
            | ({} if one.row in found else {"record": to_record(chunk.batch, one.row)})
            for at, one in enumerate(refused)
        ]
        self._send(letters)

    def add_lost(self, operator: str, error: HeadraceError, key: Any) -> None:
        """Note what failed without a row, such as a timer."""
        self._send([self._letter(operator, error, _text(key))])

    def _letter(self, operator: str, error: HeadraceError, key: str | None) -> dict[str, Any]:
        return {
            "at": self._at * 1000,
            "job": self._job,
            "epoch": self._epoch,
            "operator": operator,
            "code": error.code,
            "kind": str(error.fields.get("raised", type(error).__name__)),
            "message": error.message,
            "key": key,
            "is_original": False,
        }

    def _send(self, letters: list[dict[str, Any]]) -> None:
        columns = [
            pa.array([letter.get(field.name) for letter in letters], field.type)
            for field in DEAD_SCHEMA
        ]
        self._take(Chunk(pa.RecordBatch.from_arrays(columns, schema=DEAD_SCHEMA)))

    @staticmethod
    def _keys_of(chunk: Chunk, rows: Sequence[int], keys: Sequence[str]) -> Iterator[str | None]:
        there = [key for key in keys if key in chunk.batch.schema.names]
        if not there:
            yield from [None] * len(rows)
            return
        part = chunk.batch.select(there).take(pa.array(rows, pa.int64()))
        for values in part.to_pylist():
            yield _text(values[there[0]] if len(there) == 1 else list(values.values()))

    def _records(self, chunk: Chunk, rows: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Where rows came from, and the records there, whole, as long as the bus has them."""
        if chunk.origins is None:
            return {}
        wanted: dict[int, dict[int, list[int]]] = {}
        for row in rows:
            source, offset = int(chunk.origins.sources[row]), int(chunk.origins.offsets[row])
            if source != UNKNOWN:
                wanted.setdefault(source, {}).setdefault(offset, []).append(row)
        found: dict[int, dict[str, Any]] = {}
        for source, offsets in wanted.items():
            stream = self._origins[source >> PARTITION_BITS]
            partition = source & ((1 << PARTITION_BITS) - 1)
            records = self._read(stream, partition, sorted(offsets))
            for offset, same in offsets.items():
                place = {"stream": stream, "partition": partition, "offset": offset}
                for row in same:
                    if offset in records:
                        place |= {"record": records[offset], "is_original": True}
                    else:
                        place |= {"record": to_record(chunk.batch, row)}
                    found[row] = place
        return found

    def _read(self, stream: str, partition: int, offsets: list[int]) -> dict[int, bytes]:
        """Read records again, for a task reads only the columns that its operators use."""
        wanted, found = set(offsets), {}
        cuts = [at for at in range(1, len(offsets)) if offsets[at] - offsets[at - 1] > _NEAR]
        for begin, end in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
            try:
                rows = skipping_bad_rows(self._bus.stream(stream), lambda *_: None)
                parts = list(rows.read(partition, offsets[begin], offsets[end - 1] + 1))
            except InvalidInputError:  # the bus has dropped them meanwhile
                continue
            for part in parts:
                for row, offset in enumerate(part.offsets.tolist()):
                    if offset in wanted:
                        found[offset] = to_record(part.batch, row)
        return found


class Guard:
    """Takes the rows that one operator refuses, so that the others continue.

    Args:
        operator: its name.
        counts: of the operator.
        letters: of the task; ``None``: the rows are dropped.
        keys: columns of the key in the rows, where these are not the task's.
    """

    def __init__(
        self,
        operator: str,
        counts: Counter[str],
        letters: DeadLetters | None,
        keys: Sequence[str] | None = None,
    ) -> None:
        self._operator, self._counts, self._letters = operator, counts, letters
        self._keys = keys

    def take(
        self, chunk: Chunk, refused: Sequence[Refused], keys: Sequence[str] | None = None
    ) -> None:
        """Count rows and release them.

        Args:
            chunk: has the rows.
            refused: which, and why.
            keys: columns of its key, where these are other ones.
        """
        if not refused:
            return
        self._count(len(refused))
        if self._letters is not None:
            self._letters.add(self._operator, chunk, refused, self._keys if keys is None else keys)

    def take_lost(self, error: HeadraceError, key: Any) -> None:
        """Count what failed without a row."""
        self._count(1)
        if self._letters is not None:
            self._letters.add_lost(self._operator, error, key)

    def _count(self, rows: int) -> None:
        self._counts["dropped" if self._letters is None else "dead_letters"] += rows

    def parts(self, chunk: Chunk, work: Callable[[Chunk], T]) -> Iterator[T]:
        """Yield what is made of the good rows of a chunk, in their order.

        A batch that fails is cut in two, and so on, until the bad rows stand alone. So ``work``
        is called again on parts of what it was called on before: it has to be pure.

        Raises:
            InvalidInputError: after ``MOST_TRIES`` calls; then few rows are good, if any.
        """
        waiting, tries = [(0, chunk.rows)], 0
        refused: list[Refused] = []
        while waiting:
            begin, end = waiting.pop()
            tries += 1
            try:
                made = work(chunk if end - begin == chunk.rows else chunk.part(begin, end))
            except InvalidInputError as error:
                if tries >= MOST_TRIES or isinstance(error, CallTimeoutError):
                    error.add_note(f"{len(refused)} rows were refused before, one by one")
                    raise
                if end - begin == 1:
                    refused.append(Refused(begin, error))
                    continue
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
                continue
            yield made
        self.take(chunk, refused)


def to_record(batch: pa.RecordBatch, row: int) -> bytes:
    """Return one row as an Arrow IPC stream, from which it can be restored exactly."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(row, 1))
    return bytes(sink.getvalue())


def from_record(record: bytes) -> pa.RecordBatch:
    """Read what ``to_record`` made: a batch of one row."""
    with pa.ipc.open_stream(record) as reader:
        return reader.read_next_batch()


def _text(key: Any) -> str | None:
    return msgspec.json.encode(key, enc_hook=str).decode()


def without(chunk: Chunk, refused: Sequence[Refused]) -> Chunk:
    """Return the rows of a chunk that were not refused."""
    keep = np.ones(chunk.rows, np.bool_)
    keep[[one.row for one in refused]] = False
    return chunk.filter(keep)
