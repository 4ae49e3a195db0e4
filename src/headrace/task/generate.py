"""``monoid``: calls the user's processor, and combines partial results until the epoch ends."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.operators import Generate
from headrace.graph.processors import MonoidProcessor
from headrace.plan.stages import CallLimits
from headrace.task.chunk import Chunk, Ints
from headrace.task.messages.calls import guarded
from headrace.task.messages.mapped import MessageCalls, too_many
from headrace.task.node import Node
from headrace.task.orders import NO_WATERMARK

HELD_KEYS = 1 << 20
"""Keys held at a time; beyond, those so far are sent on within the epoch."""

_ALLOWED: dict[pa.DataType, tuple[type, ...]] = {
    pa.string(): (str,),
    pa.int64(): (int,),
    pa.float64(): (float, int),
    pa.bool_(): (bool,),
    pa.binary(): (bytes,),
}


@contextmanager
def collected_later() -> Iterator[None]:
    """Look for cyclic garbage when the batch is done.

    Keys and partial results by the hundred thousand are no garbage, but Python looks through all of
    them each time that a few hundred more were made: three quarters of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class GenerateNode(Node):
    """Combines partial results by key; with ``every_ms`` by the instant they count at, too.

    Args:
        operator: with the user's factory.
        source: schema of the messages.
        limits: of each call.
        delay_ms: how far the operator's watermark lags the one that rows came with.
    """

    def __init__(
        self, operator: Generate, source: pa.Schema, limits: CallLimits, delay_ms: int
    ) -> None:
        super().__init__(operator.name)
        assert operator.function is not None
        assert operator.returns is not None
        self._schema, self._every, self._delay = operator.returns, operator.every_ms, delay_ms
        self._user: MonoidProcessor[Any, Any] = guarded(self.name, operator.function)  # type: ignore[arg-type]
        self._limits, self._width = limits, len(self._schema) - 1
        kinds = [_ALLOWED.get(field.type) for field in list(self._schema)[:-1]]
        self._allowed = [frozenset((*kind, type(None))) if kind else None for kind in kinds]
        self._held: dict[Any, Any] = {}
        self._calls = MessageCalls(
            self.name,
            self._user.process,
            source=source,
            uses=operator.uses,
            limits=limits,
            convert=self._checked,
            takes=operator.takes,
        )
        self._tell("open")

    def _tell(self, method: str) -> None:
        if hasattr(self._user, method):
            guarded(self.name, getattr(self._user, method))

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Forget what an attempt before left."""
        self._held = {}

    def push(self, chunk: Chunk) -> None:
        """Combine the partial results of each row with those of the epoch."""
        with collected_later():
            chunk, results = self._calls.results(chunk, self.guard)
            guarded(self.name, lambda: self._combine(results, self._cells(chunk)))
        if len(self._held) > HELD_KEYS:
            self._send()

    def _cells(self, chunk: Chunk) -> list[int] | None:
        """Return the beginning of the span between two instants that each row counts in."""
        if self._every is None:
            return None
        assert chunk.times is not None
        assert chunk.watermarks is not None
        effective = np.maximum(chunk.times, chunk.watermarks - self._delay)
        cells: list[int] = (effective // self._every * self._every).tolist()
        return cells

    def _combine(self, results: list[list[tuple[Any, Any]]], cells: list[int] | None) -> None:
        held, combine = self._held, self._user.combine
        absent = _ABSENT
        for row, pairs in enumerate(results):
            for pair in pairs:
                key, partial = pair
                if cells is not None:
                    key = cells[row], key
                before = held.get(key, absent)
                held[key] = partial if before is absent else combine(before, partial)

    def _checked(self, pairs: Any) -> list[tuple[Any, Any]]:
        """Run what is returned to its end, and look at its keys: a mistake is that message's."""
        if isinstance(pairs, str | bytes | Mapping) or not isinstance(pairs, Iterable):
            raise self._unfit(f"returned {pairs!r:.200}", "pairs of a key and a partial result")
        limit = self._limits.rows
        found = list(pairs) if limit is None else list(islice(pairs, limit + 1))
        if limit is not None and len(found) > limit:
            raise too_many(self.name, limit)
        for pair in found:
            if type(pair) is not tuple or len(pair) != 2:
                raise self._unfit(f"made {pair!r:.200}", "a pair of a key and a partial result")
            self._check_key(pair[0])
        return found

    def _check_key(self, key: Any) -> None:
        parts = (key,) if self._width == 1 else key
        if type(parts) is not tuple or len(parts) != self._width:
            raise self._unfit(f"made the key {key!r:.200}", f"a tuple of {self._width} values")
        for part, allowed in zip(parts, self._allowed, strict=True):
            if allowed is not None and type(part) not in allowed:
                names = ", ".join(self._schema.names[:-1])
                raise self._unfit(f"made the key {key!r:.200}", f"values for columns {names}")

    def _unfit(self, found: str, expected: str) -> FunctionResultError:
        return FunctionResultError(
            f"operator {self.name!r} {found}; expected {expected}", operator=self.name
        )

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send what the epoch made: one row for each key."""
        with collected_later():
            self._send()

    def _send(self) -> None:
        held, self._held = self._held, {}
        if not held:
            return
        times: Ints | None = None
        keys = list(held)
        if self._every is not None:
            times = np.fromiter((cell for cell, _ in keys), np.int64, len(keys))
            keys = [key for _, key in keys]
        columns = [keys] if self._width == 1 else list(zip(*keys, strict=True))
        arrays = [
            self._array(values, field) for values, field in zip(columns, self._schema, strict=False)
        ]
        arrays.append(pa.array(self._encoded(held.values()), pa.binary()))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        past = None if times is None else np.full(len(keys), NO_WATERMARK, np.int64)
        self.counts["partials"] += len(keys)
        self.emit(Chunk(batch, times, past))

    def _array(self, values: Any, field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise self._unfit(
                f"made keys that do not fit column {field.name!r}: {error}", str(field.type)
            ) from error

    def _encoded(self, partials: Iterable[Any]) -> list[bytes]:
        try:
            return list(map(_ENCODER.encode, partials))
        except (TypeError, OverflowError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"operator {self.name!r} made a partial result that cannot be kept: {error}; make "
                "builtins, msgspec structs, dataclasses or containers of these",
                operator=self.name,
            ) from error

    def close(self) -> None:
        """Let the user's class release what it took."""
        self._tell("close")


_ABSENT: Any = object()
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
