"""The aggregates of one operator on columns: partial results, how they combine, what is shown.

``Aggregation`` has the expressions; ``combine_ranges`` combines many ranges of rows at once;
``PartialCodec`` is the form of partial results in a key-value store. ``distinct``, ``together`` and
``event_times`` make what stands before the aggregates of a result: keys and moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate
from headrace.plan.stages import UNKEYED
from headrace.runtime.chunk import FEW_ROWS, Ints
from headrace.runtime.user_calls import guarded

_ROW, _FIRST_ROW = "__row", "__key"
_EARLIER = "<"
_TOO_WIDE = "conversion from `i128`"  # sums are made in 128 bits and kept in 64


class Aggregation:
    """The aggregates of one operator: their columns and expressions under one prefix each.

    Errors in the user's own aggregates name the operator.

    Args:
        operator: its name.
        aggregates: by name of the result column.
        source: schema of the messages.
    """

    def __init__(
        self, operator: str, aggregates: Sequence[tuple[str, Aggregate]], source: pa.Schema
    ) -> None:
        self._operator = operator
        self._all = [(f"{name}.", aggregate) for name, aggregate in aggregates]
        parts = {
            prefix: {prefix + part: kind for part, kind in a.partial_types(source).items()}
            for prefix, a in self._all
        }
        self._columns = {prefix: list(types) for prefix, types in parts.items()}
        self.codec = PartialCodec({n: kind for own in parts.values() for n, kind in own.items()})
        self._partial = [e for prefix, a in self._all for e in a.partial(prefix)]
        self._combine = [e for prefix, a in self._all for e in a.combine(prefix)]
        self._lift = [e for prefix, a in self._all for e in a.lift(prefix)]
        pairs = [a.combine_pair(_EARLIER + prefix, prefix) for prefix, a in self._all]
        every = all(pair is not None for pair in pairs)
        self._pairs = [e for pair in pairs for e in pair or ()] if every else None
        self._results = [a.result(prefix).alias(prefix[:-1]) for prefix, a in self._all]

    def reduced(self, frame: pl.DataFrame, by: Sequence[str], *beside: pl.Expr) -> pl.DataFrame:
        """Return one row of partials for each group of messages, with the columns ``beside``."""
        return self._guarded(lambda: frame.group_by(by).agg(*beside, *self._partial))

    def combined(self, frame: pl.DataFrame, by: Sequence[str], *beside: pl.Expr) -> pl.DataFrame:
        """Return one row of partials for each group of partials, combined in order."""
        return self._guarded(lambda: frame.group_by(by).agg(*beside, *self._combine))

    def paired(self, earlier: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
        """Return partials combined row by row; both frames hold partials alone, shape (n,)."""
        return self._guarded(lambda: self._pair(earlier, later))

    def _pair(self, earlier: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
        if self._pairs is not None:
            before = [column.alias(_EARLIER + column.name) for column in earlier.get_columns()]
            return later.hstack(before).select(self._pairs)
        rows = pl.Series(_ROW, np.arange(later.height))
        frames = [earlier.with_columns(rows), later.with_columns(rows)]
        both = pl.concat(frames, how="vertical_relaxed")
        return both.group_by(_ROW).agg(self._combine).sort(_ROW).drop(_ROW)

    def lifted(self, frame: pl.DataFrame, *beside: pl.Series) -> pl.DataFrame:
        """Return the partials of each message on its own."""
        return self._guarded(lambda: frame.select(*beside, *self._lift))

    def shown(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Return the columns that users see."""
        select = partials.select_seq if partials.height <= FEW_ROWS else partials.select
        return self._guarded(lambda: select(self._results))

    def accumulated(
        self, frame: pl.DataFrame, group: str, *, is_last_kept: bool = False
    ) -> pl.DataFrame:
        """Replace each row's partial by the running combination within its group, in order.

        Args:
            frame: partial rows.
            group: the column that says whose a row is.
            is_last_kept: only the last row of a group is combined with others; the others are
                only shown.
        """
        return self._guarded(lambda: self._accumulate(frame, group, is_last_kept=is_last_kept))

    def _accumulate(self, frame: pl.DataFrame, group: str, *, is_last_kept: bool) -> pl.DataFrame:
        expressions: list[pl.Expr] = []
        for prefix, aggregate in self._all:
            if is_last_kept and (made := aggregate.follow(frame, group, prefix)) is not None:
                frame = frame.with_columns(made)
                continue
            running = aggregate.accumulate(prefix)
            if running is None:
                frame = self._fold(frame, group, self._columns[prefix], aggregate)
            else:
                expressions += [e.over(group) for e in running]
        return frame.with_columns(expressions)

    @staticmethod
    def _fold(
        frame: pl.DataFrame, group: str, names: list[str], aggregate: Aggregate
    ) -> pl.DataFrame:
        latest: dict[object, tuple[object, ...]] = {}
        rows = []
        columns = [frame[name].to_list() for name in names]
        for key, *values in zip(frame[group].to_list(), *columns, strict=True):
            before = latest.get(key)
            now = tuple(values)
            latest[key] = now if before is None else aggregate.combine_values(before, now)
            rows.append(latest[key])
        series = [
            pl.Series(name, [row[i] for row in rows], dtype=frame.schema[name])
            for i, name in enumerate(names)
        ]
        return frame.with_columns(series)

    def _guarded(self, call: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        try:
            made: pl.DataFrame = guarded(self._operator, call)
        except InvalidInputError as error:
            if _TOO_WIDE not in error.message:
                raise
            raise InvalidInputError(
                f"operator {self._operator!r}: a sum of integers is beyond 64 bits; sum a float "
                "column instead",
                operator=self._operator,
            ) from error
        return made


def combine_ranges(
    aggregation: Aggregation, rows: pl.DataFrame, starts: Ints, stops: Ints
) -> pl.DataFrame:
    """Return one row of partials for each range, in the order of the ranges, which may overlap.

    Blocks of 1, 2, 4 ... rows are combined once, those that some range needs and no others, and a
    range is put together of a block for each bit of its length: so n rows cost n log n steps, not n
    for each window. Earlier rows stay before later ones, which user monoids may rely on.

    Args:
        aggregation: of the partials.
        rows: partial columns alone; shape (n,).
        starts: the first row of each range; shape (m,).
        stops: the row after its last, at least one further; shape (m,).
    """
    uses = _uses(starts, stops)
    needed = _needed(uses)
    blocks, made, places = rows[needed[0]], rows.clear(), np.full(len(starts), -1)
    for level, (chosen, begins) in enumerate(uses):
        ranges = chosen
        if level:
            halves = [
                blocks[np.searchsorted(needed[level - 1], needed[level] + begin)]
                for begin in (0, 1 << level - 1)
            ]
            blocks = aggregation.paired(*halves)
        if not len(ranges):
            continue
        own = blocks[np.searchsorted(needed[level], begins)]
        before = places[ranges]
        follows = before >= 0
        if follows.any():
            joined = aggregation.paired(made[before[follows]], own.filter(pl.Series(follows)))
            own = pl.concat([own.filter(pl.Series(~follows)), joined], how="vertical_relaxed")
            ranges = np.concatenate([ranges[~follows], ranges[follows]])
        places[ranges] = np.arange(made.height, made.height + len(ranges))
        made = pl.concat([made, own], how="vertical_relaxed")
    return made[places]


def _uses(starts: Ints, stops: Ints) -> list[tuple[Ints, Ints]]:
    """For each size of blocks which ranges use one, and at which row it begins."""
    lengths, at, uses = stops - starts, starts.copy(), []
    for level in range(int(lengths.max()).bit_length()):
        own = np.flatnonzero(lengths >> level & 1)
        uses.append((own, at[own]))
        at[own] += 1 << level
    return uses


def _needed(uses: list[tuple[Ints, Ints]]) -> list[Ints]:
    """For each size the rows at which blocks begin that are used, or are half of one that is."""
    needed: list[Ints] = []
    above = np.empty(0, np.int64)
    for level in range(len(uses) - 1, -1, -1):
        halves = [above, above + (1 << level)]
        above = np.unique(np.concatenate([uses[level][1], *halves]))
        needed.append(above)
    return needed[::-1]


class PartialCodec:
    """Turns rows of partial columns into bytes and back: the form of a key-value store.

    Rows of fixed width are NumPy records with a bit for each null, so a million of them are
    read and written without a Python step each; others are MessagePack arrays.

    Args:
        types: Arrow type of each partial column, in order.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self._types = dict(types)
        self.arrow = pa.schema(list(self._types.items()))
        frame = pl.from_arrow(self.arrow.empty_table())
        assert isinstance(frame, pl.DataFrame)
        self.schema = frame.schema
        self._packed = pl.Schema({name: _packed(kind) for name, kind in self.schema.items()})
        plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        self._fixed = all(any(test(kind) for test in plain) for kind in self._types.values())
        words = -(-len(self._types) // 64)
        fields: list[Any] = [("__nulls", "<u8", (words,))]
        if self._fixed:
            fields += [(name, _numpy_type(kind)) for name, kind in self._types.items()]
        self._record = np.dtype(fields)

    def encode(self, frame: pl.DataFrame) -> list[bytes]:
        """Return one value for each row."""
        if not self._fixed:
            packed = frame[self.schema.names()].cast(self._packed)
            columns = [column.to_list() for column in packed]
            pack = msgspec.msgpack.Encoder().encode
            return [pack(row) for row in zip(*columns, strict=True)]
        records = np.zeros(frame.height, self._record)
        for number, name in enumerate(self._types):
            column = frame[name]
            if column.null_count():
                word, bit = divmod(number, 64)
                flags = column.is_null().to_numpy().astype(np.uint64)
                records["__nulls"][:, word] |= flags << np.uint64(bit)
                column = column.fill_null(strategy="zero")
            records[name] = column.to_numpy()
        data, width = records.tobytes(), self._record.itemsize
        return [data[at : at + width] for at in range(0, len(data), width)]

    def decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        """Return the rows of values that ``encode`` made."""
        if not self._fixed:
            rows = [msgspec.msgpack.decode(value) for value in values]
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._types)
            frame = pl.DataFrame(
                [
                    pl.Series(name, column, dtype=kind)
                    for (name, kind), column in zip(self._packed.items(), columns, strict=True)
                ]
            )
            return frame.cast(self.schema)
        records = np.frombuffer(b"".join(values), self._record)
        frame = pl.DataFrame(
            {name: np.ascontiguousarray(records[name]) for name in self._types}, schema=self.schema
        )
        nulls = records["__nulls"]
        absent = {
            name: nulls[:, number // 64] >> np.uint64(number % 64) & np.uint64(1)
            for number, name in enumerate(self._types)
            if nulls.any()
        }
        return frame.with_columns(
            pl.when(pl.Series(flags == 0)).then(pl.col(name)).alias(name)
            for name, flags in absent.items()
            if flags.any()
        )


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the type of a number or a truth value; older versions of Arrow need pandas for it."""
    if pa.types.is_boolean(kind):
        return np.dtype(bool)
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def _packed(kind: pl.DataType) -> pl.DataType:
    """Return the type that MessagePack keeps apart from all others: moments as integers."""
    if isinstance(kind, pl.List):
        return pl.List(_packed(kind.inner))  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return pl.Struct({field.name: _packed(field.dtype) for field in kind.fields})  # type: ignore[arg-type]
    if isinstance(kind, pl.Decimal):
        return pl.String()
    return pl.Int64() if kind.is_temporal() else kind


def distinct(frame: pl.DataFrame, keys: list[str]) -> tuple[pl.DataFrame, Ints]:
    """Return the distinct keys of a frame, and for each row the place of its key among them."""
    # Not by a join: Polars 2.1 finds no partner for NaN where a side has one row.
    firsts = (
        frame.with_row_index(_FIRST_ROW).select(pl.col(_FIRST_ROW).first().over(keys)).to_series()
    )
    rows, numbers = np.unique(firsts.to_numpy(), return_inverse=True)
    return frame[keys][rows], numbers.astype(np.int64)


def together() -> pl.Expr:
    """Return the key column of messages that are all of one key."""
    return pl.lit(0, pl.Int64).alias(UNKEYED)


def event_times(moments_ms: Ints) -> pa.Array:
    """Return event times as a timestamp column."""
    # A window of the first or the last day would reach beyond what an event time may be.
    shown = np.clip(moments_ms, MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS - 1)
    return pa.array(shown * 1000).cast(pa.timestamp("us", tz="UTC"))
