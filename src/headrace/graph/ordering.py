"""``in_order`` as data: rows by event time, each passed on once none before it can come."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.graph.operators import Operator, StoreSpec

LATE_WAYS = ("drop", "side_output")


@dataclass(frozen=True)
class InOrder(Operator):
    """``in_order``: keep rows until the watermark has passed them, then send them by event time.

    ``keys`` are the columns of the key, set by the rules of planning.
    """

    late: str = "drop"
    store: StoreSpec = field(default_factory=lambda: StoreSpec(""))
    keys: tuple[str, ...] = ()
