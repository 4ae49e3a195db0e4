"""Drives a job epoch by epoch: the thin shell of I/O around ``epoch`` and ``epoch_ranges``.

``start`` takes a generation and brings the outputs of the last manifest out; ``advance`` is
one epoch, the same for streaming, bounded runs, tests and benchmarks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter

import msgspec

from headrace.bus.bus import Bus, Stream
from headrace.clock import Clock, SteadyClock, step_times
from headrace.coordinator.backup import settled_state
from headrace.coordinator.catalog import describe_plan, load_catalog, save_catalog
from headrace.coordinator.commands import (
    CommandQueue,
    CommandServer,
    CutAnswer,
    Drain,
    Request,
    RestartAnswer,
)
from headrace.coordinator.commit_log import CheckpointRetention, CommitLog
from headrace.coordinator.drain import CordonedHosts
from headrace.coordinator.epoch import EpochRun, MisplacedError, Runner
from headrace.coordinator.epoch_clock import EpochClock
from headrace.coordinator.epoch_executor import EpochExecutor, ExecutedEpoch
from headrace.coordinator.epoch_ranges import (
    bootstrap_ends,
    check_ends,
    check_retained,
    expired_counts,
    has_read_all,
    jumps_past_expired,
    next_wall_deadline,
    plan_ranges,
    positions_after,
)
from headrace.coordinator.epoch_records import (
    EpochLimits,
    EpochPlan,
    EpochSummary,
    StateSizes,
    rows_behind,
)
from headrace.coordinator.hooks import JobHook
from headrace.coordinator.host_commands import HostCommands
from headrace.coordinator.inputs import (
    Ends,
    InputStreams,
    Positions,
    Replanner,
    check_graph,
    check_identities,
    create_outputs,
    first_positions,
    identities_of,
    open_streams,
    table_offsets,
    task_counts,
    with_positions,
)
from headrace.coordinator.job_events import JobEventFile, JobEventLog
from headrace.coordinator.job_parts import JobGeneration
from headrace.coordinator.job_storage import JobStorage
from headrace.coordinator.manifest import JobState, partition_lags
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.coordinator.membership import ClusterMembers
from headrace.coordinator.outputs import (
    NoSinks,
    SinkCommitter,
    publish_outputs,
)
from headrace.coordinator.placement import Slot
from headrace.coordinator.rescale import commit_rescale
from headrace.coordinator.watermarks import resting
from headrace.errors import HeadraceError, InternalError, NotOwnerError
from headrace.faults import fault
from headrace.files import Files
from headrace.plan.stages import JobPlan, with_task_counts
from headrace.remote import is_remote
from headrace.runtime.orders import ON_HOST, ShareOrder, SinkPart, SlotOrder

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
        hooks: of the modes of the job.
        planner: plans the job again when streams of a pattern come or go.
        group: the generation of all parts of the job; ``None`` where this is the only one.
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
        hooks: Sequence[JobHook] = (),
        planner: Replanner | None = None,
        group: JobGeneration | None = None,
    ) -> None:
        clock = clock if isinstance(clock, SteadyClock) else SteadyClock(clock)
        self._plan, self.plan_digest = plan, plan_digest
        self._bus, self._storage, self._hooks = bus, storage, hooks
        self._writer = FencedManifestWriter(plan.job, log, bus, clock, hooks, group)
        self._runner, self._clock = runner, clock
        self._stays_on_hosts = is_remote(storage.root) or any(hook.storage_host for hook in hooks)
        self._limits = limits or EpochLimits()
        self._kept = CheckpointRetention(log, self._limits.keep_epochs, self._limits.keep_bytes)
        self.receivers = SinkCommitter(plan, storage, clock)
        self._executor = EpochExecutor(self, self._writer, runner=runner, storage=storage, bus=bus)
        self.event_log = JobEventLog(JobEventFile(storage.root), clock)
        self._time = EpochClock(clock, storage.root, storage.files, self.event_log)
        self.standbys_wanted: dict[str, int] = {}
        self.members = ClusterMembers(
            self._limits.placement, runner, clock, event_log=self.event_log
        )
        self.host_commands = HostCommands(
            self, writer=self._writer, members=self.members, runner=runner
        )
        self.commands = CommandQueue(clock)
        self._serving = CommandServer(storage.root, storage.files, clock, self.commands)
        self._cordoned = CordonedHosts(storage.root.parent, storage.files)
        self.is_paused = False
        """Whether no epoch follows for now."""
        self._inputs = InputStreams(plan.job, bus, clock, planner)
        self._max_rows = self._limits.max_rows
        self._sizes = StateSizes()
        self._slots: list[Slot] = []
        self._published = ""
        self._has_generation = False
        self._recorded: EpochPlan | None = None
        self.notify: Callable[[str], None] = lambda line: None
        """Called with a line when something is not as it should be, and the job continues."""
        self.seen_ends: Ends = {}
        """Ends of the inputs when work was last looked for: what is beyond is news."""

    @property
    def state(self) -> JobState:
        """The job's state after the last committed epoch.

        Raises:
            InternalError: ``start`` was not called.
        """
        if not self._writer.has_begun:
            raise InternalError("the coordinator was not started", job=self._plan.job)
        return self._writer.state

    @property
    def bus(self) -> Bus:
        """The streams."""
        return self._bus

    @property
    def plan(self) -> JobPlan:
        """The plan that epochs run; another one once streams of a pattern come or go."""
        return self._plan

    @property
    def files(self) -> Files:
        """By these the job's storage is changed; they refuse, once a newer driver has begun."""
        return self._storage.files

    @property
    def generation(self) -> int:
        """The generation of this driver; 0 before ``start``."""
        return self._writer.generation

    def successor(self) -> NotOwnerError | None:
        """Return the refusal that names who has taken over, where that is known."""
        return self._writer.successor()

    @property
    def has_state(self) -> bool:
        """Say whether there is a job yet; before ``start``, and in it, there may be none."""
        return self._writer.has_begun

    @property
    def has_ended(self) -> bool:
        """Say whether the run has ended; False before ``start``."""
        return self.has_state and self.state.ended

    def start(self) -> None:
        """Become the driver.

        1. Take a generation. 2. Fold the manifests, or create the job. 3. Check that the
        graph fits the state, open the sinks, describe the stores. 4. Publish the last epoch's
        outputs again. 5. Sweep.

        Raises:
            InvalidInputError: the graph changed in a way that the state cannot follow.
            CorruptDataError: a manifest is damaged or missing.
            ReceiverAwayError: a sink does not answer. Call again: this driver continues where it
                is, with the same generation.
            NotOwnerError: another driver lives, or has taken over since the last call.
        """
        try:
            self._begin()
        except (HeadraceError, OSError) as error:
            if self._has_generation and not isinstance(error, NotOwnerError):
                self._writer.check(error)  # a newer driver may have swept what this one reads
            raise

    def _begin(self) -> None:
        self._storage.create()
        if self._has_generation:
            self._writer.check()
        else:
            self._writer.begin()
            written = self._storage.root / "generations" / f"{self.generation:08d}.json"
            self._time.begin(written, self.state.time_ms if self.has_state else None)
            self.members.begin(self.generation)
            self._has_generation = True
        for hook in self._hooks:
            hook.create_streams(self._plan, self._writer.fence)
        create_outputs(self._plan, self._bus, self._writer.fence)
        if not self._writer.has_begun:
            lineage = self._clock.new_id()
            self.receivers.begin(self.generation, lineage)  # they know before the job is there
            self._create_job(lineage)
        self._adopt()
        self._recount()
        before = load_catalog(self._storage.root, self.state.generation, self._storage.files)
        check_graph(self._inputs.as_planned(self._plan, self.state), self._plan, before)
        self._follow()
        self._new_identities(open_streams(self._plan, self._bus), self.state.identities)
        self.receivers.begin(self.generation, self.state.origin or self.state.lineage)
        self._describe()
        self.publish()
        self._settle()
        self._sweep()
        tables = {table.file for table in self._plan.tables}
        self._storage.tidy(self.generation, self.plan_digest, tables)
        self._serving.tidy()
        for hook in self._hooks:
            hook.begun(self.end_at_present)
        self.locate_slots()

    def close(self) -> None:
        """Release the sinks' receivers, and refuse commands; the job stays as it is."""
        self.commands.close()
        self.receivers.close()

    def _settle(self) -> None:
        """Let the state say what is promised from now on."""
        wanted, clock = self._limits.durability, self._clock
        while (settled := settled_state(self.state, wanted, clock)) is not None:
            self.publish()
            self._writer.publish_next(settled)
        self.publish()

    def locate_slots(self, error: MisplacedError | None = None) -> None:
        """Ask where the slots are.

        Args:
            error: why they are asked, if a slot was misplaced.
        """
        reason, waited_s = (error.message, error.waited_s) if error else ("", 0.0)
        self._slots = self.members.find(self.state, reason, waited_s)

    def _describe(self) -> None:
        """Say what the stores hold, for commands that look at them without the job's code."""
        catalog, at = describe_plan(self._plan, self._limits.standby_copies), self._storage
        self.standbys_wanted = catalog.standbys
        kept = self._kept.generation(self.state)
        save_catalog(at.root, self.generation, catalog, at.files, kept)

    def _create_job(self, lineage: str) -> None:
        first = JobState(
            job=self._plan.job,
            lineage=lineage,
            generation=self.generation,
            epoch=0,
            time_ms=self._clock.now_ms(),
            digest="",
            durability=self._limits.durability,
            key_groups=self._plan.key_groups,
            fingerprint=self._plan.fingerprint,
            identities=identities_of(self._plan, open_streams(self._plan, self._bus)),
            inputs=self._first_positions(),
            task_counts=task_counts(self._plan),
            bootstrap=bootstrap_ends(self._plan, self.ends()),
        )
        self._writer.create(first)  # the loser of a race continues with the winner's

    def _first_positions(self) -> Positions:
        return first_positions(self._plan, self._bus, self._limits.start, self._clock.now_ms())

    def _adopt(self) -> None:
        """After a reset the graph as it is now counts, as that of a new job does."""
        while not self.state.fingerprint:
            identities = identities_of(self._plan, open_streams(self._plan, self._bus))
            begins = self._first_positions()
            known, held = self.state.identities, self.state.inputs
            inputs = {  # offsets that the reset gave are those of one stream
                operator: positions
                if known.get(operator) not in {None, identities.get(operator)}
                else positions | held.get(operator, {})
                for operator, positions in begins.items()
            }
            self.publish()
            self._writer.publish_next(
                msgspec.structs.replace(
                    self.state,
                    key_groups=self._plan.key_groups,
                    fingerprint=self._plan.fingerprint,
                    inputs=inputs,
                    identities=identities,
                    task_counts=task_counts(self._plan),
                    bootstrap=bootstrap_ends(self._plan, self.ends()),
                )
            )

    def end_at_present(self) -> None:
        """Let the run end where its inputs end now; kept in the manifest, so it never moves.

        Raises:
            NotOwnerError: a newer driver has taken over; stop.
        """
        until = self._inputs.all_ends(self._plan)
        while self.state.until is None:
            self.publish()
            self._writer.publish_end(until)

    def _recount(self) -> None:
        """After a rescale the state says how many tasks there are, not the settings."""
        if self.state.rescaled_at >= 0:
            self._plan = with_task_counts(self._plan, self.state.task_counts)

    def rescale(self, tasks: int, stage: str | None = None) -> JobState:
        """Continue with another number of tasks; see ``rescaling``.

        Args:
            tasks: of each keyed stage, or of the one that is named.
            stage: its name; all when left out.

        Returns:
            The state since; that of before when it has so many tasks already.

        Raises:
            InvalidInputError: no such stage, or a number that cannot be.
            NotOwnerError: a newer driver has taken over; stop.
        """
        if commit_rescale(self._writer, tasks, stage, self.publish):
            self._recount()
            self.locate_slots()  # they release the stores of other groups
        return self.state

    def serve_requests(self, *, is_paused: bool = True) -> None:
        """Run the commands that are there; no epoch follows while the job is paused."""
        self.is_paused = is_paused
        self.host_commands.follow(self._cordoned)
        self._serving.serve(self)

    def drain(self, command: Drain) -> str:
        """Mark a host, or take its mark away; see ``HostCommands.drain``."""
        return self.host_commands.drain(command, self._cordoned)

    def restart(self, request: Request[RestartAnswer] | None) -> RestartAnswer | None:
        """Continue a restart of processes; see ``HostCommands.restart``."""
        return self.host_commands.restart(request, is_paused=self.is_paused)

    def cut(self) -> CutAnswer:
        """Report the last epoch, once all that it sent is out."""
        self.publish()
        sent: dict[str, list[int]] = {}
        for hook in self._hooks:
            sent |= hook.sent_ends(self._plan)
        return CutAnswer(self.state.epoch, sent)

    def kept_files(self) -> set[str]:
        """Return the files that the newest epoch or one that is kept names."""
        return self._kept.files(self.state)

    def _follow(self) -> None:
        """Let the state have the streams of patterns that came, and no more those that went."""
        while (state := self._inputs.followed(self._plan, self.state)) is not self.state:
            self.publish()
            self._writer.publish_next(state)
            fault("streams.followed")

    def _follow_patterns(self, plan: JobPlan, digest: str) -> None:
        """Between two epochs, read the streams that match the patterns by now."""
        self._plan, self.plan_digest = with_task_counts(plan, self.state.task_counts), digest
        check_graph(self._inputs.as_planned(self._plan, self.state), self._plan)
        self._follow()
        self._describe()

    def _new_identities(
        self, streams: Mapping[str, Stream], known: Mapping[str, str]
    ) -> dict[str, str]:
        """Return which streams are read of which nothing was known; refuse another than known."""
        found = identities_of(self._plan, streams)
        if found == known:
            return {}
        check_identities(self._plan, known, found)
        return {name: one for name, one in found.items() if name not in known}

    @property
    def patterns(self) -> dict[str, str]:
        """The pattern of each input that has one, by the name of the input."""
        return self._inputs.patterns

    def input_streams(self) -> dict[str, str]:
        """Return the stream of each input operator, and of what comes from another part."""
        return self._plan.stream_of

    def ends(self) -> dict[str, list[int]]:
        """Return the next offset of each partition of each input stream."""
        return self._inputs.ends(self._plan, open_streams(self._plan, self._bus))

    def lags(self) -> dict[tuple[str, int], int]:
        """Return how many rows lie before each partition of each input now."""
        inputs, ends = self.state.inputs, self.ends()  # so that it is never too low
        return {
            (name, partition): lag
            for name, stream in self.input_streams().items()
            for partition, lag in enumerate(
                partition_lags(inputs.get(name, {}), ends.get(stream, ()))
            )
        }

    def wall_deadline(self) -> int | None:
        """Return the wall clock at which a timer is due although no input comes, ms."""
        return next_wall_deadline(self.state)

    def replay(self, recorded: EpochPlan) -> None:
        """Let an epoch be what it was when it was recorded, once it is the next; sinks get none."""
        self._recorded = recorded
        self.receivers = NoSinks(self._plan, self._storage, self._clock)

    def advance(self, *, force: bool = False) -> EpochSummary | None:
        """Run one epoch, if there is anything to do.

        Args:
            force: run every task even if nothing is due.

        Returns:
            What was done; ``None`` when there was nothing to do or the job has ended.

        Raises:
            NotOwnerError: a newer driver has taken over; stop.
            UnavailableError: slots could not be brought to their stores; try again.
            ReceiverAwayError: a sink does not answer. The epoch is committed, and waits for it;
                the next call passes it on first.
            InvalidInputError: the user's code or data; nothing of the epoch is visible.
        """
        done = self._executor.execute(force=force)
        return None if done is None else self._summed_up(done)

    def _summed_up(self, done: ExecutedEpoch) -> EpochSummary:
        run, timings, state = done.run, step_times(done.marks), self._writer.state
        self.members.committed(run.context, state)
        self.event_log.ran(run.observed.slots, state)
        self.host_commands.committed(run)
        self._max_rows = self._limits.adapt(self._max_rows, run.rows_read(), run.overlay_bytes)
        timings["total"] = round((self._clock.monotonic() - done.marks[0][1]) * 1000, 2)
        lag = rows_behind(self._plan, state, run.ends)
        size = self._sizes.total(state.tasks)
        summary = EpochSummary.of(run, state, lag, done.rows, timings, size)
        for hook in self._hooks:
            summary = hook.summed_up(summary)
        return summary

    def plan_epoch(self, *, force: bool) -> EpochRun | None:
        """Plan an epoch over what there is by now; ``None`` when there is nothing to do."""
        state = self._writer.state
        if state.ended:
            if self._inputs.shown is not None:
                streams = open_streams(self._plan, self._bus)
                self._inputs.shown.show(self._plan, state, streams, is_idle=True)
            self._inputs.pins.release(self._plan, self._writer.fence)
            return None
        found = self._inputs.replanned(self._plan, state)
        if found is not None:
            self._follow_patterns(*found)
            state = self._writer.state
        now = self._clock.now_ms()
        if self._time.is_reported is (self._clock.doubt is None):
            self._time.report()
        streams = open_streams(self._plan, self._bus)
        self._inputs.pins.keep(self._plan, state, streams, self._writer.fence)
        force = force or self.host_commands.wants_all
        recorded = self._recorded
        if recorded is not None and recorded.epoch == state.epoch + 1:
            known = self._slots, self.generation, self.plan_digest
            return self._hooked(recorded.run(self._plan, state, *known))
        ends = self.seen_ends = self._inputs.ends(self._plan, streams)
        self._plan = self._inputs.widened(self._plan, ends)
        identities = self._new_identities(streams, state.identities)
        check_ends(self._plan, state, ends)
        added = self._inputs.added(self._plan, state, ends)
        is_plain = self._inputs.shown is None  # all inputs are of the bus
        jumps = [] if is_plain else jumps_past_expired(self._plan, state, streams, ends)
        added = positions_after(jumps, state, added) if jumps else added
        state = with_positions(state, added)
        is_full = sum(map(attrgetter("waiting"), state.tasks.values())) > self._limits.max_waiting
        order = self._limits.order
        ranges = [] if is_full else plan_ranges(self._plan, state, ends, self._max_rows, order)
        if ranges:
            check_retained(self._plan, ranges, streams)
        ended = not ranges and has_read_all(self._plan, state)
        if ended:
            ended = all(hook.has_read_all(self._plan, state) for hook in self._hooks)
        due = next_wall_deadline(state)
        is_due = ranges or jumps or ended or force or (due is not None and due <= now)
        if not is_due and self._runner.has_changed():
            self.locate_slots(MisplacedError("slots have left or joined"))
        if self._inputs.shown is not None:
            self._inputs.shown.show(self._plan, state, streams, is_idle=not is_due)
        if not is_due and not self.members.needs_placement:
            return None
        run = EpochRun(
            self._plan,
            state,
            self._slots,
            ranges,
            self._writer.generation,
            self.plan_digest,
            max(now, state.time_ms),
            ended=ended,
            all_tasks=force,
            tables=table_offsets(self._plan, state, streams),
            ends=ends,
            rested=resting(streams, ends),
            identities=identities,
            inputs=added,
            operators=expired_counts(jumps) if jumps else {},
            read_ms=int(self._limits.timeout_s * 1000),
            kept_from=self._kept.first_of(state.epoch + 1, state.kept_from),
            max_bytes=self._limits.max_bytes,
            standby_copies=self._limits.standby_copies,
            context=self.members.placement_context(state),
            token=secrets.token_hex(16) if self._stays_on_hosts else "",
        )
        run = self._hooked(run)
        for jump in jumps:
            self.notify(jump.text)
        return run if is_due or self.members.wants(run.placing) else None

    def _hooked(self, run: EpochRun) -> EpochRun:
        for hook in self._hooks:
            run = hook.planned(run)
        return run

    def publish(self) -> int:
        """Publish the outputs of the last committed epoch, unless that was done; rows."""
        state, noted = self._writer.state, self.members.noted
        is_published = self._published == state.digest
        if not is_published:
            for hook in self._hooks:
                hook.observe(state)
            self._kept.observe(state)
        if noted or not is_published:
            self.event_log.observe(state, noted)
        if is_published:
            return 0
        root, fence, inner = self._storage.root, self._writer.fence, set[str]()
        with ExitStack() as published:
            for hook in self._hooks:
                inner |= published.enter_context(hook.publishing(state, self._plan, fence))
            rows = publish_outputs(state, self._bus, root, fence, inner)
        rows += self.receivers.commit(state, self._share)
        self._published = state.digest
        return rows

    def _share(self, parts: Sequence[SinkPart]) -> bool:
        """Have the slots that are known pass on files of the last committed epoch; see ``commit``.

        What fails there, and a newer driver, is met again by the receiver of this process.
        """
        slots, state = self.members.slots, self._writer.state
        if not slots:
            return False
        shares: dict[int, list[ShareOrder]] = {}
        for number, part in enumerate(parts):
            slot = slots[number % len(slots)].number
            shares.setdefault(slot, []).append(ShareOrder(number, part))
        orders = [
            SlotOrder(
                state.job,
                state.lineage,
                self.generation,
                state.epoch,
                0,
                slot,
                0,
                self.plan_digest,
                origin=state.origin or state.lineage,
                shares=mine,
            )
            for slot, mine in sorted(shares.items())
        ]
        try:
            reports = self._runner.run(orders)
        except HeadraceError:
            return False
        return {one.slot for one in reports if one.error is None and not one.misplaced} == {*shares}

    def sweep_epoch(self, run: EpochRun) -> None:
        """Remove what an epoch leaves over, now and then also what no epoch names any more."""
        for files in run.exchange.values():
            for file in files:
                if not file.path.startswith(ON_HOST):  # else the host removes it
                    self._storage.files.remove(self._storage.root / file.path)
        state = self._writer.state
        if state.ended:
            self._inputs.pins.release(self._plan, self._writer.fence)
        is_due = run.state.epoch // SWEEP_EVERY != state.epoch // SWEEP_EVERY
        if is_due or state.ended:
            self._sweep()
            if self._writer.is_newest:
                for hook in self._hooks:
                    hook.swept(state, self._plan, self._writer.fence)

    def _sweep(self) -> None:
        if self._writer.is_newest:
            named = self._kept.files(self.state) | self.state.merging()
            named.update(*[hook.pinned() for hook in self._hooks])
            over, finished = self.state.ended, self.state.epoch - self._writer.is_half
            self._storage.sweep(finished, self.generation, named, is_over=over)
