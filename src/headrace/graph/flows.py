"""What the rules of several operators share: how columns differ, keys, and bound classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.introspection import class_mistakes, record_fields
from headrace.graph.operator_base import Flow
from headrace.records.evolution import unify_schemas


def differences(expected: pa.Schema, found: pa.Schema, *, extra_allowed: bool = False) -> str:
    """Say in a few words how columns differ; empty when they fit, in any order."""
    texts = []
    for column in expected:
        at = found.get_field_index(column.name)
        if at < 0:
            texts.append(f"{column.name!r} is missing")
        elif not found.field(at).type.equals(column.type):
            texts.append(f"{column.name!r} is {found.field(at).type}, expected {column.type}")
    if not extra_allowed:
        extra = [name for name in found.names if name not in expected.names]
        texts += [f"{name!r} is not expected" for name in extra]
    return "; ".join(texts)


Taking = TypeVar("Taking", bound=Any)


def bound_to_class(operator: Taking, schema: pa.Schema, given: Any) -> tuple[Taking, list[str]]:
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


_NO_KEY = (pa.types.is_nested, pa.types.is_decimal, pa.types.is_duration)


def merge_mistakes(schemas: Mapping[str, pa.Schema]) -> list[str]:
    """Say which streams, by operator, have not the columns of the first."""
    (first, expected), *others = schemas.items()
    found = {name: differences(expected, schema) for name, schema in others}
    return [
        f"streams {first!r} and {name!r} have other columns: {differ}; union takes streams of "
        "different columns"
        for name, differ in found.items()
        if differ
    ]


def union_schema(
    schemas: Mapping[str, pa.Schema], keys: Sequence[str]
) -> tuple[pa.Schema, list[str]]:
    """Return the columns of a union, and what is wrong with it.

    Args:
        schemas: by operator.
        keys: that all are partitioned by; integers alone may differ in width there, for only
            they are the same key then.
    """
    schema, wrong = unify_schemas(schemas)
    for key in keys:
        kinds = {s.field(key).type for s in schemas.values() if key in s.names}
        if len(kinds) > 1 and not wrong and not all(map(pa.types.is_integer, kinds)):
            found = ", ".join(f"{s.field(key).type} in {name!r}" for name, s in schemas.items())
            wrong.append(
                f"key column {key!r} is {found}, whose keys differ: cast it with map before "
                "partition_by"
            )
    return schema, wrong


def key_mistakes(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Say which columns of a key are not there, or have values that cannot be one."""
    wrong = [unknown_column(name, schema.names) for name in columns if name not in schema.names]
    for name in columns:
        kind = schema.field(name).type if name in schema.names else None
        if kind is not None and any(test(kind) for test in _NO_KEY):
            text = f"column {name!r} is {kind}, which cannot be a key; expected a plain value"
            wrong.append(text)
    return wrong


Columns = tuple[tuple[str, str], ...] | None
"""A new name and a column of the table for each one that a join adds; ``None``: all but the key."""


def added_columns(
    wanted: Columns, suffix: str | None, left: Flow, right: Flow
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return (new name, name in the right stream) of what is added, and what is wrong with it."""
    known, taken = right.schema.names, left.schema.names
    if wanted is None:
        wanted = tuple((name, name) for name in known if name not in right.keys)
    wrong = [f"columns: {unknown_column(old, known)}" for _, old in wanted if old not in known]
    if suffix is not None:
        ending = suffix
        wanted = tuple((f"{new}{ending}" if new in taken else new, old) for new, old in wanted)
    if doubled := _doubled([*taken, *(new for new, _ in wanted)]):
        wrong.append(
            f"columns {doubled} would be there twice: give suffix='_right', or choose and rename "
            'columns of the right stream with columns={"new": "old"}'
        )
    return wanted, wrong


def _doubled(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
