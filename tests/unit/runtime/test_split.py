"""``split``, ``union`` and sides in whole jobs: where each row goes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from tests.support.watching import letter_rows

import headrace as hr
from headrace.errors import FunctionResultError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "v": pa.int64()}
ROWS = [{"k": n % 4, "v": None if n == 7 else n} for n in range(12)]
Build = Callable[[hr.Graph], None]


def run(build: Build, rows: list[dict[str, Any]] | None = None, **options: Any) -> TestDriver:
    driver = TestDriver(hr.job("job")(build), tasks=2, **options)
    driver.create("in", COLUMNS, partitions=2, key=["k"])
    driver.feed("in", ROWS if rows is None else rows)
    driver.run()
    return driver


def values(driver: TestDriver, stream: str) -> list[Any]:
    return sorted((row["v"] for row in driver.output(stream)), key=lambda v: -1 if v is None else v)


def is_even(message: Any) -> bool:
    return message.v is not None and message.v % 2 == 0


def test_each_row_goes_to_the_first_branch_that_is_true() -> None:
    def is_nine(message: Any) -> bool:
        assert message.v in (None, 3, 5, 9, 11), "asked of a row that was taken before"
        return bool(message.v == 9)

    def build(g: hr.Graph) -> None:
        parts = g.input("in").split(
            small=hr.col("v") < 3, even=is_even, nine=is_nine, large=hr.col("v") > 5, uses=["v"]
        )
        for name in (*parts, "default"):
            parts[name].send_to(g.output(name))

    with run(build) as driver:
        assert values(driver, "small") == [0, 1, 2]
        assert values(driver, "even") == [4, 6, 8, 10]
        assert values(driver, "nine") == [9]
        assert values(driver, "large") == [11]
        assert values(driver, "default") == [None, 3, 5]
        assert "unmatched" not in driver.coordinator.state.counts


def test_rows_that_no_branch_takes_are_counted_where_nobody_reads_them() -> None:
    def build(g: hr.Graph) -> None:
        parts = g.input("in").split(one=hr.col("v") == 1, none=hr.lit(value=False))
        parts["one"].union(parts["none"]).send_to(g.output("out"))

    with run(build) as driver:
        assert values(driver, "out") == [1]
        assert driver.coordinator.state.counts["unmatched"] == 11


@pytest.mark.parametrize("on_error", ["drop", "dead_letter"])
@pytest.mark.parametrize("by", ["function", "expression"])
def test_rows_on_which_a_condition_fails_are_set_aside(by: str, on_error: str) -> None:
    def fails(message: Any) -> bool:
        return bool(12 / (message.v - 3) > 2)

    quotient = 12 // (pl.col("v") - 3).cast(pl.UInt8)  # below 3 there is no such number
    condition: Any = fails if by == "function" else quotient > 2
    bad = [None, 3] if by == "function" else [0, 1, 2]

    def build(g: hr.Graph) -> None:
        parts = g.input("in").split(near=condition, on_error=on_error)
        parts["near"].send_to(g.output("near"))
        parts["default"].send_to(g.output("far"))

    with run(build) as driver:
        assert set(bad).isdisjoint(values(driver, "near") + values(driver, "far"))
        assert len(bad) + len(driver.output("near")) + len(driver.output("far")) == 12
        if on_error == "dead_letter":
            letters = driver.output("job.dead")
            assert {"in.split"} == {letter["operator"] for letter in letters}
            records = [letter_rows(letter)[0]["v"] for letter in letters]
            assert sorted(bad, key=str) == sorted(records, key=str)


def test_keyed_rows_stay_with_their_key_through_branches() -> None:
    def build(g: hr.Graph) -> None:
        parts = g.input("in").partition_by("k").split(even=hr.col("v") % 2 == 0)
        parts["even"].aggregate(n=hr.agg.count(), name="even").send_to(g.output("even"))
        both = parts["default"].merge(parts["even"])
        both.aggregate(s=hr.agg.sum("v"), name="all").send_to(g.output("all"))

    with run(build) as driver:
        driver.coordinator.rescale(3)
        driver.feed("in", ROWS)
        driver.run()
        assert {row["k"]: row["n"] for row in driver.output("even")} == {0: 6, 2: 6}
        sums = {row["k"]: row["s"] for row in driver.output("all")}
        assert sums == {0: 24, 1: 30, 2: 36, 3: 28}


def test_a_union_has_all_columns_and_the_types_that_hold_both() -> None:
    def build(g: hr.Graph) -> None:
        rows = g.input("in")
        narrow = rows.map("k", hr.col("v").cast(pl.Int32), hr.lit("narrow").alias("from"))
        wide = rows.map("v", hr.col("v").cast(pl.Float32).alias("x")).filter(hr.col("v") > 10)
        narrow.filter(hr.col("v") < 2).union(wide).send_to(g.output("out"))

    with run(build) as driver:
        rows = sorted(driver.output("out"), key=lambda row: row["v"])
        assert rows == [
            {"k": 0, "v": 0, "from": "narrow", "x": None},
            {"k": 1, "v": 1, "from": "narrow", "x": None},
            {"k": None, "v": 11, "from": None, "x": 11.0},
        ]
        assert pa.int64() == driver.bus.stream("out").spec.schema.field("v").type


def test_a_union_reads_only_what_is_used_of_each_stream() -> None:
    def build(g: hr.Graph) -> None:
        rows = g.input("in")
        both = rows.map("k").union(rows.map("v"))
        both.map("v").send_to(g.output("out"))

    with run(build) as driver:
        assert sum(row["v"] is None for row in driver.output("out")) == 12 + 1
        assert len(driver.output("out")) == 24


def test_keys_of_other_integers_meet_in_a_union() -> None:
    def build(g: hr.Graph) -> None:
        rows = g.input("in")
        narrow = rows.map(hr.col("k").cast(pl.Int16), "v").partition_by("k")
        both = narrow.union(rows.partition_by("k"))
        both.aggregate(n=hr.agg.count()).send_to(g.output("out"))

    with run(build) as driver:
        assert dict.fromkeys(range(4), 6) == {r["k"]: r["n"] for r in driver.output("out")}


class Broken(msgspec.Struct, frozen=True):
    text: str


def parsed(message: Any) -> Any:
    if message.v is None:
        return hr.to("broken", Broken(f"row of {message.k}"))
    return {"v": message.v}


def several(message: Any) -> Iterator[Any]:
    if message.v is not None:
        yield {"v": message.v}
        yield {"v": message.v}
    if message.k == 3:
        yield hr.to("broken", Broken(f"k of {message.v}"))


class Sorter:
    """Sends each message on or to a side, and tells at a timer what came."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.emit({"v": message.v})
        if message.v is None:
            context.emit(Broken("of a row"), to="broken")
        if message.k == 2:
            context.set_timer(0, "over", wall=True)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"v": 100})
        context.emit({"text": f"{timer.name} {timer.key}"}, to="broken")


def sided(kind: str, g: hr.Graph, on_error: str = "fail") -> hr.Stream:
    rows, sides = g.input("in"), {"broken": Broken}
    if kind == "map":
        return rows.map(parsed, returns={"v": int}, sides=sides, on_error=on_error)
    if kind == "flat_map":
        return rows.flat_map(several, returns={"v": int}, sides=sides, on_error=on_error)
    keyed = rows.partition_by("k")
    return keyed.process(Sorter, returns={"v": int}, sides=sides, on_error=on_error)


@pytest.mark.parametrize("on_error", ["fail", "drop", "dead_letter"])
@pytest.mark.parametrize(
    ("kind", "on", "aside"),
    [
        ("map", [n for n in range(12) if n != 7], ["row of 3"]),
        (
            "flat_map",
            [n for n in range(12) if n != 7 for _ in range(2)],
            ["k of 11", "k of 3", "k of None"],
        ),
        ("process", [None, *(n for n in range(12) if n != 7), 100], ["of a row", "over 2"]),
    ],
)
def test_messages_go_to_the_side_that_they_name(
    kind: str, on: list[Any], aside: list[str], on_error: str
) -> None:
    def build(g: hr.Graph) -> None:
        rows = sided(kind, g, on_error)
        rows.send_to(g.output("on"))
        rows.side("broken").send_to(g.output("aside"))

    with run(build) as driver:
        assert on == values(driver, "on")
        assert aside == sorted(row["text"] for row in driver.output("aside"))
        assert "dead_letters" not in driver.coordinator.state.counts


@pytest.mark.parametrize("kind", ["map", "flat_map", "process"])
@pytest.mark.parametrize(
    "point", ["slot.ran", "slot.output_written", "epoch.before_commit", "commit.published"]
)
def test_sides_are_committed_with_their_epoch(kind: str, point: str) -> None:
    def build(g: hr.Graph) -> None:
        rows = sided(kind, g)
        rows.side("broken").send_to(g.output("aside"))
        rows.send_to(g.output("on"))

    with run(build, []) as driver, run(build) as plain:
        driver.feed("in", ROWS)
        assert driver.advance_with_crash(point)
        driver.run()
        for stream in ("on", "aside"):
            found, expected = driver.output(stream), plain.output(stream)
            assert sorted(map(str, expected)) == sorted(map(str, found))


def test_a_side_keeps_the_key_that_its_columns_have() -> None:
    def parse(message: Any) -> Any:
        return hr.to("late", {"k": message.k}) if message.v == 2 else {"k": message.k}

    def build(g: hr.Graph) -> None:
        columns = {"k": int}
        rows = g.input("in").partition_by("k").map(parse, returns=columns, sides={"late": columns})
        rows.aggregate(n=hr.agg.count()).send_to(g.output("on"))
        rows.side("late").aggregate(n=hr.agg.count()).send_to(g.output("late"))

    with run(build) as driver:
        assert driver.output("late") == [{"k": 2, "n": 1}]
        assert {r["k"]: r["n"] for r in driver.output("on")} == {0: 3, 1: 3, 2: 2, 3: 3}


def emits_to(side: str, message: Any) -> Any:
    class Emits:
        def process(self, _: Any, context: hr.Context) -> None:
            context.emit(message, to=side)

    return Emits


@pytest.mark.parametrize(
    ("kind", "side", "message", "said"),
    [
        (
            "map",
            "brokn",
            {"text": "a"},
            r"side 'brokn', but declares \['broken'\]; add it",
        ),
        ("flat_map", "brokn", {"text": "a"}, r"'in.flat_map' sent a message to side 'brokn'"),
        ("process", "brokn", {"text": "a"}, r"'in.process' sent a message to side 'brokn'"),
        ("map", "broken", {"text": 7}, r"'in.map.broken' returned 7 for column 'text'"),
        ("flat_map", "broken", {"txt": "a"}, r"'in.flat_map.broken' returned a dict"),
        ("process", "broken", None, r"'in.process.broken' returned None"),
        ("undeclared", "broken", {"text": "a"}, r"side 'broken', but declares none"),
    ],
)
def test_a_message_that_no_side_takes_is_refused(
    kind: str, side: str, message: Any, said: str
) -> None:
    def build(g: hr.Graph) -> None:
        rows, returns, sides = g.input("in"), {"v": int}, {"broken": Broken}
        if kind == "process":
            made = rows.process(emits_to(side, message), returns=returns, sides=sides)
        elif kind == "flat_map":
            made = rows.flat_map(lambda _: [hr.to(side, message)], returns=returns, sides=sides)
        elif kind == "map":
            made = rows.map(lambda _: hr.to(side, message), returns=returns, sides=sides)
        else:
            rows.map(lambda _: hr.to(side, message), returns=returns).send_to(g.output("on"))
            return
        made.send_to(g.output("on"))
        made.side("broken").send_to(g.output("aside"))

    with pytest.raises(FunctionResultError, match=said), run(build):
        pass


@pytest.mark.parametrize("kind", ["map", "flat_map", "process"])
def test_a_row_whose_message_no_side_takes_is_set_aside_whole(kind: str) -> None:
    def made(message: Any) -> list[Any]:
        text: Any = message.v if message.v in (3, 4) else "fine"
        return [{"v": message.v}, hr.to("broken", {"text": text})]

    class Emits:
        def process(self, message: Any, context: hr.Context) -> None:
            on, aside = made(message)
            context.emit(on)
            context.emit(aside.message, to="broken")

    def build(g: hr.Graph) -> None:
        rows = g.input("in")
        options: Any = {"returns": {"v": int}, "sides": {"broken": Broken}, "on_error": "drop"}
        out = {
            "map": lambda: rows.map(lambda m: made(m)[m.k % 2], **options),
            "flat_map": lambda: rows.flat_map(made, **options),
            "process": lambda: rows.process(Emits, **options),
        }[kind]()
        out.send_to(g.output("on"))
        out.side("broken").send_to(g.output("aside"))

    with run(build) as driver:
        if kind == "map":
            assert len(driver.output("on")) == 6
            assert len(driver.output("aside")) == 5
        else:
            assert {3, 4}.isdisjoint(values(driver, "on"))
            assert 10 == len(driver.output("on")) == len(driver.output("aside"))
