"""``process`` with calls that end later, in a stage that reads a stream by offset.

Such a stage keeps no state. So an epoch asks first: nodes of their own bring rows up to the
calls, which begin in the order of the offsets, and as far as all of them have ended is what the
epoch reads. Then it reads just that, as any other stage; where a call is to be made its result
is at hand. What lies beyond has no effect; results and open calls stay in memory for the next
epoch, which meets the same rows again.
"""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import polars as pl

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.calls import Calls as Spec
from headrace.task.asynchronous.calls import Calls, Row
from headrace.task.asynchronous.loop import CallLoop, Owner, collecting_rarely
from headrace.task.asynchronous.node import BLOCK_ROWS, Refusals, emitted
from headrace.task.chunk import Chunk
from headrace.task.context import NO_GROUP
from headrace.task.dead_letters import Refused
from headrace.task.node import Node
from headrace.task.parcels import Parcels
from headrace.task.process import ProcessNode


class Identity(NamedTuple):
    """Which message it is: of which record, the how manieth of it, and what it holds."""

    source: int
    offset: int
    ordinal: int
    digest: int


class Identities:
    """Tells the messages of one operator apart, from pass to pass the same."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, int]] = Counter()

    def of(self, chunk: Chunk) -> list[Identity]:
        """Return what tells each row from all others."""
        assert chunk.origins is not None
        found = []
        sources, offsets = chunk.origins.sources.tolist(), chunk.origins.offsets.tolist()
        for source, offset, digest in zip(sources, offsets, _digests(chunk), strict=True):
            ordinal = self._seen[source, offset]
            self._seen[source, offset] += 1
            found.append(Identity(source, offset, ordinal, digest))
        return found


def _digests(chunk: Chunk) -> list[int]:
    if not chunk.batch.num_columns:
        return [0] * chunk.rows
    try:
        return chunk.frame().hash_rows().to_list()
    except pl.exceptions.PolarsError:  # of types that have no hash
        return [0] * chunk.rows


class AskNode(ProcessNode):
    """Makes the calls, before an epoch knows how far it reads.

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
        self.answers: dict[Identity, Row] = {}
        self.feed: Callable[[], bool] = lambda: False
        self._backlog: deque[Chunk] = deque()
        self._asked: dict[int, deque[Row]] = {}
        self._identities = Identities()

    def _settled(self, result: Any) -> Any:
        return self._loop.settle(result) if inspect.iscoroutine(result) else result

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; calls go on that were open."""
        super().begin(epoch, wall_ms, watermark)
        self._backlog.clear()
        self._asked.clear()
        self._identities = Identities()

    def forget(self, source: int, before: int) -> None:
        """Let go of the results of records that are committed."""
        gone = [one for one in self.answers if one.source == source and one.offset < before]
        for one in gone:
            del self.answers[one]

    def push(self, chunk: Chunk) -> None:
        """Take rows, whose calls begin once the loop runs."""
        for begin in range(0, chunk.rows, BLOCK_ROWS):
            self._backlog.append(chunk.part(begin, min(begin + BLOCK_ROWS, chunk.rows)))

    def _refill(self) -> bool:
        if not self._backlog:
            return self.feed()
        whole = self._backlog.popleft()
        identities = self._identities.of(whole)
        refusals = None if self.guard is None else Refusals()
        _, messages = self._maker.of(whole, refusals)  # type: ignore[arg-type]
        errors = {} if refusals is None else {one.row: one.error for one in refusals.rows}
        made = iter(messages)
        for at, identity in enumerate(identities):
            error = errors.get(at)
            message = None if error is not None else next(made)
            row = self.answers.get(identity)
            if row is None:
                row = Row(whole, at, message, None, NO_GROUP, identity, error=error)
                self.answers[identity] = row
                if error is None:
                    self.calls.add(row)
                else:
                    row.is_done = True
            row.chunk, row.at = whole, at
            self._asked.setdefault(identity.source, deque()).append(row)
        return True

    def _apply(self, row: Row) -> None:
        row.is_done = True
        if row.error is None and self.guard is not None and row.effects is not None:
            try:
                self._parcels.packed(row.effects.messages)
            except InvalidInputError as error:
                row.error = error

    def _settle(self) -> None:
        """Go on to what ends first of each partition, and send that on to calls behind these."""
        for asked in self._asked.values():
            while asked and asked[0].is_done:
                self._go_on(asked.popleft())

    def _go_on(self, row: Row) -> None:
        if row.error is not None:
            if self.guard is None:
                raise row.error
        elif self.targets and row.effects is not None:
            for parcel in self._parcels.packed(row.effects.messages):
                self.emit(parcel.of(row.chunk, [row.at] * len(row.effects.messages)))

    def low(self, source: int) -> int | None:
        """Return the first offset with a call that has not ended; ``None``: all have."""
        found = [row.place.offset for row in self._asked.get(source, ())]
        for chunk in self._backlog:
            assert chunk.origins is not None
            own = chunk.origins.offsets[chunk.origins.sources == source]
            found += [int(own.min())] if len(own) else []
        return min(found, default=None)

    def close(self) -> None:
        """Give up open calls, and close the user's object."""
        self.calls.leave()
        super().close()


class AnswerNode(Node):
    """Sends on what the calls of rows have sent; all of them have ended.

    Args:
        ask: makes the calls.
        parcels: where messages go.
    """

    def __init__(self, ask: AskNode, parcels: Parcels) -> None:
        super().__init__(ask.name)
        self._ask, self._parcels = ask, parcels
        self._identities = Identities()

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch."""
        del epoch, wall_ms, watermark
        self._identities = Identities()

    def push(self, chunk: Chunk) -> None:
        """Look up what became of the call of each row."""
        with collecting_rarely():
            self._answer(chunk)

    def _answer(self, chunk: Chunk) -> None:
        rows: list[Row] = []
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
        messages, places = emitted(rows)
        try:
            parcels = self._parcels.packed(messages)
        except InvalidInputError as error:
            raise self._parcels.told(error, messages, places, chunk.batch) from error
        for parcel in parcels:
            self.emit(parcel.of(chunk, places), parcel.side)

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
