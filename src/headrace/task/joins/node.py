"""``join`` of two streams: pairs of rows with one key that are near each other in event time.

**What counts.** A row takes part unless it is late by the watermark of its own partition at its own
offset: so the log alone says which rows do, and every pair of them that is near enough is sent,
once, when the second one comes. The stage's watermark is behind those of all rows to come. So a row
is not needed for pairs once that watermark is past the latest partner and the grace
(``graph.reaches``); its table forgets it then.

**Rows without a partner.** When the watermark passes that point of a row that is to be sent alone,
its partners are looked for: if any ever came, it is still there, for then rows of the other side
are kept for as long. So nothing is written about rows that were paired.
"""

from __future__ import annotations

import numpy as np

from headrace.graph.joins import LATE_SIDES, JoinStreams
from headrace.plan.stages import Stage
from headrace.state.columnar.columns import Rows
from headrace.state.columnar.run import Piece
from headrace.state.task_state import TaskState
from headrace.task.chunk import Chunk
from headrace.task.joins.results import Own, Results
from headrace.task.joins.search import Codes, Matcher
from headrace.task.joins.side import NEVER, Side
from headrace.task.node import Inlet, Node
from headrace.task.orders import NO_WATERMARK

FLUSH_ROWS = 1 << 22
FLUSH_BYTES = 256 << 20


class JoinStreamsNode(Node):
    """See the module.

    Args:
        operator: bound.
        stage: its stage.
        state: of the task.
        key_groups: number of key groups of the job.
    """

    def __init__(
        self, operator: JoinStreams, stage: Stage, state: TaskState, key_groups: int
    ) -> None:
        super().__init__(operator.name)
        self._reach = reach = operator.reach
        tables = [state.table(spec.name) for spec in operator.stores]
        codes = Codes(reach.span_ms)
        self._matcher = Matcher(codes, reach)
        self._alone = operator.alone
        kept_ms = reach.kept_ms(operator.alone)
        self._sides = [
            Side(table, keys, codes, kept)
            for table, keys, kept in zip(tables, operator.by, kept_ms, strict=True)
        ]
        left, right = (table.layout for table in tables)
        schema = stage.schemas[operator.name]
        self._results = Results(schema, operator, (left, right), key_groups, self.emit)
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
        assert chunk.watermarks is not None
        side = self._sides[number]
        seen = np.maximum(chunk.watermarks - self._delay, self._watermark)
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

    def _send_alone(self, number: int, piece: Piece, rows: Rows) -> None:
        own = Own(piece, rows)
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

    def _send_pairs(self, left: Piece, right: Piece) -> None:
        for mine, theirs in self._matcher.pairs(left, right):
            self._results.add(Own(left, mine), Own(right, theirs))

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
