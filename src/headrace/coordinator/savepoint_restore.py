"""Begins a job from a savepoint: another one, or the same one after a reset.

1. Every file of the savepoint is read and compared. 2. Where the job has several parts, a
generation of each is taken, and a note says what is being done. 3. Internal streams are made,
with the rows that waited in them. 4. The graph is compared with the state; of a job with one
part the generation is taken here. 5. Files are linked, or copied, under the names they had,
which are unique for all time. 6. Of each part, a base manifest begins a lineage. 7. The note
goes. Before the first manifest there is no job; one with a note does not start until it is begun
from a savepoint again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from msgspec import structs

from headrace.bus import Bus, Fence, StreamSpec
from headrace.coordinator.backup import backup_hooks
from headrace.coordinator.bindings import with_placed_outputs
from headrace.coordinator.bounded_runs import bounded_bus
from headrace.coordinator.catalog import save_catalog
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.deployment import make_plan
from headrace.coordinator.file_copier import FileCopier, named_files
from headrace.coordinator.inputs import check_graph, task_counts
from headrace.coordinator.internal_streams import create_internal_streams
from headrace.coordinator.job_parts import SAVEPOINT, UNFINISHED, JobGeneration, part_folders
from headrace.coordinator.job_storage import (
    DriverLock,
    JobContext,
    JobStorage,
)
from headrace.coordinator.manifest import JobState, begin_lineage
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.coordinator.operations.reset import remove_streams, unfinished_note
from headrace.coordinator.operations.savepoint_format import (
    SavedPart,
    SavedStream,
    Savepoint,
    damaged_savepoint,
    part_folder,
    read_savepoint,
    renamed_part,
)
from headrace.coordinator.operations.savepoint_writer import size_and_checksum
from headrace.coordinator.rescale import rescaled_state
from headrace.errors import HeadraceError, InvalidInputError, PartsError
from headrace.faults import fault
from headrace.fencing import FencedFiles
from headrace.files import local_copy
from headrace.graph.operators import JobGraph
from headrace.plan.parts import carriers_of, internal_stream_name, split_parts
from headrace.plan.stages import JobPlan, with_task_counts
from headrace.remote import is_remote
from headrace.sources.bounded_bus import sources_of


def verify_files(folder: Path, saved: Savepoint) -> None:
    """Read every file of a savepoint.

    Raises:
        CorruptDataError: one is missing, or differs from what was written.
    """
    for name, file in saved.members():
        path = folder / name
        is_there = is_remote(path) or (path.is_file() and not path.is_symlink())
        try:
            size, checksum = size_and_checksum(path) if is_there else (-1, 0)
        except FileNotFoundError:
            size = -1
        if size < 0:
            raise damaged_savepoint(folder, f"file {name} is missing")
        if size != file.size:
            raise damaged_savepoint(
                folder, f"file {name} has {size:,} bytes, expected {file.size:,}"
            )
        if checksum != file.checksum:
            raise damaged_savepoint(folder, f"file {name} does not match its checksum")


def check_inputs(saved: Savepoint, bus: Bus) -> None:
    """Make sure that the streams hold what is to be read next.

    Raises:
        InvalidInputError: one is not there, begins later, or ends before.
    """
    there = {*bus.names(), *bus.aliases()}
    for part in saved.parts:
        for operator, positions in part.catalog.own(part.state.inputs).items():
            name = part.catalog.inputs.get(operator, operator)
            if name not in there:
                raise InvalidInputError(
                    f"savepoint {saved.name!r} continues in stream {name!r}, which is not on the "
                    "bus",
                    stream=name,
                )
            begins, ends = bus.stream(name).begins(), bus.stream(name).ends()
            for partition, at in positions.items():
                begin, end = (
                    (begins[partition], ends[partition]) if partition < len(begins) else (0, 0)
                )
                if not begin <= at.next_offset <= end:
                    raise InvalidInputError(
                        f"savepoint {saved.name!r} continues at offset {at.next_offset} of stream "
                        f"{name!r}, partition {partition}, which holds {begin} to {end}: rows were "
                        "dropped, or it is another stream of that name; use a later savepoint",
                        stream=name,
                        partition=partition,
                    )


def check_logs(saved: Savepoint, bus: Bus) -> None:
    """Make sure that positions in topics are used for these topics, and for nothing else.

    Args:
        saved: the savepoint.
        bus: as the job has it that starts.

    Raises:
        InvalidInputError: an input is another topic than that of the savepoint, or a stream.
    """
    said = {n: one.said for n, one in sources_of(bus).items() if n in saved.logs or not one.pattern}
    for name in sorted({*saved.logs, *said}):
        before, wanted = saved.logs.get(name, "the stream"), said.get(name, "the stream")
        if before != wanted:
            move = (
                f"give its address in the code, or as setting inputs.{name}.address"
                if name in saved.logs
                else f"leave inputs.{name} out of the settings"
            )
            raise InvalidInputError(
                f"savepoint {saved.name!r} has the positions of input {name!r} in {before}; found "
                f"{wanted}: {move}",
                stream=name,
            )


_UNREADABLE_ROWS = (pa.ArrowException, OSError, ValueError, InvalidInputError)


def stream_names(saved: Savepoint, job: str) -> list[str]:
    """Return the names of the internal streams that a job of this name has."""
    return [internal_stream_name(job, one.operator) for one in saved.streams]


def restore_streams(
    folder: Path, saved: Savepoint, graph: JobGraph, bus: Bus, fence: Fence
) -> None:
    """Make the internal streams of a job, which are not there; their rows begin at offset 0.

    Raises:
        CorruptDataError: a file of the savepoint is not what it should be.
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    carriers = carriers_of(graph)
    for one in saved.streams:
        name = internal_stream_name(graph.name, one.operator)
        try:
            _restore(folder, one, name, carriers.get(name, ""), bus, fence)
        except _UNREADABLE_ROWS as error:
            raise damaged_savepoint(
                folder, f"rows of {one.operator!r} cannot be used: {error}"
            ) from error


def _restore(
    folder: Path, saved: SavedStream, name: str, address: str, bus: Bus, fence: Fence
) -> None:
    schema = pa.ipc.open_stream(local_copy(folder / saved.files[0].path).read_bytes()).schema
    spec = StreamSpec(name, len(saved.files), schema, address=address)
    stream = bus.create(spec, fence=fence)
    with stream.together():
        for partition, file in enumerate(saved.files):
            for batch in _batches(folder / file.path):
                stream.append(partition, batch, fence=fence)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(pa.memory_map(str(local_copy(path)))) as reader:
        for batch in reader:
            batch.validate(full=True)  # what points outside of its buffers would be read there
            yield batch


@dataclass(frozen=True)
class SavepointRestore:
    """Begins one job from savepoints.

    Args:
        graph: of the job, under the name that it is to have.
        context: of the job under that name.
    """

    graph: JobGraph
    context: JobContext

    @property
    def _root(self) -> Path:
        return self.context.storage

    def begin(self, folder: Path) -> list[JobState]:
        """Make the job what its first driver continues from.

        Args:
            folder: of the savepoint.

        Returns:
            The state of each part.

        Raises:
            CorruptDataError: the savepoint is damaged, or not whole.
            InvalidInputError: the job exists; its inputs no longer hold what is to be read; or
                its graph does not fit. There is no job then, or it is as before.
            NotOwnerError: a driver runs the job.
        """
        saved = read_savepoint(folder)
        verify_files(folder, saved)
        fault("savepoint.verified")
        with DriverLock(self._root, self.graph.name, self.context.clock):
            self._check_absent(saved)
            context = replace(self.context, bus=bounded_bus(self.graph, self.context))
            check_logs(saved, context.bus)
            check_inputs(saved, context.bus)
            return replace(self, context=context).begin_checked(folder, saved)

    def begin_checked(self, folder: Path, saved: Savepoint) -> list[JobState]:
        """Do the same for a savepoint that was verified, with what stands for the job's inputs."""
        if len(saved.parts) == 1 and not saved.streams:
            return self._made(folder, saved)
        writers = self._taken(saved)
        with unfinished_note(writers[0].files, SAVEPOINT):
            return self._in_parts(folder, saved, writers)

    def _check_absent(self, saved: Savepoint) -> None:
        job = self.graph.name
        if self.context.files.exists(self._root / UNFINISHED):
            what = self.context.files.read(self._root / UNFINISHED).decode()
            if what == SAVEPOINT:
                return
            raise PartsError(
                f"a {what} of job {job!r} was not completed; run it again: headrace jobs {what} "
                f"{job}",
                job=job,
            )
        if any(state.fingerprint for state in self._held().values()):
            raise InvalidInputError(
                f"job {job!r} exists, and savepoint {saved.name!r} would take the place of its "
                "state: leave --from-savepoint out to continue with it, give another name with "
                f"--name, or start over with: headrace jobs reset {job}",
                job=job,
            )

    def _held(self) -> dict[str, JobState]:
        """Return the states of the parts that are there."""
        found: dict[str, JobState] = {}
        newest = self.context.newest  # whatever it was run with
        for root in (newest, *part_folders(self.context.settings, self.graph.name)):
            if self.context.files.names(root / "manifests"):
                state = load_state(FileCommitLog(root, self.context.files))
                if state is not None:
                    found[root.name] = state
        return found

    def _taken(self, saved: Savepoint) -> list[FencedManifestWriter]:
        """Begin to drive each part, above all generations that its files are of."""
        names = [self.graph.name + part.suffix for part in saved.parts]
        context = self.context
        at = (self._root.parent, context.bus, context.files, context.clock)
        group = JobGeneration(self.graph.name, *at, names)
        writers = []
        for job in names:
            part = replace(context, job=job)
            JobStorage(part.storage, context.files).create()
            hooks = backup_hooks(part, part.storage)
            log = FileCommitLog(part.storage, context.files)
            writer = FencedManifestWriter(job, log, context.bus, context.clock, hooks, group)
            writer.begin(saved.generation)
            writers.append(writer)
        return writers

    def _in_parts(
        self, folder: Path, saved: Savepoint, writers: Sequence[FencedManifestWriter]
    ) -> list[JobState]:
        names = stream_names(saved, self.graph.name)
        fence = writers[0].fence
        remove_streams(names, self.context.bus, fence)
        placed = with_placed_outputs(self.graph, self.context.settings)
        restore_streams(folder, saved, placed, self.context.bus, fence)
        fault("savepoint.streams_made")
        try:
            return self._made(folder, saved, writers)
        except HeadraceError:
            if not any(state.fingerprint for state in self._held().values()):
                remove_streams(names, self.context.bus, writers[0].fence)
                writers[0].files.remove(self._root / UNFINISHED)
            raise

    def _made(
        self, folder: Path, saved: Savepoint, writers: Sequence[FencedManifestWriter] = ()
    ) -> list[JobState]:
        plans = self._plans(saved)
        fence = writers[0].fence if writers else None
        fitted = [self._fitted(part, plans, saved.job, fence) for part in saved.parts]
        begun = list(zip(fitted, writers or self._taken(saved), strict=True))
        for number, (part, writer) in enumerate(begun):
            self._bring(folder / part_folder(number), part, writer.files)
        fault("savepoint.files_brought")
        return [self._publish(part, writer) for part, writer in begun]

    def _plans(self, saved: Savepoint) -> dict[str, JobPlan]:
        """Return the plan of each part, by its name."""
        groups = saved.parts[0].state.key_groups
        settings, bus = self.context.settings, self.context.bus
        settings = replace(settings, job=replace(settings.job, key_groups=groups))
        plans = {one.job: one for one in split_parts(make_plan(self.graph, bus, settings))}
        wanted = {self.graph.name + part.suffix for part in saved.parts}
        if wanted != set(plans):
            raise PartsError(
                f"savepoint {saved.name!r} has the parts {sorted(wanted)}, and the graph of job "
                f'{self.graph.name!r} is cut into {sorted(plans)}: via="bus" of a partition_by has '
                "changed; change it back",
                job=self.graph.name,
            )
        return plans

    def _fitted(
        self, part: SavedPart, plans: Mapping[str, JobPlan], job: str, fence: Fence | None
    ) -> SavedPart:
        """Return a part under the job's name, with as many tasks as it is to have.

        Raises:
            InvalidInputError: the graph does not fit the state.
        """
        part = renamed_part(part, job, self.graph.name)
        state, plan = part.state, plans[part.state.job]
        if state.rescaled_at >= 0:
            plan = with_task_counts(plan, state.task_counts)
        counts = task_counts(plan)
        if set(counts) == set(state.task_counts) and counts != state.task_counts:
            state = rescaled_state(state, counts, state.lineage)
            state = structs.replace(state, rescaled_at=-1)  # it has as many as the settings say
        create_internal_streams(plan, self.context.bus, fence)
        check_graph(state, plan, part.catalog)
        return structs.replace(part, state=state)

    def _bring(self, source: Path, part: SavedPart, files: FencedFiles) -> None:
        """Link or copy the files of a part to its storage; each is there whole, or not at all."""
        copier = FileCopier(source, files.root, files)
        wanted = named_files(part.state)
        for file in wanted:
            with suppress(FileExistsError):
                try:
                    files.link(source / file.path, files.root / file.path, durable=False)
                except FileExistsError:
                    raise
                except OSError:  # another file system
                    copier.copy(file)
            fault("savepoint.file_linked")
        for folder in {(files.root / file.path).parent for file in wanted}:
            files.sync_folder(folder)

    def _publish(self, part: SavedPart, writer: FencedManifestWriter) -> JobState:
        """Commit what a part begins with."""
        save_catalog(writer.files.root, writer.generation, part.catalog, writer.files)
        lineage = self.context.clock.new_id()
        state = part.state
        state = structs.replace(state, identities=part.catalog.own(state.identities))
        while not self._commit(writer, state, lineage):
            pass
        fault("savepoint.begun")
        writer.finish()
        return writer.state

    def _commit(self, writer: FencedManifestWriter, state: JobState, lineage: str) -> bool:
        held = writer.state if writer.has_begun else None
        last = max(state.epoch, -1 if held is None else held.epoch)
        begun = structs.replace(
            begin_lineage(state, lineage),
            origin="" if held is None else held.origin or held.lineage,
            epoch=last + 1,
            kept_from=last + 1,
            generation=writer.generation,
            durability=self.context.settings.state.durability,
            until=None,
        )
        return writer.create(begun) if held is None else writer.publish_next(begun)
