"""Runs processors with a contract: see ``headrace.graph.processors``.

Stateless and stateful ones through ``process``. ``monoid`` has a node of its own, which combines
partial results by key until the epoch ends.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.introspection import name_of, runs_later
from headrace.graph.operators import Generate
from headrace.graph.processors import (
    CONTRACTS,
    STATE,
    MonoidProcessor,
    StatefulProcessor,
    StatelessProcessor,
    class_of,
    contract_of,
)
from headrace.plan.stages import CallLimits
from headrace.runtime.chunk import Chunk, Ints
from headrace.runtime.context import Context
from headrace.runtime.node import Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.orders import NO_WATERMARK
from headrace.runtime.timers import Timer
from headrace.runtime.user_calls import MessageCalls, guarded, too_many_error

_MISSING: Any = object()
_METHODS = ("process", "process_async", "open", "on_timer", "close")


def runner_of(factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return a factory of what ``ProcessNode`` calls, for one that users give to ``process``."""
    contract = contract_of(factory)
    if contract is StatelessProcessor:
        return lambda: StatelessRunner(factory())
    if contract is StatefulProcessor:
        return lambda: StatefulRunner(factory())
    return lambda: _checked(factory(), is_known=class_of(factory) is not None)


def _checked(made: Any, *, is_known: bool) -> Any:
    """Refuse what a function made that only a class says: its state, or how it is called."""
    if is_known:
        return made
    methods = [name for name in _METHODS if runs_later(getattr(made, name, None))]
    if methods:
        kind = type(made).__name__
        raise InvalidInputError(
            f"process got a function that makes a {kind}, whose {methods[0]} is a generator or "
            f"async; give the class itself, or functools.partial({kind}, ...), where it is async, "
            "else make it a plain method that sends with context.emit"
        )
    if isinstance(made, CONTRACTS):
        kind = type(made).__name__
        raise InvalidInputError(
            f"process got a function that makes a {kind}; give the class itself, or "
            f"functools.partial({kind}, ...), which says what it keeps"
        )
    return made


class _Runner:
    """What runners share: the user's object, with the context while it is called."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._name = name_of(type(user))

    def open(self, context: Context) -> None:
        """Give the user's object its context, and let it take what it needs."""
        self._user.context = context
        if hasattr(self._user, "open"):
            self._user.open()

    def close(self) -> None:
        """Let the user's object release what it took."""
        if hasattr(self._user, "close"):
            self._user.close()

    def _send(self, outputs: Any, context: Context) -> None:
        if outputs is None:
            return
        if isinstance(outputs, str | bytes | Mapping) or not isinstance(outputs, Iterable):
            raise FunctionResultError(
                f"{self._name} returned {outputs!r:.200} as outputs; expected an iterable of "
                "messages, or None: put a single message into a list"
            )
        for output in outputs:
            context.emit(output)


class StatelessRunner(_Runner):
    """Sends on what a ``StatelessProcessor`` returns."""

    def process(self, message: Any, context: Context) -> None:
        """Handle a message."""
        self._send(self._user.process(message), context)


class StatefulRunner(_Runner):
    """Gives a ``StatefulProcessor`` the state of its key, and keeps the new one."""

    def __init__(self, user: StatefulProcessor[Any]) -> None:
        super().__init__(user)
        if hasattr(user, "on_timer"):
            self.on_timer = self._on_timer

    def process(self, message: Any, context: Context) -> None:
        """Handle a message."""
        self._turn(self._user.process, message, context)

    def _on_timer(self, timer: Timer, context: Context) -> None:
        self._turn(self._user.on_timer, timer, context)

    def _turn(self, call: Callable[[Any, Any], Any], met: Any, context: Context) -> None:
        store, key = context.store(STATE), context.key
        state = store.get(key, _MISSING)
        is_new = state is _MISSING
        result = call(met, self._user.begin() if is_new else state)
        if type(result) is not tuple or len(result) != 2:
            raise FunctionResultError(
                f"{self._name} returned {result!r:.200}; expected a pair: outputs and the new state"
            )
        self._send(result[0], context)
        if result[1] is not None:
            store.put(key, result[1])
        elif not is_new:
            store.delete(key)


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
def deferred_gc() -> Iterator[None]:
    """Look for cyclic garbage when the batch is done.

    Keys, partial results or messages by the thousand are no garbage, but Python looks through all
    of them each time that a few hundred more were made: three quarters of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class PreAggregateNode(Node):
    """Combines partial results by key; with ``every_ms`` by the instant they count at, too.

    Args:
        operator: with the user's factory.
        source: schema of the messages.
        limits: of each call.
        delay_ms: how far the operator's watermark lags the one that rows came with.
    """

    @classmethod
    def of(cls, operator: Generate, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        source, delay_ms = build.source_schema(operator), build.stage.delays[operator.name]
        return cls(operator, source, build.runtime.limits, delay_ms)

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
        self._call_if_there("open")

    def _call_if_there(self, method: str) -> None:
        if hasattr(self._user, method):
            guarded(self.name, getattr(self._user, method))

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Forget what an attempt before left."""
        self._held = {}

    def push(self, chunk: Chunk) -> None:
        """Combine the partial results of each row with those of the epoch."""
        with deferred_gc():
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
            raise too_many_error(self.name, limit)
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
        with deferred_gc():
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
        self._call_if_there("close")


_ABSENT: Any = object()
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
