"""Each private way into Spark's JVM still does what ``spark.located`` relies on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import MappingProxyType

import msgspec
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.spark.daemon import SLOT_VARIABLE
from headrace.spark.slot_rdd import SlotRDD, executors, runs_in_driver

pytestmark = pytest.mark.spark

PROPERTY = "headrace.test"


def describe(slots: Iterable[str]) -> Iterator[bytes]:
    """Say in which process a slot runs, and what it can see there."""
    for name in slots:
        context = TaskContext.get()
        assert context is not None
        said = {
            "slot": name,
            "process": os.getpid(),
            "variable": os.environ.get(SLOT_VARIABLE),
            "property": context.getLocalProperty(PROPERTY),
        }
        yield msgspec.json.encode(said)


@pytest.fixture(scope="module")
def rdd(spark: SparkSession) -> SlotRDD:
    location = executors(spark.sparkContext)[0].location
    slots = {number: (f"slot {number}", [location]) for number in range(3)}
    return SlotRDD(spark.sparkContext, slots, describe)


def answers(rdd: SlotRDD, slots: list[int]) -> list[dict]:
    return [msgspec.json.decode(data) for data in rdd.run(slots)]


def test_executors_of_local_mode_are_the_driver(spark: SparkSession) -> None:
    """The status store is asked for executors; local mode has one, placed by its host."""
    (found,) = executors(spark.sparkContext)
    assert found.identity == "driver"
    assert found.location == found.host
    assert found.cores == 2


@pytest.mark.parametrize(
    ("master", "is_in_driver"),
    [("local", True), ("local[2,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_a_local_cluster_has_executors(master: str, is_in_driver: bool) -> None:
    """Slots of a local-cluster are placed on its executors, one by one."""
    assert runs_in_driver(master) == is_in_driver


def test_slots_answer_in_the_order_asked(rdd: SlotRDD) -> None:
    """Each slot gets its own object, in an environment that holds its number."""
    assert [(a["slot"], a["variable"]) for a in answers(rdd, [0, 1, 2])] == [
        ("slot 0", "0"),
        ("slot 1", "1"),
        ("slot 2", "2"),
    ]


def test_what_other_threads_read_of_the_context_stays(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark copies the context's environment for each function that any thread makes."""
    context = spark.sparkContext
    monkeypatch.setattr(context, "environment", MappingProxyType(dict(context.environment)))
    slots = SlotRDD(context, {7: ("slot 7", [])}, describe)
    assert SLOT_VARIABLE not in context.environment
    assert [answer["variable"] for answer in answers(slots, [7])] == ["7"]


def test_a_slot_meets_its_process_again(rdd: SlotRDD) -> None:
    """Every slot has one worker process over many jobs, and shares it with no other."""
    first = [answer["process"] for answer in answers(rdd, [0, 1, 2])]
    assert len(set(first)) == 3
    for _ in range(10):
        assert first == [answer["process"] for answer in answers(rdd, [0, 1, 2])]


def test_some_slots_run_without_the_others(rdd: SlotRDD) -> None:
    """An epoch runs only the slots that have something to do, in the processes they had."""
    first = {answer["slot"]: answer["process"] for answer in answers(rdd, [0, 1, 2])}
    for chosen in ([2], [0, 2], [1]):
        found = answers(rdd, chosen)
        assert [f"slot {n}" for n in chosen] == [answer["slot"] for answer in found]
        assert all(first[answer["slot"]] == answer["process"] for answer in found)


def test_slots_placed_anew_keep_number_and_process(spark: SparkSession, rdd: SlotRDD) -> None:
    """When others go, a slot keeps its number, and with it the process that has its stores."""
    first = {answer["slot"]: answer["process"] for answer in answers(rdd, [0, 1, 2])}
    location = executors(spark.sparkContext)[0].location
    anew = SlotRDD(spark.sparkContext, {2: ("slot 2", [location])}, describe)
    (found,) = answers(anew, [2])
    assert (found["slot"], found["variable"]) == ("slot 2", "2")
    assert found["process"] == first["slot 2"]


def test_local_properties_reach_the_workers(spark: SparkSession, rdd: SlotRDD) -> None:
    """What is set before a job is what its workers see, though the RDD is an old one."""
    for value in ("first", "second"):
        spark.sparkContext.setLocalProperty(PROPERTY, value)
        assert [value] * 2 == [answer["property"] for answer in answers(rdd, [0, 1])]
    spark.sparkContext.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]
    assert [answer["property"] for answer in answers(rdd, [0])] == [None]


def test_building_slots_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    """The number of a slot does not leak into what others build on the same context."""
    before = dict(spark.sparkContext.environment)
    SlotRDD(spark.sparkContext, {0: ("one", []), 1: ("two", [])}, describe)
    assert before == spark.sparkContext.environment
