"""Classes and modules of the user's on Spark's workers, over a stream that got a column."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.runs import World, run_job

import headrace as hr
from headrace.errors import InvalidInputError

pytestmark = pytest.mark.spark


def test_messages_of_local_classes_come_from_rows_of_two_schemas(
    spark: SparkSession, world: World
) -> None:
    @dataclasses.dataclass
    class Event:
        id: int
        note: str | None

    class Seen(msgspec.Struct):
        times: int
        notes: list[str | None]

    class Collect:
        def process(self, event: Event, context: hr.Context) -> None:
            store: hr.Store[Seen] = context.store("seen")
            seen = store.get(event.id) or Seen(0, [])
            store.put(event.id, Seen(seen.times + 1, [*seen.notes, event.note]))

    @hr.job("collect")
    def collect(g: hr.Graph) -> None:
        g.input("events").partition_by("id").process(Collect, stores={"seen": Seen}, name="o")

    world.feed(30)
    events = world.bus.stream("events")
    events.evolve(events.spec.schema.append(pa.field("note", pa.string())), {"note": "-"})
    new = [row | {"note": "new"} for row in world.log[0][:5]]
    events.append(0, pa.RecordBatch.from_pylist(new, events.spec.schema))

    run_job(collect, world.settings("job.bounded=true", "epoch.max_rows=25"))

    expected: dict[int, list[str]] = {}
    for rows in world.log:
        for row in rows:
            expected.setdefault(row["id"], []).append("-")
    for row in new:
        expected[row["id"]].append("new")
    found = world.store("collect", "seen")
    assert {key: len(notes) for key, notes in expected.items()} == {
        key: value["times"] for key, value in found.items()
    }
    assert {key: sorted(notes) for key, notes in expected.items()} == {
        key: sorted(value["notes"]) for key, value in found.items()
    }


def test_a_module_that_executors_do_not_have_is_named(spark: SparkSession, world: World) -> None:
    module = ModuleType("only_with_the_driver")
    exec("def same(message):\n    return {'id': message.id}", module.__dict__)
    sys.modules[module.__name__] = module

    @hr.job("missing")
    def missing(g: hr.Graph) -> None:
        same: Any = module.same
        g.input("events").map(same, returns={"id": int}).send_to(g.output("out"))

    world.feed(3)
    try:
        with pytest.raises(
            InvalidInputError, match=r"No module named 'only_with_the_driver'; install"
        ):
            run_job(missing, world.settings("job.bounded=true"))
    finally:
        del sys.modules[module.__name__]
    assert world.rows("out") == []
