"""Runs the slots of a level as one Spark job, and drops it when one of its executors is gone.

Spark itself would run the slots of a lost executor elsewhere, where their stores are not; and it
would wait for a frozen one. Either way the epoch has to be placed again, the sooner the better.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from headrace.clock import Clock, Deadline, SystemClock
from headrace.closeable import running_beside
from headrace.coordinator.deployment import Deployment
from headrace.coordinator.driver_loop import DroppedError
from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.membership import FailureDetector
from headrace.coordinator.placement import Slot
from headrace.coordinator.worker_host import WorkerSettings
from headrace.errors import HeadraceError, UnavailableError
from headrace.objects import StorageAwayError
from headrace.plan.stages import JobPlan
from headrace.runtime.orders import SlotOrder, SlotReport, decode_report, encode_orders
from headrace.spark.java_classes import JAVA_ERRORS, java_cause
from headrace.spark.slot_metrics import CLASS, is_shown, register_metrics
from headrace.spark.slot_rdd import (
    SPARK_ERRORS,
    Executor,
    ExecutorWarmup,
    SlotNumbers,
    SlotRDD,
    executors,
    first_line,
    group_progress,
    runs_in_driver,
)
from headrace.spark.worker import (
    HEARTBEAT_PROPERTY,
    ORDERS_PROPERTY,
    heartbeat_property,
    read_heartbeats,
    remove_heartbeats,
    slot_main,
)

WATCH_S = 0.2


class LevelDroppedError(MisplacedError):
    """Executors of a level are gone, or sent no heartbeat: the epoch is placed again."""


class SlotWatch:
    """The executors of a part that answer, as far as its own levels show.

    Args:
        context: of the session.
        silence_s: how long a slot may send no heartbeat; ``None``: forever.
        clock: the time.
        notify: called, from any thread, with a line when something changes.
    """

    def __init__(
        self,
        context: SparkContext,
        silence_s: float | None,
        clock: Clock,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._context, self._clock, self._notify = context, clock, notify
        no_use = silence_s is None or runs_in_driver(str(context.master))
        self._detector = None if no_use or silence_s is None else FailureDetector(silence_s)
        self._dropped, self._waited_s = "", 0.0

    @property
    def every_s(self) -> float | None:
        """How often slots that take long give a sign; ``None``: they need not."""
        return None if self._detector is None else self._detector.every_s

    def executors(self) -> list[Executor]:
        """Return the executors that are alive and have not fallen silent."""
        found = executors(self._context)
        if self._detector is None or not self._detector.aside:
            return found
        for name in self._detector.review({one.identity: one.ended for one in found}):
            limit = self._detector.limit_s
            self._notify(f"executor {name} answers again; slots are given {limit:g} s from now on")
        return [one for one in found if one.identity not in self._detector.aside]

    def renewed(self, slots: Collection[int]) -> None:
        """Note that slots get new processes."""
        if self._detector is not None:
            self._detector.renewed(slots)

    @contextlib.contextmanager
    def over(
        self,
        rdd: SlotRDD,
        group: str,
        slots: Sequence[int],
        prefix: Path,
        places: Mapping[int, Executor],
    ) -> Iterator[None]:
        """Watch while a block runs slots.

        Args:
            rdd: that is run.
            group: the Spark job group that it is run in.
            slots: the numbers of those that are.
            prefix: where their heartbeats are.
            places: the executor that each was placed on.

        Raises:
            LevelDroppedError: the block failed, for the level was dropped.
        """
        if runs_in_driver(str(self._context.master)):
            yield
            return
        self._dropped, self._waited_s = "", 0.0
        if self._detector is not None:
            self._detector.begin(self._clock.monotonic())
        level = _Level(rdd, group, slots, prefix, {slot: places[slot].identity for slot in slots})
        with running_beside("headrace-watch", partial(self._watch, level)):
            try:
                yield
            except (Exception, KeyboardInterrupt) as error:
                if self._dropped:
                    dropped = LevelDroppedError(self._dropped)
                    dropped.waited_s = self._waited_s
                    raise dropped from error
                raise
        if self._detector is not None:
            self._detector.answered(level.places)

    def _watch(self, level: _Level, over: threading.Event) -> None:
        looked = self._clock.monotonic()
        while not over.wait(WATCH_S):
            try:
                alive = executors(self._context)
                self._drop(level, self._lost(level, alive), 0.0)
                now = self._clock.monotonic()
                if self._detector is not None and now - looked >= self._detector.every_s:
                    looked = now
                    words = self._silent(self._detector, level, alive, now)
                    self._drop(level, words, self._detector.base_s)
            except Py4JError:  # the session ends; so does the level
                return
            if self._dropped:
                return

    def _drop(self, level: _Level, words: str, waited_s: float) -> None:
        if not words:
            return
        self._dropped, self._waited_s = words, waited_s
        remove_heartbeats(level.prefix, level.slots)
        self._context.cancelJobGroup(level.group)

    def _lost(self, level: _Level, alive: Sequence[Executor]) -> str:
        gone = set(level.places.values()) - {one.identity for one in alive}
        if not gone:
            return ""
        done = {level.rdd.slot_of(one) for one in group_progress(self._context, level.group).done}
        slots = [n for n, name in level.places.items() if name in gone and n not in done]
        return f"executors {sorted(gone)} are gone, with slots {slots}" if slots else ""

    def _silent(
        self, detector: FailureDetector, level: _Level, alive: Sequence[Executor], now: float
    ) -> str:
        running = group_progress(self._context, level.group).running
        slots = {level.rdd.slot_of(partition): name for partition, name in running.items()}
        free = {one.identity for one in alive} - set(slots.values()) - set(detector.aside)
        try:
            heartbeats = read_heartbeats(level.prefix, list(slots))
        except StorageAwayError:  # then no slot can be heard, however well it is
            detector.begin(self._clock.monotonic())
            return ""
        found = detector.look(now, slots, heartbeats, len(free))
        if not found:
            return ""
        detector.give_up({one.identity: one.ended for one in alive if one.identity in found})
        words = _words(found, slots, alive)
        self._notify(f"{words}; the epoch is planned again without it")
        return words


@dataclass(frozen=True)
class _Level:
    rdd: SlotRDD
    group: str
    slots: Sequence[int]
    prefix: Path
    places: dict[int, str]


def _words(found: dict[str, float], slots: dict[int, str], alive: Sequence[Executor]) -> str:
    hosts = {one.identity: one.host for one in alive}
    said = [
        f"slots {sorted(slot for slot, on in slots.items() if on == name)} of executor {name} on "
        f"{hosts.get(name, 'a host that has gone')} have sent no heartbeat for {silent:.1f} s"
        for name, silent in sorted(found.items())
    ]
    return "; ".join(said)


MOST_NAMES = 6
"""Of operators in the description of a Spark job, and of tasks in that of a slot."""

CANCELLED = "SPARK_JOB_CANCELLED"
"""Spark's name for a job that somebody has cancelled, by its number, group or tag."""

NO_ORDERS = f"{0:012d}-{0:08d}-00"
MOST_SLOTS = 1000
"""Of one part; numbers of slots are apart, for by them Spark finds a process again."""

WAIT_FOR_EXECUTORS_S = 60.0
SETTLE_S = 1.0
POLL_S = 0.1
LOOK_S = 1.0
"""How often an idle job looks for executors that have gone or come."""


def _operators(plan: JobPlan, level: int) -> str:
    """Return the names of the operators that a level runs."""
    names: dict[str, None] = {}
    for stage in plan.stages:
        if stage.level == level:
            names |= dict.fromkeys(one.operator for one in stage.receives)
            names |= dict.fromkeys(one.name for one in stage.operators)
    return _shortened(list(names))


def _tasks(order: SlotOrder) -> str:
    """Return the tasks that a slot runs, by stage."""
    stages: dict[str, list[str]] = {}
    for one in order.tasks:
        stages.setdefault(one.stage, []).append(str(one.task))
    found = (f"{stage} {_shortened(tasks)}" for stage, tasks in stages.items())
    return ", ".join(found) or "no tasks"


def _shortened(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def no_executors(master: str, address: str) -> UnavailableError:
    """Return what is said to a driver at an address that gets no executors."""
    advice = "start a worker, or free its cores"
    if address.startswith("127."):
        advice += (
            f"; executors of other hosts cannot reach this driver at {address}: set "
            "spark.conf.spark.driver.host and spark.conf.spark.driver.bindAddress to an address "
            "of this host"
        )
    return UnavailableError(
        f"Spark master {master} has given no executors for {WAIT_FOR_EXECUTORS_S:.0f} s; {advice}"
    )


def spread(
    context: SparkContext, found: Sequence[Executor], slots: int | None, share: tuple[int, int]
) -> list[Executor]:
    """Return an executor for each slot of a part: all in turn, as long as they have cores.

    Args:
        context: of the session.
        found: executors, at least one.
        slots: how many all parts have at most; ``None``: every core.
        share: number of the part, and how many parts share them; each has at least one.
    """
    if runs_in_driver(str(context.master)):
        places = [found[0]] * (slots or context.defaultParallelism)
    else:
        rounds = max(executor.cores for executor in found)
        places = [e for turn in range(rounds) for e in found if e.cores > turn][:slots]
    part, parts = share
    return places[part::parts] or [places[part % len(places)]]


class SparkRunner:
    """Slots on the executors of a Spark application, one for each core.

    Called by one thread at a time; ``cancel`` from any.

    Args:
        context: of the session.
        deployed: the part; its storage, where orders are written, is reached by all hosts, or
            served to them.
        settings: what each worker has to know; its slot number is set here.
        slots: how many to use at most; ``None``: every core.
        share: number of the part that they are for, and how many parts share them.
        clock: for waiting until executors have registered.
        silence_s: how long a slot may send no heartbeat; ``None``: forever.
        notify: called, from any thread, with a line when a host falls silent or answers again.
    """

    def __init__(
        self,
        context: SparkContext,
        deployed: Deployment,
        settings: WorkerSettings,
        slots: int | None = None,
        share: tuple[int, int] = (0, 1),
        *,
        clock: Clock | None = None,
        silence_s: float | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._measures, self._notify = False, notify
        self._share, self._plan = share, deployed.plan
        self._group = self._asking = f"headrace {deployed.plan.job} slots"
        self._context, self._settings = context, settings
        self._files, self._orders = deployed.storage.files, deployed.storage.root / "orders"
        self._orders_there = Path(settings.storage) / "orders"
        self._wanted, self._clock = slots, clock or SystemClock()
        self._watch = SlotWatch(context, silence_s, self._clock, notify)
        self._newcomers = ExecutorWarmup(self._described, self._warm_up)
        self._cancelled = threading.Event()
        self._failure: HeadraceError | None = None
        self._rdd: SlotRDD | None = None
        self._known: list[Executor] = []
        self._looked_s = 0.0
        self._numbering = SlotNumbers(share[0] * MOST_SLOTS)

    def show_metrics(self) -> None:
        """Show what slots do as metrics of Spark, where it has a UI or an event log."""
        self._measures = is_shown(self._context)

    def slots(self) -> list[Slot]:
        """Ask every slot where it is; placed again when the executors have changed."""
        while True:
            with suppress(LevelDroppedError):  # each time an executor is gone
                return self._asked()

    def _asked(self) -> list[Slot]:
        found = self._registered()
        places = self._numbering.of(self._spread(found))
        if self._rdd is None or places != self._numbering.placed:
            self._rdd = self._described(places)
        self._known = found
        self._numbering.place(places)
        reports = self._ask(list(places))
        return [Slot(r.slot, r.host, places[r.slot].host) for r in reports]

    def _described(self, places: Mapping[int, Executor]) -> SlotRDD:
        described = {
            number: (self._for_slot(number, executor), [executor.location])
            for number, executor in places.items()
        }
        return SlotRDD(self._context, described, slot_main, self._metrics())

    def _metrics(self) -> Any:
        """Return accumulators for a placement of slots; ``None`` where there are none."""
        if not self._measures:
            return None
        try:
            return register_metrics(self._context)
        except JAVA_ERRORS as error:
            self._without_metrics(java_cause(error))
            return None

    def _without_metrics(self, why: str) -> None:
        self._measures = False
        self._notify(f"Spark's pages do not show what slots do: {why}; the job runs without")

    def _executors(self) -> list[Executor]:
        """Return the executors that live, without those that are not ready yet."""
        return self._newcomers.ready(
            self._watch.executors(),
            self._known,
            lambda found: self._numbering.promise(self._spread(found)),
        )

    def _registered(self) -> list[Executor]:
        """Wait for executors: at first for as many as are wanted, but not for long."""
        deadline = Deadline(self._clock, WAIT_FOR_EXECUTORS_S)
        found, since = self._executors(), self._clock.monotonic()
        while not self._enough(found, since):
            self._check_stop()
            if deadline.expired:
                if found:
                    break
                address = self._context.getConf().get("spark.driver.host")
                raise no_executors(str(self._context.master), str(address))
            self._clock.sleep(POLL_S)
            now = self._executors()
            if now != found:
                found, since = now, self._clock.monotonic()
        return found

    def _enough(self, found: Sequence[Executor], since: float) -> bool:
        if self._is_local:
            return True
        cores = sum(executor.cores for executor in found)
        if self._wanted is not None and not self._known:
            return cores >= self._wanted
        if self._known:  # whether to wait for those that are gone is up to the driver
            return bool(found)
        return bool(found) and self._clock.monotonic() - since >= SETTLE_S

    @property
    def _is_local(self) -> bool:
        return runs_in_driver(str(self._context.master))

    def has_changed(self) -> bool:
        """Say whether executors have gone or come; looks now and then only."""
        now = self._clock.monotonic()
        if self._is_local or now < self._looked_s + LOOK_S:
            return False
        self._looked_s = now
        return self._executors() != self._known

    def _check_placement(self, level: int) -> None:
        """Notice executors that have gone, and between epochs those that have come.

        Spark would run the slots of a dead executor elsewhere, but only after its long wait
        for locality, in every level again.
        """
        if self._is_local:
            return
        found = self._executors()
        if found != self._known and (level == 0 or not set(self._known) <= set(found)):
            raise MisplacedError(f"executors have changed: {len(self._known)} to {len(found)}")

    def _spread(self, found: Sequence[Executor]) -> list[Executor]:
        """One entry for each slot: executors in turn, as long as they have cores."""
        return spread(self._context, found, self._wanted, self._share)

    def _for_slot(self, number: int, executor: Executor) -> WorkerSettings:
        address = "" if self._is_local else executor.host
        return replace(self._settings, slot=number, address=address)

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Write the orders, run their slots, and read the reports.

        Raises:
            MisplacedError: the executors are not those that the slots were placed on.
        """
        first = orders[0]
        self._check_placement(first.level)
        stem = f"{first.epoch:012d}-{first.generation:08d}-{first.level:02d}"
        path = self._orders / f"{stem}.json"
        self._files.replace(path, encode_orders(orders), durable=False)
        self._describe(
            f"headrace {self._plan.job} epoch {first.epoch} level {first.level}",
            f"{self._plan.job} epoch {first.epoch} level {first.level}: "
            f"{_operators(self._plan, first.level)}",
            [f"slot {order.slot}: {_tasks(order)}" for order in orders],
        )
        reports = self._run(path.name, [order.slot for order in orders])
        if first.renew:
            self._watch.renewed([order.slot for order in orders])
        self._files.remove(path)
        return reports

    def _describe(self, group: str, words: str, slots: Sequence[str]) -> None:
        """Say what Spark's next job of this thread is, to who looks at it or cancels it."""
        self._group = group
        self._context.setJobGroup(group, words, interruptOnCancel=False)
        self._context.setLocalProperty("callSite.short", "; ".join(slots[:MOST_NAMES]))
        self._context.setLocalProperty("callSite.long", "\n".join(slots))

    def _ask(self, slots: list[int]) -> list[SlotReport]:
        """Have slots say where they are, and release their stores."""
        words = f"{self._plan.job}: where its slots are"
        self._describe(self._asking, words, [f"slot {number}" for number in slots])
        return self._run(None, slots)

    def _run(self, orders: str | None, slots: list[int]) -> list[SlotReport]:
        assert self._rdd is not None
        self._check_stop()
        name, every_s = orders or NO_ORDERS, self._watch.every_s
        heartbeats, there = self._orders / name, self._orders_there / name
        said = None if every_s is None else heartbeat_property(there, every_s)
        prefix = None if orders is None else str(there)
        self._context.setLocalProperty(ORDERS_PROPERTY, prefix)  # type: ignore[arg-type]
        self._context.setLocalProperty(HEARTBEAT_PROPERTY, said)  # type: ignore[arg-type]
        try:
            with self._watch.over(
                self._rdd, self._group, slots, heartbeats, self._numbering.placed
            ):
                return [decode_report(data) for data in self._rdd.run(slots)]
        except SPARK_ERRORS as error:
            self._check_stop(error)
            if self._measures and CLASS in str(error):
                self._rdd.leave_metrics()
                self._without_metrics(java_cause(error))
                return self._run(orders, slots)
            if CANCELLED in str(error):
                raise UnavailableError(
                    f"Spark's job group {self._group!r} was cancelled, so nothing of its epoch "
                    "counts, and the job has stopped; start it again to continue before the epoch"
                ) from error
            raise UnavailableError(
                f"Spark could not run slots {slots}: {first_line(error)}; "
                "Spark's log file has the details"
            ) from error

    def _warm_up(self) -> None:
        """Let Spark jobs of this thread ask slots where they are, with a group of their own."""
        for name in (ORDERS_PROPERTY, HEARTBEAT_PROPERTY):
            self._context.setLocalProperty(name, None)  # type: ignore[arg-type]
        name = f"{self._asking} new"
        self._context.setJobGroup(name, f"{self._plan.job}: slots of new executors start")

    def _check_stop(self, cause: Exception | None = None) -> None:
        if self._failure is not None:
            raise self._failure from cause
        if self._cancelled.is_set():
            raise DroppedError("the epoch was dropped: the job was asked to stop") from cause

    def release(self) -> None:
        """Have the processes of the slots close their stores, so that others may open them at once.

        Spark ends a process that has nothing to do only after a minute. Nothing happens where the
        job was dropped, for its processes may be in a user's function that does not end.
        """
        if self._rdd is not None:
            with suppress(HeadraceError):
                self._ask(list(self._numbering.placed))

    def fail(self, error: HeadraceError) -> None:
        """Have Spark drop the level that is running, which then raises this error."""
        self._failure = error
        self._context.cancelJobGroup(self._group)

    def cancel(self) -> None:
        """Have Spark drop the level that is running, and run no other."""
        self._cancelled.set()
        self._context.cancelJobGroup(self._group)
