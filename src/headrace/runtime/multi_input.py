"""``process`` of several streams: their rows of an epoch in one order, handled by one class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.errors import InternalError
from headrace.graph.introspection import function_site
from headrace.graph.processors import ProcessInput, method_of
from headrace.records.keys import encode_columns
from headrace.records.messages import key_values
from headrace.runtime.chunk import UNKNOWN, Chunk, Ints, RowOrigins, concat_chunks
from headrace.runtime.context import ProcessorCall
from headrace.runtime.node import Inlet, Node, Refused
from headrace.runtime.process import ProcessNode, passed_times
from headrace.runtime.user_calls import MessageMaker

BLOCK_ROWS = 1 << 15
"""So many messages are made at a time."""


class MultiInput(NamedTuple):
    """One of the streams: the operator before, what is known of it, and its columns."""

    upstream: str
    source: ProcessInput
    schema: pa.Schema


class MultiInputNode(ProcessNode):
    """Runs one instance of the user's class over all streams.

    Rows are kept until those of the epoch are all there. Then they come by key group, and there by
    event time; rows of one stream and key in the order in which they came, so that one that is
    out of order comes at the highest time before it. Of equal times the first stream is first.

    Args:
        name: of the operator.
        factory: makes the instance.
        current: of this task and operator.
        kinds: the streams.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        current: ProcessorCall,
        kinds: Sequence[MultiInput],
    ) -> None:
        first = kinds[0]
        super().__init__(
            name, factory, current, source=first.schema, uses=(), keys=first.source.keys
        )
        self._kinds = list(kinds)
        self._kept: list[list[Chunk]] = [[] for _ in kinds]
        self._methods = [self._method(kind.source.name) for kind in kinds]
        self._makers = [
            MessageMaker(
                name,
                kind.schema,
                kind.source.uses,
                kind.source.takes,
                function_site(method),
            )
            for kind, method in zip(kinds, self._methods, strict=True)
        ]
        self._calls: list[Callable[[Any, Any], Any]] = []
        self._parts: list[Chunk] = []
        self._which: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._process = self._dispatch

    def _method(self, stream: str) -> Callable[[Any, Any], Any]:
        for method in (method_of(stream), "process"):
            found: Callable[[Any, Any], Any] | None = getattr(self._user, method, None)
            if found is not None:
                return found
        raise InternalError(f"operator {self.name!r} has no method for stream {stream!r}")

    def _dispatch(self, message: Any, context: Any) -> Any:
        return self._calls[self._current.row](message, context)

    def inlet(self, upstream: str) -> Node:
        """Return what keeps the rows of one stream."""
        at = next(n for n, kind in enumerate(self._kinds) if kind.upstream == upstream)
        return Inlet(self, partial(self._keep, at))

    def _keep(self, at: int, chunk: Chunk) -> None:
        if self.guard is not None:
            chunk, _ = self._makers[at].of(chunk, self.guard)
        if chunk.rows:
            self._kept[at].append(chunk)

    def push(self, chunk: Chunk) -> None:
        """Rows enter by an inlet."""
        raise InternalError(f"rows for {self.name!r} that are of no stream")

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Handle the rows of the epoch, then the timers that are due."""
        taken, self._kept = self._kept, [[] for _ in self._kinds]
        found = [(at, concat_chunks(chunks)) for at, chunks in enumerate(taken) if chunks]
        keys = [list(kind.source.keys) for kind in self._kinds]
        for which, parts, marks in _blocks(found, keys):
            self._handle(which, parts, marks)
        self._calls, self._parts = [], []
        super().advance(watermark, wall_ms)

    def _handle(
        self, which: npt.NDArray[np.uint8], parts: dict[int, Chunk], marks: Ints | None
    ) -> None:
        """Handle some rows.

        Args:
            which: stream of each.
            parts: by stream, its rows in that order.
            marks: what has passed for each.
        """
        places = {at: np.flatnonzero(which == at) for at in parts}
        columns = {at: part.batch.select(self._kinds[at].source.keys) for at, part in parts.items()}
        keys = {at: key_values(columns[at]) for at in parts}
        for at, part in parts.items():
            self._load_remote(part.batch)
            assert part.groups is not None
            self._prefetch(columns[at], part.groups, keys[at])
        messages = {at: self._makers[at].make(part.batch) for at, part in parts.items()}
        calls = np.empty(len(which), object)
        names = np.empty(len(which), object)
        for at, own in places.items():
            calls[own] = self._methods[at]
            names[own] = self._kinds[at].source.name
        self._which, self._places, self._parts_of = which, places, parts
        self._calls, self._current.inputs = calls.tolist(), names.tolist()

        def owners() -> list[bytes]:
            encoded = {at: encode_columns(one.columns).to_list() for at, one in columns.items()}
            return _merged(len(which), places, encoded)

        self._take(
            _chunk(len(which), places, parts),
            _merged(len(which), places, messages),
            _merged(len(which), places, keys),
            owners,
            marks,
        )
        self._current.inputs = ()

    def _refuse(self, chunk: Chunk, refused: Sequence[Refused]) -> None:
        """Release rows, each as one of its own stream."""
        assert self.guard is not None
        for at, part in self._parts_of.items():
            own = [one for one in refused if self._which[one.row] == at]
            local = [Refused(self._local(one.row), one.error) for one in own]
            self.guard.take(part, local, self._kinds[at].source.keys)

    def _record(self, chunk: Chunk, row: int) -> dict[str, Any]:
        part = self._parts_of[int(self._which[row])]
        record: dict[str, Any] = part.batch.slice(self._local(row), 1).to_pylist()[0]
        return record

    def _local(self, row: int) -> int:
        return int(np.searchsorted(self._places[int(self._which[row])], row))


InputChunks = list[tuple[int, Chunk]]


def _blocks(
    found: InputChunks, keys: Sequence[list[str]]
) -> Iterator[tuple[npt.NDArray[np.uint8], dict[int, Chunk], Ints | None]]:
    """Yield the rows of all streams in their order, some at a time, and what passed for each."""
    if not found:
        return
    which = np.concatenate([np.full(chunk.rows, at, np.uint8) for at, chunk in found])
    order = _order(found, keys)
    ordered = which[order]
    begins = dict(zip((at for at, _ in found), _starts(found), strict=True))
    sorted_parts = {at: chunk.take(order[ordered == at] - begins[at]) for at, chunk in found}
    taken = dict.fromkeys(sorted_parts, 0)
    places = {at: np.flatnonzero(ordered == at) for at in sorted_parts}
    marks = passed_times([_chunk(len(order), places, sorted_parts)])
    for begin in range(0, len(order), BLOCK_ROWS):
        block = ordered[begin : begin + BLOCK_ROWS]
        parts = {}
        for at, part in sorted_parts.items():
            rows = int(np.count_nonzero(block == at))
            if rows:
                parts[at] = part.part(taken[at], taken[at] + rows)
                taken[at] += rows
        yield block, parts, None if marks is None else marks[0][begin : begin + BLOCK_ROWS]


def _starts(found: InputChunks) -> list[int]:
    begins: list[int] = np.cumsum([0, *(chunk.rows for _, chunk in found[:-1])]).tolist()
    return begins


def _order(found: InputChunks, keys: Sequence[list[str]]) -> Ints:
    """Return the rows of all streams, one stream after the other, in the order to handle them."""
    groups = np.concatenate([chunk.groups for _, chunk in found if chunk.groups is not None])
    if any(chunk.times is None for _, chunk in found):
        return np.argsort(groups, kind="stable")
    reached = np.concatenate([_reached(chunk, keys[at]) for at, chunk in found])
    return np.lexsort((reached, groups))


def _reached(chunk: Chunk, keys: list[str]) -> Ints:
    """The highest event time of each row's key so far."""
    frame = pl.from_arrow(chunk.batch.select(keys))
    assert isinstance(frame, pl.DataFrame)
    frame = frame.with_columns(pl.Series("__time", chunk.times))
    return frame.select(pl.col("__time").cum_max().over(keys)).to_series().to_numpy()


def _chunk(rows: int, places: dict[int, Ints], parts: dict[int, Chunk]) -> Chunk:
    """Return what goes along with the rows; of their columns it has none."""
    first = next(iter(parts.values()))

    def whole(dtype: Any, pick: Callable[[Chunk], Any]) -> Any:
        made = np.full(rows, UNKNOWN, dtype) if dtype != np.uint16 else np.empty(rows, dtype)
        for at, part in parts.items():
            own = pick(part)
            if own is not None:
                made[places[at]] = own
        return made

    is_traced = any(part.origins is not None for part in parts.values())
    return Chunk(
        pa.RecordBatch.from_arrays([pa.nulls(rows)], ["row"]),
        None if first.times is None else whole(np.int64, lambda part: part.times),
        None if first.watermarks is None else whole(np.int64, lambda part: part.watermarks),
        whole(np.uint16, lambda part: part.groups),
        None
        if not is_traced
        else RowOrigins(
            whole(np.int32, lambda part: part.origins and part.origins.sources),
            whole(np.int64, lambda part: part.origins and part.origins.offsets),
        ),
    )


def _merged(rows: int, places: dict[int, Ints], values: dict[int, list[Any]]) -> list[Any]:
    """Return the values of all streams in the order of the rows."""
    if len(values) == 1:
        return next(iter(values.values()))
    made = np.empty(rows, object)
    for at, own in values.items():
        made[places[at]] = np.fromiter(own, object, len(own))
    merged: list[Any] = made.tolist()
    return merged
