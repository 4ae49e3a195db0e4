"""Spark partitions that run where we say, each in a Python worker of its own.

The one module that goes through py4j into Spark's private parts; ``tests/spark`` has a smoke
test for each. Placement comes from ``SparkContext.makeRDD`` with locations. Each slot is one
branch of a union with an environment of its own: Spark keys its pools of Python workers by
environment, so a slot finds the same process again, with its open stores.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import BatchedSerializer, CPickleSerializer
from pyspark.util import _load_from_socket

SLOT_VARIABLE = "HEADRACE_SLOT"
MOST_TASKS = 10_000
_ENVIRONMENT = threading.Lock()  # of the context, which the parts of a job share


@dataclass(frozen=True)
class Executor:
    """A live executor, by Spark's identity, its host, and its cores.

    ``ended`` is how many of its tasks have ended, however: a sign of life when it grows.
    """

    identity: str
    host: str
    cores: int
    ended: int = field(default=0, compare=False)

    @property
    def location(self) -> str:
        """Return the name that makes Spark prefer exactly this executor."""
        return self.host if self.identity == "driver" else f"executor_{self.host}_{self.identity}"


def executors(context: SparkContext) -> list[Executor]:
    """Return the executors that are alive, those of the cluster before the driver's own."""
    found = []
    summaries = context._jsc.sc().statusStore().executorList(True)
    for index in range(summaries.size()):
        summary = summaries.apply(index)
        host = summary.hostPort().rsplit(":", 1)[0]
        if summary.isActive():
            ended = summary.totalTasks() - summary.activeTasks()
            found.append(Executor(summary.id(), host, summary.totalCores(), ended))
    # One that Spark had given up, and that then woke, shows up again, with no cores.
    remote = [one for one in found if one.identity != "driver" and one.cores > 0]
    if remote or not in_driver(str(context.master)):
        return sorted(remote, key=lambda executor: int(executor.identity))
    return found


@dataclass(frozen=True)
class Course:
    """How far a job group is: where partitions run, by executor, and which are done."""

    running: Mapping[int, str]
    done: frozenset[int]


def course(context: SparkContext, group: str) -> Course:
    """Return how far the jobs of a group are that are active now."""
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    active = set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(group))
    running, done = {}, set()
    for job in active:
        told = tracker.getJobInfo(job)
        for stage in () if told is None else told.stageIds:
            info = tracker.getStageInfo(stage)
            if info is None:
                continue
            tasks = store.taskList(stage, info.currentAttemptId, MOST_TASKS)
            for index in range(tasks.size()):
                task = tasks.apply(index)
                if task.status() == "RUNNING":
                    running[task.partitionId()] = task.executorId()
                elif task.status() == "SUCCESS":
                    done.add(task.partitionId())
    return Course(running, frozenset(done))


def in_driver(master: str) -> bool:
    """Whether tasks run in the driver's own process: a ``local-cluster`` has executors."""
    return master == "local" or master.startswith("local[")


class SlotRDD:
    """One Spark partition for each slot, placed, with a worker pool of its own.

    Building costs a few milliseconds a slot, so one is kept while the placement stands. A
    slot that keeps its number and its executor keeps its process in the next one, too.

    Args:
        context: of the session.
        slots: by number, what each is given, and the locations it prefers.
        function: runs in the worker on an iterator over that one object; must read it to
            its end, or Spark throws the worker away.
    """

    def __init__(
        self,
        context: SparkContext,
        slots: Mapping[int, tuple[Any, Sequence[str]]],
        function: Callable[[Iterable[Any]], Iterable[bytes]],
    ) -> None:
        self._context = context
        self._slots = list(slots)
        self._partitions = {number: partition for partition, number in enumerate(slots)}
        branches = []
        environment = context.environment
        with _ENVIRONMENT:
            before = environment.get(SLOT_VARIABLE)
            for number, (value, locations) in slots.items():
                environment[SLOT_VARIABLE] = str(number)
                branch = _located(context, value, locations).mapPartitions(function)
                branch._jrdd  # noqa: B018 - the environment is taken when the JVM's side is made
                branches.append(branch)
            if before is None:
                environment.pop(SLOT_VARIABLE, None)
        self._rdd = branches[0] if len(branches) == 1 else context.union(branches)

    def slot_of(self, partition: int) -> int:
        """Return the number of the slot that a partition is."""
        return self._slots[partition]

    def run(self, slots: Sequence[int]) -> list[bytes]:
        """Run the function on some slots and return what it yields, in that order."""
        spark = self._context._jsc.sc()
        partitions = [self._partitions[number] for number in slots]
        socket = _jvm(self._context).PythonRDD.runJob(spark, self._rdd._jrdd, partitions)
        with _load_from_socket(socket, self._rdd._jrdd_deserializer) as reports:
            return list(reports)


def _located(context: SparkContext, value: Any, locations: Sequence[str]) -> RDD[Any]:
    jvm = _jvm(context)
    as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    names = jvm.java.util.ArrayList()
    for location in locations:
        names.add(location)
    pairs = jvm.java.util.ArrayList()
    pairs.add(jvm.scala.Tuple2(bytearray(pickle.dumps([value])), as_scala(names).toSeq()))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    made = context._jsc.sc().makeRDD(as_scala(pairs).toSeq(), tag).toJavaRDD()
    return RDD(made, context, BatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]


def _jvm(context: SparkContext) -> Any:
    return context._jvm
