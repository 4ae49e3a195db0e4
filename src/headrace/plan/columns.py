"""How columns that are there differ from those that are wanted, in a few words."""

from __future__ import annotations

import pyarrow as pa

from headrace.plan.stages import StreamInfo
from headrace.records.evolution import is_wider
from headrace.records.type_words import words_of_schema


def output_differences(stream: str, info: StreamInfo, found: pa.Schema) -> str:
    """Say how columns that are sent differ from those of a stream that was there before.

    Columns that were added to it may be missing, and types may be narrower than its own.
    """
    added = dict(info.added)
    expected = []
    for column in info.schema:
        at = found.get_field_index(column.name)
        if at >= 0 and is_wider(found.field(at).type, column.type):
            expected.append(found.field(at))
        elif at >= 0 or column.name not in added:
            expected.append(column)
    differ = differences(pa.schema(expected), found)
    new = [column for column in found if column.name not in info.schema.names]
    if not new or any(name not in found.names for name in pa.schema(expected).names):
        return f"{differ}; make the columns it has, or send to another stream" if differ else ""
    words = words_of_schema(pa.schema(new))
    return f'{differ}; add it: headrace bus configure {stream} --add-column "{words}"'


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
