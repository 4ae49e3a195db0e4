"""What jobs have committed, and streams, as tables of Spark: by the source and by its catalog."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.homes import write_visits
from tests.support.jobs import counting
from tests.support.processes import REAL_CLOCK, SOON_S
from tests.support.runs import World, on_spark

import headrace as hr
from headrace import spark as headrace_spark

pytestmark = pytest.mark.spark

STATE = "headrace.state"


def scanned(frame: DataFrame) -> tuple[int, list[str], list[Row]]:
    """Run a query; return how many rows its scan brought, with which columns, and its result."""
    rows: Any = frame
    found = rows.collect()
    plan = rows._jdf.queryExecution().executedPlan()
    leaf = plan.collectLeaves().head()
    names = [leaf.output().apply(at).name() for at in range(leaf.output().size())]
    return leaf.metrics().apply("numOutputRows").value(), names, found


def test_state_epochs_and_streams_are_tables(spark: SparkSession, world: World) -> None:
    world.feed(200)
    _, epochs = on_spark(counting(), world.settings("job.bounded=true"))
    home = str(world.home)
    headrace_spark.register(spark, home)

    def read(**options: object) -> DataFrame:
        given = {name: str(value).lower() for name, value in options.items()}
        return spark.read.format("headrace").options(home=home, **given).load()

    last = epochs[-1].epoch

    expected = world.store("counting", "n")
    state = read(job="counting", store="n", epoch=last)
    assert state.count() == len(expected) > 0
    assert state.rdd.getNumPartitions() > 1
    assert read(job="counting", store="n", epoch=0).count() == 0
    assert read(job="counting", store="n", epoch=-last).count() == 0

    kept = {row.epoch: row for row in read(job="counting", metadata=True).collect()}
    assert kept[last].ended
    assert sum(one.next_offset for one in kept[last].inputs if one.input == "events") == 400

    stores = [row.tableName for row in spark.sql(f"show tables in {STATE}.counting").collect()]
    assert "n" in stores
    now = spark.table(f"{STATE}.counting.n")
    assert sorted(now.collect()) == sorted(state.collect())
    key, value = now.columns
    one, other, *_ = sorted(expected)
    some = now.where(f"{key} in ({one}, {other})").select(value)
    brought, _, found = scanned(some)
    assert brought == len(found) == 2 < len(expected)
    then = spark.sql(f"select * from {STATE}.counting.n version as of 0")
    assert then.count() == 0
    assert spark.table("headrace.metadata.counting").count() == len(kept)
    with pytest.raises(AnalysisException, match="none"):
        spark.table(f"{STATE}.counting.none").collect()


def test_a_query_reads_only_its_columns_and_rows(spark: SparkSession, world: World) -> None:
    world.feed(200)
    headrace_spark.register(spark, world.home)
    events = spark.table("headrace.streams.events")
    every = events.collect()
    assert scanned(events.select("id"))[1] == ["id"]
    one = events.where("id = 3 and kind is not null").select("v")
    rows, names, found = scanned(one)
    wanted = [row.v for row in every if row.id == 3]
    assert rows == len(wanted) < len(every)
    assert set(names) <= {"id", "kind", "v"}
    assert sorted(row.v for row in found) == sorted(wanted)
    assert events.count() == len(every)  # conditions of a query stay with it
    assert events.where("offset < 5 and partition = 0").count() == 5  # of columns that are made
    quoted = events.where("kind in ('a''b', 'a') or kind = '\\\\'")
    assert quoted.count() == sum(row.kind == "a" for row in every)


def test_the_catalog_lists_what_came_since(spark: SparkSession, world: World) -> None:
    headrace_spark.register(spark, world.home)
    before = {row.tableName for row in spark.sql("show tables in headrace.streams").collect()}
    frame = spark.range(3).withColumnRenamed("id", "n")
    frame.write.format("headrace").mode("append").options(home=str(world.home), create=True).save(
        "later"
    )
    after = {row.tableName for row in spark.sql("show tables in headrace.streams").collect()}
    assert after - before == {"later"}
    assert spark.table("headrace.streams.later").count() == 3


def test_a_session_that_is_not_the_active_one_has_a_catalog_of_its_own(
    spark: SparkSession, world: World
) -> None:
    spark.createDataFrame([(1,)], "a int")  # makes it the active one
    own = spark.newSession()
    headrace_spark.register(own, world.home)
    assert SparkSession.getActiveSession() is not own
    listed = own.sql("show tables in headrace.streams").collect()
    assert [row.tableName for row in listed] == ["events"]


def test_parts_dead_letters_and_the_warehouse_are_in_the_catalog(
    spark: SparkSession, world: World
) -> None:
    world.feed(20)
    write_visits(world.home / "warehouse" / "visits", REAL_CLOCK)

    def picky(message: Any) -> dict[str, Any]:
        if message.v == 0:
            raise ValueError("cannot take it")
        return {"id": message.id}

    @hr.job("split")
    def split(g: hr.Graph) -> None:
        events = g.input("events").map(picky, returns={"id": int}, on_error="dead_letter")
        by_id = events.partition_by("id", via="bus")
        by_id.aggregate(name="sums", n=hr.agg.count()).send_to(g.output("counted"))

    on_spark(split, world.settings("job.bounded=true"))
    headrace_spark.register(spark, world.home)

    def table(name: str) -> DataFrame:
        return spark.table(f"headrace.{name}")

    assert sorted(row.user or "" for row in table("warehouse.visits").collect()) == ["", "ann"]
    days = spark.read.format("headrace").options(home=str(world.home), table="visits")
    assert days.option("days", "1970-01-01").load().select("user").count() == 2
    letters = table("streams.`split.dead`").count()
    assert letters == len(world.rows("split.dead"))
    counted = table("state.split.sums").collect()
    assert sum(row.n for row in counted) == 40 - letters
    parts = {row.part for row in table("metadata.split").collect()}
    assert len(parts) == 2
    assert "split" in parts
    followed = spark.readStream.table("headrace.streams.events").select("id").writeStream
    query = followed.format("memory").queryName("followed").trigger(availableNow=True).start()
    assert query.awaitTermination(int(SOON_S))
    assert spark.table("followed").count() == 40
    with pytest.raises(AnalysisException, match="does not support either micro-batch"):
        spark.readStream.table(f"{STATE}.split.sums").writeStream.format("noop").start()
