"""``join`` of two streams as data: which rows make pairs, and what becomes of the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from headrace.graph.arguments import Keys, attempt, shown
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import COLUMNAR, Operator, StoreSpec
from headrace.graph.reaches import Near, Reach, SameWindow
from headrace.graph.windows import Tumbling, Window

INNER, LEFT, RIGHT, FULL = "inner", "left", "right", "full"
WAYS = (INNER, LEFT, RIGHT, FULL)
LATE_WAYS = ("drop", "side_output")
LATE_SIDES = ("late_left", "late_right")
"""The sides of a join that late rows of either input are sent to, as they came."""


@dataclass(frozen=True)
class JoinStreams(Operator):
    """``join`` of two streams, the left one first.

    ``columns`` are pairs of a new name and a column of the right side, ``None``: all but its key;
    those that the left side has, too, get the ``suffix``. The rules of planning set ``columns``,
    the key columns of each side ``by``, and their common types ``kinds``.
    """

    reach: Reach = field(default_factory=lambda: Near(0, 0))
    how: str = INNER
    late: str = "drop"
    columns: tuple[tuple[str, str], ...] | None = None
    suffix: str | None = None
    stores: tuple[StoreSpec, ...] = ()
    by: tuple[tuple[str, ...], ...] = ((), ())
    kinds: tuple[pa.DataType, ...] = field(default=(), compare=False)

    @property
    def alone(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right side that found no partner are sent on."""
        return self.how in (LEFT, FULL), self.how in (RIGHT, FULL)


@dataclass(frozen=True)
class Spans:
    """What a user says of how near rows have to be."""

    within: Duration | None
    before: Duration | None
    after: Duration | None
    window: Window | None
    grace: Duration

    def checked(self, wrong: list[str]) -> Reach:
        """Return it in ms; what is wrong is noted."""
        given = [self.within, self.before, self.after, self.window]
        if given == [None] * 4:
            wrong.append(
                "join of two streams keeps rows for a time: say how far apart in event time rows "
                'of a pair may be, as within="10m", or before= and after=, or that they are in one '
                'window, as window=hr.tumbling("1h")'
            )
        if self.within is not None and (self.before is not None or self.after is not None):
            wrong.append("within= is for both directions: give it, or before= and after=")
        grace_ms = _span(wrong, self.grace, "grace", 0)
        if self.window is not None:
            if given[:3] != [None] * 3:
                wrong.append("window= says which rows are near: leave out within=, before=, after=")
            return _same_window(wrong, self.window, grace_ms)
        both = _span(wrong, self.within, "within", 0)
        before, after = (
            _span(wrong, span, what, both)
            for span, what in ((self.before, "before"), (self.after, "after"))
        )
        return Near(before, after, grace_ms=grace_ms)


def _span(wrong: list[str], value: Duration | None, what: str, otherwise: int) -> int:
    if value is None:
        return otherwise
    return attempt(wrong, lambda: duration_ms(value, what, least=0), 0)


def _same_window(wrong: list[str], window: object, grace_ms: int) -> Reach:
    if not isinstance(window, Tumbling):
        wrong.append(f'window= of a join takes hr.tumbling("1h"); found {shown(window)}')
        return Near(0, 0)
    wrong += window.mistakes
    if window != Tumbling(window.size_ms):
        wrong.append(
            "the window of a join has a size alone: give grace= and late= to the join; it has no "
            "early results"
        )
    return SameWindow(window.size_ms, grace_ms=grace_ms)


def checked_ways(wrong: list[str], how: object, late: object, suffix: object) -> None:
    """Check what becomes of rows, and of names that both sides have."""
    if how not in WAYS:
        wrong.append(f"join(how={how!r}); expected one of {WAYS}")
    if late not in LATE_WAYS:
        wrong.append(f"join(late={late!r}); expected one of {LATE_WAYS}")
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        wrong.append(f"suffix= is what a name ends in, such as '_right'; found {suffix!r}")


def joined_stores(name: str, reach: Reach) -> tuple[StoreSpec, StoreSpec]:
    """Return the stores of both sides."""
    kept = reach.kept_ms((True, True))
    left, right = (
        StoreSpec(f"{name}.{side}", COLUMNAR, ttl_ms=kept_ms + 1)
        for side, kept_ms in zip((LEFT, RIGHT), kept, strict=True)
    )
    return left, right


def keys_mistake(name: str, keys: Keys, other: str, other_keys: Keys, method: str = "join") -> str:
    """Say what is wrong with the keys of two streams that meet; empty: nothing."""
    for stream, own in ((name, keys), (other, other_keys)):
        if not own:
            return (
                f"{method} brings rows with one key together, but stream {stream!r} is not "
                "partitioned by any: put partition_by(...) before it"
            )
    assert keys
    assert other_keys
    if len(keys) != len(other_keys):
        return (
            f"stream {name!r} is partitioned by {list(keys)}, but {other!r} by "
            f"{list(other_keys)}: partition both by as many columns, in the same order"
        )
    return ""
