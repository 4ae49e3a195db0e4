"""Runs one epoch of a driver: from the last manifest to the next one, and its outputs.

``EpochExecutor`` is the commit as a list of steps, numbered as in decision 0001. What it asks of
the rest of a driver, the ``Coordinator``, is ``EpochDriver``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from headrace.bus.bus import Bus
from headrace.coordinator.epoch import EpochRun, MisplacedError, Runner
from headrace.coordinator.epoch_records import save_failed
from headrace.coordinator.host_commands import revoke_moved_tasks
from headrace.coordinator.inputs import check_identities, identities_of, open_streams
from headrace.coordinator.job_storage import JobStorage
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.coordinator.outputs import BusAppend, SinkCommitter, bus_appends
from headrace.errors import HeadraceError, InternalError, NotOwnerError, UnavailableError
from headrace.faults import fault
from headrace.fencing import StoreHeldError
from headrace.files import local_copy
from headrace.graph.semantics import CommitAction, Semantics
from headrace.runtime.orders import SinkPart
from headrace.runtime.user_calls import with_rare_gc
from headrace.state.restore import FOLDER as RECOVERY

BASE_EVERY = 64
MAX_TRIES = 20
STORE_HELD_WAIT_S = 0.5
STORE_HELD_S = 90.0  # Spark ends a Python worker that has been idle for a minute


class EpochStep(StrEnum):
    """What an executor is about to do."""

    PUBLISH = "publish"
    PLAN = "plan"
    RUN_LEVEL = "run level"
    CHECK = "check"
    APPEND = "append"
    EMIT = "emit"
    SWEEP = "sweep"
    LOCATE = "locate"
    WAIT = "wait"


class EpochDriver(Protocol):
    """What an executor asks of its driver."""

    receivers: SinkCommitter
    """Of sinks; a replay sets others."""

    def publish(self) -> int:
        """Publish what the last manifest names, unless that was done; returns the rows."""
        ...

    def serve_requests(self, *, is_paused: bool) -> None:
        """Do what others have asked for."""
        ...

    def plan_epoch(self, *, force: bool) -> EpochRun | None:
        """Plan the next epoch; ``None`` when there is nothing to do."""
        ...

    def sweep_epoch(self, run: EpochRun) -> None:
        """Remove what an epoch leaves over."""
        ...

    def locate_slots(self, error: MisplacedError | None = None) -> None:
        """Ask all slots where they are; they close their stores."""
        ...


class EpochLostError(Exception):
    """Another driver committed the epoch; caught here, always."""


@dataclass
class ExecutedEpoch:
    """An epoch that was planned, and is committed once all steps are done.

    Args:
        run: the epoch.
        marks: the step that has just ended and when, s of the monotonic clock; the begin first.
        rows: that left the job.
    """

    run: EpochRun
    marks: list[tuple[str, float]]
    rows: int = 0


class EpochExecutor:
    """Runs the epochs of one driver; its thread calls.

    The steps of an epoch, with the fault points that follow what is done:

    1. Plan it (``epoch.planned``), once what others asked for is done.
    2. Run it, level by level (``epoch.level_done``).
    3. Commit it (``epoch.before_commit``): make sure that all its files are there; check that no
       newer generation has begun; append the manifest (``commit.written``, ``commit.published``).
    4. Publish what the manifest names (``epoch.output_published``, ``epoch.published``).
    5. Sweep what is left over (``epoch.swept``).

    Before 1 comes step 4 of the last epoch, which may not have been finished. The semantics of a
    job say which actions its commit has, each between ``commit.step_begins`` and
    ``commit.step_done``: an action that saves something is steps 3 and 4, any other one emits
    output that no manifest names (``output.emitted``).

    What goes wrong leads back to the begin, with nothing but what the manifests say: see ``steps``.

    Args:
        driver: plans, publishes and sweeps.
        writer: of the driver, whose clock it uses.
        runner: of the slots.
        storage: of the job.
        bus: outputs.
    """

    def __init__(
        self,
        driver: EpochDriver,
        writer: FencedManifestWriter,
        *,
        runner: Runner,
        storage: JobStorage,
        bus: Bus,
    ) -> None:
        self._driver, self._writer, self._runner = driver, writer, runner
        self._storage, self._bus, self._clock = storage, bus, writer.clock
        self._pending: deque[Callable[[], int]] = deque()
        self.done: ExecutedEpoch | None = None
        """What came of the steps; ``None``: there was nothing to do, or they are under way."""

    def execute(self, *, force: bool) -> ExecutedEpoch | None:
        """Run an epoch; ``None`` when there was nothing to do.

        Args:
            force: plan an epoch although nothing is due.

        Raises:
            HeadraceError: what ended it; it can be tried again where the kind says so.
        """
        for _ in self.steps(force=force):
            pass
        return self.done

    def steps(self, *, force: bool = False) -> Iterator[EpochStep]:
        """Run an epoch, and yield the name of each step before it is done.

        An epoch is begun again

        - when a slot is misplaced: all slots are located, at most ``MAX_TRIES`` times;
        - when another driver committed the epoch, unless it is a newer one: the same, because it
          may have placed tasks where this driver has standbys open;
        - when another process has a store open: after a moment, for at most ``STORE_HELD_S``. It
          may be a slot of this driver, where an older one that had not ended ran an epoch; so the
          slots are located, too, after 1, 2, 4, ... of these moments.

        Any other error ends it, once it is known that no newer driver caused it.

        Args:
            force: plan an epoch although nothing is due.
        """
        self.done, tries, held = None, 0, 0
        held_until = self._clock.monotonic() + STORE_HELD_S
        try:
            while True:
                misplaced: MisplacedError | None = None
                try:
                    yield from self._epoch(force=force)
                    return
                except StoreHeldError:
                    if self._clock.monotonic() >= held_until:
                        raise
                    yield EpochStep.WAIT
                    self._clock.sleep(STORE_HELD_WAIT_S)
                    held += 1
                    if held & (held - 1) == 0:
                        yield EpochStep.LOCATE
                        self._driver.locate_slots()
                    continue
                except MisplacedError as error:
                    misplaced = error
                except EpochLostError:
                    yield EpochStep.CHECK
                    self._writer.check()
                tries += 1
                if tries == MAX_TRIES:
                    raise UnavailableError(
                        f"slots kept moving between hosts, or could not reach each other, for "
                        f"{MAX_TRIES} tries: {misplaced.message if misplaced else 'taken over'}",
                        epoch=self._writer.state.epoch,
                    ) from misplaced
                yield EpochStep.LOCATE
                self._driver.locate_slots(misplaced)
        except NotOwnerError:
            raise
        except (HeadraceError, OSError) as error:
            yield EpochStep.CHECK
            self._writer.check(error)
            raise

    def _epoch(self, *, force: bool) -> Iterator[EpochStep]:
        driver, now = self._driver, self._clock.monotonic
        # 4, of the last epoch.
        yield EpochStep.PUBLISH
        driver.publish()
        if self._pending:
            self._emit_pending()

        # 1. Plan.
        yield EpochStep.PLAN
        driver.serve_requests(is_paused=False)
        began = now()
        run = driver.plan_epoch(force=force)
        if run is None:
            return
        epoch = ExecutedEpoch(run, [("", began), ("plan", now())])
        fault("epoch.planned")

        with with_rare_gc():
            # 2. Run, level by level.
            for level in range(len(run.plan.levels)):
                yield from self.run_level(run, level)
                epoch.marks.append((f"level {level}", now()))
                fault("epoch.level_done")
            fault("epoch.before_commit")

            # 3 and 4. Commit and publish, or emit, action by action.
            self.check_results(run)
            for number, action in enumerate(run.plan.commit_actions):
                if action.saves:
                    yield EpochStep.CHECK
                    fault("commit.step_begins")
                    self._writer.check()
                    yield EpochStep.APPEND
                    if not self.append(run, action, is_last=number == run.plan.last_save):
                        raise EpochLostError
                    epoch.marks.append(("commit", now()))
                    fault("commit.published")
                    yield EpochStep.PUBLISH
                    epoch.rows += driver.publish()
                    epoch.marks.append(("publish", now()))
                else:
                    yield EpochStep.EMIT
                    fault("commit.step_begins")
                    epoch.rows += self.emit(run, action)
                    epoch.marks.append(("emit", now()))
                fault("commit.step_done")
            fault("epoch.published")

            # 5. Sweep.
            yield EpochStep.SWEEP
            driver.sweep_epoch(run)
            epoch.marks.append(("forget", now()))
            fault("epoch.swept")
        self.done = epoch

    def run_level(self, run: EpochRun, level: int) -> Iterator[EpochStep]:
        """Run one level of an epoch, those before it being done.

        Raises:
            HeadraceError: what a slot failed with; nothing of the epoch counts.
        """
        yield EpochStep.RUN_LEVEL
        if level == 0:
            revoke_moved_tasks(run, self._runner)
            self._forget_recovery()
        orders = run.orders(level)
        if orders:
            try:
                run.absorb(orders, self._runner.run(orders))
            except HeadraceError as error:
                self._writer.check(error)  # a newer driver's epoch is the one to report
                storage = self._storage
                save_failed(storage.root, run, self._writer.state, error, storage.files)
                raise
        run.finish_level(level)

    def _forget_recovery(self) -> None:
        """Remove what slots that died said of their recovery."""
        files, folder = self._storage.files, self._storage.root / RECOVERY
        for name in files.names(folder):
            files.remove(folder / name)

    def check_results(self, run: EpochRun) -> None:
        """Make sure that all files of an epoch are there, and that it read what it was to read.

        A stream that is removed never comes back, so the one that is there now was there all along.

        Raises:
            InternalError: a file that a slot reported is not there; nothing was committed.
            StreamReplacedError: a stream is another one than when the epoch was planned.
        """
        files, root = self._storage.files, self._storage.root
        for file in run.files:
            try:
                size = files.status(root / file.path).size
            except FileNotFoundError:
                text = f"file {file.path} is missing before the commit"
                raise InternalError(text, epoch=run.epoch) from None
            if size != file.size:
                text = f"file {file.path} has {size} bytes, expected {file.size} before the commit"
                raise InternalError(text, epoch=run.epoch)
        known = {**run.state.identities, **run.identities}
        streams = open_streams(run.plan, self._bus)
        check_identities(run.plan, known, identities_of(run.plan, streams))

    def append(self, run: EpochRun, action: CommitAction, *, is_last: bool) -> bool:
        """Append the manifest of an action to the log; False when another driver's was there.

        Args:
            run: whose levels have run.
            action: that saves something.
            is_last: no other manifest of the epoch follows.
        """
        manifest = run.manifest(action, self._writer.state, is_last=is_last)
        if manifest.epoch % BASE_EVERY == 0:
            return self._writer.append_base(manifest)
        return self._writer.append(manifest)

    def emit(self, run: EpochRun, action: CommitAction) -> int:
        """Emit the outputs of an action that has no manifest; returns the rows.

        Raises:
            ReceiverAwayError: a sink does not answer.
        """
        emits = list(self._emissions(run, action))
        if Semantics.AT_MOST_ONCE in action.outputs:
            self._pending.extend(emits)
            return self._emit_pending()
        return sum(emit() for emit in emits)

    def _emit_pending(self) -> int:
        """Emit what an at-most-once output has not been tried with; returns the rows.

        What was tried is not tried again: nobody knows whether a failed append is there.
        """
        rows = 0
        while self._pending:
            rows += self._pending.popleft()()
        return rows

    def _emissions(self, run: EpochRun, action: CommitAction) -> Iterator[Callable[[], int]]:
        for one in bus_appends(run.outputs_of(action.outputs)):
            yield partial(self._append_rows, one)
        by_sink: dict[str, list[SinkPart]] = {}
        for part in run.sinks_of(action.outputs):
            by_sink.setdefault(part.operator, []).append(part)
        for parts in by_sink.values():
            lineage, epoch = run.state.lineage, run.epoch
            yield partial(self._driver.receivers.deliver_pending, lineage, epoch, tuple(parts))

    def _append_rows(self, one: BusAppend) -> int:
        """Append without a producer: nothing remembers that it was done."""
        stream = self._bus.stream(one.stream)
        path, fence = local_copy(self._storage.root / one.path), self._writer.fence
        stream.append_file(one.partition, path, one.ranges, fence=fence)
        fault("output.emitted")
        return one.rows
