"""Conditions on the rows of a stream or a table, as SQL that Polars evaluates where they are read.

``where`` is the user's, and what is wrong with it is refused. ``pushed`` is what Spark has taken of
a query's own conditions, as a list in JSON: Spark checks them again, so those that cannot be
evaluated here are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidInputError

_TRUE = "__headrace_true"
PUSHED = "pushed"


def condition_columns(where: str, schema: pa.Schema, stream: str) -> list[str]:
    """Return the columns that a condition reads.

    Args:
        where: the condition.
        schema: of what it is evaluated on.
        stream: name of that.

    Raises:
        InvalidInputError: it is none, or reads others, or more of the stream than each row.
    """
    import polars as pl  # noqa: PLC0415 - of who gives a condition

    def refusal(why: str) -> InvalidInputError:
        return InvalidInputError(
            f"option where is {where!r}: {why}; give a condition as SQL, such as: delay > 30 and "
            "origin = 'JFK'"
        )

    try:
        condition = pl.sql_expr(where)
        names = condition.meta.root_names()
        wrong = [name for name in names if name not in schema.names]
        if wrong:
            raise InvalidInputError(
                f"option where reads {wrong[0]!r}; expected columns of the stream: {schema.names}",
                stream=stream,
            )
        nulls = pl.DataFrame(schema.empty_table()).clear(3)
        rows = nulls.with_columns(condition.alias(_TRUE))
        plan = nulls.lazy().with_columns(condition.alias(_TRUE)).slice(1, 1).explain()
    except pl.exceptions.PolarsError as error:
        raise refusal(str(error).splitlines()[0]) from error
    if rows.schema[_TRUE] != pl.Boolean:
        raise refusal(f"it is {rows.schema[_TRUE]}, not true or false")
    if plan.lstrip().startswith("SLICE"):  # which goes before the rows
        raise refusal(
            "it takes several rows together, and Spark reads a stream in pieces; expected what "
            "can be decided for each row by itself, or where() of the DataFrame"
        )
    return list(names)


def true_rows(where: str, batch: pa.RecordBatch) -> pa.Array:
    """Return for each row whether a condition holds; null where it is not known."""
    import polars as pl  # noqa: PLC0415 - of a worker that needs it

    rows = pl.from_arrow(batch)
    assert isinstance(rows, pl.DataFrame)
    return rows.with_columns(pl.sql_expr(where).alias(_TRUE)).get_column(_TRUE).to_arrow()


def kept_rows(conditions: tuple[str, ...], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows for which all conditions hold."""
    if not conditions:
        return batch
    mask = reduce(pc.and_kleene, [true_rows(one, batch) for one in conditions])
    return batch.filter(pc.fill_null(mask, False))


def conditions_of(options: Mapping[str, str], schema: pa.Schema, stream: str) -> tuple[str, ...]:
    """Return the conditions of options that are evaluated where rows are read.

    Raises:
        InvalidInputError: as of ``condition_columns``, for the user's own.
    """
    where = options.get("where", "")
    if where:
        condition_columns(where, schema, stream)
    found = [where] if where else []
    for condition in json.loads(options.get(PUSHED, "[]")):
        try:
            condition_columns(condition, schema, stream)
        except InvalidInputError:  # of a column that only the result has: Spark evaluates it
            continue
        found.append(condition)
    return tuple(found)
