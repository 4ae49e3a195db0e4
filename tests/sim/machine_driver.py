"""A driver of a made up world: real machines and epochs, step by step; it may die between any two.

``EpochExecutor`` is the real one, advanced by its generator of steps. Only what it would do with
slots, files and streams is done to the world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from tests.sim.machine_asks import Serving, require
from tests.sim.machine_world import World

from headrace.coordinator.commands import Restart
from headrace.coordinator.epoch import EpochRun, MisplacedError
from headrace.coordinator.epoch_executor import EpochExecutor, EpochStep
from headrace.coordinator.epoch_ranges import has_read_all, plan_ranges
from headrace.coordinator.host_commands import HostCommands, revoke_moved_tasks
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.coordinator.membership import ClusterMembers
from headrace.coordinator.placement import PlacementRules, Slot
from headrace.coordinator.rescale import commit_rescale
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.fencing import StoreHeldError
from headrace.graph.semantics import CommitAction
from headrace.plan.stages import with_task_counts
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.testing import ManualClock


class Signals(NamedTuple):
    """What is asked of a driver."""

    stop: bool = False
    finish: bool = False
    paused: bool = False


class MachineDriver:
    """One driver.

    Args:
        world: that it drives.
        clock: of all drivers.
        rules: of placement.
        max_rows: of an epoch.
    """

    def __init__(
        self, world: World, clock: ManualClock, rules: PlacementRules, max_rows: int
    ) -> None:
        self.world, self._clock, self._rng = world, clock, world.rng
        self.max_rows = max_rows
        self.writer = FencedManifestWriter("machines", world.log, world.bus, clock)
        if not self.writer.begin():
            self.writer.create(world.first_state(self.writer.generation, clock.new_id()))
        self._plan = with_task_counts(world.plan, self.state.task_counts)
        self._executor = _Executor(self)
        self._steps: Iterator[EpochStep] | None = None
        self._life = self._live()
        self.waits = self.has_ended = self._is_stopped = False
        self.epoch_step: EpochStep | None = None
        self._members = ClusterMembers(rules, world, clock)
        self._slots: list[Slot] = []
        self._published = ""
        self.plan_digest, self.receivers = "plan", cast("Any", None)
        self.locate_slots()
        self.host_commands = HostCommands(
            self,
            writer=self.writer,
            members=self._members,
            runner=cast("Any", _Renewing(self)),
        )
        self._serving = Serving(world.asks, self.host_commands)
        self.cold: frozenset[str] = frozenset()
        self.is_frozen = False
        self.signals = Signals()
        self.rescale_to: int | None = None
        self.error: Exception | None = None
        self._validated: object = None

    @property
    def state(self) -> JobState:
        """The job after its last epoch, as this driver knows it."""
        return self.writer.state

    @property
    def is_over(self) -> bool:
        """Say whether it does nothing any more."""
        return self.has_ended or self._is_stopped or self.error is not None

    def step(self) -> None:
        """Do one thing of its life, or one step of an epoch; then the machines are looked at."""
        next(self._life, None)
        members = self._members._members
        if members is not self._validated:
            members.validate()
        self._serving.validate()
        self._validated = members

    def _live(self) -> Iterator[None]:
        """Do what ``run_epochs`` does, and stop after each thing."""
        ended = self.state.ended
        while True:
            signals = self.signals
            if signals.stop:
                self._is_stopped = True
                return
            yield
            if signals.paused and not ended:
                self._serve_paused()
                yield
                continue
            if signals.finish and not ended:
                self._end_inputs()
                yield
            while not self._advance():
                yield
            ended, committed = self.state.ended, self._executor.done is not None
            self.has_ended = ended and not committed
            if self.has_ended:
                return
            self.waits = not committed
            yield
            self.waits = False
            yield

    @property
    def is_settled(self) -> bool:
        """Say whether it waits for rows, and for nothing of its hosts."""
        return self.waits and not self._members.needs_placement

    def _serve_paused(self) -> None:
        self.cold = frozenset()  # no epoch is to follow
        try:
            self._serve(is_paused=True)
        except HeadraceError as error:
            self.error = error

    def _serve(self, *, is_paused: bool = False) -> None:
        """Do what others ask for, as between any two epochs."""
        world = self.world
        for answered in self._serving.serve(is_paused=is_paused):
            world.met[answered] += 1
        if world.asks.cut:
            self.publish()
            world.asks.cut = False
            if not self.writer.is_half:  # else whoever asked is told so
                world.check_cut(self.state)
                world.asks.savepoints.append(self.state)
                world.met["savepoint"] += 1

    def check_renewal(self, hosts: frozenset[str]) -> None:
        """While one host after the other is renewed, no second one is cold."""
        asked = self.world.asks.restart
        if asked is not None and isinstance(asked.command, Restart) and asked.command.rolling:
            require(not self.cold and len(hosts) == 1, f"{hosts} are renewed, {self.cold} is cold")
        self.cold |= hosts

    def _end_inputs(self) -> None:
        try:
            while self.state.until is None:
                self.publish()
                self.writer.publish_end({"events": list(self.world.ends)})
        except NotOwnerError as error:
            self.error = error

    def _advance(self) -> bool:
        """Do the step that the executor is about to do; says whether it was the last one."""
        if self.epoch_step is EpochStep.LOCATE and not self.world.numbers():
            self._clock.sleep(1.0)  # there are no slots to ask yet
            return False
        if self._steps is None:
            self._steps = self._executor.steps()
            next(self._steps)
        try:
            self.epoch_step = next(self._steps, None)
        except HeadraceError as error:
            self.world.met["failed"] += 1
            gave_up = "slots kept moving" in error.message
            require(not gave_up, "an epoch went in circles")
            self.epoch_step, self.error = None, error
            return False
        if self.epoch_step is not None:
            return False
        self._steps = None
        is_out = self._published == self.state.digest or not self.state.outputs
        require(is_out, "an epoch is over, and its outputs are not published")
        return True

    def publish(self) -> int:
        """Publish what the last manifest names, unless that was done."""
        if self._published == self.state.digest:
            return 0
        self._published = self.state.digest
        return self.world.publish(self.state)

    def locate_slots(self, error: MisplacedError | None = None) -> None:
        """Ask the slots, and wait for hosts; where there are none at all, some come back."""
        del error
        while not self.world.numbers():
            self._clock.sleep(1.0)
            self.world.bring_back(self._rng.choice(self.world.hosts))
        before = self._clock.monotonic()
        self._slots = self._members.find(self.state)
        self.world.met["waited"] += self._clock.monotonic() > before

    def serve_requests(self, *, is_paused: bool) -> None:
        """Do what others ask for, as before an epoch is planned."""
        self._serve(is_paused=is_paused)

    def sweep_epoch(self, run: EpochRun) -> None:
        """Note that an epoch is committed and published."""
        self._members.committed(run.context, self.state)
        self.host_commands.committed(run)
        if run.all_tasks:
            self.cold = frozenset()

    def plan_epoch(self, *, force: bool) -> EpochRun | None:
        """Plan an epoch, if there is anything to do, as ``Coordinator`` does."""
        del force
        if self.rescale_to is not None:
            tasks, self.rescale_to = self.rescale_to, None
            if commit_rescale(self.writer, tasks, None, self.publish):
                self._plan = with_task_counts(self._plan, self.state.task_counts)
                self.locate_slots()
                self.world.met["rescaled"] += 1
        state = self.state
        if state.ended:
            return None
        self._plan = with_task_counts(self._plan, state.task_counts)
        ends = {"events": list(self.world.ends)}
        ranges = plan_ranges(self._plan, state, ends, self.max_rows)
        ended = not ranges and has_read_all(self._plan, state)
        is_due = bool(ranges or ended) or self.host_commands.wants_all
        if not is_due and {slot.number for slot in self._slots} != self.world.numbers():
            self.locate_slots()
        if not is_due and not self._members.needs_placement:
            return None
        run = EpochRun(
            self._plan,
            state,
            self._slots,
            ranges,
            self.writer.generation,
            "plan",
            max(self._clock.now_ms(), state.time_ms),
            ended=ended,
            all_tasks=self.host_commands.wants_all,
            ends=ends,
            standby_copies=self.world.copies,
            context=self._members.placement_context(state),
        )
        if not is_due and not self._members.wants(run.placing):
            return None
        return run

    def run_level(self, run: EpochRun, level: int) -> Iterator[EpochStep]:
        """Run a level, one slot in each step, in any order."""
        world = self.world
        yield EpochStep.RUN_LEVEL
        try:
            if level == 0:
                revoke_moved_tasks(run, cast("Any", _LettingGo(world)))
            orders, reports = run.orders(level), list[SlotReport]()
            self._check_orders(run, orders)
            while True:
                if {slot.number for slot in run.slots} != world.numbers():
                    raise MisplacedError("slots have changed")
                answered = {report.slot for report in reports}
                left = [order for order in orders if order.slot not in answered]
                if not left:
                    break
                chosen = self._rng.choice(left)
                if self._rng.random() < 0.04:
                    raise self._rng.choice(_MISHAPS)
                if self._rng.random() < 0.05:
                    world.run(chosen)  # an attempt that nobody hears of
                reports.append(world.run(chosen))
                yield EpochStep.RUN_LEVEL
            if orders:
                run.absorb(orders, reports)
        except (MisplacedError, StoreHeldError) as error:
            world.met["misplaced" if isinstance(error, MisplacedError) else "store held"] += 1
            raise
        run.finish_level(level)

    def _check_orders(self, run: EpochRun, orders: list[SlotOrder]) -> None:
        placed = Counter((task.stage, task.task) for order in orders for task in order.tasks)
        twice = [task for task, count in placed.items() if count > 1]
        require(not twice, f"tasks were ordered twice: {twice}")
        there = {slot.number: slot.host for slot in run.slots}
        require(all(order.slot in there for order in orders), "a slot that is not there")
        on = {(t.stage, t.task): there[o.slot] for o in orders for t in o.tasks}
        for order in orders:
            require(order.generation == self.writer.generation, "another driver's order")
            require(order.epoch == self.state.epoch + 1, "an order of another epoch")
            for one in order.standbys:
                wrong = on.get((one.stage, one.task)) == there[order.slot]
                require(not wrong, f"task {one.task} and its standby are ordered on one host")


class _Executor(EpochExecutor):
    """The real one, but for what it does with slots, files and streams."""

    def __init__(self, driver: MachineDriver) -> None:
        none = cast("Any", None)
        super().__init__(driver, driver.writer, runner=none, storage=none, bus=none)
        self._simulated, self._world = driver, driver.world

    def run_level(self, run: EpochRun, level: int) -> Iterator[EpochStep]:
        return self._simulated.run_level(run, level)

    def check_results(self, run: EpochRun) -> None:
        """There are no files, and no other streams."""

    def append(self, run: EpochRun, action: CommitAction, *, is_last: bool) -> bool:
        before = self._writer.state
        self._world.placed_over = frozenset(slot.host for slot in run.slots)
        won = super().append(run, action, is_last=is_last)
        require(won or self._writer.state != before, "a race was lost against nobody")
        self._world.met["lost"] += not won
        return won

    def emit(self, run: EpochRun, action: CommitAction) -> int:
        return self._world.emit(run.outputs_of(action.outputs))


class _LettingGo:
    """What runs the orders that come before an epoch."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run them, if all of their slots answer."""
        if not {order.slot for order in orders} <= self._world.numbers():
            raise MisplacedError("slots have changed")
        return [self._world.run(order) for order in orders]


class _Renewing(_LettingGo):
    """What runs the orders that end processes."""

    def __init__(self, driver: MachineDriver) -> None:
        super().__init__(driver.world)
        self._driver = driver

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run them, if all of their slots answer."""
        reports = super().run(orders)
        self._driver.check_renewal(frozenset(report.host for report in reports))
        return reports


_MISHAPS: tuple[HeadraceError, ...] = (
    StoreHeldError("a process that dies has it open"),
    InvalidInputError("the user's code"),
    UnavailableError("Spark could not run slots"),
)
