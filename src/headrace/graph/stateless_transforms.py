"""Methods of a stream without state: on each row, and those that part streams or join them up.

``StreamBase`` is what all methods of a stream share; each adds one operator to the graph.
``RowTransforms``: ``map``, ``flat_map``, ``select``, ``with_columns``, ``drop``, ``rename``,
``filter``, ``sample``, ``map_batches``. ``RoutingTransforms``:
``split``, ``side``, ``merge``, ``union``.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import pyarrow as pa

from headrace.graph.diagnostics import (
    GraphDiagnostics,
    Keys,
    attempt,
    checked_function,
    checked_uses,
    is_function,
    returned,
    shown,
    with_on_error,
)
from headrace.graph.drawing import drawn
from headrace.graph.introspection import (
    message_class,
    name_of,
    returns_nothing,
    user_names,
    user_site,
    with_message_class,
)
from headrace.graph.operators import (
    FAIL,
    Branch,
    Explode,
    Filter,
    FilterMessages,
    FlatMapMessages,
    InspectMessages,
    MapBatches,
    MapMessages,
    Merge,
    Operator,
    Port,
    Process,
    Reshape,
    Sample,
    Select,
    Site,
    Split,
    Union,
)
from headrace.graph.side_outputs import DEFAULT, Branches, checked_sides
from headrace.graph.types import to_schema

# State is kept under the names of these operators. A derived one begins with the input or the
# stateful operator before it, so that what is put in between renames no state.
_STATEFUL = ("aggregate", "table", "window", "process", "deduplicate", "in_order", "join", "monoid")
BY = "by_"

_PARTITION = "use partition_by(column, ...), then aggregate(...), window(...) or process(...)"
_SEND = 'use send_to("stream") or send_to(sink)'
_AGGREGATE = "use partition_by(column).aggregate(name=hr.agg.sum(column)), or window(...)"
_LOOK = 'use print() while the job runs, or hr.read("stream") for the rows of a stream'
_TIME = "say it where the stream is read: g.input(name, time=column, out_of_orderness='5s')"
_ELSEWHERE = {
    **dict.fromkeys(("group_by", "groupBy", "groupby", "key_by", "keyBy", "key_on"), _PARTITION),
    **dict.fromkeys(("repartition", "partitionBy", "rekey"), _PARTITION),
    **dict.fromkeys(("to", "sink", "sink_to", "to_topic", "write", "write_to", "through"), _SEND),
    **dict.fromkeys(("writeStream", "write_stream", "insert_into", "into"), _SEND),
    **dict.fromkeys(("show", "collect", "display", "head", "take", "toPandas", "to_pandas"), _LOOK),
    **dict.fromkeys(("withWatermark", "with_watermark", "with_timestamp_assigner"), _TIME),
    **dict.fromkeys(("reduce_by_key", "reduceByKey", "agg", "count", "sum"), _AGGREGATE),
    **dict.fromkeys(("running", "totals", "mean", "avg", "min", "max", "reduce"), _AGGREGATE),
    **dict.fromkeys(("map_partitions", "mapPartitions", "map_in_pandas"), "use map_batches(f)"),
    **dict.fromkeys(("apply", "transform", "map_values", "mapValues"), "use map(f)"),
    **dict.fromkeys(("flatMap", "explode"), "use flat_map(f), or flat_map(hr.col(list_column))"),
    **dict.fromkeys(("withColumn", "withColumns", "assign"), "use with_columns(name=expression)"),
    **dict.fromkeys(("withColumnRenamed", "rename_columns"), "use rename({'old': 'new'})"),
    **dict.fromkeys(("where", "filter_by"), "use filter(condition)"),
    **dict.fromkeys(
        ("distinct", "unique", "drop_duplicates", "dropDuplicates"), "use deduplicate(...)"
    ),
    **dict.fromkeys(("union_all", "concat", "unionByName"), "use merge(...) or union(...)"),
    **dict.fromkeys(("tumbling_window", "hopping_window"), "use window(hr.tumbling('1m'), ...)"),
    **dict.fromkeys(
        ("foreach", "for_each", "peek", "tap"),
        "use inspect(f), process(...), or send_to(hr.sinks...)",
    ),
}
"""What names of Spark, Flink, Kafka Streams, Quix and Polars are called here."""


class StreamBase:
    """What leaves one operator.

    Args:
        diagnostics: of the graph.
        name: of the operator.
        keys: columns that it is partitioned by, if it is.
        anchor: what the names of stateful operators after it begin with.
    """

    def __init__(self, diagnostics: GraphDiagnostics, name: str, keys: Keys, anchor: str) -> None:
        self._diagnostics = diagnostics
        self.name = name
        self.keys = keys
        self._anchor = anchor
        self._sides: dict[str, Self] = {}

    def __repr__(self) -> str:
        """Return the name of its operator, and its key."""
        keys = f" by ({', '.join(self.keys)})" if self.keys else ""
        return f"<stream {self.name!r}{keys} of job {self._diagnostics.job!r}>"

    def _repr_html_(self) -> str:
        """Return what it is made by, drawn, for notebooks."""
        return drawn(self._diagnostics.before(self.name), repr(self)[1:-1])

    if not TYPE_CHECKING:  # type checkers are to find what is not there

        def __getattr__(self, name: str) -> Any:
            """Name the method that somebody means who knows another library.

            Raises:
                AttributeError: always: this is called for what is not there.
            """
            text = f"a stream has no {name!r}"
            if not name.startswith("_"):
                right = _ELSEWHERE.get(name)
                near = difflib.get_close_matches(name, [n for n in dir(self) if n[0] != "_"], 1)
                if right is not None:
                    text += f": {right}"
                elif near:
                    text += f"; did you mean {near[0]!r}?"
            raise AttributeError(text, name=name, obj=self)

    def _add(
        self,
        kind: str,
        name: str | None,
        make: Callable[[str, list[str]], Operator],
        keys: Keys,
        on_error: str = FAIL,
        sides: Any = None,
    ) -> Self:
        wrong: list[str] = []
        holds_state = kind in _STATEFUL or kind.startswith(BY)
        before = self._anchor if holds_state else self.name
        chosen = self._diagnostics.name(wrong, name, f"{before}.{kind}")
        anchor = chosen if holds_state else self._anchor
        operator = with_on_error(wrong, with_message_class(wrong, make(chosen, wrong)), on_error)
        declared = checked_sides(wrong, sides)
        if isinstance(operator, MapMessages | FlatMapMessages | Process):
            operator = replace(operator, sides=tuple(declared.items()))
        elif sides is not None:
            wrong.append("sides= is for functions: an expression makes one message of each")
        self._diagnostics.add(operator, wrong)
        made = type(self)(self._diagnostics, chosen, keys, anchor)
        sides_of, port = made._sides, made._port  # noqa: SLF001 - of the same class
        sides_of |= {side: port(side, operator.site, own) for side, own in declared.items()}
        return made

    def _port(self, port: str, site: Site, columns: pa.Schema | None = None) -> Self:
        """Add a stream that this one's operator has beside its main one."""
        wrong: list[str] = []
        chosen = self._diagnostics.name(wrong, None, f"{self.name}.{port}")
        self._diagnostics.add(Port(chosen, (self.name,), site, port=port, returns=columns), wrong)
        return type(self)(self._diagnostics, chosen, self.keys, f"{self._anchor}.{port}")


class RowTransforms(StreamBase):
    """The methods of a stream that make rows of rows, one by one."""

    def map(
        self,
        *what: Callable[[Any], Any] | pl.Expr | str,
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Turn each message into one message.

        Args:
            *what: one function from a message to a message; or Polars expressions and column
                names, one for each column of the result.
            returns: columns of a function's result: a schema, a dict of names and types, or a
                record class; by default the function's return annotation.
            uses: the columns a function reads; its message has only these. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
            sides: columns of each side output that the function can emit to with ``hr.to``, by
                name.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if len(what) == 1 and is_function(what[0]):
                function: Any = what[0]
                schema = returned(wrong, "map", function, returns)
                columns = checked_function(wrong, "map", function, uses)
                return MapMessages(chosen, (self.name,), site, function, schema, uses=columns)
            _check_undeclared(wrong, returns, uses)
            good = _expressions(wrong, "map", what)
            return Select(chosen, (self.name,), site, good, tuple(map(str, good)))

        return self._add("map", name, make, self.keys, on_error, sides)

    def flat_map(
        self,
        *what: Callable[[Any], Any] | pl.Expr | str,
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Turn each message into any number of messages.

        Args:
            *what: one function from a message to an iterable of messages; or a Polars expression
                of a list, whose elements become rows, with more expressions and column names for
                these rows.
            returns: columns of a message of the result; default: ``T`` of the return
                annotation ``Iterable[T]``.
            uses: the columns the function reads. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
            sides: columns of each side output that the function can emit to with ``hr.to``, by
                name.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if len(what) > 1 or isinstance(what[0] if what else None, pl.Expr):
                _check_undeclared(wrong, returns, uses)
                good = _expressions(wrong, "flat_map", what)
                return Explode(chosen, (self.name,), site, good, tuple(map(str, good)))
            function: Any = what[0] if what else None
            columns = checked_function(wrong, "flat_map", function, uses)
            schema = returned(wrong, "flat_map", function, returns, many=True)
            return FlatMapMessages(chosen, (self.name,), site, function, schema, uses=columns)

        return self._add("flat_map", name, make, self.keys, on_error, sides)

    def select(
        self,
        *columns: pl.Expr | str,
        name: str | None = None,
        on_error: str = FAIL,
        **named: pl.Expr,
    ) -> Self:
        """Select and compute columns: the result has only these, in this order.

        Args:
            *columns: Polars expressions and names of columns.
            name: of the operator. For a column of that name use ``.alias("name")``.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which one fails.
            **named: expressions by the name of their column.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            good = _columns(wrong, "select", columns, named, name)
            return Select(chosen, (self.name,), site, good, tuple(map(str, good)))

        return self._add(
            "select", None if isinstance(name, pl.Expr) else name, make, self.keys, on_error
        )

    def with_columns(
        self,
        *columns: pl.Expr,
        name: str | None = None,
        on_error: str = FAIL,
        **named: pl.Expr,
    ) -> Self:
        """Add columns, or replace those with the same names.

        Args:
            *columns: Polars expressions.
            name: of the operator. For a column of that name use ``.alias("name")``.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which one fails.
            **named: expressions by the name of their column.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            good = _columns(wrong, "with_columns", columns, named, name)
            return Reshape(chosen, (self.name,), site, "with_columns", good)

        return self._add(
            "with_columns", None if isinstance(name, pl.Expr) else name, make, self.keys, on_error
        )

    def drop(self, *columns: str, name: str | None = None) -> Self:
        """Drop columns.

        Args:
            *columns: their names.
            name: of the operator.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not columns or not all(isinstance(column, str) for column in columns):
                wrong.append(f"drop takes names of columns, at least one; found {columns!r:.60}")
            return Reshape(chosen, (self.name,), site, "drop", dropped=columns)

        return self._add("drop", name, make, self.keys)

    def rename(self, columns: Mapping[str, str], name: str | None = None) -> Self:
        """Rename columns. After a key column is renamed, call ``partition_by`` again.

        Args:
            columns: the new name of each, by the old one.
            name: of the operator.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            pairs = tuple(columns.items()) if isinstance(columns, Mapping) else ()
            if not pairs or not all(isinstance(part, str) for pair in pairs for part in pair):
                wrong.append(
                    f"rename takes new names by old ones, such as {{'old': 'new'}}; found "
                    f"{columns!r:.60}"
                )
                pairs = ()
            return Reshape(chosen, (self.name,), site, "rename", renamed=pairs)

        return self._add("rename", name, make, self.keys)

    def filter(
        self,
        condition: Callable[[Any], Any] | pl.Expr,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Keep the messages for which a condition is true.

        Args:
            condition: a function of a message, or a Polars expression; null drops the message.
            uses: the columns a function reads. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if isinstance(condition, pl.Expr):
                if uses is not None:
                    wrong.append("uses= is for functions; an expression names its own columns")
                return Filter(chosen, (self.name,), site, condition, str(condition))
            columns = checked_function(wrong, "filter", condition, uses)
            if returns_nothing(condition):
                wrong.append(f"function {name_of(condition)} never returns a value: add a return")
            return FilterMessages(chosen, (self.name,), site, condition, uses=columns)

        return self._add("filter", name, make, self.keys, on_error)

    def inspect(
        self,
        function: Callable[[Any], Any],
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Call a function with each message, and pass all messages on unchanged.

        It runs where the data is, in a worker. An epoch that runs again calls it again, so it is
        for logs and metrics, not for results.

        Args:
            function: of a message; what it returns is ignored.
            uses: the columns that it reads. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            columns = checked_function(wrong, "inspect", function, uses)
            return InspectMessages(chosen, (self.name,), site, function, uses=columns)

        return self._add("inspect", name, make, self.keys, on_error)

    def print(
        self,
        label: str | None = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Self:
        """Print each message as a line, ``LABEL> MESSAGE``, and pass all messages on unchanged.

        Lines go to stderr of the process that has the message: the terminal with ``headrace dev``
        and without Spark; on Spark the log of the worker, locally ``jobs/JOB/logs/spark.log``. An
        epoch that runs again prints again.

        Args:
            label: stands before each message. Default: the name of this stream.
            uses: the columns to print. Default: all.
            name: of the operator.
        """
        site = user_site()
        given: object = label
        shown_as = self.name if label is None else label

        def show(message: Any) -> None:
            sys.stderr.write(f"{shown_as}> {message!r}\n")

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not isinstance(given, str | None):
                wrong.append(f"print({label!r:.60}); expected a text to stand before messages")
            columns = checked_function(wrong, "print", show, uses)
            parts = (chosen, (self.name,), site, show)
            return InspectMessages(*parts, uses=columns, label=str(shown_as))

        return self._add("print", name, make, self.keys)

    def sample(
        self,
        fraction: float,
        by: str | Sequence[str] | None = None,
        name: str | None = None,
    ) -> Self:
        """Keep a fraction of the messages, chosen by a hash of a key.

        All messages of a key are kept, or none. The choice is the same on every run, and in every
        stream that is sampled by the same key. A larger fraction keeps the keys of a smaller one,
        and more.

        Args:
            fraction: of the keys, above 0 and at most 1.
            by: the columns of the key. Default: all columns, so that messages are chosen one by
                one, and equal ones alike.
            name: of the operator.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
            if not is_number or not 0 < fraction <= 1:
                wrong.append(
                    f"sample({fraction!r:.60}); expected a fraction above 0 and at most 1, such as "
                    "0.01 for one of a hundred keys"
                )
            columns = () if by is None or isinstance(by, str) else by
            is_list = isinstance(columns, Sequence) and all(isinstance(c, str) for c in columns)
            if not is_list or (by is not None and not by):
                wrong.append(f"by= takes names of columns, at least one; found {by!r:.60}")
            names = (by,) if isinstance(by, str) else tuple(columns) if is_list else ()
            return Sample(chosen, (self.name,), site, fraction, names)

        return self._add("sample", name, make, self.keys)

    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Turn each Polars frame into a Polars frame with the same number of rows.

        How rows are divided into frames is undefined: the result of a row must not depend on other
        rows.

        Args:
            function: from a frame to a frame with as many rows, in the same order.
            returns: columns of the result.
            uses: the columns the function reads; its frame has only these. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            columns = checked_function(wrong, "map_batches", function, uses)
            schema = None
            if returns is None:
                wrong.append("map_batches needs returns=, the columns of its result")
            else:
                schema = attempt(wrong, lambda: to_schema(returns), None)
            return MapBatches(chosen, (self.name,), site, function, schema, columns)

        return self._add("map_batches", name, make, self.keys, on_error)


def _columns(
    wrong: list[str], method: str, given: Sequence[Any], named: Mapping[str, Any], name: object
) -> tuple[pl.Expr, ...]:
    """Return expressions, with those given by name under these names."""
    parts = [pl.col(part) if isinstance(part, str) else part for part in given]
    parts += [
        part.alias(name) if isinstance(part, pl.Expr) else part for name, part in named.items()
    ]
    bad = [part for part in parts if not isinstance(part, pl.Expr)]
    if isinstance(name, pl.Expr):
        wrong.append(
            "name= names the operator, but is an expression; for a column that is called 'name' "
            "write .alias('name') behind it"
        )
    elif bad or not parts:
        found = ", ".join(shown(part) for part in bad) or "nothing"
        hint = "; use map for a function" if any(map(is_function, bad)) else ""
        wrong.append(f"{method} takes expressions, such as hr.col('a') + 1; found {found}{hint}")
    return tuple(part for part in parts if isinstance(part, pl.Expr))


def _check_undeclared(wrong: list[str], returns: Any, uses: Any) -> None:
    if returns is not None or uses is not None:
        wrong.append("returns= and uses= are for functions; those of expressions are known")


def _expressions(wrong: list[str], what: str, given: Sequence[Any]) -> tuple[pl.Expr, ...]:
    """Return what was given as expressions, names of columns too."""
    expressions = [pl.col(part) if isinstance(part, str) else part for part in given]
    bad = [part for part in expressions if not isinstance(part, pl.Expr)]
    if bad or not expressions:
        found = ", ".join(shown(part) for part in bad) or "nothing"
        wrong.append(f"{what} takes one function, or expressions and columns; found {found}")
    return tuple(part for part in expressions if isinstance(part, pl.Expr))


class RoutingTransforms(StreamBase):
    """The methods of a stream that say where rows go."""

    def split(
        self,
        *,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        **branches: Callable[[Any], Any] | pl.Expr,
    ) -> Branches[Self]:
        """Send each row to the first branch whose condition is true.

        Conditions are evaluated in the given order, only for rows that no earlier branch took.
        Other rows go to the branch ``default``; if nothing reads it, they are dropped, and counted
        as ``unmatched``.

        Args:
            uses: the columns that functions read; their messages have only these. Default: all.
            name: of the operator.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a row on which a condition raises.
            **branches: by name, a function of a message or a Polars expression; null is not true.

        Returns:
            The streams: ``branches["name"]``, each with the columns of this one.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not branches:
                wrong.append("split has no branches; add one such as cheap=hr.col('price') < 10")
            if DEFAULT in branches:
                wrong.append(f"branch {DEFAULT!r} has the rows that no other takes: rename it")
            made = tuple(_branch(wrong, *branch) for branch in branches.items())
            if uses is not None and not any(branch.function for branch in made):
                wrong.append("uses= is for functions; the columns of expressions are known")
            return Split(chosen, (self.name,), site, made, checked_uses(wrong, uses))

        whole = self._add("split", name, make, self.keys, on_error)
        port = whole._port  # noqa: SLF001 - of the same class
        named = {branch: port(branch, site) for branch in branches}

        unknown = partial(self._mistaken, whole.name)
        return Branches(named, lambda: port(DEFAULT, user_site()), unknown)

    def side(self, name: str) -> Self:
        """Return a side output of the operator before.

        Args:
            name: declared by ``sides=`` of ``map``, ``flat_map`` or ``process``; or ``late``, of a
                window with ``late="side_output"``: unchanged late records.
        """
        if name in self._sides:
            return self._sides[name]
        sides = list(self._sides) or "none"
        text = f"has no side {name!r}; it declares {sides}: add it to sides={{...}}"
        return self._mistaken(self.name, text)

    def _mistaken(self, operator: str, text: str) -> Self:
        """Take a mistake about an operator, and continue with this stream."""
        self._diagnostics.report(f"operator {operator!r}", user_site(), text)
        return self

    def merge(self, *others: Self, name: str | None = None) -> Self:
        """Read several streams with the same columns as one.

        Args:
            *others: streams of the same graph, partitioned in the same way as this one.
            name: of the operator.
        """
        return self._one_of("merge", Merge, others, name)

    def union(self, *others: Self, name: str | None = None) -> Self:
        """Read several streams with different columns as one that has all of them.

        Columns are matched by name. A column that a stream does not have is null in its rows.
        Types can differ if one of them, or a wider one, holds all values of both: integers of
        different width, ``int32`` and ``float64``.

        Args:
            *others: streams of the same graph, partitioned in the same way as this one.
            name: of the operator.
        """
        return self._one_of("union", Union, others, name)

    def _one_of(
        self, kind: str, operator: type[Merge], others: Sequence[object], name: str | None
    ) -> Self:
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not others:
                wrong.append(f"{kind} takes at least one other stream")
            names = [self.name]
            for other in others:
                mistake = self._merge_mistake(kind, other, names)
                if mistake is None:
                    names.append(getattr(other, "name", ""))
                else:
                    wrong.append(mistake)
            return operator(chosen, tuple(names), site)

        return self._add(kind, name, make, self.keys)

    def _merge_mistake(self, kind: str, other: object, names: Sequence[str]) -> str | None:
        if not isinstance(other, StreamBase):
            return f"{kind} takes streams; found {shown(other)}"
        if other._diagnostics is not self._diagnostics:  # noqa: SLF001 - of the same class
            return f"stream {other.name!r} belongs to another graph"
        if other.name in names:
            return f"stream {other.name!r} is merged with itself"
        if other.keys != self.keys:
            return (
                f"stream {self.name!r} is {_keyed(self.keys)}, but {other.name!r} is "
                f"{_keyed(other.keys)}; partition both by the same columns"
            )
        return None


def _keyed(keys: Keys) -> str:
    return "not partitioned" if keys is None else f"partitioned by {list(keys)}"


def _branch(wrong: list[str], name: str, condition: object) -> Branch:
    if isinstance(condition, pl.Expr):
        return Branch(name, condition, text=str(condition))
    if not is_function(condition):
        wrong.append(f"branch {name!r} takes an expression or a function; found {shown(condition)}")
        return Branch(name)
    function: Any = condition
    names = user_names()
    own: list[str] = []
    checked_function(own, "split", function, None)
    if returns_nothing(function):
        own.append(f"function {name_of(function)} never returns a value: add a return")
    takes = attempt(own, lambda: message_class(function, names), None)
    wrong += [f"branch {name!r}: {text}" for text in own]
    return Branch(name, function=function, text=f"with {name_of(function)}", takes=takes)
