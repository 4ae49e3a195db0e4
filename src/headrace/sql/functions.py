"""Functions of users: Python that an app names with ``CREATE FUNCTION``, and nothing else.

A function of values is called for each row, one of ``pl.Series`` for each batch, one that returns
an ``hr.agg`` aggregate is an aggregate; its annotations say which. It travels to the workers by
value.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
from sqlglot import exp, parse_one

from headrace.cli.job_loader import load_module
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate
from headrace.graph.introspection import call_mistake, without_optional
from headrace.graph.types import arrow_type
from headrace.queries.text import SqlText, near
from headrace.sql.statements import FunctionText


@dataclass(frozen=True)
class UserFunction:
    """A function of the user's own: from the columns of its arguments to one column.

    ``check`` says why so many arguments do not fit; ``call`` has the type of the result in
    ``kind``.
    """

    name: str
    check: Callable[[int], str | None]
    call: Any

    def __call__(self, arguments: Sequence[pl.Expr]) -> pl.Expr:
        """Return the expression of a call."""
        rows = pl.struct([one.alias(f"_{n}") for n, one in enumerate(arguments)])
        return rows.map_batches(self.call, return_dtype=self.call.kind, is_elementwise=True)


@dataclass(frozen=True)
class UserAggregate:
    """An aggregate of the user's own: ``make`` returns it for names of columns."""

    name: str
    check: Callable[[int], str | None]
    make: Callable[..., Aggregate]


Functions = Mapping[str, UserFunction | UserAggregate]


def with_functions(tree: Any, functions: Functions) -> Any:
    """Return a tree in which calls of the user's aggregates are known as such."""

    def own(node: Any) -> Any:
        known = functions.get(node.name.lower()) if isinstance(node, exp.Anonymous) else None
        if not isinstance(known, UserAggregate):
            return node
        made = exp.AnonymousAggFunc(this=node.this, expressions=node.expressions)
        made.meta.update(node.meta)
        return made

    return tree.transform(own) if functions else tree


def load_functions(source: SqlText, texts: Sequence[FunctionText]) -> Functions:
    """Import the functions of an app; return what compiles a call of each, by its name.

    Raises:
        InvalidInputError: one is not there, or cannot be called from SQL; shows where.
    """
    found: dict[str, UserFunction | UserAggregate] = {}
    for text in texts:
        name = text.name.text.lower()
        if name in found:
            raise source.mistake(f"function {name!r} is there twice", text.name.place)
        if name == "topk" or not isinstance(parse_one(f"{name}(x)", read="duckdb"), exp.Anonymous):
            raise source.mistake(f"{name!r} is a function of SQL: rename it", text.name.place)
        try:
            found[name] = _loaded(name, text.target.text, Path(source.file).parent)
        except InvalidInputError as error:
            raise source.mistake(error.message, text.target.place) from error
    return found


def _loaded(name: str, target: str, folder: Path) -> UserFunction | UserAggregate:
    place, _, attribute = target.partition(":")
    module = load_module(place, folder)
    function = getattr(module, attribute, None)
    if function is None:
        known = [one for one in vars(module) if not one.startswith("_")]
        raise InvalidInputError(f"{place} has no {attribute!r}; {near(attribute, known)}")
    return _compiled(name, target, function, module)


def given_functions(functions: Mapping[str, Any]) -> Functions:
    """Return what compiles calls of functions that a job gives, by their names in lower case.

    Raises:
        InvalidInputError: one cannot be called from SQL.
    """
    found: dict[str, UserFunction | UserAggregate] = {}
    for given, function in functions.items():
        name = given.lower()
        if name == "topk" or not isinstance(parse_one(f"{name}(x)", read="duckdb"), exp.Anonymous):
            raise InvalidInputError(f"{given!r} is a function of SQL: give yours another name")
        found[name] = _compiled(name, f"function {given!r}", function, None)
    return found


def _compiled(
    name: str, target: str, function: Any, module: ModuleType | None
) -> UserFunction | UserAggregate:
    """Return what compiles calls of a function, as its annotations say; a module goes by value."""
    if not callable(function):
        raise InvalidInputError(f"{target} is no function")
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise InvalidInputError(f"an annotation of {target} cannot be resolved: {error}") from error
    if "return" not in hints:
        raise InvalidInputError(
            f"{target} does not say what it returns: annotate it, such as "
            f"def {name}(text: str) -> int"
        )
    kind, _ = without_optional(hints["return"])
    if isinstance(kind, type) and issubclass(kind, Aggregate):
        # The plan of a job has the functions of an aggregate; workers need not find its module.
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
        return UserAggregate(name, _checked(function), function)
    arguments = [hint for parameter, hint in hints.items() if parameter != "return"]
    is_series = typing.get_origin(kind) is typing.Annotated or kind is pl.Series
    if is_series or pl.Series in arguments:
        raw = typing.get_type_hints(function, include_extras=True)["return"]
        extras = typing.get_args(raw)[1:] if typing.get_origin(raw) is typing.Annotated else ()
        if not extras:
            raise InvalidInputError(
                f"{target} does not say of which type its series is: annotate it, such as "
                "-> Annotated[pl.Series, int]"
            )
        return UserFunction(name, _checked(function), _Series(function, module, _type(extras[0])))
    return UserFunction(name, _checked(function), _Values(function, module, _type(kind)))


def _checked(function: Callable[..., Any]) -> Callable[[int], str | None]:
    """Return what says why a function cannot be called with so many arguments."""
    return lambda count: call_mistake(function, tuple(f"argument {n + 1}" for n in range(count)))


def _type(hint: Any) -> pl.DataType:
    """Return the type of a column of what a function returns."""
    found: pl.DataType = pl.Series(pa.array([], arrow_type(hint))).dtype
    return found


class _Values:
    """Calls a function for each row; null in an argument is null in the result."""

    def __init__(
        self, function: Callable[..., Any], module: ModuleType | None, kind: pl.DataType
    ) -> None:
        self.function, self.module, self.kind = function, module, kind

    def __reduce__(self) -> tuple[Any, ...]:
        return _travelled, (type(self), _by_value(self.function, self.module), self.kind)

    def __call__(self, rows: pl.Series) -> pl.Series:
        """Return the results for rows of arguments."""
        frame = rows.struct.unnest()
        made = [
            None if any(value is None for value in row) else self.function(*row)
            for row in frame.iter_rows()
        ]
        return pl.Series(made, dtype=self.kind, strict=True)


class _Series(_Values):
    """Calls a function for the columns of each batch; nulls are its own affair."""

    def __call__(self, rows: pl.Series) -> pl.Series:
        """Return the results for rows of arguments."""
        made = self.function(*rows.struct.unnest().get_columns())
        if not isinstance(made, pl.Series) or len(made) != len(rows):
            raise InvalidInputError(
                f"function {self.function.__name__} of an SQL app returns a series with a value "
                f"for each row; found {type(made).__name__}"
            )
        return made.cast(self.kind)


def _by_value(function: Callable[..., Any], module: ModuleType | None) -> bytes:
    """Return a function as bytes that do not need its module, if that is the user's."""
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps(function)
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    return data


def _travelled(kind: type[_Values], data: bytes, result: pl.DataType) -> _Values:
    return kind(cloudpickle.loads(data), None, result)
