"""Dead letters of a task: the rows that its operators refuse, kept with where they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.bus.read_only import skipping_bad_rows
from headrace.errors import HeadraceError, InvalidInputError
from headrace.graph.operators import DEAD_LETTER, Operator
from headrace.plan.dead_letters import DEAD_LETTERS, DEAD_SCHEMA, PARTITION_BITS
from headrace.plan.stages import OutputBinding, Stage
from headrace.runtime.chunk import UNKNOWN, Chunk
from headrace.runtime.node import Guard, Refused
from headrace.runtime.node_factory import RuntimeContext
from headrace.runtime.outputs import OutputNode

_NEAR = 1000  # records between two wanted ones that are read along, to read once


class DeadLetters(OutputNode):
    """The output of one task that gets the dead letters of all its operators.

    Args:
        binding: of the output.
        stage: that the task is of.
        task: its number.
        runtime: what it has in common with the other tasks.
    """

    def __init__(
        self, binding: OutputBinding, stage: Stage, task: int, runtime: RuntimeContext
    ) -> None:
        super().__init__(binding.operator, binding, task)
        self._job, self._origins, self._bus = runtime.job, stage.origins, runtime.bus
        self._keys = stage.receives[0].keys if stage.receives else ()
        self._epoch = self._at = 0

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
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
        self.push(Chunk(pa.RecordBatch.from_arrays(columns, schema=DEAD_SCHEMA)))

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


class DeadLetterGuard(Guard):
    """Takes the rows that one operator refuses, and keeps them.

    Args:
        operator: its name.
        counts: of the operator.
        letters: of the task.
        keys: columns of the key in the rows, where these are not the task's.
    """

    counted = "dead_letters"

    def __init__(
        self,
        operator: str,
        counts: Counter[str],
        letters: DeadLetters,
        keys: Sequence[str] | None,
    ) -> None:
        super().__init__(counts)
        self._operator, self._letters, self._keys = operator, letters, keys

    def keep(self, chunk: Chunk, refused: Sequence[Refused], keys: Sequence[str] | None) -> None:
        """Keep refused rows of a chunk."""
        self._letters.add(self._operator, chunk, refused, self._keys if keys is None else keys)

    def keep_lost(self, error: HeadraceError, key: Any) -> None:
        """Note what failed without a row."""
        self._letters.add_lost(self._operator, error, key)


def make_dead_letters(stage: Stage, task: int, runtime: RuntimeContext) -> list[DeadLetters]:
    """Return the output of a task for its dead letters; none where its stage makes none."""
    return [
        DeadLetters(binding, stage, task, runtime)
        for binding in stage.outputs
        if binding.operator == DEAD_LETTERS
    ]


def make_guard(
    operator: Operator, counts: Counter[str], stage: Stage, letters: Sequence[DeadLetters]
) -> Guard:
    """Return what takes the rows that an operator refuses.

    Without an output for dead letters, as in what leads up to calls, no row is kept.
    """
    if operator.on_error != DEAD_LETTER or not letters:
        return Guard(counts)
    keys = stage.keys_of(operator) if operator.inputs else None
    return DeadLetterGuard(operator.name, counts, letters[0], keys)


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
