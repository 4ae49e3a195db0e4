"""The stores of a slot's tasks, brought to the committed state; its standbys, told to follow."""

from __future__ import annotations

from functools import cached_property, partial

from headrace.graph.operators import StoreSpec
from headrace.plan.stages import Stage
from headrace.state.chain import SegmentSource
from headrace.state.follower import TaskName
from headrace.state.ownership import Owner
from headrace.state.position import Position, Target
from headrace.state.recovery import RecoveryLog
from headrace.state.task_state import TaskState
from headrace.task.orders import (
    NO_WATERMARK,
    SlotOrder,
    StandbyOrder,
    StandbyReport,
    StateTarget,
    TaskOrder,
)
from headrace.task.slot_host import SlotHost
from headrace.task.stage_task import store_specs
from headrace.task.standbys import standby_specs


class SlotStores:
    """What one attempt at an order opens.

    Args:
        order: of the slot.
        host: its process.
        attempt: its name.
        recovery: told of what is read.
    """

    def __init__(
        self, order: SlotOrder, host: SlotHost, attempt: str, recovery: RecoveryLog
    ) -> None:
        self._order, self._host, self._id = order, host, attempt
        self._recovery = recovery

    def state(self, stage: Stage, task: TaskOrder) -> TaskState | None:
        """Open a task's stores and bring them to the committed state; ``None``: it has none."""
        specs = store_specs(stage)
        if not specs:
            return None
        order, host = self._order, self._host
        key = (order.job, stage.name, task.task)
        host.standbys.stop(key)
        state = host.registry.get(key, lambda: self._opened(specs, task), task.groups)
        self._recovery.task(stage.name, task.task)
        state.catch_up(self._target(task.state), self._committed, self._recovery)
        before = order.watermarks_before.get(stage.name, NO_WATERMARK)
        if task.held is not None:  # what follows calls that were waited for is not further
            before = min(before, task.held)
        state.begin(order.epoch, self._id, order.time_ms, before)
        return state

    def _opened(self, specs: list[StoreSpec], of: TaskOrder | StandbyOrder) -> TaskState:
        job, host, registry = self._order.job, self._host, self._host.registry
        name = TaskName(job, of.stage, of.task, of.groups)
        folder = host.state_dir / job / f"{of.stage}-{of.groups[0]}-{of.groups[1]}"
        return TaskState(name, specs, folder, host.files, registry.backends, cache=registry.cache)

    def _target(self, held: StateTarget) -> Target:
        order = self._order
        position = Position(order.lineage, held.epoch, held.attempt)
        owner = Owner(order.origin or order.lineage, order.generation)
        return Target(position, held.attempt, held.shape, owner)

    @cached_property
    def _committed(self) -> SegmentSource:
        return self._host.segments(self._order)

    def follow(self, stages: dict[str, Stage]) -> list[StandbyReport]:
        """Have the standbys of this slot go on, beside the epochs to come.

        Args:
            stages: of the order's level, by name.
        """
        order, kept = self._order, self._host.standbys
        kept.keep(order.job, {(one.stage, one.task) for one in order.standbys}, set(stages))
        return [
            kept.follow(
                (order.job, one.stage, one.task),
                one.groups,
                partial(self._opened, standby_specs(store_specs(stages[one.stage])), one),
                self._target(one.state),
                self._committed,
            )
            for one in order.standbys
        ]
