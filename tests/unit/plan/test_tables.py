"""Broadcast stores in a plan: bound, pruned to what is used, shown, and checked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import JobPlan, StreamInfo, TableFile, explain, plan

import headrace as hr
from headrace.errors import GraphError, InvalidInputError

ORDERS = pa.schema([("id", pa.int64()), ("shop", pa.int32()), ("note", pa.string())])
SHOPS = pa.schema(
    [("number", pa.int64()), ("city", pa.string()), ("size", pa.int64()), ("at", pa.int64())]
)
STREAMS = {
    "orders": StreamInfo(ORDERS, 2),
    "shops": StreamInfo(SHOPS, 2, "at", ("number",)),
    "loose": StreamInfo(SHOPS, 2),
}
FILES = {"shops.csv": TableFile(SHOPS, "tables/abc.arrow", "abc")}
shops = hr.broadcast("shops", stream="shops", key="number")


class Look:
    def process(self, message: Any, context: Any) -> None:
        context.emit(message)


def planned(build: Any) -> JobPlan:
    return plan(hr.job("orders")(build).build(), STREAMS, files=FILES)


def mistakes(build: Any) -> str:
    with pytest.raises(GraphError) as caught:
        planned(build)
    return str(caught.value)


def test_only_the_columns_in_use_are_held_and_read() -> None:
    def build(g: hr.Graph) -> None:
        joined = g.input("orders").join_table(shops, on={"shop": "number"})
        joined.map("id", "city").send_to(g.output("out"))

    made = planned(build)
    (table,) = made.tables
    assert table.schema.names == ["number", "city"]
    assert table.values == ("city", "size")  # a deletion is seen by all columns but the time
    (stage,) = made.stages
    assert stage.tables == ("shops",)
    assert stage.inputs[0].columns == ("id", "shop")
    assert stage.schemas["orders.join_table"].names == ["id", "city"]


def test_a_processor_gets_whole_rows_also_beside_a_join() -> None:
    def build(g: hr.Graph) -> None:
        g.input("orders").join_table(
            shops, on={"shop": "number"}, columns={"place": "city"}
        ).process(Look, stores=[shops], returns=ORDERS).send_to(g.output("out"))

    (table,) = planned(build).tables
    assert table.schema.names == SHOPS.names


def test_keys_and_event_time_pass_a_join() -> None:
    def build(g: hr.Graph) -> None:
        by_id = g.input("orders").partition_by("id")
        joined = by_id.join_table(shops, on="shop", columns=["city"])
        joined.aggregate(n=hr.agg.count()).send_to(g.output("out"))

    assert [stage.tables for stage in planned(build).stages] == [(), ("shops",)]


def test_a_file_is_bound_by_its_digest() -> None:
    def build(g: hr.Graph) -> None:
        table = hr.broadcast("shops", file="shops.csv", key="number")
        g.input("orders").join_table(table, on="shop", columns=["city"]).send_to(g.output("out"))

    (table,) = planned(build).tables
    assert (table.file, table.digest, table.stream) == ("tables/abc.arrow", "abc", None)


def test_a_plan_without_the_stream_takes_the_schema_given() -> None:
    def build(g: hr.Graph) -> None:
        table = hr.broadcast("x", stream="to-come", key="a", schema={"a": int, "b": str})
        g.input("orders").join_table(table, on="id", columns=["b"]).send_to(g.output("out"))

    assert planned(build).tables[0].partitions == 1


def test_explain_says_where_rows_come_from() -> None:
    def build(g: hr.Graph) -> None:
        joined = g.input("orders").join_table(shops, on="shop", how="inner", columns=["city"])
        joined.process(Look, stores=[shops], returns=ORDERS).send_to(g.output("out"))

    text = explain(planned(build))
    assert "inner join with broadcast store shops on shop = number" in text
    assert "table of stream 'shops', adds city" in text
    assert "broadcast store shops of stream 'shops' by (number)" in text


def test_tables_are_no_part_of_the_fingerprint() -> None:
    def plain(g: hr.Graph) -> None:
        g.input("orders").partition_by("id").process(Look, returns=ORDERS, name="look").send_to(
            g.output("out")
        )

    def with_table(g: hr.Graph) -> None:
        by_id = g.input("orders").partition_by("id")
        by_id.process(Look, stores=[shops], returns=ORDERS, name="look").send_to(g.output("out"))

    assert planned(plain).fingerprint == planned(with_table).fingerprint


TABLES = {
    "no stream 'gone'": {"stream": "gone", "key": "number"},
    "'numbr'; did you mean 'number'": {"stream": "shops", "key": "numbr"},
    "2 partitions that are not by columns of the key": {"stream": "loose", "key": "number"},
    "no file 'gone.csv'": {"file": "gone.csv", "key": "number"},
}


@pytest.mark.parametrize("text", TABLES)
def test_a_table_that_cannot_be_bound_is_told_once(text: str) -> None:
    def build(g: hr.Graph) -> None:
        table = hr.broadcast("shops", **TABLES[text])
        orders = g.input("orders").partition_by("id")
        orders.join_table(table, on="shop").send_to(g.output("out"))
        orders.join_table(table, on="shop").send_to(g.output("out"))

    found = mistakes(build)
    assert text in found
    assert "1 mistake" in found


JOINS: dict[str, dict[str, Any]] = {
    "on: no column 'shp'": {"on": "shp"},
    "columns: no column 'town'": {"on": "shop", "columns": ["town"]},
    "column 'note' is string, but 'number' of 'shops' is int64": {"on": "note"},
    "columns ['id'] would be there twice": {"on": "shop", "columns": {"id": "city"}},
    "expected one of ('left', 'inner')": {"on": "shop", "how": "outer"},
    "needs a column for each of the key ['number']": {"on": ["shop", "id"]},
    "maps columns of the stream to the key ['number']": {"on": {"shop": "city"}},
}


@pytest.mark.parametrize("text", JOINS)
def test_joins_that_cannot_be_are_refused(text: str) -> None:
    def build(g: hr.Graph) -> None:
        g.input("orders").join_table(shops, **JOINS[text]).send_to(g.output("out"))

    assert text in mistakes(build)


def test_other_mistakes_of_the_graph_are_told() -> None:
    def build(g: hr.Graph) -> None:
        other = hr.broadcast("shops", file="shops.csv", key="number")
        orders = g.input("orders").partition_by("id")
        orders.join_table(shops, on="shop").process(Look, stores=[other, hr.store("shops")])
        orders.join_table("shops").send_to(g.output("shops"))  # type: ignore[arg-type]

    found = mistakes(build)
    assert "is of file 'shops.csv' by ['number'] here, but of stream 'shops'" in found
    assert "store 'shops' has the name of a broadcast store" in found
    assert "join_table takes hr.broadcast(...); found 'shops' (str)" in found
    assert "stream 'shops' also fills broadcast store 'shops'" in found


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("a b", "columns ['a b'] cannot be attributes of a message"),
        ("__dead", "columns ['__dead'] begin with '__', which Headrace keeps"),
    ],
)
def test_columns_that_a_message_cannot_have_are_told_in_the_plan(column: str, text: str) -> None:
    def build(g: hr.Graph) -> None:
        columns = pa.schema([("id", pa.int64()), (column, pa.int64())])
        table = hr.broadcast("t", stream="to-come", key="id", schema=columns)
        g.input("orders").process(Look, stores=[table], returns=ORDERS).send_to(g.output("out"))

    assert text in mistakes(build)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"key": "a"}, "needs stream= or file=; found neither"),
        ({"key": "a", "stream": "s", "file": "f.csv"}, "found both"),
        (
            {"key": "a", "stream": "kafka://me:secret@h:1/s"},
            r"found the address kafka://[^s]*@?h:1/s",
        ),
        ({"key": [], "stream": "s"}, "key= takes names of columns"),
        ({"key": ["a", "a"], "stream": "s"}, "key= takes names of columns, each once"),
    ],
)
def test_a_declaration_that_is_none_says_why(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        hr.broadcast("t", **given)


def test_a_store_by_more_than_the_key_of_a_compacted_stream_is_refused() -> None:
    """Rows that the store would hold are compacted away."""
    key = ("number", "city")
    wide = hr.broadcast("wide", stream="latest", key=key)

    def build(g: hr.Graph) -> None:
        on = {"shop": "number", "note": "city"}
        g.input("orders").join_table(wide, on=on).send_to(g.output("out"))

    for one, wrong in ((("number",), True), (key, False)):
        latest = StreamInfo(SHOPS, 1, "at", one, compact=True)
        graph = hr.job("orders")(build).build()
        if not wrong:
            assert plan(graph, {**STREAMS, "latest": latest}).tables
            continue
        with pytest.raises(GraphError, match=r"keeps the last record of each \['number'\], so"):
            plan(graph, {**STREAMS, "latest": latest})
