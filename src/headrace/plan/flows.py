"""What leaves an operator: columns, key and event time, as planning finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.graph.operators import (
    Operator,
)


@dataclass(frozen=True)
class Flow:
    """What leaves an operator.

    ``lost`` names the operator that dropped or changed the key, ``untimed`` the inputs
    without event time, ``time`` the column that holds the event time, where one does.
    ``window_ms`` is the size of the windows whose start is ``time``. ``takes`` is the class that an
    input gave for its messages.
    """

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    lost: str | None = None
    untimed: tuple[str, ...] = ()
    time: str | None = None
    window_ms: int | None = None
    takes: Any = None


def declared(operator: Operator, before: Flow, schema: pa.Schema) -> Flow:
    """The flow after an operator whose columns are declared: those of one name may be the same."""

    def is_kept(name: str) -> bool:
        at = schema.get_field_index(name)
        return at >= 0 and bool(schema.field(at).type.equals(before.schema.field(name).type))

    return follow(operator, before, schema, is_kept)


def follow(
    operator: Operator, before: Flow, schema: pa.Schema, is_kept: Callable[[str], bool]
) -> Flow:
    """The flow after an operator that makes new columns."""
    lost = before.lost
    if lost is None and not all(is_kept(key) for key in before.keys):
        lost = operator.name
    time = before.time if before.time is not None and is_kept(before.time) else None
    return replace(before, schema=schema, lost=lost, time=time)
