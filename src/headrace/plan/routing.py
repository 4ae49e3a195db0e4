"""What keeps streams from being put together, and ids from being kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import Deduplicate
from headrace.plan.columns import differences
from headrace.records.widening import united

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
    schema, wrong = united(schemas)
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


def deduplicate_mistakes(
    operator: Deduplicate, schema: pa.Schema, untimed: Sequence[str]
) -> list[str]:
    """Say what keeps rows from being deduplicated.

    Args:
        operator: whose ids are kept.
        schema: of the rows.
        untimed: inputs before it without event time.
    """
    wrong = key_mistakes(operator.columns, schema)
    if operator.within_ms is not None and untimed:
        hint = f'give g.input({untimed[0]!r}, time="..."), or ttl= in the place of within='
        wrong.append(f"within= counts event time, which input {untimed[0]!r} has not: {hint}")
    return wrong
