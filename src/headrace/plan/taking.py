"""What the functions of a graph take messages as, held against the columns that there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from headrace.graph.message_classes import class_mistakes, record_fields
from headrace.graph.operators import EventTime, Operator, Split

Taking = TypeVar("Taking", Operator, EventTime)


def with_class(operator: Taking, schema: pa.Schema, given: Any) -> tuple[Taking, list[str]]:
    """Return an operator that reads just the columns of the class it takes, and what does not fit.

    Args:
        operator: has a function of messages; or the event time of an input that has one.
        schema: of the rows before it.
        given: the class that an input named for its messages.
    """
    uses: tuple[str, ...] | None = getattr(operator, "uses", None)
    known = schema if uses is None else pa.schema([f for f in schema if f.name in uses])
    takes = operator.takes
    if takes is None and given is not None and uses is None:
        is_whole = sorted(field.name for field in record_fields(given)) == sorted(schema.names)
        takes = given if is_whole else None
    if takes is None or takes is dict:
        return operator, []
    wrong = class_mistakes(takes, known)
    if wrong:
        return operator, wrong
    read = tuple(field.name for field in record_fields(takes) if field.name in known.names)
    changes: dict[str, Any] = {"takes": takes, "uses": read}
    return replace(operator, **changes), []


def branch_mistakes(operator: Split, schema: pa.Schema) -> list[str]:
    """Say why messages of some columns cannot be made as what the branches of a split take."""
    known = pa.schema([f for f in schema if operator.uses is None or f.name in operator.uses])
    return [
        f"branch {branch.name!r} {text}"
        for branch in operator.branches
        if branch.takes not in (None, dict)
        for text in class_mistakes(branch.takes, known)
    ]
