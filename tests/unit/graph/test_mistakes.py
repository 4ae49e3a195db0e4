"""Mistakes are found at build, all at once, with the operator and the user's line."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import polars as pl
import pytest

import headrace as hr

HERE = Path(__file__)
LINES = HERE.read_text(encoding="utf-8").splitlines()


class Order(TypedDict):
    customer: str
    price: float


def line(mark: str) -> str:
    """The file and line that end with a mark, as an error shows them."""
    ending = f"# {mark}"
    return f"{HERE.name}:{next(n for n, text in enumerate(LINES, 1) if text.endswith(ending))})"


def mistakes(function: Callable[[hr.Graph], None], name: str = "job") -> tuple[str, ...]:
    with pytest.raises(hr.GraphError) as caught:
        hr.job(name)(function).build()
    return caught.value.problems


def only(function: Callable[[hr.Graph], None], name: str = "job") -> str:
    found = mistakes(function, name)
    assert len(found) == 1, found
    return found[0]


def orders(g: hr.Graph) -> hr.Stream:
    return g.input("orders", time="at", schema={"at": int, "customer": str, "price": float})


def keyed(g: hr.Graph) -> hr.Stream:
    return orders(g).partition_by("customer")


def same(message: Any) -> Order:
    return {"customer": message.customer, "price": message.price}


def test_all_mistakes_are_told_at_once_each_with_operator_and_line() -> None:
    def build(g: hr.Graph) -> None:
        source = orders(g)
        source.aggregate(n=hr.agg.count())  # first
        source.map(lambda message: message).send_to(g.output("copy"))  # second
        source.partition_by("customer").window(hr.tumbling("0s"), name="w")  # third

    found = mistakes(build)
    assert len(found) == 4
    assert found[0].startswith("operator 'orders.aggregate'")
    assert line("first") in found[0]
    assert "put partition_by before it" in found[0]
    assert found[1].startswith("operator 'orders.map'")
    assert line("second") in found[1]
    assert "what function <lambda> returns to map is not known; give returns=" in found[1]
    assert found[2].startswith("operator 'w'")
    assert line("third") in found[2]
    assert "window size is '0s'; expected more than zero" in found[2]
    assert "window has no aggregates" in found[3]


def test_the_error_shows_how_many_mistakes_there_are() -> None:
    def build(g: hr.Graph) -> None:
        orders(g)

    with pytest.raises(hr.GraphError, match=r"job 'job' has 1 mistake:\n  1\. operator 'orders'"):
        hr.job("job")(build).build()


def test_a_stream_that_nobody_reads_is_a_mistake_but_a_stateful_end_is_not() -> None:
    def build(g: hr.Graph) -> None:
        keyed(g).aggregate(n=hr.agg.count())
        orders(g).filter(hr.col("price") > 0)  # unread

    found = only(build)
    assert line("unread") in found
    assert "nothing reads this stream; end it with send_to" in found


class Mine:
    def process(self, message: Any, context: hr.Context) -> None:
        context.emit(message)


class Lacking:
    def open(self) -> None: ...


class NeedsMore(Mine):
    def __init__(self, limit: int) -> None:
        self.limit = limit


def takes_two(first: Any, second: Any) -> Order:
    return same(first or second)


async def asynchronous(message: Any) -> Order:
    return same(message)


def unresolved(message: Any) -> Nowhere:  # type: ignore[name-defined] # noqa: F821
    return message


def not_many(message: Any) -> Order:
    return same(message)


STEPS: dict[str, tuple[Callable[[hr.Stream], Any], str]] = {
    "process with stores, not partitioned": (
        lambda s: s.process(Mine, {"seen": int}),
        "process keeps state for each key: put partition_by before it",
    ),
    "class without process": (
        lambda s: s.process(Lacking),
        "class Lacking has no method process(self, message, context)",
    ),
    "method with another signature": (
        lambda s: s.process(Lacking),
        "method Lacking.open takes (self), but is called with (self, context)",
    ),
    "class that needs arguments": (
        lambda s: s.process(NeedsMore),  # type: ignore[arg-type]
        "class NeedsMore takes (limit), but is called with ()",
    ),
    "no class at all": (
        lambda s: s.process("Mine"),  # type: ignore[arg-type]
        "process takes a class or a factory; found 'Mine'",
    ),
    "stores of no known kind": (
        lambda s: s.partition_by("customer").process(Mine, (hr.store("a", int, "disk"),)),
        "store 'a' is of kind 'disk'; expected one of ('rocksdb', 'memory', 'remote')",
    ),
    "stores of another type": (
        lambda s: s.partition_by("customer").process(Mine, ["seen"]),  # type: ignore[list-item]
        "stores= takes a dict of names and types, or hr.store; found 'seen' (str)",
    ),
    "stores declared in a dict": (
        lambda s: s.partition_by("customer").process(Mine, {"seen": hr.store("seen", int)}),
        "give them as a list, such as stores=[hr.store('seen', int)]",
    ),
    "aggregate named like a key": (
        lambda s: s.partition_by("customer").aggregate(customer=hr.agg.count()),
        "aggregate 'customer' has the name of a key column; rename it",
    ),
    "aggregate named like a window's column": (
        lambda s: s.partition_by("customer").window(hr.tumbling("1h"), window_end=hr.agg.count()),
        "aggregate 'window_end' has the name of a column of window; rename it",
    ),
    "aggregate that is none": (
        lambda s: s.partition_by("customer").aggregate(n=sum),  # type: ignore[arg-type]
        "n= takes an aggregate of hr.agg; found <built-in function sum>",
    ),
    "wrong arguments of an aggregate": (
        lambda s: s.partition_by("customer").aggregate(top=hr.agg.top_k("price", k=0)),
        "top: top_k takes k of at least 1; found 0",
    ),
    "window that is none": (
        lambda s: s.partition_by("customer").window("1h", n=hr.agg.count()),  # type: ignore[arg-type]
        """window takes a window such as hr.tumbling("1h"); found '1h' (str)""",
    ),
    "negative grace": (
        lambda s: s.partition_by("customer").window(
            hr.tumbling("1h", allowed_lateness=datetime.timedelta(seconds=-1)), n=hr.agg.count()
        ),
        "allowed_lateness is datetime.timedelta(days=-1, seconds=86399); expected at least 0s",
    ),
    "period that is no duration": (
        lambda s: s.partition_by("customer").aggregate(every="soon", n=hr.agg.count()),
        "every is 'soon'; expected a duration such as '10s'",
    ),
    "kind of store": (
        lambda s: s.partition_by("customer").aggregate(store="redis", n=hr.agg.count()),
        "store 'orders.by_customer.aggregate' is of kind 'redis'",
    ),
    "merge with itself": (lambda s: s.merge(s), "stream 'orders' is merged with itself"),
    "merge of nothing": (lambda s: s.merge(), "merge takes at least one other stream"),
    "merge with no stream": (
        lambda s: s.merge("x"),  # type: ignore[arg-type]
        "merge takes streams; found 'x' (str)",
    ),
    "merge of keyed and unkeyed": (
        lambda s: s.merge(s.partition_by("customer")),
        "stream 'orders' is not partitioned, but 'orders.by_customer' is partitioned by "
        "['customer']; partition both by the same columns",
    ),
    "merge of different keys": (
        lambda s: s.partition_by("price").merge(s.partition_by("customer")),
        "is partitioned by ['price'], but 'orders.by_customer' is partitioned by ['customer']",
    ),
    "key of nothing": (lambda s: s.partition_by(), "partition_by takes names of columns; found []"),
    "key twice": (
        lambda s: s.partition_by("customer", "customer"),
        "partition_by names a column twice in ['customer', 'customer']",
    ),
    "function of two arguments": (
        lambda s: s.map(takes_two),  # type: ignore[arg-type]
        "function takes_two takes (first, second), but is called with "
        "(message): missing a required argument: 'second'",
    ),
    "function that is async": (
        lambda s: s.map(asynchronous),
        "function asynchronous is async; give a plain function",
    ),
    "annotation that cannot be resolved": (
        lambda s: s.map(unresolved),
        "its annotation 'Nowhere' cannot be resolved: name 'Nowhere' is not defined",
    ),
    "flat_map that returns one": (
        lambda s: s.flat_map(not_many),
        "its annotation Order is no iterable of records; write Iterable[T]",
    ),
    "flat_map of a name": (
        lambda s: s.flat_map("price"),
        "flat_map takes a function; found",
    ),
    "flat_map of an expression and a function": (
        lambda s: s.flat_map(hr.col("price"), len),
        "flat_map takes one function, or expressions and columns; found",
    ),
    "flat_map of an expression with columns": (
        lambda s: s.flat_map(hr.col("price"), returns={"price": int}),
        "returns= and uses= are for functions; those of expressions are known",
    ),
    "map of nothing": (
        lambda s: s.map(),
        "map takes one function, or expressions and columns; found nothing",
    ),
    "map of a number": (
        lambda s: s.map(hr.col("price"), 7),  # type: ignore[arg-type]
        "map takes one function, or expressions and columns; found 7 (int)",
    ),
    "columns told of an expression": (
        lambda s: s.map(hr.col("price"), returns={"price": float}),
        "returns= and uses= are for functions; those of expressions are known",
    ),
    "type without a column": (
        lambda s: s.map(same, returns={"price": object}),
        "column 'price': object has no column type",
    ),
    "map_batches without columns": (
        lambda s: s.map_batches(lambda frame: frame),
        "map_batches needs returns=, the columns of its result",
    ),
    "no columns used": (
        lambda s: s.filter(same, uses=()),
        "uses= takes names of columns, at least one; found []",
    ),
    "name that cannot be one": (
        lambda s: s.map("price", name="my map"),
        "'my map' cannot name an operator; use up to 150 letters",
    ),
    "name that is taken": (
        lambda s: s.map("price", name="orders"),
        "the name 'orders' is already taken at",
    ),
    "output that is none": (
        lambda s: s.send_to(7),  # type: ignore[arg-type]
        """send_to takes "name", g.output("name") or a sink; found 7 (int)""",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_wrong_step_is_told(name: str) -> None:
    step, message = STEPS[name]

    def build(g: hr.Graph) -> None:
        step(orders(g))

    found = mistakes(build)
    assert any(message in text for text in found), found
    assert all(f"{HERE.name}:" in text for text in found)


def test_a_function_that_no_one_annotated_needs_returns() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).map(lambda m: m, returns=Order).send_to(g.output("copy"))

    assert len(hr.job("job")(build).build().operators) == 3


def test_a_duplicate_name_is_refused_with_where_the_first_is() -> None:
    def build(g: hr.Graph) -> None:
        source = orders(g)
        source.filter(hr.col("price") > 0, name="big").send_to(g.output("a"))  # original
        source.filter(hr.col("price") > 9, name="big").send_to(g.output("b"))  # copy

    found = only(build)
    assert line("copy") in found
    assert f"taken at {HERE.parent}" not in found
    assert line("original").removesuffix(")") in found


def test_a_store_name_is_used_once_in_a_job() -> None:
    def build(g: hr.Graph) -> None:
        keyed(g).process(Mine, {"seen": int}, name="a")
        keyed(g).process(Mine, {"seen": int}, name="b")  # clash

    found = only(build)
    assert line("clash") in found
    assert "store 'seen' is already used by operator 'a'; give it another name" in found


def test_streams_and_outputs_of_another_graph_are_refused() -> None:
    kept: list[Any] = []

    def first(g: hr.Graph) -> None:
        kept.extend([orders(g), g.output("copy")])
        kept[0].send_to(kept[1])

    def second(g: hr.Graph) -> None:
        merged = orders(g).merge(kept[0])
        merged.send_to(kept[1])

    hr.job("first")(first).build()
    found = mistakes(second, "second")
    assert "stream 'orders' belongs to another graph" in found[0]
    assert "output 'copy' belongs to another graph" in found[1]


def test_a_job_cannot_feed_itself() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).send_to(g.output("orders"))  # loop

    found = only(build)
    assert line("loop") in found
    assert "stream 'orders' is also an input" in found


def test_outputs_of_one_stream_agree_on_their_partitions() -> None:
    def build(g: hr.Graph) -> None:
        source = orders(g)
        source.send_to(g.output("copy", partitions=2))  # two
        source.send_to(g.output("copy", partitions=3))  # three

    found = only(build)
    assert "output 'copy'" in found
    assert line("three") in found
    assert f"partitions=2 at {line('two')[:0]}" in found
    assert "and partitions=3 here; give the same" in found


@pytest.mark.parametrize("partitions", [0, -1, True, "2"])
def test_partitions_of_an_output_are_a_number_above_zero(partitions: Any) -> None:
    def build(g: hr.Graph) -> None:
        orders(g).send_to(g.output("copy", partitions=partitions))

    assert f"partitions is {partitions!r}; expected a number above zero" in only(build)


def test_an_output_that_gets_nothing_is_a_mistake() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).send_to(g.output("copy"))
        g.output("unused")  # forgotten

    found = only(build)
    assert line("forgotten") in found
    assert "nothing is sent to it" in found


def test_inputs_are_checked() -> None:
    def build(g: hr.Graph) -> None:
        g.input("a b").send_to(g.output("x"))
        g.input("b", out_of_orderness="-1s").send_to(g.output("x"))
        g.input("c", time="when", schema={"at": int}).send_to(g.output("x"))
        g.input("d", schema=7).send_to(g.output("x"))

    found = mistakes(build)
    assert "'a b' cannot name a stream" in found[0]
    assert "out_of_orderness is '-1s'; expected a duration" in " ".join(found)
    assert "event time: no column 'when'; columns are ['at']" in " ".join(found)
    assert "7 describes no record; give a dict" in " ".join(found)


def test_an_error_in_the_jobs_function_is_one_mistake_with_its_line_and_cause() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).partition_by("customer").aggregate(n=hr.agg.top_k("price", keep=None))  # type: ignore[arg-type] # fails

    with pytest.raises(hr.GraphError) as caught:
        hr.job("job")(build).build()
    assert len(caught.value.problems) == 1
    assert line("fails") in caught.value.problems[0]
    assert "TypeError: 'NoneType' object is not iterable" in caught.value.problems[0]
    assert isinstance(caught.value.__cause__, TypeError)


def test_an_error_inside_polars_is_told_at_the_users_line() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).filter(hr.col("price").cast("nothing"))  # type: ignore[arg-type] # cast

    assert line("cast") in only(build)


def test_mistakes_before_an_error_are_not_lost() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).aggregate()
        raise ValueError("no more")

    found = mistakes(build)
    assert len(found) == 3
    assert "ValueError: no more" in found[-1]


def test_a_job_is_checked_too() -> None:
    assert "'my job' cannot name a job" in only(
        lambda g: orders(g).send_to(g.output("x")), "my job"
    )
    assert "its function builds nothing; begin with g.input(...)" in only(lambda g: None)
    assert "takes (), but is called with (g)" in only(nothing)  # type: ignore[arg-type]
    with pytest.raises(hr.InvalidInputError, match=r'write @hr\.job\("name"\)'):
        hr.job(orders)  # type: ignore[arg-type]


def nothing() -> None: ...


def test_expressions_are_no_functions_and_functions_no_expressions() -> None:
    def build(g: hr.Graph) -> None:
        orders(g).filter("price").send_to(g.output("x"))  # type: ignore[arg-type]
        orders(g).filter(pl.col("price") > 0, uses=["price"]).send_to(g.output("x"))

    found = mistakes(build)
    assert "filter takes a function; found 'price' (str)" in found[0]
    assert "uses= is for functions" in found[1]


def test_former_names_of_arguments_work_with_a_warning_at_the_users_line() -> None:
    def built(allowed_lateness: str, *out_of_orderness: str) -> list[Any]:
        late: Any = dict.fromkeys(out_of_orderness, "1m")
        longer: Any = {allowed_lateness: "5m"}

        @hr.job("j")
        def job(g: hr.Graph) -> None:
            rows = g.input("orders", time="at", **late).partition_by("k")
            rows.window(hr.tumbling("1h", **longer), n=hr.agg.count())

        return list(job.build().operators)

    new = built("allowed_lateness", "out_of_orderness")
    with pytest.warns(DeprecationWarning, match="works for one more release") as warned:
        assert built("grace", "lateness") == new
    assert [str(one.message).partition(";")[0] for one in warned] == [
        "input: lateness= is out_of_orderness= now",
        "tumbling: grace= is allowed_lateness= now",
    ]
    assert {one.filename for one in warned} == {__file__}
    with pytest.raises(hr.GraphError, match="lateness= is out_of_orderness= now; give it once"):
        built("grace", "lateness", "out_of_orderness")


def test_the_former_name_of_how_long_a_remote_store_retries_works_with_a_warning() -> None:
    former: Any = {"patience": "5s"}
    with pytest.warns(DeprecationWarning, match="Remote: patience= is retry_timeout= now"):
        assert hr.Remote(**former) == hr.Remote(retry_timeout="5s")


def test_a_sink_by_the_former_name_of_a_property_works_with_a_warning() -> None:
    class Former(hr.sinks.FileSink):
        tells_rows = True

    with pytest.warns(DeprecationWarning, match="Former.tells_rows is reports_rows now"):
        assert Former("/out", "jsonl").reports_rows
    assert not hr.sinks.FileSink("/out", "jsonl").reports_rows
