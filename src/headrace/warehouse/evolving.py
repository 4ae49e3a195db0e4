"""Which columns a table may get while it has rows."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import InvalidInputError


def evolved(held: pa.Schema, given: pa.Schema, table: str) -> pa.Schema:
    """Return the columns of a table that gets rows with others than it has.

    Raises:
        InvalidInputError: a column is not given any more, or has another type.
    """
    lost = [name for name in held.names if name not in given.names]
    if lost:
        raise InvalidInputError(
            f"table {table!r} has columns {lost}, which the job does not send any more; a table "
            "keeps its columns: send nulls in them, or name another table"
        )
    other = [f for f in given if f.name in held.names and held.field(f.name).type != f.type]
    if other:
        name = other[0].name
        raise InvalidInputError(
            f"column {name!r} of table {table!r} is {held.field(name).type}, the job sends "
            f"{other[0].type}; cast it with map, send it in a new column, or name another table"
        )
    new = [field for field in given if field.name not in held.names]
    return pa.schema([*held, *new])
