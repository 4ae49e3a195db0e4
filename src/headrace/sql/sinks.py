"""Sinks of an SQL app: ``CREATE SINK name WITH (connector = ..., ...)``, which ``INSERT`` sends to.

A connector is a stream of the bus, a table of the warehouse, or a function of ``hr.sinks``; its
options are the arguments of that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

import headrace as hr
from headrace import plugins
from headrace.errors import InvalidInputError
from headrace.graph.builder import Graph
from headrace.graph.operators import IS_DELETED, Site
from headrace.graph.windows import BOUNDS
from headrace.queries.text import Named, SqlText, near, place_of
from headrace.sql.expressions import data_type
from headrace.sql.relations import Relation, Selection
from headrace.sql.statements import SinkText

CONNECTOR, STREAM, WAREHOUSE = "connector", "stream", "warehouse"
_FILES = ("csv", "json_lines", "parquet", "postgres")
_NAME = {STREAM: "stream", WAREHOUSE: "table"}
"""The option that has the name of what is sent to; by default that of the sink."""


@dataclass(frozen=True)
class SinkTarget:
    """Where a sink of an app sends rows to.

    ``name`` is the sink's, ``columns`` those that it declares, with ``types`` or none.
    """

    name: str
    connector: str
    options: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    types: tuple[pl.DataType, ...] = ()

    @property
    def stream(self) -> str | None:
        """Return the stream of the bus that it sends to, if it is one."""
        return str(self.options["stream"]) if self.connector == STREAM else None

    def output(self, g: Graph) -> Any:
        """Return what ``send_to`` takes."""
        options = dict(self.options)
        if self.connector == STREAM:
            return g.output(options.pop("stream"), **options)
        if self.connector == WAREHOUSE:
            return g.output_table(options.pop("table"), **options)
        semantics = options.pop("semantics", None)
        return g.output_sink(getattr(hr.sinks, self.connector)(**options), semantics)


def load_sinks(source: SqlText, texts: Sequence[SinkText]) -> Mapping[str, SinkTarget]:
    """Return the sinks of an app by name, with their options checked.

    Raises:
        InvalidInputError: a connector or an option is not known, or does not fit; shows where.
    """
    found: dict[str, SinkTarget] = {}
    for text in texts:
        if text.name.text in found:
            raise source.mistake(f"{text.name.text!r} is there twice", text.name.place)
        found[text.name.text] = _loaded(source, text)
    return found


def _loaded(source: SqlText, text: SinkText) -> SinkTarget:
    known = [STREAM, WAREHOUSE, *_FILES, *plugins.names(plugins.SINKS)]
    given = {option.name.text: option.value for option in text.options}
    at = {option.name.text: option.name.place for option in text.options}
    connector = given.pop(CONNECTOR, None)
    if connector not in known:
        raise source.mistake(
            f"sink {text.name.text!r} needs a connector: WITH (connector = 'parquet', ...)"
            if connector is None
            else f"no connector {connector!r}; {near(str(connector), known)}",
            at.get(CONNECTOR, text.name.place),
        )
    connector = str(connector)
    if connector in _NAME:
        given.setdefault(_NAME[connector], text.name.text)
    names = _arguments(connector)
    for name in given:
        if name not in names:
            raise source.mistake(
                f"connector {connector!r} has no option {name!r}; {near(name, names)}", at[name]
            )
    missing = [n for n, is_needed in names.items() if is_needed and n not in given]
    if missing:
        raise source.mistake(
            f"connector {connector!r} needs the option {missing[0]!r}", at[CONNECTOR]
        )
    if connector not in _NAME:
        try:
            options = {name: value for name, value in given.items() if name != "semantics"}
            wrong = getattr(hr.sinks, connector)(**options).mistakes()
        except (InvalidInputError, TypeError, ValueError) as error:
            raise source.mistake(f"connector {connector!r}: {error}", text.name.place) from error
        if wrong:
            raise source.mistake(f"connector {connector!r}: {wrong[0]}", text.name.place)
    types = tuple(data_type(source, kind) for kind in text.types if kind is not None)
    columns = tuple(column.text for column in text.columns)
    return SinkTarget(text.name.text, connector, given, columns, types)


def _arguments(connector: str) -> dict[str, bool]:
    """Return the options of a connector, and whether each is needed."""
    make: Callable[..., Any]
    if connector in _NAME:
        make = Graph.output if connector == STREAM else Graph.output_table
    else:
        make = getattr(hr.sinks, connector)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind in kinds and name != "self"
    }
    if connector == WAREHOUSE:
        found = {"table": found.pop("name"), **found}
    return {**found, "semantics": False}


def fitted(
    source: SqlText,
    rows: Relation,
    sink: SinkTarget,
    into: Sequence[Named],
    tree: Any,
    site: Site,
) -> Relation:
    """Return the rows of a query with the columns of a sink, which match by their place.

    Args:
        source: the text.
        rows: of the query.
        sink: that they are sent to.
        into: columns that ``INSERT`` names; none: those that the sink declares, or all.
        tree: of the query.
        site: of the statement.

    Raises:
        InvalidInputError: the columns do not fit; shows where.
    """
    for column in into:
        if sink.columns and column.text not in sink.columns:
            raise source.mistake(
                f"sink {sink.name!r} has no column {column.text!r}; "
                f"{near(column.text, sink.columns)}",
                column.place,
            )
    names = tuple(column.text for column in into) or sink.columns
    if not names:
        return rows
    selected = {item.alias_or_name for item in tree.selects}
    given = [
        name for name in rows.columns if tree.is_star or name not in BOUNDS or name in selected
    ]
    if len(given) != len(names) or (sink.columns and set(names) != set(sink.columns)):
        raise source.mistake(
            f"sink {sink.name!r} takes {', '.join(sink.columns or names)}; the query has "
            f"{', '.join(given)}",
            place_of(tree),
        )
    casts = dict(zip(sink.columns, sink.types, strict=True)) if sink.types else {}
    made = [
        (pl.col(old).cast(casts[new]) if new in casts else pl.col(old)).alias(new)
        for old, new in zip(given, names, strict=True)
    ]
    order = sink.columns or names
    flags = (pl.col(IS_DELETED),) if rows.has_deletes else ()
    return Selection(
        name=sink.name,
        site=site,
        origin=rows,
        after=(*(made[names.index(column)] for column in order), *flags),
        columns=order,
        times={n: rows.times[o] for o, n in zip(given, names, strict=True) if o in rows.times},
        is_changing=rows.is_changing,
        has_deletes=rows.has_deletes,
    )


def timed(source: SqlText, sink: SinkTarget, rows: Relation, tree: Any) -> SinkTarget:
    """Return a sink that knows which column says the day of a row, if it is a table by days.

    Raises:
        InvalidInputError: no column has the event time of its row; shows where.
    """
    if sink.connector != WAREHOUSE or "time" in sink.options:
        return sink
    time = next((name for name, span in rows.times.items() if span == (0, 0)), None)
    if time is None:
        raise source.mistake(
            "a table of the warehouse has a folder for each day: select the event time of rows, "
            "or add time = 'column' to the options of the sink",
            place_of(tree),
        )
    return replace(sink, options={**sink.options, "time": time})
