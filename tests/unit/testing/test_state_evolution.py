"""What may be changed of a job under its state, and what is refused with the next move."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from tests.support.changes import reset

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "v": pa.int64()}


def value_type(name: str, fields: list[Any], **options: Any) -> Any:
    """A struct that is always called the same, as one that was changed in its file."""
    made = msgspec.defstruct("Visit", fields, **options)
    made.__qualname__ = name
    return made


ONE = value_type("Visit", [("seen", int)])


def job_of(value: Any, make: Any, field: str = "seen") -> hr.Job:
    class Counter:
        def process(self, message: Any, context: hr.Context) -> None:
            before = context.store("visits").get(message.k)
            seen = 0 if before is None else getattr(before, field, 0)
            context.store("visits").put(message.k, make(seen + message.v))
            context.emit({"seen": str(before)})

    @hr.job("counting")
    def counting(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("k")
        seen = keyed.process(Counter, stores={"visits": value}, returns={"seen": str}, name="count")
        seen.send_to(g.output("out", partitions=1))

    return counting


def changed(old: Any, new: Any, make: Any = None, lose: bool = False) -> list[str]:
    """Run a job with values of a type, start it again with another one; what the second saw."""
    with TestDriver(job_of(old, old), tasks=1, key_groups=4) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": 1, "v": 5}])
        driver.run()
        driver.crash(lose_hosts=[0] if lose else [])
        driver.job = job_of(new, make or new)
        driver.feed("in", [{"k": 1, "v": 7}])
        driver.run()
        driver.crash()
        driver.feed("in", [{"k": 1, "v": 1}])
        driver.run()
        return [row["seen"] for row in driver.output("out")][1:]


@pytest.mark.parametrize("lose", [False, True])
def test_a_field_with_a_default_may_be_added(lose: bool) -> None:
    two = value_type("Visit", [("seen", int), ("note", str, "-")])
    assert changed(ONE, two, lose=lose) == ["Visit(seen=5, note='-')", "Visit(seen=12, note='-')"]


def test_a_field_may_be_taken_out() -> None:
    two = value_type("Visit", [("seen", int), ("note", str, "-")])
    assert changed(two, ONE) == ["Visit(seen=5)", "Visit(seen=12)"]


def test_a_number_may_become_a_fraction() -> None:
    wide = value_type("Visit", [("seen", float)])
    assert changed(ONE, wide) == ["Visit(seen=5.0)", "Visit(seen=12.0)"]


def test_a_field_may_become_optional_and_an_array_may_grow() -> None:
    first = value_type("Visit", [("seen", int)], array_like=True)
    grown = value_type("Visit", [("seen", int | None), ("note", str, "-")], array_like=True)
    assert changed(first, grown)[0] == "Visit(seen=5, note='-')"


REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "no default": (
        [("seen", int), ("note", str)],
        {},
        "field 'note' is new, and entries from before it have none: give it a default, or start "
        "over: headrace jobs reset counting",
    ),
    "another kind": (
        [("seen", str)],
        {},
        "values of field 'seen' were int, are now str: give what is new another name, or start",
    ),
    "another layout": ([("seen", int)], {"array_like": True}, "keep array_like"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_could_not_be_read_are_refused_at_the_start(case: str) -> None:
    fields, options, message = REFUSED[case]
    with pytest.raises(
        InvalidInputError,
        match=rf"(?s)'counting' has state of epoch 1 .* store 'visits' of 'count': .*{message}",
    ):
        changed(ONE, value_type("Visit", fields, **options))


def test_a_default_that_older_entries_need_stays() -> None:
    two = value_type("Visit", [("seen", int), ("note", str, "-")])
    three = value_type("Visit", [("seen", int), ("note", str)])
    with pytest.raises(InvalidInputError, match=r"field 'note' had a default, .*: keep one"):
        changed(two, three)


def test_null_stays_allowed() -> None:
    loose = value_type("Visit", [("seen", int | None)])
    with pytest.raises(InvalidInputError, match=r"field 'seen' could be null, .* int \| None"):
        changed(loose, ONE)


def test_after_a_reset_anything_may_be_stored() -> None:
    with TestDriver(job_of(ONE, ONE), tasks=1, key_groups=4) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": 1, "v": 5}])
        driver.run()
        driver.crash()
        reset(driver)
        other = value_type("Visit", [("text", str)])
        driver.job = job_of(other, lambda seen: other(str(seen)), "none")
        driver.run()
        assert driver.output("out")[-1] == {"seen": "None"}


@dataclasses.dataclass
class Data:
    seen: int


class Pair(NamedTuple):
    seen: int


def test_another_class_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInputError, match=r"stores was visits: Data .*, is now visits: Pair"):
        changed(Data, Pair)


def totals(**aggregates: Any) -> hr.Job:
    @hr.job("totals")
    def job(g: hr.Graph) -> None:
        made = g.input("in").partition_by("k").aggregate(**aggregates, name="sums")
        made.send_to(g.output("out"))

    return job


def test_an_aggregate_that_is_added_is_refused_and_one_of_its_own_is_too() -> None:
    first = totals(n=hr.agg.count())
    more = totals(n=hr.agg.count(), total=hr.agg.sum("v"))
    with TestDriver(first, tasks=1, key_groups=4) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": 1, "v": 5}])
        driver.run()
        driver.job = more
        driver.bus.stream("out").evolve(
            driver.bus.stream("out").spec.schema.append(pa.field("total", pa.int64()))
        )
        with pytest.raises(
            InvalidInputError,
            match=r"aggregates was n = count.*, is now n = count.*total = sum.*headrace jobs reset",
        ):
            driver.start()


class Entry(msgspec.Struct):
    n: int


@pytest.mark.parametrize(
    ("declared", "value", "told"),
    [
        (int, "x", "was given 'x', a str; its values are declared as int: put such a value"),
        (int, 1.5, "was given 1.5, a float; its values are declared as int"),
        (int, True, "was given True, a bool; its values are declared as int"),
        (int | None, "x", r"declared as int \| None"),
        (Entry, {"m": 1}, r"was given {'m': 1}, a dict; its values are declared as Entry"),
        (list[int], "x", r"declared as list\[int\]"),
    ],
)
def test_a_value_of_another_type_is_told_before_it_is_committed(
    declared: Any, value: Any, told: str
) -> None:
    class Puts:
        def process(self, message: Any, context: hr.Context) -> None:
            context.store("kept").put(message.k, value)

    @hr.job("puts")
    def puts(g: hr.Graph) -> None:
        g.input("in").partition_by("k").process(Puts, stores={"kept": declared})

    with TestDriver(puts, tasks=1, key_groups=4) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": 1, "v": 5}])
        with pytest.raises(InvalidInputError, match=f"store 'kept' {told}|store 'kept' .*{told}"):
            driver.run()
        assert driver.store("kept") == {}


@pytest.mark.parametrize(
    ("declared", "value"),
    [(float, 1), (Entry, {"n": 1}), (int | None, None), (list[int], [1]), (Any, "x"), (None, None)],
)
def test_a_value_that_reads_as_the_declared_type_is_kept(declared: Any, value: Any) -> None:
    class Puts:
        def process(self, message: Any, context: hr.Context) -> None:
            context.store("kept").put(message.k, value)

    @hr.job("puts")
    def puts(g: hr.Graph) -> None:
        g.input("in").partition_by("k").process(Puts, stores={"kept": declared})

    with TestDriver(puts, tasks=1, key_groups=4) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": 1, "v": 5}])
        driver.run()
        assert driver.store("kept") == {1: value}


def test_a_value_that_is_read_back_as_another_type_takes_the_place_of_the_one_before() -> None:
    """Also for who looks it up in the next epochs, where objects are at hand."""

    class Keeps:
        def process(self, message: Any, context: hr.Context) -> None:
            held = context.store("kept")
            context.emit({"before": held.get(message.k, 0.0)})
            held.put(message.k, message.v if message.v > 1 else 0.5)

    @hr.job("keeps")
    def keeps(g: hr.Graph) -> None:
        rows = g.input("in").partition_by("k")
        kept = rows.process(Keeps, {"kept": float}, returns={"before": float})
        kept.send_to(g.output("out"))

    with TestDriver(keeps, tasks=1) as driver:
        driver.create("in", COLUMNS)
        for value in (1, 2, 3):
            driver.feed("in", [{"k": 1, "v": value}])
            driver.run()
        assert [row["before"] for row in driver.output("out")] == [0.0, 0.5, 2.0]
