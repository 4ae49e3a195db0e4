"""The join of two streams as data: which rows are partners, what is kept, and its rules.

``JoinInterval`` says which rows of the other side a row may be paired with, by event time: all of
it is arithmetic of moments in ms, for one moment or an array of them; the left side is 0, the right
one 1. ``JoinStreams`` is the operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.durations import duration_text
from headrace.graph.flows import added_columns
from headrace.graph.operator_base import (
    GRACE,
    HOW,
    Flow,
    Operator,
    Planning,
    StageView,
    StoreSpec,
    store_mark,
)
from headrace.records.evolution import common_type
from headrace.records.schema import TableLayout

M = TypeVar("M", int, npt.NDArray[np.int64])


SidePair = tuple[bool, bool]


@dataclass(frozen=True)
class JoinInterval(ABC):
    """What both kinds have: how far behind the watermark a row may be and still take part."""

    grace_ms: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def span_ms(self) -> int:
        """From the earliest to the latest partner of a row, at most."""

    @abstractmethod
    def first(self, moments: M, side: int) -> M:
        """Return the earliest moment of a partner of rows."""

    @abstractmethod
    def last(self, moments: M, side: int) -> M:
        """Return the latest moment of a partner of rows; it never falls while moments rise."""

    @abstractmethod
    def late_after(self, moments: M, side: int) -> M:
        """Return the watermark beyond which rows are late."""

    @abstractmethod
    def due_below(self, watermark: int, side: int) -> int:
        """Return the moment below which no row can get a partner any more."""

    @abstractmethod
    def kept_ms(self, alone: SidePair) -> tuple[int, int]:
        """Return how far the watermark is past a row of either side when it is needed no more.

        Args:
            alone: whether rows of the left and of the right side are sent that have no partner.
        """

    @abstractmethod
    def lag_ms(self, alone: SidePair) -> int:
        """Return how far what is sent may be behind the watermark that reaches the join."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what must not change under old state, by name."""

    @abstractmethod
    def text(self) -> str:
        """Return a few words for ``explain``."""


@dataclass(frozen=True)
class BoundedInterval(JoinInterval):
    """A right row is at most ``before_ms`` earlier and ``after_ms`` later than its left one."""

    before_ms: int
    after_ms: int

    @property
    def span_ms(self) -> int:
        """From the earliest to the latest."""
        return self.before_ms + self.after_ms

    def first(self, moments: M, side: int) -> M:
        """Go back."""
        return moments - (self.after_ms if side else self.before_ms)

    def last(self, moments: M, side: int) -> M:
        """Continue."""
        return moments + (self.before_ms if side else self.after_ms)

    def late_after(self, moments: M, side: int) -> M:
        """A row is late by its own moment."""
        return moments + self.grace_ms

    def due_below(self, watermark: int, side: int) -> int:
        """Go back by what a partner may be later."""
        return watermark - self.grace_ms - (self.before_ms if side else self.after_ms)

    def kept_ms(self, alone: SidePair) -> tuple[int, int]:
        """As long as a partner may come, and as long as one of its own may ask whether it had one.

        A row that is sent alone must know that it is: its partners stay until it is.
        """
        left = self.after_ms + (self.before_ms if alone[1] else 0)
        right = self.before_ms + (self.after_ms if alone[0] else 0)
        return left + self.grace_ms, right + self.grace_ms

    def lag_ms(self, alone: SidePair) -> int:
        """A pair has the moment of its later row; a row alone waits until none can come."""
        left, right = self.after_ms if alone[0] else 0, self.before_ms if alone[1] else 0
        return self.grace_ms + max(left, right)

    def describe(self) -> dict[str, str]:
        """Return both directions."""
        return {"before": duration_text(self.before_ms), "after": duration_text(self.after_ms)}

    def text(self) -> str:
        """Return ``within 10m``, or both directions."""
        before, after = duration_text(self.before_ms), duration_text(self.after_ms)
        return f"within {after}" if before == after else f"from {before} before to {after} after"


@dataclass(frozen=True)
class SameWindow(JoinInterval):
    """Both rows are in one window of a size, as ``hr.tumbling`` cuts event time."""

    size_ms: int

    @property
    def span_ms(self) -> int:
        """The window."""
        return self.size_ms

    def first(self, moments: M, side: int) -> M:
        """Go back to the window's beginning."""
        return moments // self.size_ms * self.size_ms

    def last(self, moments: M, side: int) -> M:
        """Continue to its last millisecond."""
        return self.first(moments, side) + (self.size_ms - 1)

    def late_after(self, moments: M, side: int) -> M:
        """A row is late for its window."""
        return self.last(moments, side) + self.grace_ms

    def due_below(self, watermark: int, side: int) -> int:
        """Go back to the last end of a window."""
        return (watermark - self.grace_ms) // self.size_ms * self.size_ms

    def kept_ms(self, alone: SidePair) -> tuple[int, int]:
        """Until the window is over, for each of its rows."""
        kept = self.size_ms - 1 + self.grace_ms
        return kept, kept

    def lag_ms(self, alone: SidePair) -> int:
        """Rows take part until their window is over."""
        return self.size_ms - 1 + self.grace_ms

    def describe(self) -> dict[str, str]:
        """Return the size."""
        return {"window": duration_text(self.size_ms)}

    def text(self) -> str:
        """Return ``in one window of 1h``."""
        return f"in one window of {duration_text(self.size_ms)}"


INNER, LEFT, RIGHT, FULL = "inner", "left", "right", "full"


LATE_SIDES = ("late_left", "late_right")
"""The sides of a join that late rows of either input are sent to, as they came."""


@dataclass(frozen=True)
class JoinStreams(Operator):
    """``join`` of two streams, the left one first.

    ``columns`` are pairs of a new name and a column of the right side, ``None``: all but its key;
    those that the left side has, too, get the ``suffix``. The rules of planning set ``columns``,
    the key columns of each side ``by``, and their common types ``kinds``.
    """

    reach: JoinInterval = field(default_factory=lambda: BoundedInterval(0, 0))
    how: str = INNER
    late: str = "drop"
    columns: tuple[tuple[str, str], ...] | None = None
    suffix: str | None = None
    stores: tuple[StoreSpec, ...] = ()
    by: tuple[tuple[str, ...], ...] = ((), ())
    kinds: tuple[pa.DataType, ...] = field(default=(), compare=False)
    is_of_many: ClassVar[bool] = True

    @property
    def closes_after_ms(self) -> int:
        """As long as a row can get a partner."""
        return self.reach.span_ms + self.reach.grace_ms

    @property
    def alone(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right side that found no partner are sent on."""
        return self.how in (LEFT, FULL), self.how in (RIGHT, FULL)

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns of pairs; binds the join to the columns of both sides."""
        left, right = (walk.flows[name] for name in self.inputs)
        found = [walk.need_key(self, flow, needed=True) for flow in (left, right)]
        if not all(found):
            return None
        kinds, wrong = self._key_types(left, right)
        wrong += _untimed(left, right)
        columns, mistakes = added_columns(self.columns, self.suffix, left, right)
        wrong += mistakes
        for text in wrong:
            walk.report(self, text)
        if wrong:
            return None
        walk.operators[self.name] = replace(
            self, columns=columns, by=(left.keys, right.keys), kinds=tuple(kinds)
        )
        common = dict(zip(left.keys, kinds, strict=True))
        fields = [pa.field(f.name, common.get(f.name, f.type)) for f in left.schema]
        fields += [pa.field(new, right.schema.field(old).type) for new, old in columns]
        untimed = tuple(dict.fromkeys((*left.untimed, *right.untimed)))
        return Flow(pa.schema(fields), left.keys, untimed=untimed)

    def _key_types(self, left: Flow, right: Flow) -> tuple[list[pa.DataType], list[str]]:
        """Return the types of the key in the result, and what keeps keys of the sides apart."""
        kinds, wrong = [], []
        names = self.inputs
        for mine, theirs in zip(left.keys, right.keys, strict=True):
            one, other = left.schema.field(mine).type, right.schema.field(theirs).type
            both_whole = pa.types.is_integer(one) and pa.types.is_integer(other)
            common = common_type(one, other) if both_whole else one if one.equals(other) else None
            if common is None:
                wrong.append(
                    f"key {mine!r} of {names[0]!r} is {one}, but {theirs!r} of {names[1]!r} is "
                    f"{other}: rows with such keys never meet; cast one with map before "
                    "partition_by"
                )
            else:
                kinds.append(common)
        return kinds, wrong

    def port_rows(self, name: str) -> str:
        """Late rows of either side leave as they came."""
        return self.inputs[LATE_SIDES.index(name)]

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what it reads of either side: keys, and what is wanted of it."""
        left, right = self.inputs
        read: set[str] = set()
        if upstream == left:
            read |= (wanted & set(flows[left].schema.names)) | set(self.by[0])
        if upstream == right:  # a stream may be joined with itself
            read |= {old for new, old in self.columns or () if new in wanted} | set(self.by[1])
        return read

    def describe(self) -> list[str]:
        """Return what a join does, one row for each part."""
        reach = self.reach
        pairs = zip(*self.by, strict=True)  # known once it is planned
        keys = ", ".join(one if one == other else f"{one} = {other}" for one, other in pairs)
        on = f" on {keys}" if keys else ""
        left, right = self.inputs
        rows = [f"{self.how} join of {left} with {right}{on}, {reach.text()} in event time"]
        if reach.grace_ms:
            rows[0] += f", grace {duration_text(reach.grace_ms)}"
        if self.late == "side_output":
            rows.append("late rows go to sides late_left and late_right")
        if any(self.alone):
            lag = duration_text(reach.lag_ms(self.alone))
            rows.append(f"rows without a partner are sent when none can come: up to {lag} behind")
        return rows

    def state_rows(self, stage: StageView) -> Iterator[str]:
        """Yield what is kept of each side, for people."""
        layouts = self.layouts(stage)
        kept_ms = self.reach.kept_ms(self.alone)
        for side, layout, spec, kept in zip(
            (LEFT, RIGHT), layouts, self.stores, kept_ms, strict=True
        ):
            columns = ", ".join([*layout.keys.names, *layout.values.names])
            yield (
                f"keeps {side} rows ({columns}) until the watermark is {duration_text(kept)} past "
                f"them, in store {spec.name} ({spec.kind})"
            )

    def layouts(self, stage: StageView) -> tuple[TableLayout, TableLayout]:
        """Return the layouts of the tables of the left and the right rows.

        A row is written at its event time. Columns are kept that later operators use.
        """
        made = set(stage.schemas[self.name].names)
        left, right = (stage.schemas[name] for name in self.inputs)
        sources = {old for new, old in self.columns or () if new in made}
        values = (
            pa.schema([f for f in left if f.name in made and f.name not in self.by[0]]),
            pa.schema([f for f in right if f.name in sources and f.name not in self.by[1]]),
        )
        delay_ms = stage.delays.get(self.name, 0)
        kept = self.reach.kept_ms(self.alone)
        first, second = (
            TableLayout(
                pa.schema(list(zip(self.by[side], self.kinds, strict=True))),
                values[side],
                ttl_ms=kept[side] + delay_ms + 1,
                by_event=True,
                repeats=True,
            )
            for side in (0, 1)
        )
        return first, second

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return what is kept of both sides, and for how long: rows that went do not come back."""
        left, right = (
            [f"{column.name}: {column.type}" for column in (*layout.keys, *layout.values)]
            for layout in self.layouts(stage)
        )
        return {
            "kind": "join of streams",
            "stores": [store_mark(spec) for spec in self.stores],
            "left columns": left,
            "right columns": right,
            HOW: self.how,
            GRACE: duration_text(self.reach.grace_ms),
            **self.reach.describe(),
        }

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """The rows of both sides."""
        return self.stores

    @property
    def lag_ms(self) -> int:
        """Rows alone are sent when none can come any more."""
        return self.reach.lag_ms(self.alone)

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Partners are near in event time."""
        return True


def _untimed(left: Flow, right: Flow) -> Iterator[str]:
    for source in dict.fromkeys((*left.untimed, *right.untimed)):
        yield (
            f"a join of two streams needs event time, which input {source!r} has not: give "
            f'g.input({source!r}, time="...")'
        )
