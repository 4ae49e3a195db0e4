"""Drives a job epoch by epoch: the thin shell of I/O around ``epoch`` and ``planning``.

``start`` takes a generation and brings the outputs of the last manifest out; ``advance`` is
one epoch, the same for streaming, bounded runs, tests and benchmarks.
"""

from __future__ import annotations

import msgspec

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.catalog import describe_plan, load_catalog, save_catalog
from headrace.coordinator.changes.requests import CutAnswer
from headrace.coordinator.changes.rescale_steps import commit_rescale
from headrace.coordinator.changes.serving import Serving
from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.committing import Committing
from headrace.coordinator.creation import (
    Positions,
    check_graph,
    create_outputs,
    first_positions,
    task_counts,
    with_positions,
)
from headrace.coordinator.epoch import EpochRun, MisplacedError, Runner
from headrace.coordinator.epoch_plan import EpochPlan
from headrace.coordinator.feeds import is_joined, publish_epoch, sent_ends, trim_feeds
from headrace.coordinator.hosts.members import Members
from headrace.coordinator.hosts.steering import Steering
from headrace.coordinator.inputs import Inputs, Planner
from headrace.coordinator.kept import KeptEpochs
from headrace.coordinator.lineages import begin_lineage
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import Slot, check_one_host
from headrace.coordinator.planning import (
    at_end,
    check_ends,
    check_kept,
    next_wall_deadline,
    plan_ranges,
)
from headrace.coordinator.reading import first_ends
from headrace.coordinator.receivers import NoReceivers, Receivers
from headrace.coordinator.reign import Reign
from headrace.coordinator.storage import JobStorage
from headrace.coordinator.story import Story, StoryLog
from headrace.coordinator.summary import EpochLimits, EpochSummary, rows_behind
from headrace.coordinator.turning import Committed, Turning
from headrace.coordinator.watermarks import resting
from headrace.faults import fault
from headrace.plan.recounting import with_task_counts
from headrace.plan.stages import JobPlan

SWEEP_EVERY = 16


class Coordinator:
    """The driver's side of one job.

    One thread calls.

    Args:
        plan: of the job.
        plan_digest: names the plan to the slots.
        bus: inputs and outputs.
        log: of manifests.
        storage: of the job's files.
        runner: runs the slots.
        clock: time and names.
        limits: of epochs and of the run.
        copier: keeps a copy in job_dir, where the storage is on this host's own disk.
        planner: plans the job again when streams of a pattern come or go.
    """

    def __init__(  # noqa: PLR0913 - each is a part of its own, by name
        self,
        plan: JobPlan,
        plan_digest: str,
        *,
        bus: Bus,
        log: CommitLog,
        storage: JobStorage,
        runner: Runner,
        clock: Clock,
        limits: EpochLimits | None = None,
        copier: Copier | None = None,
        planner: Planner | None = None,
    ) -> None:
        self._plan, self._digest = plan, plan_digest
        self._bus, self._storage, self._copier = bus, storage, copier
        self._reign = Reign(plan.job, log, clock, copier)
        self._runner, self._clock = runner, clock
        self._limits = limits or EpochLimits()
        self._kept = KeptEpochs(log, self._limits.keep_epochs, self._limits.keep_bytes)
        self._receivers = Receivers(plan, storage, clock)
        self._turning = Turning(
            runner=runner,
            storage=storage,
            reign=self._reign,
            committing=Committing(self._reign, storage, bus, lambda: self._receivers),
            clock=clock,
            publish=self._publish,
            plan=self._next,
            ask=self._ask,
            sweep=self._forget,
        )
        self.story = Story(StoryLog(storage.root), clock)
        self.standbys_wanted: dict[str, int] = {}
        self.members = Members(self._limits.placement, runner, clock, story=self.story)
        self.steering = Steering(
            reign=self._reign,
            members=self.members,
            runner=runner,
            clock=clock,
            publish=self._publish,
            ask=self._ask,
            plan=lambda: self._digest,
        )
        self._serving = Serving(
            storage.root,
            storage.files,
            clock,
            rescale=self.rescale,
            state=lambda: self.state,
            cut=self._cut,
            steering=self.steering,
        )
        self._inputs = Inputs(plan.job, bus, clock, planner)
        self._max_rows = self._limits.max_rows
        self._slots: list[Slot] = []
        self._published = ""
        self._has_reign = False
        self._recorded: EpochPlan | None = None

    @property
    def state(self) -> JobState:
        """The job's state after the last committed epoch.

        Raises:
            InternalError: ``start`` was not called.
        """
        return self._reign.state

    @property
    def bus(self) -> Bus:
        """The streams."""
        return self._bus

    @property
    def generation(self) -> int:
        """The number of this driver's reign; 0 before ``start``."""
        return self._reign.generation

    @property
    def has_state(self) -> bool:
        """Say whether there is a job yet; before ``start``, and in it, there may be none."""
        return self._reign.has_begun

    @property
    def has_ended(self) -> bool:
        """Say whether the run is over for good; False before ``start``."""
        return self.has_state and self.state.ended

    def start(self) -> None:
        """Become the driver.

        1. Take a generation. 2. Fold the manifests, or create the job. 3. Check that the
        graph fits the state, open the sinks, describe the stores. 4. Publish the last epoch's
        outputs again. 5. Sweep.

        Raises:
            InvalidInputError: the graph changed in a way that the state cannot follow.
            CorruptDataError: a manifest is damaged or missing.
            ReceiverAwayError: a sink does not answer. Call again: this driver goes on where it
                stands, with the same generation.
            NotOwnerError: another driver lives, or has taken over since the last call.
        """
        self._storage.create()
        if self._has_reign:
            self._reign.check()
        else:
            self._reign.begin()
            self.members.begin(self.generation)
            self._has_reign = True
        create_outputs(self._plan, self._bus)
        if not self._reign.has_begun:
            self._receivers.open()  # a wrong one is told before the job is there
            self._create_job()
        self._adopt()
        self._recount()
        before = load_catalog(self._storage.root, self.state.generation, self._storage.files)
        check_graph(self.state, self._plan, before)
        self._follow()
        self._receivers.open()
        self._describe()
        self._publish()
        self._settle()
        self._sweep()
        self._storage.tidy(self.generation, {table.file for table in self._plan.tables})
        self._serving.tidy()
        if self._limits.bounded:
            self.end_at_present()
        self._slots = self._found_slots()

    def close(self) -> None:
        """Let go of the sinks' receivers; the job stays as it is."""
        self._receivers.close()

    def _settle(self) -> None:
        """Let the state say what is promised from now on; one from a copy begins a lineage.

        What was committed after the copy is gone, but its outputs may be out: those of the
        epochs to come must not pass for them.
        """
        wanted = self._limits.durability
        while self.state.copy_of or self.state.durability != wanted:
            self._publish()
            state = msgspec.structs.replace(self.state, durability=wanted)
            if state.copy_of:
                state = begin_lineage(state, self._clock.new_id())
            self._reign.publish_next(state)
        self._publish()

    def _found_slots(self, error: MisplacedError | None = None) -> list[Slot]:
        """Ask where the slots are; all on this host where the job's storage is its own disk."""
        reason, waited_s = (error.message, error.waited_s) if error else ("", 0.0)
        slots = self.members.find(self.state, reason, waited_s)
        if self._copier is not None:
            name, durability = self._plan.graph.name, self._limits.durability
            check_one_host(slots, self._copier.host_id, name, durability)
        return slots

    def _describe(self) -> None:
        """Say what the stores hold, for commands that look at them without the job's code."""
        catalog, at = describe_plan(self._plan, self._limits.standby_copies), self._storage
        self.standbys_wanted = catalog.standbys
        save_catalog(at.root, self.generation, catalog, at.files, self._clock.new_id())

    def _create_job(self) -> None:
        first = JobState(
            job=self._plan.job,
            lineage=self._clock.new_id(),
            generation=self.generation,
            epoch=0,
            time_ms=self._clock.now_ms(),
            digest="",
            durability=self._limits.durability,
            key_groups=self._plan.key_groups,
            fingerprint=self._plan.fingerprint,
            inputs=self._first_positions(),
            task_counts=task_counts(self._plan),
            bootstrap=first_ends(self._plan, self.ends()),
        )
        self._reign.create(first)  # the loser of a race goes on with the winner's

    def _first_positions(self) -> Positions:
        return first_positions(self._plan, self._bus, self._limits.start, self._clock.now_ms())

    def _adopt(self) -> None:
        """After a reset the graph as it is now counts, as that of a new job does."""
        while not self.state.fingerprint:
            begins = self._first_positions()
            inputs = {
                operator: positions | self.state.inputs.get(operator, {})
                for operator, positions in begins.items()
            }
            self._publish()
            self._reign.publish_next(
                msgspec.structs.replace(
                    self.state,
                    key_groups=self._plan.key_groups,
                    fingerprint=self._plan.fingerprint,
                    inputs=inputs,
                    task_counts=task_counts(self._plan),
                    bootstrap=first_ends(self._plan, self.ends()),
                )
            )

    def end_at_present(self) -> None:
        """Let the run end where its inputs end now; kept in the manifest, so it never moves.

        Raises:
            NotOwnerError: a newer driver has taken over; stop.
        """
        until = self._inputs.all_ends(self._plan)
        while self.state.until is None:
            self._publish()
            self._reign.publish_end(until)

    def _recount(self) -> None:
        """After a rescale the state tells how many tasks there are, not the settings."""
        if self.state.rescaled_at >= 0:
            self._plan = with_task_counts(self._plan, self.state.task_counts)

    def rescale(self, tasks: int, stage: str | None = None) -> JobState:
        """Go on with another number of tasks; see ``rescaling``.

        Args:
            tasks: of each keyed stage, or of the one that is named.
            stage: its name; all when left out.

        Returns:
            The state since; that of before when it has so many tasks already.

        Raises:
            InvalidInputError: no such stage, or a number that cannot be.
            NotOwnerError: a newer driver has taken over; stop.
        """
        if commit_rescale(self._reign, tasks, stage, self._clock, self._publish):
            self._recount()
            self._slots = self._found_slots()  # they let go of the stores of other groups
        return self.state

    def serve_requests(self) -> None:
        """Do what others ask of this job while it is paused: no epoch is to follow."""
        self._serving.serve(is_paused=True)

    def _cut(self) -> CutAnswer:
        """Tell the last epoch, once all that it sent is out."""
        self._publish()
        return CutAnswer(self.state.epoch, sent_ends(self._plan, self._bus))

    def kept_files(self) -> set[str]:
        """Return the files that the newest epoch or one that is kept names."""
        return self._kept.files(self.state)

    def _follow(self) -> None:
        """Let the state have the streams of patterns that came, and no more those that went."""
        while (state := self._inputs.followed(self._plan, self.state)) is not self.state:
            self._publish()
            self._reign.publish_next(state)
            fault("streams.followed")

    def _follow_patterns(self) -> None:
        """Between two epochs, read the streams that match the patterns by now."""
        found = self._inputs.replanned(self._plan)
        if found is None:
            return
        plan, self._digest = found
        self._plan = with_task_counts(plan, self.state.task_counts)
        check_graph(self.state, self._plan)
        self._follow()
        self._describe()

    @property
    def patterns(self) -> dict[str, str]:
        """The pattern of each input that has one, by the name of the input."""
        return self._inputs.patterns

    def named_inputs(self) -> dict[str, str]:
        """Return the stream of each input that names one, and no pattern."""
        inputs = (binding for stage in self._plan.stages for binding in stage.inputs)
        return {one.operator: one.stream for one in inputs if not one.pattern}

    def input_streams(self) -> dict[str, str]:
        """Return the stream of each input operator, and of what comes from another part."""
        return {binding.operator: binding.stream for binding in self._plan.reads}

    def ends(self) -> dict[str, list[int]]:
        """Return the next offset of each partition of each input stream."""
        return self._inputs.ends(self._plan)

    def wall_deadline(self) -> int | None:
        """Return the wall clock at which a timer is due although no input comes, ms."""
        return next_wall_deadline(self.state)

    def replay(self, recorded: EpochPlan) -> None:
        """Let an epoch be what it was when it was recorded, once it is the next; sinks get none."""
        self._recorded = recorded
        self._receivers = NoReceivers(self._plan, self._storage, self._clock)

    def advance(self, *, force: bool = False) -> EpochSummary | None:
        """Run one epoch, if there is anything to do.

        Args:
            force: run every task even when nothing is due.

        Returns:
            What was done; ``None`` when there was nothing to do or the job has ended.

        Raises:
            NotOwnerError: a newer driver has taken over; stop.
            UnavailableError: slots could not be brought to their stores; try again.
            ReceiverAwayError: a sink does not answer. The epoch is committed, and waits for it;
                the next call hands it on first.
            InvalidInputError: the user's code or data; nothing of the epoch is visible.
        """
        done = self._turning.take(force=force)
        return None if done is None else self._summed_up(done)

    def _summed_up(self, done: Committed) -> EpochSummary:
        run, timings = done.run, done.timings
        self.members.committed(run.around, self.state)
        self.story.ran(run.observed.slots, self.state)
        self.steering.committed(run)
        self._max_rows = self._limits.adapt(self._max_rows, run.rows_read(), run.overlay_bytes)
        timings["total"] = self._since(done.began)
        lag = rows_behind(self._plan, self.state, run.ends)
        copy = None if self._copier is None else self._copier.lag()
        return EpochSummary.of(run, self.state, lag, done.rows, timings, copy)

    def _next(self, force: bool) -> tuple[EpochRun | None, float]:
        """Do what others ask for, and plan an epoch; ``None``: there is nothing to do."""
        self._serving.serve()
        began = self._clock.monotonic()
        if not self.state.ended:
            self._follow_patterns()
        self._inputs.hold(self._plan, self.state)
        force = force or self.steering.wants_all
        return None if self.state.ended else self._planned(force=force), began

    def _ask(self, error: MisplacedError | None) -> None:
        self._slots = self._found_slots(error)

    def _planned(self, *, force: bool) -> EpochRun | None:
        """Plan an epoch over what there is by now; ``None`` when there is nothing to do."""
        state, now = self.state, self._clock.now_ms()
        recorded = self._recorded
        if recorded is not None and recorded.epoch == state.epoch + 1:
            return recorded.run(self._plan, state, self._slots, self.generation, self._digest)
        ends = self.ends()
        self._plan = self._inputs.widened(self._plan, ends)
        check_ends(self._plan, state, ends)
        added = self._inputs.added(self._plan, state, ends)
        state = with_positions(state, added)
        is_full = sum(task.waiting for task in state.tasks.values()) > self._limits.max_waiting
        order = self._limits.order
        ranges = [] if is_full else plan_ranges(self._plan, state, ends, self._max_rows, order)
        check_kept(ranges, self._inputs.by_operator(self._plan))
        ended = not ranges and at_end(self._plan, state)
        due = self.wall_deadline()
        is_due = ranges or ended or force or (due is not None and due <= now)
        if not is_due and self._runner.has_changed():
            self._slots = self._found_slots(MisplacedError("slots have gone or come"))
        if not is_due and not self.members.is_unsettled:
            return None
        run = EpochRun(
            self._plan,
            state,
            self._slots,
            ranges,
            self.generation,
            self._digest,
            max(now, state.time_ms),
            ended=ended,
            all_tasks=force,
            tables=self._inputs.table_offsets(self._plan, state),
            ends=ends,
            rested=resting(self._inputs.streams(self._plan), ends),
            inputs=added,
            deadline_ms=now + int(self._limits.timeout_s * 1000),
            kept_from=self._kept.first_of(state.epoch + 1, state.kept_from),
            max_bytes=self._limits.max_bytes,
            standby_copies=self._limits.standby_copies,
            around=self.members.around(state),
        )
        return run if is_due or self.members.wants(run.placing) else None

    def _since(self, mark: float) -> float:
        return round((self._clock.monotonic() - mark) * 1000, 2)

    def _publish(self) -> int:
        """Bring out the outputs of the last committed epoch, unless that was done; rows."""
        if self._copier is not None:
            self._copier.observe(self.state)
        self._kept.observe(self.state)
        self.story.observe(self.state, self.members.noted)
        if self._published == self.state.digest:
            return 0
        if is_joined(self._plan):  # after a reset the streams are others, which know no duplicates
            self._reign.check()
        rows = publish_epoch(self.state, self._plan, self._bus, self._storage.root)
        rows += self._receivers.commit(self.state)
        self._published = self.state.digest
        return rows

    def _forget(self, run: EpochRun) -> None:
        for files in run.exchange.values():
            for file in files:
                self._storage.files.remove(self._storage.root / file.path)
        if self.state.ended:
            self._inputs.hold(self._plan, self.state)
        is_due = run.state.epoch // SWEEP_EVERY != self.state.epoch // SWEEP_EVERY
        if is_due or self.state.ended:
            self._sweep()
            if self._reign.is_newest:
                trim_feeds(self.state, self._plan, self._bus)

    def _sweep(self) -> None:
        if self._reign.is_newest:
            pinned = set() if self._copier is None else self._copier.pinned()
            named = self._kept.files(self.state) | pinned
            over, finished = self.state.ended, self.state.epoch - self._reign.is_half
            self._storage.sweep(finished, self.generation, named, is_over=over)
