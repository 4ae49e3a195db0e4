"""Expressions of SQL compiled to Polars; ``aggregates`` has the aggregates within them.

What is computed is what DuckDB computes: nulls, division, rounding, positions that begin at 1.
Where Polars differs, the expression says so; ``tests/unit/sql`` compares the two.
"""

from __future__ import annotations

import datetime
import functools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.errors import InvalidInputError
from headrace.sql.functions import Functions, UserFunction
from headrace.sql.text import SqlText, near, place_of

Compiled = Callable[["Compiler", Any], pl.Expr]

TYPES = {
    **dict.fromkeys(("BOOLEAN",), pl.Boolean()),
    **dict.fromkeys(("TINYINT",), pl.Int8()),
    **dict.fromkeys(("SMALLINT",), pl.Int16()),
    **dict.fromkeys(("INT",), pl.Int32()),
    **dict.fromkeys(("BIGINT",), pl.Int64()),
    **dict.fromkeys(("FLOAT",), pl.Float32()),
    **dict.fromkeys(("DOUBLE",), pl.Float64()),
    **dict.fromkeys(("TEXT", "VARCHAR", "CHAR"), pl.String()),
    **dict.fromkeys(("DATE",), pl.Date()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ"), pl.Datetime("us", "UTC")),
    **dict.fromkeys(("BLOB", "VARBINARY"), pl.Binary()),
}
"""Types of SQL, as sqlglot names them."""


def data_type(source: SqlText, kind: exp.DataType) -> pl.DataType:
    """Return the type of Polars that a type of SQL is.

    Raises:
        InvalidInputError: there is none.
    """
    name = kind.this.value if hasattr(kind.this, "value") else str(kind.this)
    if name in ("ARRAY", "LIST") and len(kind.expressions) == 1 and not kind.args.get("values"):
        return pl.List(data_type(source, kind.expressions[0]))
    if name == "STRUCT" and all(isinstance(one, exp.ColumnDef) for one in kind.expressions):
        return pl.Struct({one.name: data_type(source, one.kind) for one in kind.expressions})
    if name not in TYPES:
        known = ["BIGINT", "BLOB", "BOOLEAN", "DATE", "DOUBLE", "INT", "TIMESTAMP", "VARCHAR"]
        raise source.mistake(
            f"type {kind.sql('duckdb')} is not known; {near(name, known)}", place_of(kind)
        )
    return TYPES[name]


class Compiler:
    """Compiles the expressions of one query.

    Args:
        source: the text.
        columns: what names of columns mean.
        table: names by which columns may be qualified.
        aggregates: compiles aggregates; ``None``: there must be none.
        within: columns that only aggregates can be of.
        groups: expressions that stand for columns of the key, by their SQL.
        functions: of the user, by name.
    """

    def __init__(
        self,
        source: SqlText,
        columns: Mapping[str, pl.Expr],
        table: Sequence[str] = (),
        aggregates: Callable[[Any], pl.Expr] | None = None,
        within: Collection[str] = (),
        groups: Mapping[str, pl.Expr] | None = None,
        functions: Functions | None = None,
    ) -> None:
        self.source, self.columns, self.table = source, columns, table
        self.aggregates, self.within = aggregates, within
        self.groups = groups or {}
        self.functions = functions or {}

    def __call__(self, node: Any) -> pl.Expr:
        """Return the expression of a tree.

        Raises:
            InvalidInputError: a part of it is not known; shows where.
        """
        if self.groups and (key := self.groups.get(text_of(node))) is not None:
            return key
        if self.aggregates is not None and is_aggregate(node):
            return self.aggregates(node)
        make = _COMPILED.get(type(node))
        if make is None:
            raise self.mistake(node, _unknown(node, self.functions))
        return make(self, node)

    def all(self, nodes: Iterable[Any]) -> list[pl.Expr]:
        """Return the expressions of several trees."""
        return [self(node) for node in nodes]

    def mistake(self, node: Any, message: str) -> InvalidInputError:
        """Return an error that shows a tree's place."""
        return self.source.mistake(message, place_of(node))

    def constant(self, node: Any, what: str) -> Any:
        """Return the value of a literal.

        Raises:
            InvalidInputError: it is computed.
        """
        if isinstance(node, exp.Neg):
            return -self.constant(node.this, what)
        if isinstance(node, exp.Literal):
            if node.is_string:
                return node.this
            return float(node.this) if re.search(r"[.eE]", node.this) else int(node.this)
        raise self.mistake(node, f"{what} must be a constant")


def text_of(node: Any) -> str:
    """Return an expression as normal SQL, which is the same for equal ones."""
    return str(node.sql("duckdb", normalize=True, comments=False))


def is_aggregate(node: Any) -> bool:
    """Say whether an expression is an aggregate itself."""
    if isinstance(node, exp.Filter | exp.IgnoreNulls):
        return is_aggregate(node.this)
    is_topk = isinstance(node, exp.Anonymous) and node.name.lower() == "topk"
    return isinstance(node, exp.AggFunc) or is_topk


def has_aggregate(node: Any) -> bool:
    """Say whether there is an aggregate in an expression."""
    return any(is_aggregate(part) for part in node.walk())


def _unknown(node: Any, functions: Iterable[str] = ()) -> str:
    if is_aggregate(node):
        return f"the aggregate {name_of(node)} cannot be used here"
    if isinstance(node, exp.Anonymous | exp.Func):
        name = name_of(node)
        return f"no function {name!r}; {near(name, [*_function_names(), *functions])}"
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
        return "queries within queries are not known yet: name the inner one with CREATE STREAM"
    if isinstance(node, exp.Star):
        return "* stands for all columns and cannot be part of an expression"
    return f"{type(node).__name__.lower()} is not known here"


@functools.cache
def _function_names() -> list[str]:
    kinds = [kind for kind in _COMPILED if issubclass(kind, exp.Func)]
    names = {str(name).lower() for kind in kinds for name in kind.sql_names()}
    return sorted({*names, *FUNCTIONS} - {"anonymous"})


def name_of(node: Any) -> str:
    """Return the name of a function as the user wrote it."""
    if isinstance(node, exp.Filter | exp.IgnoreNulls):
        return name_of(node.this)
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return str(node.name).lower()
    written = text_of(node)
    return written.partition("(")[0].lower() if "(" in written else type(node).__name__.lower()


def _column(compiler: Compiler, node: exp.Column) -> pl.Expr:
    name = node.name
    if node.table in compiler.columns and node.table not in compiler.table:
        return compiler.columns[node.table].struct.field(name)
    if node.table and node.table not in compiler.table:
        known = [*compiler.table, *compiler.columns]
        raise compiler.mistake(node, f"no table {node.table!r} here; {near(node.table, known)}")
    found = compiler.columns.get(name)
    if found is None:
        folded = [known for known in compiler.columns if known.lower() == name.lower()]
        if len(folded) == 1:
            return compiler.columns[folded[0]]
        if name in compiler.within:
            raise compiler.mistake(
                node, f"column {name!r} must be in GROUP BY, or in an aggregate such as max({name})"
            )
        shown = [known for known in compiler.columns if not known.startswith("_")]
        raise compiler.mistake(node, f"no column {name!r}; {near(name, shown)}")
    return found


def _literal(compiler: Compiler, node: exp.Literal) -> pl.Expr:
    return pl.lit(compiler.constant(node, "it"))


def _binary(apply: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Compiled:
    return lambda compiler, node: apply(compiler(node.this), compiler(node.expression))


def _unary(apply: Callable[[pl.Expr], pl.Expr]) -> Compiled:
    return lambda compiler, node: apply(compiler(node.this))


def _shift(sign: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Compiled:
    def made(compiler: Compiler, node: Any) -> pl.Expr:
        left, right = node.this, node.expression
        if isinstance(right, exp.Interval):
            return sign(compiler(left), _interval(compiler, right))
        return sign(compiler(left), compiler(right))

    return made


UNITS = {
    **dict.fromkeys(("MICROSECOND", "MICROSECONDS"), 1),
    **dict.fromkeys(("MILLISECOND", "MILLISECONDS"), 1_000),
    **dict.fromkeys(("SECOND", "SECONDS"), 1_000_000),
    **dict.fromkeys(("MINUTE", "MINUTES"), 60_000_000),
    **dict.fromkeys(("HOUR", "HOURS"), 3_600_000_000),
    **dict.fromkeys(("DAY", "DAYS"), 86_400_000_000),
    **dict.fromkeys(("WEEK", "WEEKS"), 7 * 86_400_000_000),
}
"""Units of intervals, in microseconds."""


def _interval(compiler: Compiler, node: exp.Interval) -> pl.Expr:
    unit = str(node.args.get("unit") or "").upper()
    if unit not in UNITS:
        raise compiler.mistake(
            node, f"an interval of {unit.lower() or 'no unit'} is not known; {near(unit, UNITS)}"
        )
    value = compiler.constant(node.this, "an interval")
    return pl.lit(datetime.timedelta(microseconds=round(float(value) * UNITS[unit])))


def _whole(left: pl.Expr, right: pl.Expr) -> pl.Expr:
    """Divide towards zero, where Polars divides downwards; by zero there is no quotient."""
    size = left.abs() // right.abs()
    return (
        pl.when(right == 0).then(None).when((left < 0) != (right < 0)).then(-size).otherwise(size)
    )


def _rest(left: pl.Expr, right: pl.Expr) -> pl.Expr:
    """Take the rest, which has the sign of the dividend, where that of Polars has the divisor's."""
    size = left.abs() % right.abs()
    return pl.when(right == 0).then(None).when(left < 0).then(-size).otherwise(size)


def _like(*, is_folded: bool) -> Compiled:
    def made(compiler: Compiler, node: Any) -> pl.Expr:
        pattern = compiler.constant(node.expression, "a pattern of LIKE")
        parts = (
            ".*" if letter == "%" else "." if letter == "_" else re.escape(letter)
            for letter in str(pattern)
        )
        flags = "(?is)" if is_folded else "(?s)"
        found = compiler(node.this).str.contains(f"{flags}^{''.join(parts)}$")
        return ~found if node.args.get("negate") else found

    return made


def _case(compiler: Compiler, node: exp.Case) -> pl.Expr:
    subject = node.this
    default = node.args.get("default")
    last = pl.lit(None) if default is None else compiler(default)
    for branch in reversed(node.args["ifs"]):
        condition = compiler(branch.this)
        if subject is not None:
            condition = compiler(subject) == condition
        last = pl.when(condition).then(compiler(branch.args["true"])).otherwise(last)
    return last


def _if(compiler: Compiler, node: exp.If) -> pl.Expr:
    other = node.args.get("false")
    last = pl.lit(None) if other is None else compiler(other)
    return pl.when(compiler(node.this)).then(compiler(node.args["true"])).otherwise(last)


def _in(compiler: Compiler, node: exp.In) -> pl.Expr:
    if node.args.get("query") is not None or not node.expressions:
        raise compiler.mistake(node, "IN takes a list of values, such as x IN (1, 2)")
    value = compiler(node.this)
    return functools.reduce(
        operator.or_, [value == other for other in compiler.all(node.expressions)]
    )


def _between(compiler: Compiler, node: exp.Between) -> pl.Expr:
    value = compiler(node.this)
    return (value >= compiler(node.args["low"])) & (value <= compiler(node.args["high"]))


def _is(compiler: Compiler, node: exp.Is) -> pl.Expr:
    if isinstance(node.expression, exp.Null):
        return compiler(node.this).is_null()
    if isinstance(node.expression, exp.Boolean):
        return compiler(node.this).eq_missing(pl.lit(node.expression.this))
    raise compiler.mistake(node, "IS takes NULL, TRUE or FALSE")


_WHOLE = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)


def _cast(compiler: Compiler, node: exp.Cast) -> pl.Expr:
    target, strict = data_type(compiler.source, node.to), not isinstance(node, exp.TryCast)
    if isinstance(node.this, exp.Literal) and node.this.is_string and target.is_temporal():
        return pl.lit(_moment(compiler, node.this, target))
    value = compiler(node.this)
    if isinstance(target, _WHOLE):
        # Polars cuts off what is behind the point; SQL rounds.
        wide = value.cast(pl.Float64, strict=strict)
        near_one = wide.round(mode="half_to_even")
        exact = value.cast(target, strict=False)
        return pl.when(wide == near_one).then(exact).otherwise(near_one.cast(target, strict=strict))
    return value.cast(target, strict=strict)


def _moment(compiler: Compiler, node: exp.Literal, target: pl.DataType) -> object:
    try:
        found = datetime.datetime.fromisoformat(node.this)
    except ValueError as error:
        raise compiler.mistake(
            node, f"{node.this!r} is no date; expected such as '2026-01-31' or '2026-01-31 12:00'"
        ) from error
    if isinstance(target, pl.Date):
        return found.date()
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _text(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.String)


def _concat(compiler: Compiler, node: Any) -> pl.Expr:
    return pl.concat_str(
        [_text(part) for part in compiler.all(node.expressions)], ignore_nulls=True
    )


def _concat_ws(compiler: Compiler, node: Any) -> pl.Expr:
    between = compiler.constant(node.expressions[0], "the separator")
    parts = [_text(part) for part in compiler.all(node.expressions[1:])]
    return pl.concat_str(parts, separator=between, ignore_nulls=True)


def _substring(compiler: Compiler, node: exp.Substring) -> pl.Expr:
    start = compiler(node.args["start"])
    length = node.args.get("length")
    offset = pl.when(start > 0).then(start - 1).otherwise(start).cast(pl.Int64)
    taken = None if length is None else compiler(length)
    return compiler(node.this).str.slice(offset, taken)


def _left(compiler: Compiler, node: Any) -> pl.Expr:
    return compiler(node.this).str.head(compiler(node.expression))


def _right(compiler: Compiler, node: Any) -> pl.Expr:
    return compiler(node.this).str.tail(compiler(node.expression))


def _trim(compiler: Compiler, node: exp.Trim) -> pl.Expr:
    value, letters = compiler(node.this), node.expression
    taken = " " if letters is None else str(compiler.constant(letters, "what is trimmed"))
    where = str(node.args.get("position") or "").upper()
    if where == "LEADING":
        return value.str.strip_chars_start(taken)
    if where == "TRAILING":
        return value.str.strip_chars_end(taken)
    return value.str.strip_chars(taken)


def _replace(compiler: Compiler, node: Any) -> pl.Expr:
    new = node.args.get("replacement")
    made = pl.lit("") if new is None else compiler(new)
    return compiler(node.this).str.replace_all(compiler(node.expression), made, literal=True)


def _split_part(compiler: Compiler, node: Any) -> pl.Expr:
    at = int(compiler.constant(node.args["part_index"], "the number of the part"))
    parts = compiler(node.this).str.split(compiler(node.args["delimiter"]))
    found = parts.list.get(at - 1 if at > 0 else at, null_on_oob=True)
    return pl.when(parts.is_not_null()).then(found.fill_null(""))


def _regexp_like(compiler: Compiler, node: Any) -> pl.Expr:
    pattern = compiler.constant(node.expression, "a regular expression")
    return compiler(node.this).str.contains(_valid(compiler, node.expression, str(pattern)))


def _regexp_extract(compiler: Compiler, node: Any) -> pl.Expr:
    pattern = str(compiler.constant(node.expression, "a regular expression"))
    group = node.args.get("group")
    number = 0 if group is None else int(compiler.constant(group, "the number of the group"))
    value = compiler(node.this)
    found = value.str.extract(f"({_valid(compiler, node.expression, pattern)})", number + 1)
    return pl.when(value.is_not_null()).then(found.fill_null(""))


def _regexp_replace(compiler: Compiler, node: Any) -> pl.Expr:
    pattern = str(compiler.constant(node.expression, "a regular expression"))
    new = str(compiler.constant(node.args["replacement"], "the replacement"))
    new = re.sub(r"\\(\d)", r"${\1}", new.replace("$", "$$"))
    flags = node.args.get("modifiers")
    is_all = flags is not None and "g" in str(compiler.constant(flags, "flags"))
    value = compiler(node.this)
    made = value.str.replace_all if is_all else value.str.replace
    return made(_valid(compiler, node.expression, pattern), new)


def _valid(compiler: Compiler, node: Any, pattern: str) -> str:
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise compiler.mistake(node, f"{pattern!r} is no regular expression: {reason}") from error
    return pattern


def _json_text(compiler: Compiler, node: Any) -> pl.Expr:
    keys = node.expression
    path = keys.sql("duckdb").strip("'") if isinstance(keys, exp.JSONPath) else None
    if path is None:
        path = str(compiler.constant(keys, "a path"))
    if not path.startswith("$"):
        path = f"$.{path}"
    return compiler(node.this).str.json_path_match(path)


_PARTS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "YEAR": lambda t: t.dt.year().cast(pl.Int64),
    "QUARTER": lambda t: t.dt.quarter().cast(pl.Int64),
    "MONTH": lambda t: t.dt.month().cast(pl.Int64),
    "WEEK": lambda t: t.dt.week().cast(pl.Int64),
    "DAY": lambda t: t.dt.day().cast(pl.Int64),
    "DOW": lambda t: (t.dt.weekday() % 7).cast(pl.Int64),
    "DAYOFWEEK": lambda t: (t.dt.weekday() % 7).cast(pl.Int64),
    "ISODOW": lambda t: t.dt.weekday().cast(pl.Int64),
    "DOY": lambda t: t.dt.ordinal_day().cast(pl.Int64),
    "DAYOFYEAR": lambda t: t.dt.ordinal_day().cast(pl.Int64),
    "HOUR": lambda t: t.dt.hour().cast(pl.Int64),
    "MINUTE": lambda t: t.dt.minute().cast(pl.Int64),
    "SECOND": lambda t: t.dt.second().cast(pl.Int64),
    "EPOCH": lambda t: t.dt.timestamp("us") / 1_000_000,
}
_TRUNCATED = {
    "SECOND": "1s",
    "MINUTE": "1m",
    "HOUR": "1h",
    "DAY": "1d",
    "WEEK": "1w",
    "MONTH": "1mo",
    "QUARTER": "1q",
    "YEAR": "1y",
}


def _extract(compiler: Compiler, node: exp.Extract) -> pl.Expr:
    return _part(compiler, node, str(node.this.name), node.expression)


def _part(compiler: Compiler, node: Any, part: str, value: Any) -> pl.Expr:
    made = _PARTS.get(part.upper())
    if made is None:
        raise compiler.mistake(node, f"no part {part!r} of a time; {near(part.upper(), _PARTS)}")
    return made(compiler(value))


def _named_part(part: str) -> Compiled:
    return lambda compiler, node: _part(compiler, node, part, node.this)


def _date_trunc(compiler: Compiler, node: Any) -> pl.Expr:
    unit = str(node.args["unit"].name).upper()
    if unit not in _TRUNCATED:
        raise compiler.mistake(node, f"no part {unit!r} of a time; {near(unit, _TRUNCATED)}")
    return compiler(node.this).dt.truncate(_TRUNCATED[unit])


def _from_epoch(compiler: Compiler, node: Any) -> pl.Expr:
    scale = node.args.get("scale")
    digits = 0 if scale is None else int(scale.name)
    value = compiler(node.this)
    if digits not in (0, 3, 6):
        raise compiler.mistake(node, "expected seconds, milliseconds or microseconds since 1970")
    micros = value.cast(pl.Int64) * int(10 ** (6 - digits))
    return micros.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _strftime(compiler: Compiler, node: Any) -> pl.Expr:
    form = str(compiler.constant(node.args["format"], "a format of time"))
    return compiler(node.this).dt.strftime(form)


def _date_diff(compiler: Compiler, node: Any) -> pl.Expr:
    """Count the bounds of a unit between two moments."""
    unit = str(node.args["unit"].name).upper()
    later, earlier = compiler(node.this), compiler(node.expression)
    if unit in ("YEAR", "QUARTER", "MONTH"):
        size = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}[unit]
        ends = [(t.dt.year().cast(pl.Int64) * 12 + t.dt.month() - 1) for t in (later, earlier)]
        return (ends[0] // size) - (ends[1] // size)
    if unit not in _TRUNCATED:
        raise compiler.mistake(node, f"no unit {unit!r} of time; {near(unit, _TRUNCATED)}")
    whole = [t.dt.truncate(_TRUNCATED[unit]) for t in (later, earlier)]
    return (whole[0] - whole[1]).dt.total_microseconds() // UNITS[unit]


def _pad(compiler: Compiler, node: Any) -> pl.Expr:
    value, length = compiler(node.this), compiler.constant(node.expression, "the length")
    letter = str(compiler.constant(node.args["fill_pattern"], "what is filled in"))
    if len(letter) != 1:
        raise compiler.mistake(node, "expected one letter to fill in")
    made = value.str.pad_start if node.args.get("is_left") else value.str.pad_end
    return made(length, letter).str.head(length)


def _position(compiler: Compiler, node: Any) -> pl.Expr:
    part = str(compiler.constant(node.args["substr"], "the text that is looked for"))
    before = compiler(node.this).str.splitn(part, 2).struct
    first = before.field("field_0").str.len_chars().cast(pl.Int64) + 1
    return (
        pl.when(before.field("field_1").is_not_null())
        .then(first)
        .otherwise(pl.when(compiler(node.this).is_not_null()).then(pl.lit(0, pl.Int64)))
    )


def _round(compiler: Compiler, node: Any) -> pl.Expr:
    digits = node.args.get("decimals")
    count = 0 if digits is None else int(compiler.constant(digits, "the number of digits"))
    value = compiler(node.this)
    if count >= 0:
        return value.round(count, mode="half_away_from_zero")
    unit = float(10**-count)
    return (value / unit).round(0, mode="half_away_from_zero") * unit


def _log(compiler: Compiler, node: exp.Log) -> pl.Expr:
    if node.expression is None:
        return compiler(node.this).log(10)
    return compiler(node.expression).log(float(compiler.constant(node.this, "the base")))


def _bracket(compiler: Compiler, node: exp.Bracket) -> pl.Expr:
    # The parser has counted positions down to 0.
    at = int(compiler.constant(node.expressions[0], "a position"))
    return compiler(node.this).list.get(at, null_on_oob=True)


def _anonymous(compiler: Compiler, node: exp.Anonymous) -> pl.Expr:
    name = node.name.lower()
    own = compiler.functions.get(name)
    if isinstance(own, UserFunction):
        wrong = own.check(len(node.expressions))
        if wrong is not None or not node.expressions:
            raise compiler.mistake(node, f"{name} {wrong or 'needs an argument'}")
        return own(compiler.all(node.expressions))
    made = FUNCTIONS.get(name)
    if made is None:
        raise compiler.mistake(node, _unknown(node, compiler.functions))
    try:
        return made(compiler, *node.expressions)
    except TypeError as error:
        raise compiler.mistake(node, f"{name} takes other arguments: {error}") from error


FUNCTIONS: dict[str, Callable[..., pl.Expr]] = {
    "date_part": lambda c, part, t: _part(c, part, str(c.constant(part, "the part")), t),
    "datepart": lambda c, part, t: _part(c, part, str(c.constant(part, "the part")), t),
    "prefix": lambda c, text, other: c(text).str.starts_with(c(other)),
    "suffix": lambda c, text, other: c(text).str.ends_with(c(other)),
    "len": lambda c, text: c(text).str.len_chars().cast(pl.Int64),
    "strlen": lambda c, text: c(text).str.len_bytes().cast(pl.Int64),
    "cbrt": lambda c, x: c(x).cbrt(),
    "even": lambda c, x: (c(x) / 2).ceil() * 2,
    "isnan": lambda c, x: c(x).is_nan(),
    "isfinite": lambda c, x: c(x).is_finite(),
    "list_contains": lambda c, items, x: c(items).list.contains(c(x)),
    "array_contains": lambda c, items, x: c(items).list.contains(c(x)),
}
"""Functions that sqlglot has no tree of its own for."""

_COMPILED: dict[type, Compiled] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda compiler, node: pl.lit(bool(node.this)),
    exp.Null: lambda compiler, node: pl.lit(None),
    exp.Paren: _unary(lambda x: x),
    exp.Alias: _unary(lambda x: x),
    exp.Neg: _unary(lambda x: -x),
    exp.Not: _unary(lambda x: ~x),
    exp.And: _binary(lambda a, b: a & b),
    exp.Or: _binary(lambda a, b: a | b),
    exp.EQ: _binary(lambda a, b: a == b),
    exp.NEQ: _binary(lambda a, b: a != b),
    exp.LT: _binary(lambda a, b: a < b),
    exp.LTE: _binary(lambda a, b: a <= b),
    exp.GT: _binary(lambda a, b: a > b),
    exp.GTE: _binary(lambda a, b: a >= b),
    exp.NullSafeEQ: _binary(lambda a, b: a.eq_missing(b)),
    exp.NullSafeNEQ: _binary(lambda a, b: a.ne_missing(b)),
    exp.Add: _shift(lambda a, b: a + b),
    exp.Sub: _shift(lambda a, b: a - b),
    exp.Mul: _binary(lambda a, b: a * b),
    exp.Div: _binary(lambda a, b: a / b),
    exp.IntDiv: _binary(_whole),
    exp.Mod: _binary(_rest),
    exp.Pow: _binary(lambda a, b: a.cast(pl.Float64) ** b),
    exp.DPipe: _binary(lambda a, b: pl.concat_str([_text(a), _text(b)])),
    exp.Interval: _interval,
    exp.Like: _like(is_folded=False),
    exp.ILike: _like(is_folded=True),
    exp.Case: _case,
    exp.If: _if,
    exp.In: _in,
    exp.Between: _between,
    exp.Is: _is,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Coalesce: lambda c, n: pl.coalesce(c.all([n.this, *n.expressions])),
    exp.Nullif: lambda c, n: pl.when(~c(n.this).eq_missing(c(n.expression))).then(c(n.this)),
    exp.Greatest: lambda c, n: pl.max_horizontal(c.all([n.this, *n.expressions])),
    exp.Least: lambda c, n: pl.min_horizontal(c.all([n.this, *n.expressions])),
    exp.Abs: _unary(lambda x: x.abs()),
    exp.Sign: _unary(lambda x: x.sign().cast(pl.Int8)),
    exp.Sqrt: _unary(lambda x: x.sqrt()),
    exp.Exp: _unary(lambda x: x.exp()),
    exp.Ln: _unary(lambda x: x.log()),
    exp.Log: _log,
    exp.Floor: _unary(lambda x: x.floor()),
    exp.Ceil: _unary(lambda x: x.ceil()),
    exp.Round: _round,
    exp.Lower: _unary(lambda x: x.str.to_lowercase()),
    exp.Upper: _unary(lambda x: x.str.to_uppercase()),
    exp.Length: _unary(lambda x: x.str.len_chars().cast(pl.Int64)),
    exp.Reverse: _unary(lambda x: x.str.reverse()),
    exp.Trim: _trim,
    exp.Substring: _substring,
    exp.Left: _left,
    exp.Right: _right,
    exp.Replace: _replace,
    exp.Concat: _concat,
    exp.ConcatWs: _concat_ws,
    exp.Contains: _binary(lambda a, b: a.str.contains(b, literal=True)),
    exp.StartsWith: _binary(lambda a, b: a.str.starts_with(b)),
    exp.EndsWith: _binary(lambda a, b: a.str.ends_with(b)),
    exp.SplitPart: _split_part,
    exp.RegexpLike: _regexp_like,
    exp.RegexpExtract: _regexp_extract,
    exp.RegexpReplace: _regexp_replace,
    exp.JSONExtractScalar: _json_text,
    exp.Extract: _extract,
    exp.TimestampTrunc: _date_trunc,
    exp.DateTrunc: _date_trunc,
    exp.UnixToTime: _from_epoch,
    exp.TimeToStr: _strftime,
    exp.Bracket: _bracket,
    exp.Anonymous: _anonymous,
    exp.Cbrt: _unary(lambda x: x.cbrt()),
    exp.IsNan: _unary(lambda x: x.is_nan()),
    exp.IsInf: _unary(lambda x: x.is_infinite()),
    exp.ArrayContains: _binary(lambda a, b: a.list.contains(b)),
    exp.BitwiseAnd: _binary(lambda a, b: a & b),
    exp.BitwiseOr: _binary(lambda a, b: a | b),
    exp.StrPosition: _position,
    exp.Pad: _pad,
    exp.Repeat: lambda c, n: pl.concat_str(
        [c(n.this)] * max(1, int(c.constant(n.args["times"], "how many times")))
    ),
    exp.DateDiff: _date_diff,
    exp.TimeToUnix: _named_part("EPOCH"),
    exp.Week: _named_part("WEEK"),
    exp.Year: _named_part("YEAR"),
    exp.Quarter: _named_part("QUARTER"),
    exp.Month: _named_part("MONTH"),
    exp.Day: _named_part("DAY"),
    exp.DayOfMonth: _named_part("DAY"),
    exp.DayOfWeek: _named_part("DOW"),
    exp.DayOfYear: _named_part("DOY"),
    exp.Hour: _named_part("HOUR"),
    exp.Minute: _named_part("MINUTE"),
    exp.Second: _named_part("SECOND"),
}
