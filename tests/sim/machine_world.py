"""A world without files or threads for the machines of drivers: a log, hosts, and what they say.

Machines, epochs, reigns and placement are the real ones. Slots are made up: they answer with
offsets, rows and names of files, late, in any order, or never.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, floor
from typing import Any

import msgspec
import pyarrow as pa
from tests.sim.machine_asks import Asks, require

import headrace as hr
from headrace.bus import MemoryBus
from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.epoch_ranges import task_name
from headrace.coordinator.host_state import (
    ACTIVE_LOST,
    FAILOVER,
    NO_FAILOVER,
    drained_hosts,
    violations,
)
from headrace.coordinator.inputs import task_counts
from headrace.coordinator.manifest import InputPosition, JobState, Manifest, decode_manifest, fold
from headrace.coordinator.placement import Slot
from headrace.errors import CorruptDataError, UnavailableError
from headrace.fencing import StoreHeldError
from headrace.graph.operator_base import StreamInfo
from headrace.graph.semantics import Semantics
from headrace.plan.planner import plan
from headrace.plan.semantics import RequestedSemantics
from headrace.plan.stages import (
    JobPlan,
)
from headrace.runtime.orders import (
    ExchangeFile,
    FileRef,
    InputRange,
    OutputPart,
    Reached,
    SlotFailure,
    SlotOrder,
    SlotReport,
    StandbyReport,
    TaskOrder,
    TaskReport,
)

PARTITIONS, KEY_GROUPS = 2, 8
CELLS = (
    (Semantics.EXACTLY_ONCE, Semantics.EXACTLY_ONCE),
    (Semantics.AT_LEAST_ONCE, Semantics.AT_LEAST_ONCE),
    (Semantics.AT_MOST_ONCE, Semantics.AT_MOST_ONCE),
    (Semantics.EXACTLY_ONCE, Semantics.AT_LEAST_ONCE),
)


class _Count:
    def process(self, message: Any, context: Any) -> None:
        del message, context


@cache
def plan_of(tasks: int, cell: tuple[Semantics, Semantics]) -> JobPlan:
    """A source of two partitions, and a keyed stage that keeps state and sends its rows on."""

    @hr.job("machines")
    def job(g: Any) -> None:
        by_id = g.input("events").partition_by("id")
        counts = by_id.process(_Count, stores={"n": int}, returns={"id": int}, name="count")
        counts.send_to(g.output("out"))

    stream = StreamInfo(pa.schema({"id": pa.int64()}), PARTITIONS)
    wanted = RequestedSemantics(*cell)
    return plan(
        job.build(), {"events": stream}, key_groups=KEY_GROUPS, tasks=tasks, semantics=wanted
    )


def rows_read(state: JobState) -> int:
    """Return how many rows a job has read."""
    return sum(at.next_offset for at in state.inputs["events"].values())


@dataclass
class Host:
    """A machine with slots.

    ``open`` has who has the stores of a task open: a slot, the generation of the driver that wanted
    that, and whether as its standby; ``generation`` is the newest that it has met.
    """

    name: str
    slots: tuple[int, ...]
    is_up: bool = True
    is_frozen: bool = False
    open: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    generation: int = 0

    def bring_back(self) -> bool:
        """Let it answer again, with new processes; says whether it had not."""
        if self.answers:
            return False
        self.is_up, self.is_frozen = True, False
        self.open.clear()
        return True

    @property
    def answers(self) -> bool:
        """Say whether its slots do."""
        return self.is_up and not self.is_frozen


class MemoryLog(CommitLog):
    """Manifests and generations in memory, looked at whenever one is added."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.blobs: dict[int, bytes] = {}
        self.generations: list[dict[str, str | int]] = []

    def publish(self, epoch: int, data: bytes) -> bool:
        """Add a manifest, if there is none of its epoch or a later one."""
        if self.blobs and max(self.blobs) >= epoch:
            return False
        self.blobs[epoch] = data
        self._world.committed(*decode_manifest(data, f"of epoch {epoch}"))
        return True

    def epochs(self) -> list[int]:
        """Return the epochs, rising."""
        return sorted(self.blobs)

    def read(self, epoch: int) -> bytes:
        """Return a manifest."""
        if epoch not in self.blobs:
            raise CorruptDataError(f"manifest of epoch {epoch} is missing", epoch=epoch)
        return self.blobs[epoch]

    def prune(self, before: int) -> None:
        """Keep all: what was pruned is no matter of machines."""

    def take_generation(self, holder: dict[str, str | int], above: int = 0) -> int:
        """Begin the next one."""
        del above
        self.generations.append(holder)
        return len(self.generations)

    def claim_generation(self, number: int, holder: dict[str, str | int]) -> bool:
        """Begin one, if it is the next."""
        if number <= len(self.generations):
            return False
        self.generations += [holder] * (number - len(self.generations))
        return True

    def newest_generation(self) -> tuple[int, dict[str, str | int]]:
        """Return the newest."""
        number = len(self.generations)
        return number, self.generations[-1] if number else {}


class World:
    """All that is outside of the drivers, and what has ever been committed.

    Args:
        rng: decides what slots answer.
        cell: semantics of state and output.
        tasks: of the keyed stage, at first.
        hosts: how many there are.
        copies: standbys of each task.
        most_moves: of tasks with state whose host is there, in an epoch; ``None``: any.
    """

    def __init__(
        self,
        rng: random.Random,
        cell: tuple[Semantics, Semantics],
        tasks: int,
        hosts: int,
        copies: int,
        most_moves: int | None,
    ) -> None:
        self.rng, self.cell, self.copies, self.most_moves = rng, cell, copies, most_moves
        self.plan = plan_of(tasks, cell)
        self.keyed = next(stage.name for stage in self.plan.stages if stage.keyed)
        numbers = iter(range(100))
        self.hosts = [
            Host(f"h{n}", tuple(next(numbers) for _ in range(rng.choice((1, 1, 2)))))
            for n in range(hosts)
        ]
        self.log, self.bus = MemoryLog(self), MemoryBus()
        self.state: JobState | None = None
        self.ends = [0] * PARTITIONS
        self.rows: dict[str, tuple[int, list[int]]] = {}
        self.published: dict[int, int] = {}
        self.emitted = 0
        self.counted = 0
        self.late_wins: Counter[int] = Counter()
        self.attempts = 0
        self.placed_over: frozenset[str] = frozenset()
        self.asks = Asks()
        self.first: JobState | None = None
        self.read_before = 0
        self.met: Counter[str] = Counter()

    # What hosts say

    def slots(self) -> tuple[Slot, ...]:
        """Ask all slots where they are; they let go of their stores."""
        if self.rng.random() < 0.1:
            self.bring_back(self.rng.choice(self.hosts))
        if not self.numbers():
            raise UnavailableError("no slot answers")
        for host in self.hosts:
            if host.answers:
                host.open.clear()
        return tuple(Slot(n, host.name) for host in self.hosts if host.answers for n in host.slots)

    def bring_back(self, host: Host) -> None:
        """Let a host answer again."""
        if host.bring_back():
            self._count_processes(host.slots)

    def _count_processes(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.asks.processes[slot] = self.asks.processes.get(slot, 0) + 1

    def numbers(self) -> set[int]:
        """Return the slots that would answer."""
        return {number for host in self.hosts if host.answers for number in host.slots}

    def host_of(self, slot: int) -> Host:
        """Return where a slot is."""
        return next(host for host in self.hosts if slot in host.slots)

    def run(self, order: SlotOrder) -> SlotReport:
        """Let a slot do what it is told, by one attempt."""
        host = self.host_of(order.slot)
        self.attempts += 1
        attempt = f"a{self.attempts}"
        if order.host and order.host != host.name:
            return SlotReport(order.slot, attempt, host.name, 1, misplaced=True)
        if order.renew:
            host.open = {name: held for name, held in host.open.items() if held[0] != order.slot}
            self._count_processes([order.slot])
            return SlotReport(order.slot, attempt, host.name, 1)
        if order.generation < host.generation:
            fenced = SlotFailure("NotOwnerError", "a newer driver owns the stores")
            return SlotReport(order.slot, attempt, host.name, 1, error=fenced)
        host.generation = order.generation
        for stage, number in order.leaves:
            if host.open.get(task_name(stage, number), (order.slot,))[0] == order.slot:
                host.open.pop(task_name(stage, number), None)
        tasks, exchange = [], []
        for task in order.tasks:
            if task.stage == self.keyed:
                self._take_store(host, order, task_name(task.stage, task.task))
                tasks.append(self._keyed(order, task, attempt))
            else:
                report, files = self._source(order, task, attempt)
                tasks.append(report)
                exchange += files
        if order.level:
            self._follow(host, order)
        return SlotReport(
            order.slot,
            attempt,
            host.name,
            1,
            tasks,
            exchange,
            FileRef(f"segment/{attempt}", 1, order.epoch, attempt, 1),
            standbys=[
                StandbyReport(one.stage, one.task, one.state.epoch, one.state.attempt)
                for one in order.standbys
                if self.rng.random() < 0.7
            ],
        )

    def _take_store(self, host: Host, order: SlotOrder, name: str) -> None:
        """Open a task's store, which a process of an older driver may not have let go of yet."""
        slot, generation, is_standby = host.open.get(name, (order.slot, 0, False))
        if slot != order.slot:  # its own process lets go of a standby by itself
            kind = "standby" if is_standby else "store"
            wrong = f"{name} begins on {host.name} where its {kind} is still open in slot {slot}"
            require(generation != order.generation, wrong)
            del host.open[name]
            raise StoreHeldError(wrong)
        host.open[name] = (order.slot, order.generation, False)

    def _follow(self, host: Host, order: SlotOrder) -> None:
        """Keep the standbys of a slot that are wanted, and no others."""
        wanted = {task_name(one.stage, one.task) for one in order.standbys}
        for name, (slot, _, is_standby) in list(host.open.items()):
            if slot == order.slot and is_standby and name not in wanted:
                del host.open[name]
        for name in wanted:
            if host.open.get(name, (order.slot,))[0] == order.slot:
                host.open[name] = (order.slot, order.generation, True)

    def _source(
        self, order: SlotOrder, task: TaskOrder, attempt: str
    ) -> tuple[TaskReport, list[ExchangeFile]]:
        reached, rows = [], [0] * order.task_counts[self.keyed]
        for wanted in task.ranges:
            stop = self._stop(wanted)
            for offset in range(wanted.start, stop):
                rows[offset % len(rows)] += 1
            reached.append(Reached(wanted.operator, wanted.partition, stop, stop * 10))
        (operator,) = (
            exchange.operator for stage in self.plan.stages for exchange in stage.receives
        )
        path = f"exchange/{attempt}-{task.task}"
        self.rows[path] = (task.task, rows)
        file = ExchangeFile(operator, task.task, path, 1, rows)
        return TaskReport(task.stage, task.task, reached), [file]

    def _stop(self, wanted: InputRange) -> int:
        return (
            wanted.stop if self.rng.random() < 0.7 else self.rng.randint(wanted.start, wanted.stop)
        )

    def _keyed(self, order: SlotOrder, task: TaskOrder, attempt: str) -> TaskReport:
        paths = [path for paths in order.exchange.values() for path in paths]
        seen = sum(self.rows[path][1][task.task] for path in paths)
        out = [OutputPart("out", 0, f"output/{attempt}", 0, 1, seen)] if seen else []
        return TaskReport(
            task.stage,
            task.task,
            changed=bool(seen),
            segment_bytes=seen,
            segment_rows=seen,
            outputs=out,
            counts={"seen": seen} if seen else {},
            state_bytes=1,
        )

    # What drivers do to the world

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks each keyed stage has."""
        return task_counts(self.plan) if self.state is None else self.state.task_counts

    def first_state(self, generation: int, lineage: str) -> JobState:
        """Return a job that has read nothing, or what one begins with from a savepoint."""
        if self.first is not None:
            return msgspec.structs.replace(self.first, generation=generation)
        return JobState(
            job="machines",
            lineage=lineage,
            generation=generation,
            epoch=0,
            time_ms=0,
            digest="",
            key_groups=KEY_GROUPS,
            fingerprint=self.plan.fingerprint,
            inputs={"events": {p: InputPosition(0) for p in range(PARTITIONS)}},
            task_counts=task_counts(self.plan),
        )

    def publish(self, state: JobState) -> int:
        """Bring out what a state names, once for each epoch."""
        rows = sum(part.rows for part in state.outputs)
        before = self.published.setdefault(state.epoch, rows)
        require(before == rows, f"epoch {state.epoch} was brought out twice, differently")
        return rows

    def emit(self, outputs: Sequence[OutputPart]) -> int:
        """Append output that no manifest names."""
        rows = sum(part.rows for part in outputs)
        self.emitted += rows
        return rows

    def committed(self, manifest: Manifest, digest: str) -> None:
        """Look at a manifest that was just added."""
        before = self.state
        after = fold(before, manifest, digest)
        self.state = after
        newest = len(self.log.generations)
        if manifest.generation < newest:
            self.late_wins[manifest.generation] += 1
            require(
                self.late_wins[manifest.generation] == 1,
                f"generation {manifest.generation} committed twice after {newest} had begun",
            )
            self.met["late win"] += 1
        if before is None:
            return
        self.counted += after.counts.get("seen", 0) - before.counts.get("seen", 0)
        require(after.epoch == before.epoch + 1, "an epoch was left out or committed again")
        require(after.generation >= before.generation, "an older driver came after a newer one")
        require(before.epoch in self.published or not before.outputs, "an epoch was not out yet")
        self._check_positions(before, after)
        self._check_places(before, after)

    def _check_positions(self, before: JobState, after: JobState) -> None:
        for partition, held in before.inputs["events"].items():
            now = after.inputs["events"][partition].next_offset
            require(now >= held.next_offset, f"partition {partition} went back")
            require(now <= self.ends[partition], f"partition {partition} went beyond its end")
        for name, mark in before.watermarks.items():
            require(after.watermarks[name] >= mark, f"the watermark of {name} went back")

    def _check_places(self, before: JobState, after: JobState) -> None:
        homes = {name: task.host for name, task in after.tasks.items()}
        require(not (wrong := violations(homes, after.standbys)), f"standbys: {wrong}")
        names = {task_name(self.keyed, n) for n in range(after.task_counts[self.keyed])}
        require(set(homes) <= names, f"tasks that are none: {set(homes) - names}")
        require(set(after.standbys) <= names, "standbys of tasks that are none")
        for name, found in after.standbys.items():
            require(len(found) <= max(self.copies, 1), f"{name} has too many standbys")
            epoch = after.tasks[name].epoch if name in after.tasks else -1
            require(all(one.epoch <= epoch for one in found), f"a standby of {name} is ahead")
        lost = after.counts.get(ACTIVE_LOST, 0)
        went = after.counts.get(FAILOVER, 0) + after.counts.get(NO_FAILOVER, 0)
        require(lost == went, "a task whose host was lost went nowhere, or twice")
        if before.lineage == after.lineage:
            self._check_moves(before, after)
            self._check_drained(before, after)

    def _check_drained(self, before: JobState, after: JobState) -> None:
        """Nothing new comes to a host that is to be empty, where another one has slots."""
        away = drained_hosts(before.hosts)
        if not self.placed_over - away:
            return
        for name, task in after.tasks.items():
            held = before.tasks.get(name)
            came = held is None or held.host != task.host
            require(not came or task.host not in away, f"{name} came to a drained host")
        for name, found in after.standbys.items():
            had = {one.host for one in before.standbys.get(name, ())}
            new = {one.host for one in found} - had
            require(not new & away, f"a standby of {name} was begun on a drained host")

    def check_cut(self, state: JobState) -> None:
        """All that a savepoint has read counts in it and is out, and nothing else is."""
        require(state.epoch in self.log.blobs, "a savepoint of an epoch that is none")
        _, digest = decode_manifest(self.log.read(state.epoch), "of a savepoint")
        require(state.digest == digest, "a savepoint of what nobody committed")
        require(state.epoch in self.published or not state.outputs, "a savepoint is not out yet")
        if self.cell == CELLS[0]:
            read = rows_read(state)
            out = sum(rows for epoch, rows in self.published.items() if epoch <= state.epoch)
            seen = state.counts.get("seen", 0)
            out += self.read_before
            require(read == seen == out, f"of {read} rows {seen} count in a savepoint, {out} out")

    def _check_moves(self, before: JobState, after: JobState) -> None:
        there = self.placed_over
        moved = [
            name
            for name, task in before.tasks.items()
            if task.host in there and task.segments and after.tasks[name].host != task.host
        ]
        self.met["moved"] += bool(moved)
        few = self.most_moves is None or len(moved) <= self.most_moves
        require(few, f"{len(moved)} tasks moved at once: {moved}")

    def check_rows(self) -> None:
        """At the end, every row that was read counts as often as the semantics say."""
        assert self.state is not None
        read = rows_read(self.state) - self.read_before
        out = sum(self.published.values()) + self.emitted
        for semantics, found, what in (
            (self.cell[0], self.counted, "counted"),
            (self.cell[1], out, "sent"),
        ):
            wrong = f"{read} rows were read, {found} {what}, {semantics.words}"
            require(semantics is not Semantics.EXACTLY_ONCE or found == read, wrong)
            require(semantics is not Semantics.AT_LEAST_ONCE or found >= read, wrong)
            require(semantics is not Semantics.AT_MOST_ONCE or found <= read, wrong)

    def check_settled(self) -> None:
        """At rest, no slot has more than its share, and what is to be empty is."""
        state = self.state
        assert state is not None
        meant = {host for host in self.asks.drained if host in state.hosts}
        marked = {name for name, host in state.hosts.items() if host.cordoned}
        own = {name for name, host in state.hosts.items() if host.drained} - marked
        require(marked == meant - own, f"of all jobs, {meant} are drained, and {marked} are marked")
        cores = {name: host.slots for name, host in state.hosts.items() if host.slots}
        away = drained_hosts(state.hosts)
        opened = {name: count for name, count in cores.items() if name not in away} or cores
        load = Counter(task.host for task in state.tasks.values())
        copies = Counter(one.host for held in state.standbys.values() for one in held)
        for name in sorted(set(cores) - set(opened)):
            require(not load[name], f"{load[name]} tasks are left on the drained host {name}")
            require(not copies[name], f"{copies[name]} standbys are left on host {name}")
        if load[""] or len(state.tasks) < state.task_counts[self.keyed]:
            return  # some tasks have not run yet
        mean = state.task_counts[self.keyed] / sum(opened.values())
        for name, count in opened.items():
            even = floor(mean) * count <= load[name] <= ceil(mean) * count
            require(even, f"host {name} has {load[name]} tasks in {count} slots, of {mean} each")
