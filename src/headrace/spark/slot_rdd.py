"""Spark partitions that run where we say, each in a Python worker of its own.

With ``catalog`` and ``java_classes``, what goes through py4j into Spark's private parts;
``tests/spark`` has a smoke test for each. Placement comes from ``SparkContext.makeRDD`` with
locations. Each slot is one branch of a union with an environment of its own: Spark keys its pools
of Python workers by environment, so a slot that keeps its number on its executor finds the same
process again, with its open stores. New executors are prepared beside the epochs: their first slot
starts a Python process, which takes seconds.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import BatchedSerializer, CPickleSerializer
from pyspark.util import _load_from_socket

from headrace.spark.daemon import SLOT_VARIABLE

MOST_TASKS = 10_000
SPARK_ERRORS = (Py4JError, PySparkException, EOFError, OSError)
"""What ``SlotRDD.run`` raises when Spark does not run the slots to their end."""


@dataclass(frozen=True)
class Executor:
    """A live executor, by Spark's identity, its host, and its cores.

    ``ended`` is how many of its tasks have ended, however: a heartbeat when it grows.
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
    if remote or not runs_in_driver(str(context.master)):
        return sorted(remote, key=lambda executor: int(executor.identity))
    return found


@dataclass(frozen=True)
class GroupProgress:
    """How far a job group is: where partitions run, by executor, and which are done."""

    running: Mapping[int, str]
    done: frozenset[int]


def group_progress(context: SparkContext, group: str) -> GroupProgress:
    """Return how far the jobs of a group are that are active now."""
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    active = set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(group))
    running, done = {}, set()
    for job in active:
        spark_job = tracker.getJobInfo(job)
        for stage in () if spark_job is None else spark_job.stageIds:
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
    return GroupProgress(running, frozenset(done))


def runs_in_driver(master: str) -> bool:
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
        metrics: of the JVM, as ``slot_metrics`` registers them: count in the tasks what the
            function yields.
    """

    def __init__(
        self,
        context: SparkContext,
        slots: Mapping[int, tuple[Any, Sequence[str]]],
        function: Callable[[Iterable[Any]], Iterable[bytes]],
        metrics: Any = None,
    ) -> None:
        self._context, self._metrics = context, metrics
        self._slots = list(slots)
        self._partitions = {number: partition for partition, number in enumerate(slots)}
        branches = []
        for number, (value, locations) in slots.items():
            of_slot = _with_variable(context, SLOT_VARIABLE, str(number))
            branch = _located(of_slot, value, locations).mapPartitions(function)
            branch._jrdd  # noqa: B018 - the function is pickled when the JVM's side is made
            branches.append(branch)
        self._rdd = branches[0] if len(branches) == 1 else context.union(branches)
        self._tasks: Any = self._rdd._jrdd if metrics is None else metrics.over(self._rdd._jrdd)

    def slot_of(self, partition: int) -> int:
        """Return the number of the slot that a partition is."""
        return self._slots[partition]

    def leave_metrics(self) -> None:
        """Run without metrics from now on."""
        self._metrics, self._tasks = None, self._rdd._jrdd

    def run(self, slots: Sequence[int]) -> list[bytes]:
        """Run the function on some slots and return what it yields, in that order."""
        spark = self._context._jsc.sc()
        partitions = [self._partitions[number] for number in slots]
        if self._metrics is not None:
            self._metrics.reset()
        socket = _jvm(self._context).PythonRDD.runJob(spark, self._tasks, partitions)
        reports: Any = _load_from_socket(socket, self._rdd._jrdd_deserializer)
        if isinstance(reports, AbstractContextManager):
            with reports as found:
                return list(found)
        return list(reports)  # before Spark 4.2 the collector closes the socket


def _with_variable(context: SparkContext, name: str, value: str) -> SparkContext:
    """Return the same context, whose new tasks find one more variable in their environment.

    That of ``context`` is read by all threads while they make functions of theirs.
    """
    view: SparkContext = object.__new__(SparkContext)
    vars(view).update(vars(context), environment={**context.environment, name: value})
    return view


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


def first_line(error: Exception) -> str:
    """Return the line of a JVM's output that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return (errors or lines or [type(error).__name__])[0].lstrip(": ")[:300]


class SlotNumbers:
    """Which number the slots on each executor have.

    Args:
        first: the lowest number.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._placed: Mapping[int, Executor] = {}
        self._promised: Mapping[int, Executor] = {}

    @property
    def placed(self) -> Mapping[int, Executor]:
        """Numbers that slots have, as last placed."""
        return self._placed

    def of(self, places: Sequence[Executor]) -> dict[int, Executor]:
        """Give each place a number: its own, the one promised, or the lowest that is free."""
        left, numbers = list(places), {}
        for number, executor in (*self._placed.items(), *self._promised.items()):
            if executor in left and number not in numbers:
                left.remove(executor)
                numbers[number] = executor
        every = range(self._first, self._first + len(places))
        free = (number for number in every if number not in numbers)
        numbers.update(zip(free, left, strict=False))
        return dict(sorted(numbers.items()))

    def promise(self, places: Sequence[Executor]) -> dict[int, Executor]:
        """Return the numbers of these places, which they have once they are placed."""
        self._promised = self.of(places)
        return dict(self._promised)

    def place(self, numbers: Mapping[int, Executor]) -> None:
        """Take it that slots run under these numbers now."""
        self._placed = numbers


Prepare = Callable[[Mapping[int, Executor]], SlotRDD]


class ExecutorWarmup:
    """The executors that have come since slots were last placed.

    One thread calls.

    Args:
        prepare: makes what runs on the slots of these numbers and executors.
        group: of the Spark jobs, called in the thread that runs them.
    """

    def __init__(self, prepare: Prepare, group: Callable[[], None]) -> None:
        self._prepare, self._group = prepare, group
        self._asked: dict[str, threading.Event] = {}

    def ready(
        self,
        found: Sequence[Executor],
        known: Sequence[Executor],
        numbered: Callable[[Sequence[Executor]], Mapping[int, Executor]],
    ) -> list[Executor]:
        """Return the executors that are known or ready, and begin to get others ready.

        Args:
            found: those that are alive.
            known: those that slots are placed on; when there are none, all found are returned.
            numbered: gives the slots of executors their numbers.
        """
        there = {one.identity for one in known}
        if not there:
            return list(found)
        new = [one for one in found if one.identity not in there]
        self._asked = {
            one.identity: self._asked[one.identity] for one in new if one.identity in self._asked
        }
        fresh = [one for one in new if one.identity not in self._asked]
        if fresh:
            self._begin(fresh, numbered(found))
        late = {name for name, answered in self._asked.items() if not answered.is_set()}
        return [one for one in found if one.identity not in late]

    def _begin(self, fresh: Sequence[Executor], numbers: Mapping[int, Executor]) -> None:
        names = {one.identity for one in fresh}
        for name in names:
            self._asked[name] = threading.Event()
            mine = {number: one for number, one in numbers.items() if one.identity == name}
            if not mine:  # no slot of this part is going to be there
                self._asked[name].set()
                continue
            threading.Thread(
                target=self._ask, args=(mine, self._asked[name]), name="headrace-new", daemon=True
            ).start()

    def _ask(self, slots: Mapping[int, Executor], answered: threading.Event) -> None:
        self._group()
        try:
            self._prepare(slots).run(list(slots))
        except Exception:  # noqa: BLE001 - it is gone again, or says what is wrong when it is used
            return
        finally:
            answered.set()
