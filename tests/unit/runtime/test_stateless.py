"""Functions on messages and frames: what they may return, and what each mistake is told as."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import InvalidInputError, UserFunctionError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "name": pa.string(), "x": pa.float64()}
RETURNS = {"k": int, "name": str}
ROWS: list[dict[str, Any]] = [
    {"k": 1, "name": "a", "x": 0.5},
    {"k": None, "name": None, "x": None},
    {"k": 3, "name": ""},
]


def run(build: Callable[[hr.Stream], hr.Stream], rows: Any = ROWS) -> list[dict[str, Any]]:
    """What a job made of one step sends for some rows."""

    @hr.job("one")
    def one(g: hr.Graph) -> None:
        build(g.input("in")).send_to(g.output("out"))

    with TestDriver(one, tasks=1) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", rows)
        driver.run()
        return driver.output("out")


class Struct(msgspec.Struct):
    k: int | None
    name: str | None


@dataclass
class Data:
    k: int | None
    name: str | None


class Pair(NamedTuple):
    k: int | None
    name: str | None


@pytest.mark.parametrize(
    "kind", [Struct, Data, Pair, lambda k, name: {"name": name, "k": k}], ids=map(str, count())
)
def test_map_takes_records_of_any_kind(kind: Any) -> None:
    found = run(lambda s: s.map(lambda m: kind(m.k, m.name), returns=RETURNS, name="m"))
    assert found == [{"k": row["k"], "name": row["name"]} for row in ROWS]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, r"operator 'm' returned None; expected a message with columns \['k', 'name'\]"),
        (5, "operator 'm' returned a int 5; expected a message"),
        ([1, "a"], r"operator 'm' returned a list \[1, 'a'\]"),
        ((1,), r"operator 'm' returned a tuple \(1,\)"),
        ({"k": 1}, r"operator 'm' returned a dict \{'k': 1\}"),
        ({"k": 1, "name": "a", "more": 2}, "operator 'm' returned a dict"),
        ({"k": "1", "name": "a"}, "operator 'm' returned '1' for column 'k'; expected int64"),
        ({"k": 1.5, "name": "a"}, "operator 'm' returned 1.5 for column 'k'; expected int64"),
        ({"k": 1 << 64, "name": "a"}, "operator 'm' returned 18446744073709551616 for column 'k'"),
        ({"k": 1, "name": 2}, "operator 'm' returned 2 for column 'name'; expected string"),
        ({"k": 1, "name": "\ud800"}, "operator 'm' returned '.*' for column 'name'"),
        ({"k": object(), "name": ""}, "operator 'm' returned <object object at .*> for column 'k'"),
    ],
    ids=map(str, count()),
)
def test_what_map_returns_must_fit(result: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text) as error:
        run(lambda s: s.map(lambda m: result, returns=RETURNS, name="m"))
    assert error.value.fields["operator"] == "m"


def fail(message: Any) -> Any:
    raise LookupError(f"not found: {message.name}")


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(fail, returns=RETURNS, name="u"),
        lambda s: s.filter(fail, name="u"),
        lambda s: s.flat_map(fail, returns=RETURNS, name="u"),
    ],
    ids=map(str, count()),
)
def test_errors_name_operator_line_and_message(build: Any) -> None:
    text = r"operator 'u' raised LookupError: not found: a at .*test_stateless.py:\d+ on message "
    with pytest.raises(UserFunctionError, match=text + r"Message\(k=1, name='a', x=0.5\)"):
        run(build)


NAMES = [{"k": n, "name": name, "x": None} for n, name in enumerate("abc")]


def test_functions_may_return_bare_values_of_one_column() -> None:
    words = run(lambda s: s.flat_map(lambda m: [m.name] * m.k, returns={"word": str}), NAMES)
    assert [row["word"] for row in words] == ["b", "c", "c"]
    found = run(lambda s: s.map(lambda m: m.name * 2, returns={"word": str}), NAMES)
    assert [row["word"] for row in found] == ["aa", "bb", "cc"]
    text = r"operator 'm' returned None; expected a message with columns \['word'\]"
    with pytest.raises(InvalidInputError, match=text):
        run(lambda s: s.map(lambda m: m.name, returns={"word": str}, name="m"))


def test_flat_map_takes_a_list_that_the_function_goes_on_with() -> None:
    kept: list[int] = []

    def seen(message: Any) -> list[int]:
        kept.append(message.k)
        return kept

    found = run(lambda s: s.flat_map(seen, returns={"k": int}), NAMES)
    assert [row["k"] for row in found] == [0, 0, 1, 0, 1, 2]


def later(message: Any) -> Iterator[Any]:
    yield {"k": 1, "name": ""}
    fail(message)


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (later, UserFunctionError, r"operator 'f' raised LookupError: not found: a at .* on mess"),
        (lambda m: None, InvalidInputError, "operator 'f' returned None; flat_map must return an"),
        (lambda m: 7, InvalidInputError, "operator 'f' returned a int 7; flat_map must return an"),
        (lambda m: "ab", InvalidInputError, "operator 'f' returned a str 'ab'; flat_map must"),
        (lambda m: {"k": 1}, InvalidInputError, "operator 'f' returned a dict"),
        (lambda m: [None], InvalidInputError, "operator 'f' returned None; expected a message"),
        (lambda m: (1, "a"), InvalidInputError, "operator 'f' returned a int 1; expected a"),
    ],
    ids=map(str, count()),
)
def test_flat_map_returns_an_iterable_of_messages(function: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text) as error:
        run(lambda s: s.flat_map(function, returns=RETURNS, name="f"))
    assert error.value.fields["operator"] == "f"


def test_flat_map_makes_any_number() -> None:
    found = run(
        lambda s: s.flat_map(lambda m: ((m.k, str(n)) for n in range(m.k or 0)), returns=RETURNS)
    )
    assert found == [{"k": k, "name": str(n)} for k in (1, 3) for n in range(k)]
    assert run(lambda s: s.flat_map(lambda m: [], returns=RETURNS)) == []


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (lambda m: m.k, [1, 3]),
        (lambda m: m.name, [1]),
        (lambda m: [0], [1, None, 3]),
        (lambda m: "no", [1, None, 3]),
        (lambda m: pl.Series([True]).any(), [1, None, 3]),
        (hr.col("k") > 1, [3]),
        (hr.lit(value=True), [1, None, 3]),
        (hr.lit(None, dtype=pl.Boolean), []),
        (hr.col("x").is_null() & hr.col("k").is_not_null(), [3]),
    ],
    ids=map(str, count()),
)
def test_filter_goes_by_truth(condition: Any, kept: list[int | None]) -> None:
    assert [row["k"] for row in run(lambda s: s.filter(condition))] == kept


def test_a_filter_without_truth_is_told() -> None:
    with pytest.raises(UserFunctionError, match=r"operator 'f' raised TypeError: .*truth value"):
        run(lambda s: s.filter(lambda m: hr.col("k"), name="f"))


def test_expressions_fail_with_their_operator() -> None:
    with pytest.raises(UserFunctionError, match=r"operator 'e' raised \w+Error: "):
        run(lambda s: s.map(hr.col("name").str.to_integer(strict=True), name="e"))


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (lambda f: None, InvalidInputError, "operator 'b' returned None; map_batches must"),
        (lambda f: f.lazy(), InvalidInputError, "operator 'b' returned a LazyFrame; map_batches"),
        (lambda f: f["k"], InvalidInputError, "operator 'b' returned a Series; map_batches must"),
        (lambda f: f.head(1), InvalidInputError, "operator 'b' returned 1 rows for 3; map_batche"),
        (lambda f: f.select("k"), InvalidInputError, r"columns do not fit: missing \['name'\]"),
        (lambda f: f, InvalidInputError, r"not expected \['x'\]"),
        (lambda f: f.select("k", name="x"), InvalidInputError, "column 'name'|found double"),
        (lambda f: f.select("nope"), UserFunctionError, "operator 'b' raised ColumnNotFoundError"),
        (lambda f: 1 / 0, UserFunctionError, "operator 'b' raised ZeroDivisionError"),
    ],
    ids=map(str, count()),
)
def test_map_batches_keeps_rows_and_columns(function: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text) as error:
        run(lambda s: s.map_batches(function, returns={"k": int, "name": bytes}, name="b"))
    assert error.value.fields["operator"] == "b"


def test_columns_of_frames_may_come_in_any_order_and_width() -> None:
    found = run(
        lambda s: s.map_batches(
            lambda f: f.select(pl.col("name").cast(pl.Categorical), pl.col("k").cast(pl.Int16)),
            returns=RETURNS,
        )
    )
    assert found == [{"k": row["k"], "name": row["name"]} for row in ROWS]


def spoil(frame: pl.DataFrame) -> pl.DataFrame:
    frame[0, "k"] = 99
    column = frame["k"]
    column[2] = 77
    frame.replace_column(0, column)
    frame.drop_in_place("x")
    return frame


def test_changing_the_input_in_place_reaches_nobody_else() -> None:
    """Frames share memory with the bus and with other operators; writing to one copies it."""

    @hr.job("shared")
    def shared(g: hr.Graph) -> None:
        source = g.input("in")
        for name in ("first", "second"):
            source.map_batches(spoil, returns=RETURNS, name=name).send_to(g.output(name))
        source.send_to(g.output("plain"))

    for memory_bus in (True, False):
        with TestDriver(shared, memory_bus=memory_bus) as driver:
            driver.create("in", COLUMNS)
            driver.feed("in", ROWS)
            driver.run()
            assert [row["k"] for row in driver.output("plain")] == [1, None, 3]
            for name in ("first", "second"):
                assert [row["k"] for row in driver.output(name)] == [99, None, 77]
            assert [row["k"] for row in driver.output("in")] == [1, None, 3]


def test_a_message_cannot_be_changed() -> None:
    def change(message: Any) -> Any:
        message.k = 5

    with pytest.raises(UserFunctionError, match="immutable"):
        run(lambda s: s.map(change, returns=RETURNS, name="m"))


def test_a_function_sees_only_what_it_uses() -> None:
    found = run(
        lambda s: s.flat_map(
            lambda m: [{"text": ",".join(m.__struct_fields__)}],
            returns={"text": str},
            uses=["name"],
        )
    )
    assert found == [{"text": "name"}] * len(ROWS)


def test_constants_alone_have_as_many_rows_as_there_are_messages() -> None:
    assert run(lambda s: s.map(hr.lit(1).alias("one"))) == [{"one": 1}] * len(ROWS)


def test_merge_puts_columns_in_one_order() -> None:
    @hr.job("merged")
    def merged(g: hr.Graph) -> None:
        first = g.input("in").map("k", "name")
        second = g.input("other").map("name", "k")
        first.merge(second).send_to(g.output("out"))

    with TestDriver(merged) as driver:
        driver.create("in", COLUMNS)
        driver.create("other", {"name": pa.string(), "k": pa.int64()})
        driver.feed("in", ROWS)
        driver.feed("other", [{"name": "o", "k": 9}])
        driver.run()
        found = driver.output("out")
        assert {"k": 9, "name": "o"} in found
        assert len(found) == 4


MOMENT = datetime.datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=datetime.UTC)
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "timestamp": (pa.timestamp("us", tz="UTC"), [MOMENT, MOMENT.replace(year=1904)]),
    "date": (pa.date32(), [MOMENT.date()]),
    "duration": (pa.duration("us"), [datetime.timedelta(days=-1, microseconds=3)]),
    "string": (pa.string(), ["", "ä\0\u2028", "x" * 1000]),
    "binary": (pa.binary(), [b"", b"\0\xff"]),
    "bool": (pa.bool_(), [True, False]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "int8": (pa.int8(), [-128, 127]),
    "float": (pa.float64(), [0.1, float("inf"), -0.0]),
    "float32": (pa.float32(), [0.5]),
    "decimal": (pa.decimal128(12, 2), [decimal.Decimal("-1.25")]),
    "list": (pa.list_(pa.string()), [[], ["a", None]]),
    "struct": (pa.struct([("a", pa.int64()), ("t", pa.date32())]), [{"a": 1, "t": None}]),
    "nested": (pa.list_(pa.struct([("a", pa.list_(pa.float64()))])), [[{"a": [1.0]}], [None]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_goes_through_messages_and_back(kind: str) -> None:
    """Nulls included; as a message, as a struct of its own, and through a repartition."""
    column, values = KINDS[kind]
    rows = [{"k": n, "value": value} for n, value in enumerate([*values, None])]

    @hr.job("through")
    def through(g: hr.Graph) -> None:
        schema = pa.schema([("k", pa.int64()), ("value", column)])
        source = g.input("in")
        source.map(lambda m: m, returns=schema).send_to(g.output("mapped"))
        source.partition_by("k").map(lambda m: (m.k, m.value), returns=schema).send_to(
            g.output("keyed", partitions=1)
        )

    with TestDriver(through, tasks=1, key_groups=1) as driver:
        driver.create("in", {"k": pa.int64(), "value": column})
        driver.feed("in", rows)
        driver.run()
        assert driver.output("mapped") == rows
        assert driver.output("keyed") == rows


def test_a_list_of_an_expression_becomes_rows_with_other_columns_beside() -> None:
    rows = [
        {"k": 1, "name": "to be or", "x": 0.5},
        {"k": 2, "name": None},
        {"k": 3, "name": "not"},
        {"k": 4, "name": ""},
    ]
    words = hr.col("name").str.extract_all(r"\w+").alias("word")
    assert run(lambda s: s.flat_map(words, "k", (hr.col("x") * 2).alias("twice")), rows) == [
        {"word": "to", "k": 1, "twice": 1.0},
        {"word": "be", "k": 1, "twice": 1.0},
        {"word": "or", "k": 1, "twice": 1.0},
        {"word": "not", "k": 3, "twice": None},
    ]
    # The list says how many rows there are, also where nobody reads it.
    assert run(lambda s: s.flat_map(words, "k").map("k"), rows) == [{"k": 1}] * 3 + [{"k": 3}]


def test_rows_of_a_list_have_the_event_time_of_theirs() -> None:
    @hr.job("one")
    def one(g: hr.Graph) -> None:
        words = g.input("in", time="k").flat_map(hr.col("name").str.split(" ").alias("word"))
        words.partition_by("word").window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(
            g.output("out")
        )

    with TestDriver(one, tasks=1) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": k, "name": "a b a"} for k in (1, 12, 30)])
        driver.run()
        found = [
            (r["word"], r["window_start"].microsecond // 1000, r["n"]) for r in driver.output("out")
        ]
    assert sorted(found) == [("a", 0, 2), ("a", 10, 2), ("b", 0, 1), ("b", 10, 1)]
