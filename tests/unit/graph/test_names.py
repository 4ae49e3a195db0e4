"""Names of other libraries lead to the right one; outputs are named where they are sent to."""

from __future__ import annotations

from importlib.metadata import version
from inspect import signature
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64()}


def stream() -> Any:
    found: list[hr.Stream] = []

    @hr.job("names")
    def names(g: hr.Graph) -> None:
        found.append(g.input("in", schema=COLUMNS))
        found[0].send_to("out")

    names.build()
    return found[0]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("group_by", "partition_by"),
        ("key_by", "partition_by"),
        ("key_on", "partition_by"),
        ("to", "send_to"),
        ("sink", "send_to"),
        ("reduce_by_key", "aggregate"),
        ("map_partitions", "map_batches"),
        ("withColumn", "with_columns"),
        ("where", "filter"),
        ("fliter", "did you mean 'filter'"),
    ],
)
def test_a_method_of_another_library_names_ours(name: str, right: str) -> None:
    with pytest.raises(AttributeError, match=rf"a stream has no '{name}'.*{right}"):
        getattr(stream(), name)
    assert not hasattr(stream(), name)


ELSEWHERE = """
group_by groupBy key_by keyBy key_on repartition to sink sink_to to_topic write through
reduce_by_key count sum running map_partitions mapPartitions apply transform flatMap explode
withColumn assign withColumnRenamed where distinct unique union_all concat tumbling_window foreach
writeStream show collect toPandas dropDuplicates
"""


@pytest.mark.parametrize("name", ELSEWHERE.split())
def test_what_is_named_is_there(name: str) -> None:
    with pytest.raises(AttributeError, match=r": use \w+\(") as raised:
        getattr(stream(), name)
    said = str(raised.value).partition(": use ")[2]
    assert callable(getattr(stream(), said.partition("(")[0]))


def test_event_time_is_said_where_a_stream_is_read() -> None:
    with pytest.raises(AttributeError, match=r"g\.input\(name, time=column, out_of_orderness="):
        _ = stream().withWatermark


@pytest.mark.parametrize(
    "name", ["allowed_lateness", "late", "updates", "early", "early_rows", "early_idle"]
)
def test_an_option_of_the_kind_of_window_is_named_as_one(name: str) -> None:
    assert name in signature(hr.tumbling).parameters
    options: dict[str, Any] = {name: "5s"}

    @hr.job("late")
    def late(g: hr.Graph) -> None:
        rows = g.input("in", schema={**COLUMNS, "at": pa.int64()}, time="at").partition_by("k")
        rows.window(hr.tumbling("1m"), n=hr.agg.count(), **options).send_to("out")

    with pytest.raises(hr.GraphError) as caught:
        late.build()
    (told,) = caught.value.problems
    assert f"{name}= is an option of the kind of window: hr.tumbling(size, {name}=...)" in told


def test_an_aggregate_of_another_library_names_ours() -> None:
    aggregates: Any = hr.agg
    with pytest.raises(AttributeError, match=r"hr.agg has no 'avg'; use hr.agg.mean"):
        _ = aggregates.avg
    with pytest.raises(AttributeError, match=r"hr.agg has no 'qqqq'; it has approx_distinct"):
        _ = aggregates.qqqq


def test_an_output_is_named_where_it_is_sent_to() -> None:
    @hr.job("named")
    def named(g: hr.Graph) -> None:
        rows = g.input("in", schema=COLUMNS)
        rows.send_to("out")
        g.output("wide", partitions=3)
        rows.send_to("wide")

    with TestDriver(named) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"k": 1}])
        driver.run()
        assert driver.output("out") == driver.output("wide") == [{"k": 1}]
        assert driver.bus.stream("wide").spec.partitions == 3


def test_the_version_is_that_of_the_distribution() -> None:
    assert hr.__version__ == version("headrace")
