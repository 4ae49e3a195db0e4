"""``join`` of two streams as data: which rows make pairs, and what becomes of the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from headrace.graph.arguments import Keys, attempt
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import COLUMNAR, Operator, StoreSpec

INNER, LEFT, RIGHT, FULL = "inner", "left", "right", "full"
WAYS = (INNER, LEFT, RIGHT, FULL)
LATE_WAYS = ("drop", "side_output")
LATE_SIDES = ("late_left", "late_right")
"""The sides of a join that late rows of either input are sent to, as they came."""


@dataclass(frozen=True)
class Near:
    """Which rows of the other side a row may be paired with, by event time.

    A right row is at most ``before_ms`` earlier and ``after_ms`` later than its left one. A row
    takes part while it is not more than ``grace_ms`` behind the watermark that it came with.
    """

    before_ms: int
    after_ms: int
    grace_ms: int = 0


@dataclass(frozen=True)
class JoinStreams(Operator):
    """``join`` of two streams, the left one first.

    ``columns`` are pairs of a new name and a column of the right side, ``None``: all but its key;
    those that the left side has, too, get the ``suffix``. The rules of planning set ``columns``,
    the key columns of each side ``by``, and their common types ``kinds``.
    """

    near: Near = field(default_factory=lambda: Near(0, 0))
    how: str = INNER
    late: str = "drop"
    columns: tuple[tuple[str, str], ...] | None = None
    suffix: str | None = None
    stores: tuple[StoreSpec, ...] = ()
    by: tuple[tuple[str, ...], ...] = ((), ())
    kinds: tuple[pa.DataType, ...] = field(default=(), compare=False)

    @property
    def keeps_left(self) -> bool:
        """Whether left rows that found no partner are sent on."""
        return self.how in (LEFT, FULL)

    @property
    def keeps_right(self) -> bool:
        """Whether right rows that found no partner are sent on."""
        return self.how in (RIGHT, FULL)

    @property
    def kept_ms(self) -> tuple[int, int]:
        """How long after its event time, by the watermark, a row of either side is kept.

        As long as a partner may come; and as long as a row of the other side may need it to know
        that it had one.
        """
        near = self.near
        left = near.after_ms + (near.before_ms if self.keeps_right else 0)
        right = near.before_ms + (near.after_ms if self.keeps_left else 0)
        return left + near.grace_ms, right + near.grace_ms

    @property
    def lag_ms(self) -> int:
        """How far what is sent may be behind the watermark that reaches the join.

        A pair has the event time of its later row, which came last or is kept because the other
        did; a row without a partner waits until none can come.
        """
        near = self.near
        left = near.after_ms if self.keeps_left else 0
        right = near.before_ms if self.keeps_right else 0
        return near.grace_ms + max(left, right)


def checked_near(
    wrong: list[str],
    within: Duration | None,
    before: Duration | None,
    after: Duration | None,
    grace: Duration,
) -> Near:
    """Return how near rows of a pair have to be."""
    if within is before is after is None:
        wrong.append(
            "join of two streams keeps rows for a time: say how far apart in event time rows of a "
            'pair may be, as within="10m", or before= and after='
        )
    if within is not None and (before is not None or after is not None):
        wrong.append("within= is for both directions: give it, or before= and after=")

    def span(value: Duration | None, what: str, otherwise: int) -> int:
        if value is None:
            return otherwise
        return attempt(wrong, lambda: duration_ms(value, what, least=0), 0)

    both = span(within, "within", 0)
    return Near(span(before, "before", both), span(after, "after", both), span(grace, "grace", 0))


def checked_ways(wrong: list[str], how: object, late: object, suffix: object) -> None:
    """Check what becomes of rows, and of names that both sides have."""
    if how not in WAYS:
        wrong.append(f"join(how={how!r}); expected one of {WAYS}")
    if late not in LATE_WAYS:
        wrong.append(f"join(late={late!r}); expected one of {LATE_WAYS}")
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        wrong.append(f"suffix= is what a name ends in, such as '_right'; found {suffix!r}")


def joined_stores(name: str, near: Near) -> tuple[StoreSpec, StoreSpec]:
    """Return the stores of both sides."""
    ttl_ms = near.before_ms + near.after_ms + near.grace_ms + 1
    left, right = (StoreSpec(f"{name}.{side}", COLUMNAR, ttl_ms=ttl_ms) for side in (LEFT, RIGHT))
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
