"""``join`` of two streams: pairs of rows with one key that are near each other in event time.

Each side keeps its rows of the epoch, sorted by code, over those that its table holds. New rows of
a side meet all rows of the other; pairs are found by search in sorted pieces, a block at a time.
Rows without a partner are sent alone once none can come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from headrace.graph.stream_joins import LATE_SIDES, JoinInterval, JoinStreams
from headrace.plan.stages import Stage
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import TableLayout, normalise
from headrace.records.xxh64 import UInt64s
from headrace.runtime.chunk import Chunk, Ints, concat_chunks
from headrace.runtime.node import Inlet, Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.orders import NO_WATERMARK
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import Mask, Rows, any_null, equal_rows, gather
from headrace.state.sorted_run import Block

BLOCK = 1 << 19
BLOCK_BYTES = 128 << 20
"""Pairs that are looked at together, and about how many bytes of columns they have."""

KEY_BITS, TIME_BITS = 0xFFFFFFFF_00000000, 0xFFFFFFFF
"""Of a code: those of the hash of the key, and those of the event time."""

_KEY, _TIME = np.uint64(KEY_BITS), np.uint64(TIME_BITS)


class JoinCodes:
    """Makes codes for pairs that are at most so far apart.

    Args:
        span_ms: from the earliest to the latest partner of a row.
    """

    def __init__(self, span_ms: int) -> None:
        # Half a round at most, so that few rows of a range are of another one.
        self._shift = max(0, span_ms.bit_length() - 31)

    def of(self, hashes: UInt64s, times: Ints) -> UInt64s:
        """Return the code of each row."""
        codes: UInt64s = (hashes & _KEY) | ((times >> self._shift).astype(np.uint64) & _TIME)
        return codes


class PairMatcher:
    """Finds pairs of a left and a right piece.

    Args:
        codes: that the pieces are sorted by.
        reach: which rows are near each other.
    """

    def __init__(self, codes: JoinCodes, reach: JoinInterval) -> None:
        self._codes, self._reach = codes, reach

    def pairs(self, left: Block, right: Block) -> Iterator[tuple[Rows, Rows]]:
        """Yield the rows of pairs side by side, a block at a time."""
        # The fewer rows are looked for among the others.
        if left.info.rows <= right.info.rows:
            yield from self._found(left, self._near(left, right, 0), right, 0)
            return
        for rows, others in self._found(right, self._near(right, left, 1), left, 1):
            yield others, rows

    def has_partner(self, piece: Block, rows: Rows, other: Block, side: int) -> Mask:
        """Say which rows of a piece are in a pair with any row of another one.

        Args:
            piece: on ``side``, 0: left.
            rows: of it, rising.
            other: on the other side.
            side: of the piece.
        """
        found = np.zeros(len(rows), bool)
        asked, first, counts = self._ranges(piece, rows, other, side)
        if not len(asked):
            return found
        # The first of a range nearly always is a partner; where it is none, all are asked.
        sure = self._is_pair(piece, rows[asked], other, first, side)
        found[asked[sure]] = True
        if not sure.all():
            left = np.flatnonzero(~sure)
            for own, others in _expanded(first[left], counts[left], BLOCK):
                places = asked[left[own]]
                is_pair = self._is_pair(piece, rows[places], other, others, side)
                found[places[is_pair]] = True
        return found

    def _near(self, piece: Block, other: Block, side: int) -> Rows:
        """The rows that are near any row of another piece, by the times of all."""
        reach, times = self._reach, piece.written
        (first, last), (begin, end) = piece.written_span, other.written_span
        if reach.last(first, side) >= begin and reach.first(last, side) <= end:
            return np.arange(piece.info.rows)
        return np.flatnonzero(
            (reach.last(times, side) >= begin) & (reach.first(times, side) <= end)
        )

    def _ranges(self, piece: Block, rows: Rows, other: Block, side: int) -> tuple[Rows, Rows, Rows]:
        """Where the partners of rows are: places in ``rows``, first row there, how many."""
        hashes, times = piece.hashes[rows], piece.written[rows]
        low = self._codes.of(hashes, self._reach.first(times, side))
        high = self._codes.of(hashes, self._reach.last(times, side))
        places = np.arange(len(rows))
        goes_round = low > high
        if goes_round.any():
            again = np.flatnonzero(goes_round)
            low = np.concatenate([low, low[again] & _KEY])
            high = np.concatenate([high, high[again]])
            high[again] |= _TIME
            places = np.concatenate([places, again])
        first = np.searchsorted(other.hashes, low)
        # Most ranges are empty, which one look shows.
        some = np.flatnonzero(other.hashes[np.minimum(first, other.info.rows - 1)] <= high)
        some = some[first[some] < other.info.rows]
        counts = np.searchsorted(other.hashes, high[some], side="right") - first[some]
        return places[some], first[some], counts

    def _found(
        self, piece: Block, rows: Rows, other: Block, side: int
    ) -> Iterator[tuple[Rows, Rows]]:
        places, first, counts = self._ranges(piece, rows, other, side)
        asked = rows[places]
        each = sum(held.batch.nbytes // held.info.rows for held in (piece, other))
        block = max(1, min(BLOCK, BLOCK_BYTES // max(1, each)))
        for own, theirs in _expanded(first, counts, block):
            mine = asked[own]
            is_pair = self._is_pair(piece, mine, other, theirs, side)
            if is_pair.all():
                yield mine, theirs
            elif is_pair.any():
                yield mine[is_pair], theirs[is_pair]

    def _is_pair(self, piece: Block, rows: Rows, other: Block, others: Rows, side: int) -> Mask:
        times, theirs = piece.written[rows], other.written[others]
        near: Mask = theirs >= self._reach.first(times, side)
        near &= theirs <= self._reach.last(times, side)
        return near & equal_rows(piece.keys, rows, other.keys, others)


def _expanded(first: Rows, counts: Rows, block: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield each element of ranges with the place of its range, a block at a time."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, block):
        end = min(begin + block, total)
        start = int(np.searchsorted(ends, begin, side="right"))
        stop = int(np.searchsorted(ends, end)) + 1
        own, low = counts[start:stop].copy(), first[start:stop].copy()
        skipped = begin - int(ends[start] - own[0])
        own[0] -= skipped
        low[0] += skipped
        own[-1] -= int(ends[stop - 1]) - end
        places = np.repeat(np.arange(start, stop), own)
        steps = np.arange(len(places)) - np.repeat(np.cumsum(own) - own, own)
        yield places, low[places - start] + steps


NEVER = 1 << 62


class JoinSide:
    """Gathers rows, sorts them by code, and stores those that are needed after the epoch.

    Args:
        table: of the rows of this side.
        keys: columns of the key in what comes; those of the table are in the same order.
        codes: that rows are sorted by.
        kept_ms: how far behind the watermark a row is still needed.
    """

    def __init__(
        self, table: ColumnarTable, keys: Sequence[str], codes: JoinCodes, kept_ms: int
    ) -> None:
        self._table, self._keys, self._codes = table, list(keys), codes
        self._kept = kept_ms
        self._batches: list[pa.RecordBatch] = []
        self._times: list[Ints] = []
        self._fresh: list[Block] = []
        self._stored_from = NEVER
        self.rows = self.size = 0

    def begin(self) -> None:
        """Turn to an epoch."""
        self._fresh, self._stored_from = [], NEVER

    def without_key(self, chunk: Chunk) -> Mask:
        """Say which rows have null in their key, and so no partner."""
        return any_null(chunk.batch.select(self._keys).columns)

    def add(self, chunk: Chunk) -> None:
        """Gather rows whose key is whole."""
        assert chunk.times is not None
        batch = self._columns(chunk)
        self._batches.append(batch)
        self._times.append(chunk.times)
        self.rows += chunk.rows
        self.size += batch.nbytes

    def piece_of(self, chunk: Chunk) -> Block:
        """Return rows as the table has them."""
        assert chunk.times is not None
        return self._sorted(self._columns(chunk), chunk.times)

    def _columns(self, chunk: Chunk) -> pa.RecordBatch:
        return chunk.batch.select([*self._keys, *self._table.layout.values.names])

    def _sorted(self, batch: pa.RecordBatch, times: Ints) -> Block:
        layout = self._table.layout
        schema = pa.schema([*layout.keys, *layout.values])
        columns = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        rows = normalise(pa.RecordBatch.from_arrays(columns, schema=schema), schema)
        hashes = encode_columns(rows.columns[: len(layout.keys)]).hashes()
        codes = self._codes.of(hashes, times)
        order = np.argsort(codes)
        arrays = [pa.array(codes[order]), pa.array(times[order])]
        arrays += [gather(column, order) for column in rows.columns]
        return Block.of(layout, pa.RecordBatch.from_arrays(arrays, schema=layout.schema))

    def take(self) -> Block | None:
        """Return what was gathered since the last call, sorted."""
        if not self.rows:
            return None
        batch = pa.Table.from_batches(self._batches).combine_chunks().to_batches()[0]
        piece = self._sorted(batch, np.concatenate(self._times))
        self._batches, self._times, self.rows, self.size = [], [], 0, 0
        return piece

    def hold(self, piece: Block) -> None:
        """Note rows that were taken: of the epoch so far, those that come later may need them."""
        self._fresh.append(piece)

    def pieces(self) -> Iterator[Block]:
        """Yield all rows of this task: of the table, and of the epoch.

        After rescales one file can be several runs of a table, each with some key groups of it.
        """
        for run in self._table.runs:
            yield from run.own
        yield from self._fresh

    def between(self, begin: int, end: int) -> Iterator[tuple[Block, Rows]]:
        """Yield the rows of this task that are of event times from one to before another."""
        for run in self._table.runs:
            yield from run.written_between(begin, end)
        for piece in self._fresh:
            rows = np.flatnonzero((piece.written >= begin) & (piece.written < end))
            if len(rows):
                yield piece, rows

    def store(self, watermark: int, due_from: int) -> None:
        """Store the rows of the epoch that the next ones need.

        Args:
            watermark: that the epoch ends at.
            due_from: the earliest event time of rows that are still to be looked at for
                themselves.
        """
        for piece in self._fresh:
            alive = piece.written + self._kept >= watermark
            rows = piece.batch if alive.all() else piece.batch.filter(pa.array(alive))
            self._table.append(rows)
            due = piece.written[alive & (piece.written >= due_from)]
            self._stored_from = min(self._stored_from, int(due.min(initial=NEVER)))
        self._fresh = []

    def first_from(self, due_from: int) -> int:
        """Return the earliest event time, from one on, that a stored row has; or ``NEVER``."""
        first = self._stored_from
        for run in self._table.runs:
            for piece in run.pieces:
                if piece.written_span[1] >= due_from:
                    times, _ = piece.by_written
                    first = min(first, int(times[np.searchsorted(times, due_from)]))
        return first


SEND_ROWS, SEND_BYTES = 1 << 16, 64 << 20
"""Rows that are sent together, at least, or their bytes, unless there are no more."""


@dataclass(frozen=True)
class PieceRows:
    """Rows of one piece."""

    piece: Block
    rows: Rows


class JoinResults:
    """Gathers rows of a result, and sends them in batches.

    Args:
        schema: of the result.
        operator: bound.
        layouts: of the rows of both sides.
        groups: number of key groups of the job.
        send: is given the rows.
    """

    def __init__(
        self,
        schema: pa.Schema,
        operator: JoinStreams,
        layouts: tuple[TableLayout, TableLayout],
        groups: int,
        send: Callable[[Chunk], None],
    ) -> None:
        self._schema, self._groups, self._send = schema, groups, send
        self._places = _places(schema, operator, layouts)
        self._chunks: list[Chunk] = []
        self._rows = self._size = 0

    def add(self, left: PieceRows | None, right: PieceRows | None) -> None:
        """Add pairs, or rows of one side that have no partner.

        The event time of a pair is the later one. Nothing says how far the watermark was.
        """
        sides = [own for own in (left, right) if own is not None]
        count = len(sides[0].rows)
        if not count:
            return
        times = sides[0].piece.written[sides[0].rows]
        for own in sides[1:]:
            times = np.maximum(times, own.piece.written[own.rows])
        hashes = sides[0].piece.hashes[sides[0].rows]
        arrays = [
            self._column(left, right, places, field.type, count)
            for places, field in zip(self._places, self._schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        unknown = np.full(count, NO_WATERMARK, np.int64)
        groups = key_groups(hashes, self._groups).astype(np.uint16)
        self._chunks.append(Chunk(batch, times, unknown, groups))
        self._rows += count
        self._size += batch.nbytes
        if self._rows >= SEND_ROWS or self._size >= SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered."""
        chunks, self._chunks, self._rows, self._size = self._chunks, [], 0, 0
        if chunks:
            self._send(concat_chunks(chunks))

    def _column(
        self,
        left: PieceRows | None,
        right: PieceRows | None,
        places: tuple[int, int],
        kind: pa.DataType,
        count: int,
    ) -> pa.Array:
        for own, at in ((left, places[0]), (right, places[1])):
            if own is not None and at >= 0:
                return gather(own.piece.batch.column(at), own.rows)
        return pa.nulls(count, kind)


def _places(
    schema: pa.Schema, operator: JoinStreams, layouts: tuple[TableLayout, TableLayout]
) -> list[tuple[int, int]]:
    """Return where each column of a result is in rows of the left and of the right side.

    A column of the key is in both, so that rows of either have it; any other in one.
    """
    left, right = (layout.schema for layout in layouts)
    key = dict(zip(*operator.by, strict=True))
    added = dict(operator.columns or ())
    places = []
    for name in schema.names:
        if name in added:
            places.append((-1, right.get_field_index(added[name])))
        else:
            own = right.get_field_index(key[name]) if name in key else -1
            places.append((left.get_field_index(name), own))
    return places


FLUSH_ROWS = 1 << 22
FLUSH_BYTES = 256 << 20


def join_layouts(stage: Stage, operator: JoinStreams) -> dict[str, TableLayout]:
    """Return the layouts of the tables of both sides, by store."""
    names = [spec.name for spec in operator.stores]
    return dict(zip(names, operator.layouts(stage), strict=True))


class JoinStreamsNode(Node):
    """See the module.

    Args:
        operator: bound.
        stage: its stage.
        tables: of the rows of the left and of the right side.
        key_groups: number of key groups of the job.
    """

    @classmethod
    def of(cls, operator: JoinStreams, build: NodeContext) -> Self:
        """Return the node of an operator of a stage."""
        tables = [build.stores.table(spec.name) for spec in operator.stores]
        return cls(operator, build.stage, tables, build.runtime.key_groups)

    def __init__(
        self,
        operator: JoinStreams,
        stage: Stage,
        tables: Sequence[ColumnarTable],
        key_groups: int,
    ) -> None:
        super().__init__(operator.name)
        self._reach = reach = operator.reach
        codes = JoinCodes(reach.span_ms)
        self._matcher = PairMatcher(codes, reach)
        self._alone = operator.alone
        kept_ms = reach.kept_ms(operator.alone)
        self._sides = [
            JoinSide(table, keys, codes, kept)
            for table, keys, kept in zip(tables, operator.by, kept_ms, strict=True)
        ]
        left, right = (table.layout for table in tables)
        schema = stage.schemas[operator.name]
        self._results = JoinResults(schema, operator, (left, right), key_groups, self.emit)
        self._delay = stage.delays.get(operator.name, 0)
        self._watermark = NO_WATERMARK
        self._free = list(enumerate(operator.inputs))

    def inlet(self, upstream: str) -> Node:
        """Return where rows of one side come in; a stream joined with itself is asked for twice."""
        side, _ = entry = next(entry for entry in self._free if entry[1] == upstream)
        self._free.remove(entry)
        return Inlet(self, lambda chunk: self._take(side, chunk))

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch."""
        self._watermark = watermark
        for side in self._sides:
            side.begin()

    def _take(self, number: int, chunk: Chunk) -> None:
        """Gather rows of a side: not those that are late, nor those that match nothing."""
        assert chunk.times is not None
        side = self._sides[number]
        seen = chunk.seen(self._delay, self._watermark)
        is_late = self._reach.late_after(chunk.times, number) < seen
        if is_late.any():
            self.counts["late"] += int(np.count_nonzero(is_late))
            self.emit(chunk.filter(is_late), LATE_SIDES[number])
            chunk = chunk.filter(~is_late)
        is_loose = side.without_key(chunk)
        if is_loose.any():
            self.counts["without_key"] += int(np.count_nonzero(is_loose))
            if self._alone[number]:
                self._send_loose(number, chunk.filter(is_loose))
            chunk = chunk.filter(~is_loose)
        if chunk.rows:
            side.add(chunk)
            if side.rows >= FLUSH_ROWS or side.size >= FLUSH_BYTES:
                self._match()

    def _send_loose(self, number: int, chunk: Chunk) -> None:
        piece = self._sides[number].piece_of(chunk)
        self._send_alone(number, piece, np.arange(piece.info.rows))

    def _send_alone(self, number: int, piece: Block, rows: Rows) -> None:
        own = PieceRows(piece, rows)
        self._results.add(*((own, None) if number == 0 else (None, own)))

    def _match(self) -> None:
        """Send the pairs of what was gathered with each other and with all that was before."""
        left, right = self._sides
        news = [side.take() for side in self._sides]
        for own, others in ((news[0], right), (news[1], left)):
            if own is not None:
                for other in others.pieces():
                    self._send_pairs(*((own, other) if others is right else (other, own)))
        if news[0] is not None and news[1] is not None:
            self._send_pairs(news[0], news[1])
        for side, piece in zip(self._sides, news, strict=True):
            if piece is not None:
                side.hold(piece)

    def _send_pairs(self, left: Block, right: Block) -> None:
        for mine, theirs in self._matcher.pairs(left, right):
            self._results.add(PieceRows(left, mine), PieceRows(right, theirs))

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send the last pairs and the rows that no partner can come for any more."""
        self._match()
        before, self._watermark = self._watermark, max(watermark, self._watermark)
        for number in (0, 1):
            if self._alone[number]:
                self._send_lonely(number, before, self._watermark)
        self._results.flush()
        for number, side in enumerate(self._sides):
            side.store(self._watermark, self._reach.due_below(self._watermark, number))

    def _send_lonely(self, number: int, before: int, upto: int) -> None:
        others, reach = self._sides[1 - number], self._reach
        begin, end = reach.due_below(before, number), reach.due_below(upto, number)
        for piece, rows in self._sides[number].between(begin, end):
            left = rows
            for other in others.pieces():
                if not len(left):
                    break
                left = left[~self._matcher.has_partner(piece, left, other, number)]
            if len(left):
                self._send_alone(number, piece, left)

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next row is sent that has no partner, if it has none."""
        reach = self._reach
        due = [
            reach.last(first, number) + reach.grace_ms + 1
            for number, side in enumerate(self._sides)
            if self._alone[number]
            and (first := side.first_from(reach.due_below(self._watermark, number))) < NEVER
        ]
        return min(due, default=None), None
