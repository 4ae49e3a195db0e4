"""``process`` with calls that end later.

In a stage that is partitioned by key, messages whose calls have not taken effect by the end of an
epoch are kept in the task's state (``PendingRows``). A stage that reads by offset keeps no state.
So an epoch asks first: nodes of their own bring rows up to the calls, and as far as all of these
have ended is what the epoch reads. Then it reads just that, as any other stage; where a call is
to be made its result is at hand.
"""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.operators import CallPolicy as Spec
from headrace.plan.stages import OFFSET, ORIGIN, TIME, WATERMARK
from headrace.records.keys import decode_key, encode_key, encode_value
from headrace.records.messages import key_values
from headrace.runtime.async_calls import AsyncCalls, CallRow
from headrace.runtime.async_loop import CallLoop, Owner
from headrace.runtime.chunk import Chunk, Groups, Ints, Mask, OriginIds, from_exchange
from headrace.runtime.context import NO_GROUP
from headrace.runtime.dead_letters import from_record, to_record
from headrace.runtime.node import Guard, Node, Refused
from headrace.runtime.orders import NO_WATERMARK
from headrace.runtime.process import ProcessNode
from headrace.runtime.user_calls import SideOutputRouter, with_rare_gc
from headrace.state.store import KeyValueStore

PENDING_KIND = 2
"""After those of event and wall timers."""


class PendingPosition(NamedTuple):
    """Where a message stands: the epoch that brought it, and its number in that."""

    group: int
    epoch: int
    number: int

    @property
    def full(self) -> bytes:
        """The key of its entry."""
        return self.group.to_bytes(2, "big") + encode_key((PENDING_KIND, self.epoch, self.number))


class PendingBatch(NamedTuple):
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

    def __init__(self, store: KeyValueStore, groups: tuple[int, int], origin: OriginIds) -> None:
        self._store, self._groups, self._origin = store, groups, origin

    def put(self, chunk: Chunk, rows: Iterable[tuple[int, PendingPosition]]) -> None:
        """Keep rows of a chunk."""
        wanted = list(rows)
        if not wanted:
            return
        batch = self._bare(chunk.take(np.array([row for row, _ in wanted], np.int64)))
        records = [to_record(batch, at) for at in range(batch.num_rows)]
        self._store.put_many([place.full for _, place in wanted], records)

    def remove(self, places: Iterable[PendingPosition]) -> None:
        """Release rows whose calls have taken effect."""
        keys = [place.full for place in places]
        if keys:
            self._store.put_many(keys, [None] * len(keys))

    def read(self) -> list[PendingBatch]:
        """Return what is kept, by runs of rows with the same columns."""
        found = sorted(
            ((epoch, number, group), record)
            for group, epoch, number, record in _entries(self._store, self._groups)
        )
        runs: list[PendingBatch] = []
        begin = 0
        batches = [from_record(record) for _, record in found]
        for end in range(1, len(found) + 1):
            if end < len(found) and batches[end].schema.equals(batches[begin].schema):
                continue
            places = [place for place, _ in found[begin:end]]
            whole = pa.concat_batches(batches[begin:end])
            groups = np.array([group for _, _, group in places], np.uint16)
            epochs, numbers = (np.array([p[at] for p in places], np.int64) for at in (0, 1))
            runs.append(PendingBatch(self._whole(whole, groups), epochs, numbers))
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
        head = group.to_bytes(2, "big") + encode_value(PENDING_KIND)
        for full, record in store.scan(head, head + b"\xff"):
            _, epoch, number = decode_key(full[2:])
            yield group, epoch, number, record


def has_pending(store: KeyValueStore, groups: tuple[int, int]) -> bool:
    """Say whether messages wait in the state of a task, left by asynchronous calls."""
    return any(True for _ in _entries(store, groups))


BLOCK_ROWS, FLUSH_ROWS = 4096, 2048


@dataclass
class _UnmadeRows:
    """Rows of which no messages are made yet, the place of each, and whether these are kept."""

    chunk: Chunk
    epochs: Ints
    numbers: Ints
    kept: Mask

    def split(self, rows: int) -> tuple[_UnmadeRows, _UnmadeRows]:
        return self._part(0, rows), self._part(rows, self.chunk.rows)

    def _part(self, begin: int, end: int) -> _UnmadeRows:
        cut = slice(begin, end)
        chunk = self.chunk.part(begin, end)
        return _UnmadeRows(chunk, self.epochs[cut], self.numbers[cut], self.kept[cut])

    def places(self) -> list[PendingPosition]:
        assert self.chunk.groups is not None
        columns = (self.chunk.groups, self.epochs, self.numbers)
        return list(map(PendingPosition, *(column.tolist() for column in columns)))


class RefusalCollector(Guard):
    """Stands for a guard while messages are made, and keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(Counter())
        self.rows: list[Refused] = []

    def keep(self, chunk: Chunk, refused: Sequence[Refused], keys: Sequence[str] | None) -> None:
        """Keep rows of which no message can be made."""
        self.rows = list(refused)


class _CallingNode(ProcessNode):
    """Has the calls of one task.

    Args:
        spec: how calls are made.
        loop: of the process.
        owner: whose calls they are.
        **named: as of ``ProcessNode``.
    """

    def __init__(
        self, *positional: Any, spec: Spec, loop: CallLoop, owner: Owner, **named: Any
    ) -> None:
        self._loop = loop
        super().__init__(*positional, **named)
        self.calls = AsyncCalls(
            spec,
            self._current.limits,
            self._current,
            self._user,
            loop=loop,
            owner=owner,
            apply=self._apply,
            refill=self._refill,
            settle=self._settle,
        )

    def _settled(self, result: Any) -> Any:
        return self._loop.settle(result) if inspect.iscoroutine(result) else result

    def _apply(self, row: CallRow) -> None:
        raise NotImplementedError

    def _refill(self) -> bool:
        raise NotImplementedError

    def _settle(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give up open calls, and close the user's object."""
        self.calls.leave()
        super().close()


class AsyncNode(_CallingNode):
    """Runs the calls of one task that is a range of key groups.

    Between epochs it holds messages whose calls have not taken effect; the task's state holds
    them, too.

    Args:
        pending: where messages are kept.
        **named: as of ``_CallingNode``.
    """

    def __init__(self, *positional: Any, pending: PendingRows, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._kept = pending
        self._backlog: deque[_UnmadeRows] = deque()
        self._sent: list[CallRow] = []
        self._gone: list[PendingPosition] = []
        self._stored: set[PendingPosition] = set()
        self._count = 0
        self.is_chained = self.is_fresh = False
        for kept in pending.read():
            flags = np.ones(kept.chunk.rows, np.bool_)
            self._backlog.append(_UnmadeRows(kept.chunk, kept.epochs, kept.numbers, flags))

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; calls continue that were open."""
        super().begin(epoch, wall_ms, watermark)
        self._count = 0

    @property
    def has_timers(self) -> bool:
        """Timers fire at the end of an epoch only: between rows calls are open."""
        return False

    def expect(self, watermark: int) -> None:
        """No timer fires before rows."""

    def push(self, chunk: Chunk) -> None:
        """Take rows, whose calls begin once the loop runs."""
        rows = chunk.rows
        numbers = np.arange(self._count, self._count + rows, dtype=np.int64)
        epochs = np.full(rows, self._current.epoch, np.int64)
        self._backlog.append(_UnmadeRows(chunk, epochs, numbers, np.zeros(rows, np.bool_)))
        self._count += rows
        self.is_fresh = True

    def _refill(self) -> bool:
        """Make messages of the rows that came first."""
        if not self._backlog:
            return False
        block = self._backlog.popleft()
        if block.chunk.rows > BLOCK_ROWS:
            block, rest = block.split(BLOCK_ROWS)
            self._backlog.appendleft(rest)
        refusals = None if self.guard is None else RefusalCollector()
        chunk, messages = self._maker.of(block.chunk, refusals)
        places, kept = block.places(), block.kept.tolist()
        if refusals is not None and refusals.rows:
            assert self.guard is not None
            self.guard.take(block.chunk, refusals.rows)
            refused = {one.row for one in refusals.rows}
            self._gone += [places[row] for row in refused if kept[row]]
            stay = [row for row in range(len(places)) if row not in refused]
            places, kept = [places[row] for row in stay], [kept[row] for row in stay]
        self._stored.update(place for place, is_kept in zip(places, kept, strict=True) if is_kept)
        key_columns = chunk.batch.select(self._keys)
        keys = key_values(key_columns)
        assert chunk.groups is not None
        self._prefetch(key_columns, chunk.groups, keys)
        for at, (message, place) in enumerate(zip(messages, places, strict=True)):
            key = keys[at] if keys else None
            self.calls.add(CallRow(chunk, at, message, key, place.group, place))
        return True

    def _apply(self, row: CallRow) -> None:
        """Let a call take effect, or do with its message as ``on_error`` says."""
        place: PendingPosition = row.place
        if place in self._stored:
            self._stored.remove(place)
            self._gone.append(place)
        error = row.error
        assert row.effects is not None
        if error is None and self.guard is not None and row.effects.messages:
            error = self._unfit(row)
        if error is not None:
            if self.guard is None:
                raise error
            self.guard.take(row.chunk, [Refused(row.at, error)])
            return
        self._current.enter(row.group)
        row.effects.apply(self._current, _watermark(row.chunk, row.at))
        if row.effects.messages:
            self._sent.append(row)

    def _unfit(self, row: CallRow) -> InvalidInputError | None:
        assert row.effects is not None
        try:
            self._router.packed(row.effects.messages)
        except InvalidInputError as error:
            return error
        return None

    def _settle(self) -> None:
        if self._sent and (self.is_chained or len(self._sent) >= FLUSH_ROWS):
            self.send()

    def send(self) -> None:
        """Send on what calls that have taken effect have sent."""
        sent, self._sent = self._sent, []
        sent.sort(key=lambda row: (row.place.epoch, row.place.number))  # as they came, per key
        for rows in _by_chunk(sent):
            messages, places = emitted_rows(rows)
            try:
                batches = self._router.packed(messages)
            except InvalidInputError as error:
                batch = rows[0].chunk.batch
                raise self._router.refused(error, messages, places, batch) from error
            for side_batch in batches:
                self.emit(side_batch.of(rows[0].chunk, places), side_batch.side)

    @property
    def is_busy(self) -> bool:
        """Say whether messages wait for calls that have not taken effect."""
        return bool(self._backlog) or not self.calls.rules.is_done

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Keep what has not taken effect, and fire timers, never beside an open call."""
        self.send()
        is_due = self._is_due(watermark, wall_ms)
        if is_due and self.calls.is_open:
            self.calls.rules.want_quiet()
        else:
            self.calls.rules.resume()
            super().advance(watermark, wall_ms)
        self.keep()

    def _is_due(self, watermark: int, wall_ms: int) -> bool:
        event, wall = super().deadlines()
        return (event is not None and event <= watermark) or (wall is not None and wall <= wall_ms)

    def keep(self) -> None:
        """Write down which messages wait."""
        self._kept.remove(self._gone)
        self._gone.clear()
        for rows in _by_chunk(list(self.calls.rows.values())):
            fresh = [(row.at, row.place) for row in rows if row.place not in self._stored]
            self._kept.put(rows[0].chunk, fresh)
            self._stored.update(place for _, place in fresh)
        for block in self._backlog:
            new = np.flatnonzero(~block.kept).tolist()
            if new:
                places = block.places()
                self._kept.put(block.chunk, [(row, places[row]) for row in new])
                block.kept[:] = True
        self.counts.update(self.calls.take_counts())

    def mark(self) -> int | None:
        """Return the watermark that what waits holds back; ``None`` where nothing waits."""
        if not self.is_busy:
            return None
        marks = [_watermark(row.chunk, row.at) for row in self.calls.rows.values()]
        return min([*marks, *(_watermark(block.chunk) for block in self._backlog)])

    @property
    def waiting(self) -> int:
        """Messages whose calls have not taken effect."""
        return len(self.calls.rows) + sum(block.chunk.rows for block in self._backlog)

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when something is due: at once, while messages wait."""
        event, wall = super().deadlines()
        return event, (self._current.wall_ms if self.is_busy else wall)


def _watermark(chunk: Chunk, row: int | None = None) -> int:
    """The watermark of a row's own partition just before it; of all rows the least."""
    known = chunk.watermarks
    if known is None:
        return NO_WATERMARK
    return int(known.min() if row is None else known[row])


def _by_chunk(rows: list[CallRow]) -> list[list[CallRow]]:
    """Return rows of the same chunk together."""
    by_chunk: dict[int, list[CallRow]] = {}
    for row in rows:
        by_chunk.setdefault(id(row.chunk), []).append(row)
    return list(by_chunk.values())


def emitted_rows(rows: list[CallRow]) -> tuple[list[Any], list[int]]:
    """Return what the calls of rows of one chunk have sent, and of which row each message is."""
    messages: list[Any] = []
    places: list[int] = []
    for row in rows:
        assert row.effects is not None
        messages += row.effects.messages
        places += [row.at] * len(row.effects.messages)
    return messages, places


class MessageId(NamedTuple):
    """Which message it is: of which record, the how manieth of it, and what it holds."""

    source: int
    offset: int
    ordinal: int
    digest: int


class MessageIds:
    """Identifies the messages of one operator, the same from pass to pass."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, int]] = Counter()

    def of(self, chunk: Chunk) -> list[MessageId]:
        """Return what identifies each row."""
        assert chunk.origins is not None
        found = []
        sources, offsets = chunk.origins.sources.tolist(), chunk.origins.offsets.tolist()
        for source, offset, digest in zip(sources, offsets, _digests(chunk), strict=True):
            ordinal = self._seen[source, offset]
            self._seen[source, offset] += 1
            found.append(MessageId(source, offset, ordinal, digest))
        return found


def _digests(chunk: Chunk) -> list[int]:
    if not chunk.batch.num_columns:
        return [0] * chunk.rows
    try:
        return chunk.frame().hash_rows().to_list()
    except pl.exceptions.PolarsError:  # of types that have no hash
        return [0] * chunk.rows


class SourceCallNode(_CallingNode):
    """Makes the calls, before an epoch knows how far it reads; see ``_CallingNode``."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.answers: dict[MessageId, CallRow] = {}
        self.read_more: Callable[[], bool] = lambda: False
        self._backlog: deque[Chunk] = deque()
        self._asked: dict[int, deque[CallRow]] = {}
        self._identities = MessageIds()

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; calls continue that were open."""
        super().begin(epoch, wall_ms, watermark)
        self._backlog.clear()
        self._asked.clear()
        self._identities = MessageIds()

    def forget(self, source: int, before: int) -> None:
        """Release the results of records that are committed."""
        gone = [one for one in self.answers if one.source == source and one.offset < before]
        for one in gone:
            del self.answers[one]

    def push(self, chunk: Chunk) -> None:
        """Take rows, whose calls begin once the loop runs."""
        for begin in range(0, chunk.rows, BLOCK_ROWS):
            self._backlog.append(chunk.part(begin, min(begin + BLOCK_ROWS, chunk.rows)))

    def _refill(self) -> bool:
        if not self._backlog:
            return self.read_more()
        whole = self._backlog.popleft()
        identities = self._identities.of(whole)
        refusals = None if self.guard is None else RefusalCollector()
        _, messages = self._maker.of(whole, refusals)
        errors = {} if refusals is None else {one.row: one.error for one in refusals.rows}
        made = iter(messages)
        for at, identity in enumerate(identities):
            error = errors.get(at)
            message = None if error is not None else next(made)
            row = self.answers.get(identity)
            if row is None:
                row = CallRow(whole, at, message, None, NO_GROUP, identity, error=error)
                self.answers[identity] = row
                if error is None:
                    self.calls.add(row)
                else:
                    row.is_done = True
            row.chunk, row.at = whole, at
            self._asked.setdefault(identity.source, deque()).append(row)
        return True

    def _apply(self, row: CallRow) -> None:
        row.is_done = True
        if row.error is None and self.guard is not None and row.effects is not None:
            try:
                self._router.packed(row.effects.messages)
            except InvalidInputError as error:
                row.error = error

    def _settle(self) -> None:
        """Continue to what ends first of each partition, and send that on to calls behind these."""
        for asked in self._asked.values():
            while asked and asked[0].is_done:
                self._go_on(asked.popleft())

    def _go_on(self, row: CallRow) -> None:
        if row.error is not None:
            if self.guard is None:
                raise row.error
        elif self.targets and row.effects is not None:
            for side_batch in self._router.packed(row.effects.messages):
                self.emit(side_batch.of(row.chunk, [row.at] * len(row.effects.messages)))

    def low(self, source: int) -> int | None:
        """Return the first offset with a call that has not ended; ``None``: all have."""
        found = [row.place.offset for row in self._asked.get(source, ())]
        for chunk in self._backlog:
            assert chunk.origins is not None
            own = chunk.origins.offsets[chunk.origins.sources == source]
            found += [int(own.min())] if len(own) else []
        return min(found, default=None)


class SourceResultNode(Node):
    """Sends on what the calls of rows have sent; all of them have ended.

    Args:
        ask: makes the calls.
        router: where messages go.
    """

    def __init__(self, ask: SourceCallNode, router: SideOutputRouter) -> None:
        super().__init__(ask.name)
        self._ask, self._router = ask, router
        self._identities = MessageIds()

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch."""
        del epoch, wall_ms, watermark
        self._identities = MessageIds()

    def push(self, chunk: Chunk) -> None:
        """Look up what became of the call of each row."""
        with with_rare_gc():
            self._answer(chunk)

    def _answer(self, chunk: Chunk) -> None:
        rows: list[CallRow] = []
        refused: list[Refused] = []
        for at, identity in enumerate(self._identities.of(chunk)):
            row = self._ask.answers.get(identity)
            if row is None or not row.is_done:
                raise self._unlike()
            row.chunk, row.at = chunk, at
            if row.error is not None:
                refused.append(Refused(at, row.error))
            elif row.effects is not None and row.effects.messages:
                rows.append(row)
        if refused:
            if self.guard is None:
                raise refused[0].error
            self.guard.take(chunk, refused)
        messages, places = emitted_rows(rows)
        try:
            batches = self._router.packed(messages)
        except InvalidInputError as error:
            raise self._router.refused(error, messages, places, chunk.batch) from error
        for side_batch in batches:
            self.emit(side_batch.of(chunk, places), side_batch.side)

    def _unlike(self) -> FunctionResultError:
        return FunctionResultError(
            f"what comes before operator {self.name!r} made other messages of the same records "
            "when it was called again: let functions before an asynchronous process depend on "
            "nothing but their message, or put partition_by between",
            operator=self.name,
        )

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Take over what was counted."""
        del watermark, wall_ms
        self.counts.update(self._ask.calls.take_counts())
