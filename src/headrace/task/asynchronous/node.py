"""``process`` with calls that end later, in a stage that is partitioned by key."""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInputError
from headrace.graph.calls import Calls as Spec
from headrace.records.messages import columns_to_lists
from headrace.task.asynchronous.calls import Calls, Row
from headrace.task.asynchronous.loop import CallLoop, Owner
from headrace.task.asynchronous.pending import PendingRows, Place
from headrace.task.chunk import Chunk, Ints
from headrace.task.dead_letters import Refused
from headrace.task.orders import NO_WATERMARK
from headrace.task.process import ProcessNode

BLOCK_ROWS, FLUSH_ROWS = 4096, 2048


@dataclass
class _Waiting:
    """Rows of which no messages are made yet, the place of each, and whether these are kept."""

    chunk: Chunk
    epochs: Ints
    numbers: Ints
    kept: npt.NDArray[np.bool_]

    def split(self, rows: int) -> tuple[_Waiting, _Waiting]:
        return self._part(0, rows), self._part(rows, self.chunk.rows)

    def _part(self, begin: int, end: int) -> _Waiting:
        cut = slice(begin, end)
        chunk = self.chunk.part(begin, end)
        return _Waiting(chunk, self.epochs[cut], self.numbers[cut], self.kept[cut])

    def places(self) -> list[Place]:
        assert self.chunk.groups is not None
        columns = (self.chunk.groups, self.epochs, self.numbers)
        return list(map(Place, *(column.tolist() for column in columns)))


class Refusals:
    """Stands for a guard while messages are made, and keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[Refused] = []

    def take(self, chunk: Chunk, refused: list[Refused]) -> None:
        """Keep rows of which no message can be made."""
        self.rows = list(refused)


class AsyncNode(ProcessNode):
    """Runs the calls of one task that is a range of key groups.

    Between epochs it holds messages whose calls have not taken effect; the task's state holds
    them, too.

    Args:
        spec: how calls are made.
        loop: of the process.
        owner: whose calls they are.
        pending: where messages are kept.
        **named: as of ``ProcessNode``.
    """

    def __init__(
        self,
        *positional: Any,
        spec: Spec,
        loop: CallLoop,
        owner: Owner,
        pending: PendingRows,
        **named: Any,
    ) -> None:
        self._loop = loop
        super().__init__(*positional, **named)
        self._kept = pending
        self.calls = Calls(
            spec,
            self._turn.limits,
            self._turn,
            self._user,
            loop=loop,
            owner=owner,
            apply=self._apply,
            refill=self._refill,
            settle=self._settle,
        )
        self._backlog: deque[_Waiting] = deque()
        self._sent: list[Row] = []
        self._gone: list[Place] = []
        self._stored: set[Place] = set()
        self._count = 0
        self.is_chained = self.is_fresh = False
        for kept in pending.read():
            flags = np.ones(kept.chunk.rows, np.bool_)
            self._backlog.append(_Waiting(kept.chunk, kept.epochs, kept.numbers, flags))

    def _settled(self, result: Any) -> Any:
        return self._loop.settle(result) if inspect.iscoroutine(result) else result

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; calls go on that were open."""
        super().begin(epoch, wall_ms, watermark)
        self._count = 0

    @property
    def rings(self) -> bool:
        """Timers fire at the end of an epoch only: between rows calls are open."""
        return False

    def expect(self, watermark: int) -> None:
        """No timer fires before rows."""

    def push(self, chunk: Chunk) -> None:
        """Take rows, whose calls begin once the loop runs."""
        rows = chunk.rows
        numbers = np.arange(self._count, self._count + rows, dtype=np.int64)
        epochs = np.full(rows, self._turn.epoch, np.int64)
        self._backlog.append(_Waiting(chunk, epochs, numbers, np.zeros(rows, np.bool_)))
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
        refusals = None if self.guard is None else Refusals()
        chunk, messages = self._maker.of(block.chunk, refusals)  # type: ignore[arg-type]
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
        lists = columns_to_lists(key_columns)
        keys = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        assert chunk.groups is not None
        self._prefetch(key_columns, chunk.groups, keys)
        for at, (message, place) in enumerate(zip(messages, places, strict=True)):
            key = keys[at] if keys else None
            self.calls.add(Row(chunk, at, message, key, place.group, place))
        return True

    def _apply(self, row: Row) -> None:
        """Let a call take effect, or do with its message as ``on_error`` says."""
        place: Place = row.place
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
        self._turn.enter(row.group)
        row.effects.apply(self._turn, _watermark(row.chunk, row.at))
        if row.effects.messages:
            self._sent.append(row)

    def _unfit(self, row: Row) -> InvalidInputError | None:
        assert row.effects is not None
        try:
            self._parcels.packed(row.effects.messages)
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
            messages, places = emitted(rows)
            try:
                parcels = self._parcels.packed(messages)
            except InvalidInputError as error:
                batch = rows[0].chunk.batch
                raise self._parcels.told(error, messages, places, batch) from error
            for parcel in parcels:
                self.emit(parcel.of(rows[0].chunk, places), parcel.side)

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
        return event, (self._turn.wall_ms if self.is_busy else wall)

    def close(self) -> None:
        """Give up open calls, and close the user's object."""
        self.calls.leave()
        super().close()


def _watermark(chunk: Chunk, row: int | None = None) -> int:
    """The watermark of a row's own partition just before it; of all rows the least."""
    known = chunk.watermarks
    if known is None:
        return NO_WATERMARK
    return int(known.min() if row is None else known[row])


def _by_chunk(rows: list[Row]) -> list[list[Row]]:
    """Return rows of the same chunk together."""
    by_chunk: dict[int, list[Row]] = {}
    for row in rows:
        by_chunk.setdefault(id(row.chunk), []).append(row)
    return list(by_chunk.values())


def emitted(rows: list[Row]) -> tuple[list[Any], list[int]]:
    """Return what the calls of rows of one chunk have sent, and of which row each message is."""
    messages: list[Any] = []
    places: list[int] = []
    for row in rows:
        assert row.effects is not None
        messages += row.effects.messages
        places += [row.at] * len(row.effects.messages)
    return messages, places
