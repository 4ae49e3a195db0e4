"""Aggregates are monoids, and their four forms agree with plain Python."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import examples

from headrace.errors import InvalidInputError
from headrace.graph import agg
from headrace.graph.aggregates import Aggregate, PartialRow
from headrace.graph.rankings import FirstRows, Order
from headrace.graph.row_aggregates import Monoid, Unique
from headrace.graph.types import polars_schema

SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("number", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
    ]
)
Row = dict[str, Any]


class Spread(msgspec.Struct, frozen=True):
    """Least and greatest so far, as a state of a user's monoid."""

    low: int | None = None
    high: int | None = None


def lift_spread(number: int | None) -> Spread:
    return Spread(number, number)


def join_spread(first: Spread, second: Spread) -> Spread:
    if first.low is None or second.low is None:
        return second if first.low is None else first
    assert first.high is not None
    assert second.high is not None
    return Spread(min(first.low, second.low), max(first.high, second.high))


def show_spread(state: Spread) -> int | None:
    return None if state.low is None or state.high is None else state.high - state.low


def spread(**options: Any) -> Aggregate:
    return agg.monoid(
        Spread(), lift_spread, join_spread, show_spread, returns=int, columns="number", **options
    )


def fold_spread(frame: pl.DataFrame) -> Spread:
    return Spread(frame["number"].min(), frame["number"].max())  # type: ignore[arg-type]


def joined() -> Aggregate:
    return agg.monoid(
        [], lambda text: [text], lambda a, b: [*a, *b], returns=list[str], columns=("text",)
    )


def _values(rows: Sequence[Row], column: str) -> list[Any]:
    found = [row[column] for row in rows if row[column] is not None]
    return [value for value in found if not (isinstance(value, float) and math.isnan(value))]


def _different(rows: Sequence[Row], column: str) -> list[Any]:
    """Return each value once, in the order of arrival; NaN is one."""
    found = [row[column] for row in rows if row[column] is not None]
    shown = ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in found]
    return list(dict.fromkeys(shown))


def _share(flags: list[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _mean(rows: Sequence[Row]) -> float | None:
    values = _values(rows, "number")
    return sum(values) / len(values) if values else None


def _top(rows: Sequence[Row]) -> list[Row]:
    ranked = [row for row in rows if row["real"] is not None and not math.isnan(row["real"])]
    ranked.sort(key=lambda row: (-row["real"], row["text"] is None, row["text"] or ""))
    return [{name: row[name] for name in ("real", "text")} for row in ranked[:3]]


def _first_rows(rows: Sequence[Row]) -> list[Row]:
    def rank(row: Row) -> tuple[Any, ...]:
        number, text = row["number"], row["text"]
        return (number is not None, -(number or 0), text is None, text or "")

    return [{n: row[n] for n in ("text", "number")} for row in sorted(rows, key=rank)[:3]]


def _picked(rows: Sequence[Row], *, least: bool) -> str | None:
    some = [row for row in rows if row["text"] is not None and row["at"] is not None]
    ordered = sorted(some, key=lambda row: row["at"])
    found: str | None = ordered[0 if least else -1]["text"] if some else None
    return found


def _ranked(values: list[int]) -> list[float] | None:
    ordered = sorted(values)
    return [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]] if ordered else None


def _often(values: list[Any], column: str = "number", k: int = 2) -> list[Row]:
    counts = sorted((-values.count(value), value) for value in set(values))
    return [{column: value, "count": -n, "least": -n} for n, value in counts[:k]]


MODELS: dict[str, tuple[Aggregate, Any]] = {
    "count": (agg.count(), len),
    "count of a column": (agg.count("number"), lambda rows: len(_values(rows, "number"))),
    "sum": (agg.sum("number"), lambda rows: sum(_values(rows, "number"))),
    "sum of flags": (agg.sum("flag"), lambda rows: sum(_values(rows, "flag"))),
    "mean": (agg.mean("number"), _mean),
    "min": (agg.min("real"), lambda rows: min(_values(rows, "real"), default=None)),
    "max": (agg.max("real"), lambda rows: max(_values(rows, "real"), default=None)),
    "min of text": (agg.min("text"), lambda rows: min(_values(rows, "text"), default=None)),
    "max of times": (agg.max("at"), lambda rows: max(_values(rows, "at"), default=None)),
    "max of flags": (agg.max("flag"), lambda rows: max(_values(rows, "flag"), default=None)),
    "top k": (agg.top_k("real", k=3, keep=("text",)), _top),
    "first": (agg.first("text"), lambda rows: next(iter(_values(rows, "text")), None)),
    "last": (agg.last("number"), lambda rows: (_values(rows, "number") or [None])[-1]),
    "first by time": (agg.first("text", by="at"), lambda rows: _picked(rows, least=True)),
    "last by time": (agg.last("text", by="at"), lambda rows: _picked(rows, least=False)),
    "collect": (agg.collect("text"), lambda rows: [row["text"] for row in rows]),
    "collect columns": (
        agg.collect("number", "text"),
        lambda rows: [{name: row[name] for name in ("number", "text")} for row in rows],
    ),
    "count distinct": (agg.count_distinct("number"), lambda rows: len(_different(rows, "number"))),
    "count distinct floats": (
        agg.count_distinct("real"),
        lambda rows: len(_different(rows, "real")),
    ),
    "count distinct times": (agg.count_distinct("at"), lambda rows: len(_different(rows, "at"))),
    "sum of distinct": (
        Unique("number", "sum"),
        lambda rows: sum(_different(rows, "number")) if _different(rows, "number") else None,
    ),
    "mean of distinct flags": (
        Unique("flag", "mean"),
        lambda rows: _share(_different(rows, "flag")),
    ),
    "values once": (agg.distinct("text"), lambda rows: _different(rows, "text")),
    "distinct text": (
        agg.approx_distinct("text", 32),
        lambda rows: len(set(_values(rows, "text"))),
    ),
    "distinct times": (agg.approx_distinct("at", 32), lambda rows: len(set(_values(rows, "at")))),
    "distinct floats": (
        agg.approx_distinct("real", 32),
        lambda rows: len(set(_values(rows, "real"))),
    ),
    "quantiles": (
        agg.quantiles("number", [0, 0.5, 1], 32),
        lambda rows: _ranked(_values(rows, "number")),
    ),
    "frequent text": (
        agg.frequent("text", 9, 32),
        lambda rows: _often(_values(rows, "text"), "text", 9),
    ),
    "frequent": (agg.frequent("number", 2, 32), lambda rows: _often(_values(rows, "number"))),
    "first rows": (
        FirstRows(("text", "number"), (Order("number", is_descending=True, nulls_first=True),), 3),
        _first_rows,
    ),
    "first row": (
        FirstRows(("text", "number"), (Order("number", is_descending=True, nulls_first=True),), 1),
        lambda rows: _first_rows(rows)[:1],
    ),
    "monoid": (spread(), lambda rows: show_spread(fold_spread(to_frame(rows)))),
    "monoid by frame": (
        spread(fold_frame=fold_spread),
        lambda rows: show_spread(fold_spread(to_frame(rows))),
    ),
    "monoid of order": (joined(), lambda rows: [row["text"] for row in rows]),
}

rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.integers(0, 2),
            "number": st.none() | st.integers(-(2**40), 2**40),
            "real": st.none() | st.sampled_from([math.nan, -1.5, 0.0, 2.25, 1e300]),
            "text": st.none() | st.text("ab\0é", max_size=2),
            "at": st.none()
            | st.datetimes(
                min_value=datetime.datetime(1970, 1, 1),  # noqa: DTZ001 - zone given below
                timezones=st.just(datetime.UTC),
            ),
            "flag": st.none() | st.booleans(),
        }
    ),
    max_size=12,
)
STEPWISE = (
    *("top k", "count distinct", "sum of distinct", "mean of distinct", "values once", "monoid"),
    *("first row", "first by", "last by", "collect", "distinct", "quantiles", "frequent"),
)
"""Aggregates whose running results are made row by row."""

law = pytest.mark.parametrize("name", MODELS)
quick = settings(max_examples=examples(10), deadline=None)


def to_frame(rows: Sequence[Row]) -> pl.DataFrame:
    frame = pl.from_arrow(pa.Table.from_pylist(list(rows), schema=SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return frame


def bound(name: str) -> Aggregate:
    return MODELS[name][0].bind(SCHEMA)


def partials(aggregate: Aggregate, rows: Sequence[Row]) -> pl.DataFrame:
    grouped = to_frame(rows).group_by("key", maintain_order=True)
    return grouped.agg(aggregate.partial("p."))


def combined(aggregate: Aggregate, *parts: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(parts).group_by("key", maintain_order=True).agg(aggregate.combine("p."))


def shown(aggregate: Aggregate, frame: pl.DataFrame) -> dict[int, Any]:
    return dict(frame.select("key", aggregate.result("p.").alias("result")).iter_rows())


def expected(name: str, rows: Sequence[Row]) -> dict[int, Any]:
    keys = {row["key"] for row in rows}
    return {key: MODELS[name][1]([row for row in rows if row["key"] == key]) for key in keys}


@law
@quick
@given(rows=rows_strategy, cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_each_form_computes_what_plain_python_does(
    name: str, rows: list[Row], cuts: tuple[int, int]
) -> None:
    """All of them for the same rows: to draw these takes longer than to aggregate them."""
    aggregate, wanted = bound(name), expected(name, rows)
    whole = partials(aggregate, rows)
    lifted = to_frame(rows).select("key", *aggregate.lift("p."))
    assert wanted == shown(aggregate, whole)
    assert len(rows) == lifted.height
    assert wanted == shown(aggregate, combined(aggregate, lifted))
    check_parts(aggregate, wanted, rows, *sorted(cuts))
    check_identity(aggregate, whole)
    check_values(aggregate, wanted, rows)
    check_prefixes(name, aggregate, lifted, rows)


def check_parts(
    aggregate: Aggregate, wanted: dict[int, Any], rows: list[Row], first: int, last: int
) -> None:
    """Rows may be split anywhere and combined either way, in groups or side by side."""
    parts = (rows[:first], rows[first:last], rows[last:])
    a, b, c = (partials(aggregate, part) for part in parts)
    begin = combined(aggregate, a, b)
    assert wanted == shown(aggregate, combined(aggregate, begin, c))
    assert wanted == shown(aggregate, combined(aggregate, a, combined(aggregate, b, c)))
    pairs = aggregate.combine_pair("q.", "p.")
    if pairs is None:
        return
    earlier = begin.rename(lambda column: column.replace("p.", "q."))
    both = c.join(earlier, on="key", how="inner", maintain_order="left")
    side = shown(aggregate, both.select("key", *pairs))
    assert side == {key: wanted[key] for key in both["key"].to_list()}


def check_identity(aggregate: Aggregate, whole: pl.DataFrame) -> None:
    """The identity before or after changes nothing."""
    zero = aggregate.identity()
    for row in whole.drop("key").rows():
        again = [aggregate.combine_values(*pair) for pair in ((zero, row), (row, zero))]
        results = [aggregate.result_value(partial) for partial in again]
        assert results == [aggregate.result_value(row)] * 2


def check_values(aggregate: Aggregate, wanted: dict[int, Any], rows: list[Row]) -> None:
    """The form for single values follows the same law."""
    for key, result in wanted.items():
        values = [tuple(r[c] for c in aggregate.columns()) for r in rows if r["key"] == key]
        total = aggregate.fold(map(aggregate.lift_values, values))
        assert result == aggregate.result_value(total)


def check_prefixes(name: str, aggregate: Aggregate, lifted: pl.DataFrame, rows: list[Row]) -> None:
    """Accumulating shows each prefix."""
    running = aggregate.accumulate("p.")
    if running is None:
        assert name.startswith(STEPWISE)
        return
    frame = lifted.with_columns(step.over("key") for step in running)
    results = frame.select(aggregate.result("p.").alias("result"))["result"].to_list()
    for at, row in enumerate(rows):
        assert expected(name, rows[: at + 1])[row["key"]] == results[at]


@quick
@given(rows=rows_strategy)
def test_what_follows_is_shown_for_each_row_and_whole_in_the_last(rows: list[Row]) -> None:
    aggregate = agg.count_distinct("real").bind(SCHEMA)
    lifted = to_frame(rows).select("key", *aggregate.lift("p."))
    made = aggregate.follow(lifted, "key", "p.")
    assert made is not None
    frame = lifted.with_columns(made)
    assert lifted.schema == frame.schema
    for at, row in enumerate(rows):
        mine = [other for other in rows[: at + 1] if other["key"] == row["key"]]
        assert len(_different(mine, "real")) == frame["p.count"][at]
    lasts = dict(frame.group_by("key").last().select("key", "p.values").iter_rows())
    whole = dict(combined(aggregate, lifted).select("key", "p.values").iter_rows())
    assert {k: list(map(repr, v)) for k, v in whole.items()} == {
        k: list(map(repr, v)) for k, v in lasts.items()
    }


@pytest.mark.parametrize("name", ["first rows", "first row"])
@quick
@given(rows=rows_strategy)
def test_first_rows_follow_row_by_row(name: str, rows: list[Row]) -> None:
    aggregate = bound(name)
    lifted = to_frame(rows).select("key", *aggregate.lift("p."))
    frame = lifted.with_columns(aggregate.follow(lifted, "key", "p.") or [])
    assert lifted.schema == frame.schema
    results = frame.select(aggregate.result("p.").alias("result"))["result"].to_list()
    for at, row in enumerate(rows):
        assert expected(name, rows[: at + 1])[row["key"]] == results[at]


@law
def test_every_form_gives_exactly_the_declared_types(name: str) -> None:
    aggregate = bound(name)
    rows: list[Row] = [{"key": 1}, {"key": 1, "number": 3, "real": 1.5, "text": "x"}]
    declared = {f"p.{suffix}": kind for suffix, kind in aggregate.partial_types(SCHEMA).items()}
    types = dict(polars_schema(pa.schema(list(declared.items()))))
    part, none = partials(aggregate, rows), partials(aggregate, [])
    running = aggregate.accumulate("p.") or []
    for frame in (
        part,
        none,
        combined(aggregate, part, none),
        to_frame(rows).select("key", *aggregate.lift("p.")),
        to_frame([]).select("key", *aggregate.lift("p.")),
        to_frame(rows).select("key", *aggregate.lift("p.")).with_columns(running),
    ):
        assert types == dict(frame.drop("key").schema)
    result = part.select(aggregate.result("p.").alias("r"))
    assert polars_schema(pa.schema([("r", aggregate.result_type(SCHEMA))])) == result.schema


def test_sum_of_integers_beyond_64_bits_is_refused_in_every_form() -> None:
    total = agg.sum("number").bind(SCHEMA)
    rows: list[Row] = [{"key": 1, "number": 2**62}] * 2
    half = partials(total, rows[:1])
    lifted = to_frame(rows).select("key", *total.lift("p."))
    running = total.accumulate("p.")
    assert running is not None
    once = Unique("number", "sum").bind(SCHEMA)
    two = partials(once, [{"key": 1, "number": 2**62 + n} for n in range(2)])
    for fails in (
        lambda: partials(total, rows),
        lambda: combined(total, half, half),
        lambda: lifted.with_columns(step.over("key") for step in running),
        lambda: two.select(once.result("p.")),
    ):
        with pytest.raises(pl.exceptions.InvalidOperationError, match="i128` to `i64` failed"):
            fails()
    with pytest.raises(InvalidInputError, match=r"sum\(number\) is 9223372036854775808, beyond"):
        total.combine_values((2**62,), (2**62,))


def test_mean_of_large_integers_is_exact_until_shown() -> None:
    mean = agg.mean("number").bind(SCHEMA)
    rows: list[Row] = [{"key": 1, "number": 2**53 + n} for n in (1, 1, -2)]
    assert partials(mean, rows).drop("key").row(0) == (3 * 2**53, 3)


def test_full_ties_of_top_k_do_not_depend_on_arrival() -> None:
    top = agg.top_k("number", k=2, keep=["text"]).bind(SCHEMA)
    rows: list[Row] = [{"key": 1, "number": 5, "text": text} for text in ("c", None, "a", "b")]
    forward = shown(top, partials(top, rows))
    assert forward == shown(top, partials(top, rows[::-1]))
    assert [row["text"] for row in forward[1]] == ["a", "b"]


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (agg.sum("text"), r"sum\('text'\) needs numbers; the column is string"),
        (agg.mean("at"), r"mean\('at'\) needs numbers; the column is timestamp"),
        (agg.max("numbr"), r"no column 'numbr'; did you mean 'number'\?"),
        (agg.count("zzz"), r"no column 'zzz'; columns are \['key', 'number'"),
        (agg.top_k("real", keep="nope"), "no column 'nope'"),
        (Monoid(0, int, max, None, pa.int64(), ("gone",)), "no column 'gone'"),
    ],
)
def test_columns_that_do_not_fit_are_named(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        aggregate.result_type(SCHEMA)


def test_lists_have_no_order() -> None:
    schema = pa.schema([("items", pa.list_(pa.int64()))])
    with pytest.raises(InvalidInputError, match=r"min\('items'\) needs values with an order"):
        agg.min("items").result_type(schema)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (agg.sum(7), "sum takes the name of a column; found 7"),  # type: ignore[arg-type]
        (agg.count(""), "count takes the name of a column; found ''"),
        (agg.top_k("a", k=0), "top_k takes k of at least 1; found 0"),
        (agg.top_k("a", keep=("b", "a")), r"top_k names a column twice in \['a', 'b', 'a'\]"),
        (agg.monoid(0, int, max, returns=int, columns=()), "monoid reads no columns"),
        (
            agg.monoid(0, 3, max, returns=int, columns="a"),  # type: ignore[arg-type]
            "monoid takes a function as lift; found 3",
        ),
        (
            agg.monoid(object(), int, max, returns=int, columns="a"),
            "the zero of monoid cannot be kept as MessagePack",
        ),
    ],
)
def test_wrong_arguments_are_told_by_check(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert not "; ".join(aggregate.check())


def test_right_arguments_pass_check() -> None:
    assert [[]] * len(MODELS) == [aggregate.check() for aggregate, _ in MODELS.values()]


def test_states_of_a_monoid_keep_their_type_and_survive_the_way_to_a_worker() -> None:
    there = cloudpickle.loads(cloudpickle.dumps(spread().bind(SCHEMA)))
    state: PartialRow = there.combine_values(there.lift_values((3,)), there.lift_values((9,)))
    assert there.result_value(state) == 6
    assert isinstance(state[0], bytes)


def test_equal_arguments_make_equal_aggregates_bound_or_not() -> None:
    assert agg.sum("number") == agg.sum("number").bind(SCHEMA)
    assert agg.sum("number") != agg.sum("real")
    assert agg.top_k("real", keep="text").describe() == "top_k(real, 10, text)"


def test_a_sum_side_by_side_beyond_64_bits_is_refused() -> None:
    aggregate = agg.sum("number").bind(SCHEMA)
    most = pl.DataFrame({"p.sum": [2**63 - 1], "q.sum": [1]})
    pairs = aggregate.combine_pair("q.", "p.")
    assert pairs is not None
    with pytest.raises(pl.exceptions.InvalidOperationError, match="i128"):
        most.select(pairs)
