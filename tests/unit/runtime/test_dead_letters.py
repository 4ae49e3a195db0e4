"""``on_error``: what is refused is dropped or kept, with where it came from; the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.limits import limit
from tests.support.plans import explain, make_plan, mermaid
from tests.support.watching import letter_rows

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "name": pa.string(), "v": pa.int64(), "at": pa.int64()}
OUT = pa.schema([("v", pa.int64())])


def divide(message: Any) -> dict[str, Any]:
    return {"v": 12 // message.v}


def divide_many(message: Any) -> list[dict[str, Any]]:
    return [{"v": 12 // message.v}] * 2


def is_divisor(message: Any) -> bool:
    return 12 % message.v == 0


def divide_batch(frame: pl.DataFrame) -> pl.DataFrame:
    if (frame["v"] == 0).any():
        raise ZeroDivisionError("in the batch")
    return frame.select(v=12 // pl.col("v"))


class Divide:
    def process(self, message: Any, context: hr.Context) -> None:
        context.emit({"v": 12 // message.v})


def strict(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.String).replace("0", "none").cast(pl.Int64)


OPERATORS: dict[str, Callable[[Any, str], Any]] = {
    "map": lambda s, on: s.map(divide, returns=OUT, on_error=on, name="o"),
    "flat_map": lambda s, on: s.flat_map(divide_many, returns=OUT, on_error=on, name="o"),
    "filter": lambda s, on: s.filter(is_divisor, on_error=on, name="o").map("v"),
    "map_batches": lambda s, on: s.map_batches(divide_batch, returns=OUT, on_error=on, name="o"),
    "process": lambda s, on: s.process(Divide, returns=OUT, on_error=on, name="o"),
    "expressions": lambda s, on: s.map(strict(pl.col("v")), on_error=on, name="o"),
    "condition": lambda s, on: s.filter(strict(pl.col("v")) > 0, on_error=on, name="o").map("v"),
}


def job_of(kind: str, on_error: str, keyed: bool) -> Any:
    @hr.job("divided")
    def divided(g: hr.Graph) -> None:
        source = g.input("in", time="at")
        if keyed:
            source = source.partition_by("k")
        OPERATORS[kind](source, on_error).send_to(g.output("out", partitions=1))

    return divided


def driver_of(job: Any, partitions: int = 2, **options: Any) -> TestDriver:
    driver = TestDriver(job, **{"tasks": 2, "key_groups": 8, **options})
    driver.create("in", COLUMNS, partitions=partitions, time="at")
    return driver


def row(v: int | None, at: int = 1, k: int = 1, name: str = "a") -> dict[str, Any]:
    return {"k": k, "name": name, "v": v, "at": at}


GOOD_AND_BAD = [row(1), row(0, k=7, name="bad"), row(3), row(4), row(0, k=8, name="worse"), row(6)]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("kind", OPERATORS)
def test_bad_rows_become_dead_letters_and_the_others_go_on(kind: str, keyed: bool) -> None:
    with driver_of(job_of(kind, "dead_letter", keyed)) as driver:
        driver.feed("in", [row(2)], partition=1)
        driver.feed("in", [row(12)], partition=1)
        driver.feed("in", GOOD_AND_BAD, partition=1)
        summary = driver.advance()

        letters = driver.output("divided.dead")
        found = [(one["stream"], one["partition"], one["offset"]) for one in letters]
        records = [letter_rows(one) for one in letters]
        good = [one["v"] for one in driver.output("out")]

    assert summary is not None
    assert summary.counts["dead_letters"] == 2
    fed = [2, 12, 1, 3, 4, 6]
    made = fed if kind in ("filter", "condition", "expressions") else [12 // v for v in fed]
    assert good == [v for v in made for _ in range(2 if kind == "flat_map" else 1)]
    assert sorted(found) == [("in", 1, 3), ("in", 1, 6)]
    assert sorted(records, key=str) == [[GOOD_AND_BAD[1]], [GOOD_AND_BAD[4]]]
    assert {(one["job"], one["epoch"], one["operator"]) for one in letters} == {("divided", 1, "o")}
    assert all(one["is_original"] for one in letters)
    assert {one["key"] for one in letters} == ({"7", "8"} if keyed else {None})


@pytest.mark.parametrize("kind", OPERATORS)
def test_dropped_rows_are_counted_and_nothing_is_kept(kind: str) -> None:
    with driver_of(job_of(kind, "drop", keyed=True)) as driver:
        driver.feed("in", GOOD_AND_BAD, partition=0)
        summary = driver.advance()
        streams = driver.bus.names()

    assert summary is not None
    assert summary.counts["dropped"] == 2
    assert "dead_letters" not in summary.counts
    assert streams == ["in", "out"]


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_job_fails_when_nothing_else_is_said(kind: str) -> None:
    with driver_of(job_of(kind, "fail", keyed=False)) as driver:
        driver.feed("in", GOOD_AND_BAD, partition=0)
        with pytest.raises(InvalidInputError, match="operator 'o'"):
            driver.advance()
        assert driver.output("out") == []


def test_letters_are_committed_once_whatever_dies() -> None:
    for point in ("slot.output_written", "epoch.before_commit", "commit.published"):
        with driver_of(job_of("process", "dead_letter", keyed=True)) as driver:
            driver.feed("in", GOOD_AND_BAD, partition=0)
            assert driver.advance_with_crash(point)
            driver.run()
            offsets = sorted(one["offset"] for one in driver.output("divided.dead"))
        assert offsets == [1, 4]


class Keeps:
    """Changes all there is to change, then raises for messages named ``bad``."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("kept")
        counts = store.get("counts", {})
        counts[message.name] = message.v
        if message.name == "early":
            raise RuntimeError("changed in place, not yet put")
        store.put("counts", counts)
        store.put("last", message.v)
        store.delete("first")
        context.set_timer(message.at + 10, message.name)
        context.emit({"v": message.v})
        if message.name == "bad":
            raise RuntimeError("after everything")

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"v": -1})
        context.store("kept").put("fired", timer.name)
        if timer.name == "rings badly":
            raise RuntimeError("in a timer")


@hr.job("kept")
def kept(g: hr.Graph) -> None:
    source = g.input("in", time="at").partition_by("k")
    made = source.process(
        Keeps, stores={"kept": Any}, returns=OUT, name="o", on_error="dead_letter"
    )
    made.send_to(g.output("out", partitions=1))


def test_what_a_failed_call_changed_is_taken_back() -> None:
    with driver_of(kept, partitions=1) as driver:
        driver.feed("in", [row(1, name="a"), row(9, name="bad"), row(8, name="early")])
        driver.advance()
        assert driver.store("kept") == {"counts": {"a": 1}, "last": 1}
        driver.feed("in", [row(7, name="early"), row(6, name="bad")])
        driver.feed("in", [row(2, at=2, name="rings badly")])
        driver.advance()
        assert driver.store("kept") == {"counts": {"a": 1, "rings badly": 2}, "last": 2}
        driver.finish()

        letters = driver.output("kept.dead")
        emitted = driver.output("out")
        after = driver.store("kept")

    assert [one["offset"] for one in letters] == [1, 2, 3, 4, None]
    assert [one["kind"] for one in letters] == ["RuntimeError"] * 5
    assert letters[-1]["record"] is None
    assert "on timer" in letters[-1]["message"]
    assert emitted == [{"v": 1}, {"v": 2}, {"v": -1}]
    assert after["fired"] == "a"


def test_what_does_not_fit_the_declared_columns_is_refused_row_by_row() -> None:
    def odd(message: Any) -> list[Any]:
        fits = {"v": message.v}
        return [fits, fits if message.v else {"v": "none"}]

    @hr.job("odd")
    def job(g: hr.Graph) -> None:
        source = g.input("in")
        source.flat_map(odd, returns=OUT, on_error="dead_letter").send_to(g.output("out"))

    with driver_of(job, partitions=1) as driver:
        driver.feed("in", GOOD_AND_BAD)
        driver.advance()
        letters = driver.output("odd.dead")
        emitted = [one["v"] for one in driver.output("out")]

    assert [(one["offset"], one["code"]) for one in letters] == [(1, "HR110"), (4, "HR110")]
    assert emitted == [1, 1, 3, 3, 4, 4, 6, 6]


def test_rows_of_aggregates_are_kept_as_they_are() -> None:
    @hr.job("summed")
    def job(g: hr.Graph) -> None:
        totals = g.input("in").partition_by("k").aggregate(v=hr.agg.sum("v"))
        totals.map(divide, returns=OUT, on_error="dead_letter").send_to(g.output("out"))

    with driver_of(job, partitions=1) as driver:
        driver.feed("in", [row(0, k=5), row(3, k=6)])
        driver.advance()
        (letter,) = driver.output("summed.dead")

    assert (letter["stream"], letter["offset"], letter["is_original"]) == (None, None, False)
    assert letter["key"] == "5"
    assert letter_rows(letter) == [{"k": 5, "v": 0}]


def test_a_batch_of_nothing_but_bad_rows_fails_after_a_number_of_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, letter_tries=8)
    with driver_of(job_of("map_batches", "dead_letter", keyed=False)) as driver:
        driver.feed("in", [row(0)] * 50, partition=0)
        with pytest.raises(InvalidInputError, match="raised ZeroDivisionError: in the batch"):
            driver.advance()


def test_letters_go_where_the_setting_says() -> None:
    chosen = {"dead_letters": "bad.things"}
    with driver_of(job_of("map", "dead_letter", keyed=False), job_settings=chosen) as driver:
        driver.feed("in", GOOD_AND_BAD, partition=0)
        driver.advance()
        assert len(driver.output("bad.things")) == 2


@pytest.mark.parametrize(
    ("stream", "text"), [("in", "which is also an input"), ("other", "which holds other columns")]
)
def test_a_stream_that_cannot_take_letters_is_refused(stream: str, text: str) -> None:
    job = job_of("map", "dead_letter", keyed=False)
    with driver_of(job, job_settings={"dead_letters": stream}) as driver:
        driver.create("other", COLUMNS)
        with pytest.raises(InvalidInputError, match=f"{stream}'.*{text}: set job.dead_letters"):
            driver.start()


@pytest.mark.parametrize("at", [None, -1 << 47, 1 << 60, 100_000])
@pytest.mark.parametrize("on_error", ["fail", "drop", "dead_letter"])
def test_an_event_time_that_cannot_be_is_refused(at: int | None, on_error: str) -> None:
    @hr.job("timed")
    def job(g: hr.Graph) -> None:
        source = g.input("in", time="at", ahead="10s", on_error=on_error).partition_by("k")
        windows = source.window(hr.tumbling("1s"), n=hr.agg.count())
        windows.send_to(g.output("out", partitions=1))

    with TestDriver(job, tasks=1, key_groups=1) as driver:
        driver.create("in", COLUMNS)
        now = driver.clock.now_ms()
        bad = at if at is None or at != 100_000 else now + 10_001
        rows = [row(1, at=now), row(2) | {"at": bad}, row(3, at=now + 1_000)]
        driver.feed("in", rows)
        if on_error == "fail":
            with pytest.raises(InvalidInputError, match="partition 0 offset 1 is "):
                driver.advance()
            return
        summary = driver.advance()
        driver.finish()
        counted = sum(one["n"] for one in driver.output("out"))
        kept = driver.output("timed.dead") if on_error == "dead_letter" else []

    assert summary is not None
    assert counted == 2
    assert summary.counts["dead_letters" if kept else "dropped"] == 1
    if kept:
        assert [letter_rows(one) for one in kept] == [[rows[1]]]
        assert [(one["offset"], one["code"]) for one in kept] == [(1, "HR112")]


def test_nothing_is_carried_where_no_operator_asks_for_it() -> None:
    for on_error in ("fail", "drop"):
        with driver_of(job_of("process", on_error, keyed=True)) as driver:
            driver.feed("in", [row(1)], partition=0)
            driver.advance()
            plan = driver.coordinator._plan
        names = plan.stages[0].sends[0].schema.names
        assert "__offset" not in names
        assert plan.stages[0].inputs[0].origin is None


@pytest.mark.parametrize("on_error", ["ignore", None])
def test_other_ways_are_refused(on_error: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"on_error=.*expected one of \('fail', 'drop'"):
        job_of("map", on_error, keyed=False).build()


def test_the_plan_tells_where_letters_go_and_what_carries_offsets() -> None:
    with driver_of(job_of("process", "dead_letter", keyed=True)) as driver:
        made = make_plan(driver.job.build(), driver.bus, driver.settings)
        text, drawn = explain(made), mermaid(made)

    assert "-. refused .->" in drawn
    assert "__offset" not in drawn
    assert "on error: dead letter to divided.dead" in text
    assert "event time and watermark; origin, for dead letters or order" in text
