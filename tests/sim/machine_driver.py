"""A driver of a made up world: real machines, one step at a time, that may die between any two."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from tests.sim.machine_asks import Serving, require
from tests.sim.machine_world import World

from headrace.coordinator.changes.rescale_steps import commit_rescale
from headrace.coordinator.committing import Committing
from headrace.coordinator.epoch import EpochRun, MisplacedError
from headrace.coordinator.hosts.letting_go import let_go
from headrace.coordinator.hosts.members import Members
from headrace.coordinator.hosts.steering import Steering
from headrace.coordinator.machines import life as living
from headrace.coordinator.machines import turn as turning
from headrace.coordinator.machines.life import Action, Life, Wishes
from headrace.coordinator.machines.turn import Phase, Turn
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import PlacementRules, Slot
from headrace.coordinator.planning import at_end, plan_ranges
from headrace.coordinator.reign import Reign
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.plan.recounting import with_task_counts
from headrace.plan.semantics import commit_acts
from headrace.state.ownership import StoreHeldError
from headrace.task.orders import SlotOrder, SlotReport
from headrace.testing.clock import ManualClock


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
        self.reign = Reign("machines", world.log, clock)
        if not self.reign.begin():
            self.reign.create(world.first_state(self.reign.generation, clock.new_id()))
        self._plan = with_task_counts(world.plan, self.state.task_counts)
        self._commits = Committing(
            self.reign, cast("Any", None), cast("Any", None), cast("Any", None)
        )
        self.life = Life().after(living.Begun(self.state.ended))
        self.turn: Turn | None = None
        self._members = Members(rules, world, clock)
        self._slots: list[Slot] = []
        self.run: EpochRun | None = None
        self._sent: list[SlotOrder] | None = None
        self._reports: list[SlotReport] = []
        self._published = ""
        self._ask_anew()
        self.steering = Steering(
            reign=self.reign,
            members=self._members,
            runner=cast("Any", _Renewing(self)),
            clock=clock,
            publish=self._publish,
            ask=lambda error: self._ask_anew(),
            plan=lambda: "plan",
        )
        self._serving = Serving(world.asks, self.steering)
        self.cold: frozenset[str] = frozenset()
        self.is_frozen = False
        self.wishes = Wishes()
        self.rescale_to: int | None = None
        self.error: Exception | None = None
        self._validated: tuple[object, ...] = ()

    @property
    def state(self) -> JobState:
        """The job after its last epoch, as this driver knows it."""
        return self.reign.state

    @property
    def is_over(self) -> bool:
        """Say whether it does nothing any more."""
        return self.life.action is Action.RETURN or self.error is not None

    def step(self) -> None:
        """Do one action of one machine, and let the machines be looked at."""
        match self.life.action:
            case Action.LOOK:
                self.life = self.life.after(self.wishes)
            case Action.END_INPUTS:
                self._end_inputs()
            case Action.TURN:
                self._turn_on()
            case Action.SERVE:
                self._serve_paused()
            case _:
                self.life = self.life.after(living.Done())
        machines = self.life, self.turn, self._members._members
        for machine in machines:
            if machine is not None and all(machine is not one for one in self._validated):
                machine.validate()
        self._serving.validate()
        self._validated = machines

    @property
    def is_settled(self) -> bool:
        """Say whether it waits for rows, and for nothing of its hosts."""
        return self.life.action is Action.AWAIT and not self._members.is_unsettled

    def _serve_paused(self) -> None:
        self.cold = frozenset()  # no epoch is to follow
        try:
            self._serve(is_paused=True)
        except HeadraceError as error:
            self.error = error
            return
        self.life = self.life.after(living.Done())

    def _serve(self, *, is_paused: bool = False) -> None:
        """Do what others ask for, as between any two epochs."""
        world = self.world
        for answered in self._serving.serve(is_paused=is_paused):
            world.met[answered] += 1
        if world.asks.cut:
            self._publish()
            world.asks.cut = False
            if not self.reign.is_half:  # else whoever asked is told so
                world.check_cut(self.state)
                world.asks.savepoints.append(self.state)
                world.met["savepoint"] += 1

    def check_renewal(self, hosts: frozenset[str]) -> None:
        """While one host after the other is renewed, no second one is cold."""
        asked = self.world.asks.restart
        if asked is not None and asked.rolling:
            require(not self.cold and len(hosts) == 1, f"{hosts} are renewed, {self.cold} is cold")
        self.cold |= hosts

    def _end_inputs(self) -> None:
        try:
            while self.state.until is None:
                self._publish()
                self.reign.publish_end({"events": list(self.world.ends)})
        except NotOwnerError as error:
            self.error = error
            return
        self.life = self.life.after(living.Done())

    def _turn_on(self) -> None:
        turn = self.turn or Turn(self._clock.monotonic())
        try:
            event = self._do(turn)
        except StoreHeldError as error:
            event = turning.StoreHeld(error, self._clock.monotonic())
        except MisplacedError as error:
            event = turning.Misplaced(error)
        except HeadraceError as error:
            event = turning.Failed(error)
        if event is None:
            self.turn = turn
            return
        self.turn = turn.after(event)
        if not isinstance(event, turning.Done | turning.Planned | turning.Won):
            self.world.met[type(event).__name__.lower()] += 1
        if self.turn.is_over:
            self._over(self.turn)

    def _over(self, turn: Turn) -> None:
        self.turn = None
        if turn.phase is Phase.FAILED:
            gave_up = turn.error is None or isinstance(turn.error, MisplacedError)
            require(not gave_up, "a turn went in circles")
            self.error = turn.error
            return
        done = turn.phase is Phase.DONE
        is_out = self._published == self.state.digest or not self.state.outputs
        require(is_out, "a turn is over, and its epoch is not out")
        self.life = self.life.after(living.Turned(done, self.state.ended))

    def _do(self, turn: Turn) -> turning.Event | None:
        """Do what a turn asks for; ``None``: that goes on in the next step."""
        world, run = self.world, self.run
        match turn.action:
            case turning.Publish():
                self._publish()
            case turning.Plan():
                return self._next()
            case turning.Run(level):
                return self._level(level)
            case turning.Check(cause):
                self.reign.check(cause)
            case turning.Append(act, is_last):
                assert run is not None
                before = self.state
                world.placed_over = frozenset(slot.host for slot in run.slots)
                won = self._commits.append(run, act, is_last=is_last)
                require(won or self.state != before, "a race was lost against nobody")
                return turning.Won() if won else turning.Lost()
            case turning.Emit(act):
                assert run is not None
                world.emit(run.outputs_of(act.outputs))
            case turning.Sweep():
                assert run is not None
                self._members.committed(run.around, self.state)
                self.steering.committed(run)
                if run.all_tasks:
                    self.cold = frozenset()
            case turning.Ask():
                return self._ask()
            case turning.Wait(seconds):
                self._clock.sleep(seconds)
        return turning.Done()

    def _publish(self) -> None:
        if self._published != self.state.digest:
            self.world.publish(self.state)
            self._published = self.state.digest

    def _ask(self) -> turning.Event | None:
        """Ask the slots, and wait for hosts; ``None`` while there are none at all."""
        if not self.world.numbers():
            self._clock.sleep(1.0)
            return None
        before = self._clock.monotonic()
        self._slots = self._members.find(self.state)
        self.world.met["waited"] += self._clock.monotonic() > before
        return turning.Done()

    def _ask_anew(self) -> None:
        """A driver that begins asks until tasks can be placed."""
        while self._ask() is None:
            self.world.bring_back(self._rng.choice(self.world.hosts))

    def _next(self) -> turning.Event | None:
        self._serve()
        if self.rescale_to is not None:
            tasks, self.rescale_to = self.rescale_to, None
            if commit_rescale(self.reign, tasks, None, self._clock, self._publish):
                self._plan = with_task_counts(self._plan, self.state.task_counts)
                self._ask_anew()
                self.world.met["rescaled"] += 1
        state = self.state
        if state.ended:
            return turning.Nothing()
        self._plan = with_task_counts(self._plan, state.task_counts)
        ends = {"events": list(self.world.ends)}
        ranges = plan_ranges(self._plan, state, ends, self.max_rows)
        ended = not ranges and at_end(self._plan, state)
        is_due = bool(ranges or ended) or self.steering.wants_all
        if not is_due and {slot.number for slot in self._slots} != self.world.numbers():
            self._ask_anew()
        if not is_due and not self._members.is_unsettled:
            return turning.Nothing()
        run = EpochRun(
            self._plan,
            state,
            self._slots,
            ranges,
            self.reign.generation,
            "plan",
            max(self._clock.now_ms(), state.time_ms),
            ended=ended,
            all_tasks=self.steering.wants_all,
            ends=ends,
            standby_copies=self.world.copies,
            around=self._members.around(state),
        )
        if not is_due and not self._members.wants(run.placing):
            return turning.Nothing()
        self.run = run
        return turning.Planned(len(self._plan.levels), tuple(commit_acts(self._plan)))

    def _level(self, level: int) -> turning.Event | None:
        run, world = self.run, self.world
        assert run is not None
        if self._sent is None:
            if level == 0:
                let_go(run, cast("Any", _LettingGo(world)))
            orders = run.orders(level)
            self._check_orders(orders)
            self._sent, self._reports = orders, []
        left = [order for order in self._sent if order.slot not in self._answered()]
        if {slot.number for slot in run.slots} != world.numbers():
            self._sent = None
            raise MisplacedError("slots have changed")
        if left:
            chosen = self._rng.choice(left)
            if self._rng.random() < 0.04:
                self._sent = None
                raise self._rng.choice(_MISHAPS)
            try:
                if self._rng.random() < 0.05:
                    world.run(chosen)  # an attempt that nobody hears of
                self._reports.append(world.run(chosen))
            except StoreHeldError:
                self._sent = None
                raise
            return None
        orders, self._sent = self._sent, None
        if orders:
            run.absorb(orders, self._reports)
        run.finish_level(level)
        return turning.Done()

    def _answered(self) -> set[int]:
        return {report.slot for report in self._reports}

    def _check_orders(self, orders: list[SlotOrder]) -> None:
        assert self.run is not None
        placed = Counter((task.stage, task.task) for order in orders for task in order.tasks)
        twice = [task for task, count in placed.items() if count > 1]
        require(not twice, f"tasks were ordered twice: {twice}")
        there = {slot.number: slot.host for slot in self.run.slots}
        require(all(order.slot in there for order in orders), "a slot that is not there")
        on = {(t.stage, t.task): there[o.slot] for o in orders for t in o.tasks}
        for order in orders:
            require(order.generation == self.reign.generation, "another driver's order")
            require(order.epoch == self.state.epoch + 1, "an order of another epoch")
            for one in order.standbys:
                wrong = on.get((one.stage, one.task)) == there[order.slot]
                require(not wrong, f"task {one.task} and its standby are ordered on one host")


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
