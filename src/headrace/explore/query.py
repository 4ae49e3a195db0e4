"""What can be asked of a stream: ``Query``, as the address bar, saved views and the API have it.

``read_query`` checks one by itself; whether its columns fit is seen by ``columns`` when it runs.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS, duration_ms, moment_ms
from headrace.errors import InvalidInputError

View = Literal["table", "series", "bars", "area", "distribution", "heatmap", "samples"]
Op = Literal[
    "=", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "not contains",
    "starts with", "matches", "is null", "is not null",
]  # fmt: skip
Fn = Literal[
    "count", "rate", "sum", "avg", "min", "max", "p50", "p75", "p90", "p95", "p99",
    "distinct", "sum_rate",
]  # fmt: skip
OVER_TIME = ("series", "area")
OF_VALUES = ("distribution", "heatmap")
COUNTS = ("count", "rate", "sum", "sum_rate", "distinct")
"""Metrics that are 0 where there is no row; others are null there."""

NEEDS_NO_COLUMN = ("count", "rate")
MAX_BUCKETS = 2_000
WANTED_BUCKETS = 120
NICE_MS = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000),
    *(86_400_000, 172_800_000, 604_800_000, 2_592_000_000),
)
_Name = Annotated[str, Meta(min_length=1, max_length=500)]
_Text = Annotated[str, Meta(max_length=10_000)]
_Plain = str | int | float | bool
_Moment = _Text | int


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on one column."""

    column: _Name
    op: Op
    value: _Plain | Annotated[list[_Plain], Meta(max_length=1000)] | None = None


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A figure of each group."""

    fn: Fn
    column: _Name | None = None

    @property
    def label(self) -> str:
        """Its name as a column of the result."""
        return self.fn if self.column is None else f"{self.fn}({self.column})"


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How groups are ordered: by a metric's place, or by a column."""

    by: int | str = 0
    descending: bool = True


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A question about one stream; see the guide for each field."""

    stream: _Name
    begin: _Moment = msgspec.field(name="from", default="-1h")
    end: _Moment = msgspec.field(name="to", default="now")
    compare: _Text | None = None
    filters: Annotated[tuple[Filter, ...], Meta(max_length=50)] = ()
    group_by: Annotated[tuple[_Name, ...], Meta(max_length=8)] = ()
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=12)] = (Metric("count"),)
    view: View = "table"
    bucket: _Text | None = None
    order: Order | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Span(msgspec.Struct, frozen=True):
    """The time that a query covers: from ``from_ms`` to before ``to_ms``."""

    from_ms: int
    to_ms: int

    @property
    def ms(self) -> int:
        """How long it is."""
        return self.to_ms - self.from_ms

    def before(self, ms: int) -> Span:
        """Return the same time some while before."""
        return Span(self.from_ms - ms, self.to_ms - ms)


def read_query(given: bytes | str | dict[str, Any]) -> Query:
    """Return a checked query of its JSON, or of what that became.

    Raises:
        InvalidInputError: it is none; says which field.
    """
    try:
        query = (
            msgspec.convert(given, Query)
            if isinstance(given, dict)
            else msgspec.json.decode(given, type=Query)
        )
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInputError(f"query: {_words(str(error))}") from error
    check_query(query)
    return query


def canonical(query: Query) -> bytes:
    """Return the text by which equal queries are known."""
    return msgspec.json.encode(query, order="deterministic")


def _words(text: str) -> str:
    text = text[0].lower() + text[1:]
    return f"{text}; the guide lists the fields of a query"


def check_query(query: Query) -> None:
    """Refuse a query that cannot be asked of any stream.

    Raises:
        InvalidInputError: says what does not go together.
    """
    for one in query.metrics:
        if (one.column is None) != (one.fn in NEEDS_NO_COLUMN):
            verb = "takes no" if one.fn in NEEDS_NO_COLUMN else "needs a"
            raise InvalidInputError(f"metric {one.fn!r} {verb} column; change metrics")
    if query.view in OF_VALUES and (not query.metrics or query.metrics[0].column is None):
        raise InvalidInputError(
            f"view {query.view!r} shows the values of the first metric's column; give one, such "
            'as {"fn": "p50", "column": "ms"}'
        )
    if query.view != "samples" and not query.metrics:
        raise InvalidInputError(f"view {query.view!r} needs a metric, such as count; add one")
    if query.view == "heatmap" and query.group_by:
        raise InvalidInputError("a heat map has no groups; leave group_by out, or add a filter")
    for condition in query.filters:
        _check_filter(condition)


def _check_filter(one: Filter) -> None:
    is_null_test = one.op in ("is null", "is not null")
    if is_null_test != (one.value is None):
        verb = "takes no value" if is_null_test else "needs a value"
        raise InvalidInputError(f"filter {one.column} {one.op}: it {verb}")
    if (one.op in ("in", "not in")) != isinstance(one.value, list):
        raise InvalidInputError(
            f"filter {one.column} {one.op}: in and not in take a list of values, others one value"
        )
    if isinstance(one.value, list) and not one.value:
        raise InvalidInputError(f"filter {one.column} {one.op}: the list is empty; give a value")


def span_of(query: Query, now_ms: int) -> Span:
    """Return the time of a query that is asked now.

    Raises:
        InvalidInputError: a time that cannot be read, or an end that is not behind the begin.
    """
    begin, end = _moment(query.begin, "from", now_ms), _moment(query.end, "to", now_ms)
    if begin >= end:
        raise InvalidInputError("from must be before to; swap them, or choose another range")
    return Span(begin, end)


_RELATIVE = re.compile(r"-\s*(.+)")


def _moment(value: str | int, what: str, now_ms: int) -> int:
    """Return ``now``, ``-15m``, ms since 1970, or ISO 8601 as ms; without a zone it is UTC."""
    if isinstance(value, int):
        found = value
    elif value.strip() == "now":
        found = now_ms
    elif re.fullmatch(r"-?\d{9,}", value.strip()):
        found = int(value)
    elif (relative := _RELATIVE.fullmatch(value.strip())) is not None:
        found = now_ms - duration_ms(relative[1], what)
    else:
        try:
            found = moment_ms(datetime.fromisoformat(value.strip()))
        except ValueError as error:
            raise InvalidInputError(
                f"{what} is {value!r}; expected now, -15m, a time such as 2026-01-31T05:15Z, or "
                "milliseconds since 1970"
            ) from error
    if not MIN_EVENT_TIME_MS <= found < MAX_EVENT_TIME_MS:
        raise InvalidInputError(f"{what} is {value!r}, which is outside the years 1 to 9999")
    return found


def bucket_of(query: Query, span: Span, wanted: int = WANTED_BUCKETS) -> int:
    """Return the width of the buckets of time, ms.

    Raises:
        InvalidInputError: there would be too many.
    """
    if query.bucket in (None, "auto"):
        return next((one for one in NICE_MS if span.ms / one <= wanted), NICE_MS[-1])
    found = duration_ms(query.bucket, "bucket")
    if span.ms / found > MAX_BUCKETS:
        raise InvalidInputError(
            f"bucket {query.bucket} makes {span.ms // found:,} buckets; expected at most "
            f"{MAX_BUCKETS:,}: choose longer ones, or auto"
        )
    return found


def compare_ms(query: Query) -> int | None:
    """Return how long before the other time is; ``None``: nothing is compared."""
    return None if query.compare is None else duration_ms(query.compare, "compare")
