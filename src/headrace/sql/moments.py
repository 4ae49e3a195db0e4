"""Dates, times and intervals of SQL, compiled to Polars; all moments are of UTC."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.queries.text import near
from headrace.sql.compiling import Compiled, Compiling, unary

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


_MONTHS = {
    **dict.fromkeys(("MONTH", "MONTHS"), 1),
    **dict.fromkeys(("QUARTER", "QUARTERS"), 3),
    **dict.fromkeys(("YEAR", "YEARS"), 12),
}
"""Units of intervals whose length depends on when they begin, in months."""


def _months(compiler: Compiling, node: exp.Interval) -> int | None:
    """Return the months of an interval; ``None``: its unit has a length."""
    unit = str(node.args.get("unit") or "").upper()
    if unit not in _MONTHS:
        return None
    value = float(compiler.constant(node.this, "an interval"))
    if value != round(value):
        raise compiler.mistake(node, f"an interval of {unit.lower()} is a whole number")
    return round(value) * _MONTHS[unit]


def _micros(compiler: Compiling, node: exp.Interval) -> int:
    """Return the microseconds of an interval."""
    unit = str(node.args.get("unit") or "").upper()
    if unit not in UNITS:
        known = [*UNITS, *_MONTHS]
        raise compiler.mistake(
            node, f"an interval of {unit.lower() or 'no unit'} is not known; {near(unit, known)}"
        )
    return round(float(compiler.constant(node.this, "an interval")) * UNITS[unit])


def _interval(compiler: Compiling, node: exp.Interval) -> pl.Expr:
    return pl.lit(datetime.timedelta(microseconds=_micros(compiler, node)))


def moment(compiler: Compiling, node: exp.Literal, target: pl.DataType) -> object:
    """Return the value of a date or time that is written out.

    Raises:
        InvalidInputError: it is none; shows where.
    """
    try:
        found = datetime.datetime.fromisoformat(node.this)
    except ValueError as error:
        raise compiler.mistake(
            node, f"{node.this!r} is no date; expected such as '2026-01-31' or '2026-01-31 12:00'"
        ) from error
    if isinstance(target, pl.Date):
        return found.date()
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


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


def _extract(compiler: Compiling, node: exp.Extract) -> pl.Expr:
    return _part(compiler, node, str(node.this.name), node.expression)


def _part(compiler: Compiling, node: Any, part: str, value: Any) -> pl.Expr:
    made = _PARTS.get(part.upper())
    if made is None:
        raise compiler.mistake(node, f"no part {part!r} of a time; {near(part.upper(), _PARTS)}")
    return made(compiler(value))


def _named_part(part: str) -> Compiled:
    return lambda compiler, node: _part(compiler, node, part, node.this)


def _date_trunc(compiler: Compiling, node: Any) -> pl.Expr:
    unit = str(node.args["unit"].name).upper()
    if unit not in _TRUNCATED:
        raise compiler.mistake(node, f"no part {unit!r} of a time; {near(unit, _TRUNCATED)}")
    return compiler(node.this).dt.truncate(_TRUNCATED[unit])


def _from_epoch(compiler: Compiling, node: Any) -> pl.Expr:
    scale = node.args.get("scale")
    digits = 0 if scale is None else int(scale.name)
    if digits not in (0, 3, 6):
        raise compiler.mistake(node, "expected seconds, milliseconds or microseconds since 1970")
    # A product, as it is refused for moments: in DuckDB, epoch_ms goes both ways.
    micros = (compiler(node.this) * int(10 ** (6 - digits))).cast(pl.Int64)
    return micros.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _strftime(compiler: Compiling, node: Any) -> pl.Expr:
    form = str(compiler.constant(node.args["format"], "a format of time"))
    return compiler(node.this).dt.strftime(form)


def _date_diff(compiler: Compiling, node: Any) -> pl.Expr:
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


def shifted(sign: Callable[[pl.Expr, pl.Expr], pl.Expr], word: str) -> Compiled:
    """Return what compiles a sum or difference, of which the right side may be an interval."""

    def made(compiler: Compiling, node: Any) -> pl.Expr:
        value, by = compiler(node.this), node.expression
        if not isinstance(by, exp.Interval):
            return sign(value, compiler(by))
        if (months := _months(compiler, by)) is not None:
            return value.dt.offset_by(f"{word}{months}mo")
        return sign(value, _interval(compiler, by))

    return made


_UTC = "UTC"


def _parsed(compiler: Compiling, text: Any, form: Any, *, strict: bool) -> pl.Expr:
    shown = str(compiler.constant(form, "a format of time"))
    found = compiler(text).str.to_datetime(shown, time_unit="us", strict=strict)
    return found.dt.replace_time_zone(_UTC)


def _date_of(compiler: Compiling, node: exp.DateFromParts) -> pl.Expr:
    return pl.date(*[compiler(node.args[part]) for part in ("year", "month", "day")])


def _timestamp_of(compiler: Compiling, node: exp.TimestampFromParts) -> pl.Expr:
    parts = ("year", "month", "day", "hour", "min", "sec")
    year, month, day, hour, minute, seconds = [compiler(node.args[part]) for part in parts]
    micros = (seconds * 1_000_000).round().cast(pl.Int64) % 1_000_000
    second = seconds.floor().cast(pl.Int64)
    return pl.datetime(
        year, month, day, hour, minute, second, micros, time_unit="us", time_zone=_UTC
    )


_BUCKETS_US = 946_857_600_000_000
"""Where buckets of time begin in DuckDB: Monday, 3 January 2000."""


def _bucket(compiler: Compiling, node: exp.DateBin) -> pl.Expr:
    """Round down to the begin of an interval of a length."""
    if not isinstance(node.this, exp.Interval):
        raise compiler.mistake(node.this, "expected an interval, such as INTERVAL '5 minutes'")
    width = _micros(compiler, node.this)
    if width < 1:
        raise compiler.mistake(node.this, "expected an interval of more than nothing")
    micros = compiler(node.expression).dt.timestamp("us") - _BUCKETS_US
    begin = micros // width * width + _BUCKETS_US
    return begin.cast(pl.Datetime("us")).dt.replace_time_zone(_UTC)


FUNCTIONS: dict[str, Callable[..., pl.Expr]] = {
    "date_part": lambda c, part, t: _part(c, part, str(c.constant(part, "the part")), t),
    "datepart": lambda c, part, t: _part(c, part, str(c.constant(part, "the part")), t),
    "epoch_us": lambda c, t: c(t).dt.timestamp("us"),
    "epoch_ns": lambda c, t: c(t).dt.timestamp("us") * 1000,
    "try_strptime": lambda c, text, form: _parsed(c, text, form, strict=False),
}
"""Functions of moments that sqlglot has no tree of its own for."""

MOMENTS: dict[type, Compiled] = {
    exp.Add: shifted(lambda a, b: a + b, ""),
    exp.Sub: shifted(lambda a, b: a - b, "-"),
    exp.DateAdd: shifted(lambda a, b: a + b, ""),
    exp.DateSub: shifted(lambda a, b: a - b, "-"),
    exp.Interval: _interval,
    exp.Extract: _extract,
    exp.TimestampTrunc: _date_trunc,
    exp.DateTrunc: _date_trunc,
    exp.DateBin: _bucket,
    exp.DateFromParts: _date_of,
    exp.TimestampFromParts: _timestamp_of,
    exp.LastDay: unary(lambda t: t.dt.month_end().cast(pl.Date)),
    exp.Dayname: unary(lambda t: t.dt.strftime("%A")),
    exp.Monthname: unary(lambda t: t.dt.strftime("%B")),
    exp.UnixToTime: _from_epoch,
    exp.TimeToStr: _strftime,
    exp.StrToTime: lambda c, n: _parsed(c, n.this, n.args["format"], strict=True),
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
"""What compiles trees of moments."""
