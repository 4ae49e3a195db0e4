"""Begins a job from a savepoint: another one, or the same one after a reset.

1. Every file of the savepoint is read and compared. 2. Where the job has several parts, a note says
what is being done. 3. Internal streams are made, with the rows that waited in them. 4. The graph is
compared with the state. 5. Files are linked, or copied, under the names they had, which are unique
for all time. 6. Of each part, a base manifest begins a lineage. 7. The note goes. Before the first
manifest there is no job; one with a note does not start until it is begun from a savepoint again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.copying import FileCopier, named_files
from headrace.coordinator.backup.places import newest_of, places
from headrace.coordinator.catalog import save_catalog
from headrace.coordinator.changes.rescaling import rescaled
from headrace.coordinator.changes.resetting import remove_streams, unfinished
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.creation import check_graph, task_counts
from headrace.coordinator.deploy import make_plan, open_copier
from headrace.coordinator.feeds import create_feeds
from headrace.coordinator.history import load_state
from headrace.coordinator.lineages import begin_lineage
from headrace.coordinator.manifest import JobState
from headrace.coordinator.parts import SAVEPOINT, UNFINISHED, part_folders
from headrace.coordinator.reign import Reign
from headrace.coordinator.savepoints.form import SavedPart, Savepoint, part_folder, read_savepoint
from headrace.coordinator.savepoints.renaming import renamed
from headrace.coordinator.savepoints.verifying import check_inputs, verify_files
from headrace.coordinator.savepoints.waiting import restore_streams, stream_names
from headrace.coordinator.storage import DriverLock, JobStorage
from headrace.errors import HeadraceError, InvalidInputError, PartsError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.operators import JobGraph
from headrace.plan.parts import split
from headrace.plan.recounting import with_task_counts
from headrace.plan.stages import JobPlan


@dataclass(frozen=True)
class Beginning:
    """Begins one job from savepoints.

    Args:
        graph: of the job, under the name that it is to have.
        settings: of the run.
        bus: its inputs and outputs.
        files: the file system.
        clock: time and names.
    """

    graph: JobGraph
    settings: Settings
    bus: Bus
    files: Files
    clock: Clock

    @property
    def _root(self) -> Path:
        return places(self.settings, self.graph.name).storage

    def begin(self, folder: Path) -> list[JobState]:
        """Make the job what its first driver goes on from.

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
        with DriverLock(self._root, self.graph.name, self.clock):
            self._check_absent(saved)
            check_inputs(saved, self.bus)
            if len(saved.parts) == 1 and not saved.streams:
                return self._made(folder, saved)
            with unfinished(self._root, SAVEPOINT, self.files, self.clock):
                return self._in_parts(folder, saved)

    def _check_absent(self, saved: Savepoint) -> None:
        job = self.graph.name
        if (self._root / UNFINISHED).exists():
            what = self.files.read(self._root / UNFINISHED).decode()
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
                "state: leave --from-savepoint out to go on with it, give another name with --as, "
                f"or begin anew with: headrace jobs reset {job}",
                job=job,
            )

    def _held(self) -> dict[str, JobState]:
        """Return the states of the parts that are there."""
        found: dict[str, JobState] = {}
        newest = newest_of(self.settings, self.graph.name)  # whatever it was run with
        for root in (newest, *part_folders(self.settings, self.graph.name)):
            if (root / "manifests").is_dir():
                state = load_state(FileCommitLog(root, self.files, self.clock))
                if state is not None:
                    found[root.name] = state
        return found

    def _in_parts(self, folder: Path, saved: Savepoint) -> list[JobState]:
        names = stream_names(saved, self.graph.name)
        remove_streams(names, self.bus)
        restore_streams(folder, saved, self.graph.name, self.bus)
        fault("savepoint.streams_made")
        try:
            return self._made(folder, saved)
        except HeadraceError:
            if not any(state.fingerprint for state in self._held().values()):
                remove_streams(names, self.bus)
                self.files.remove(self._root / UNFINISHED)
            raise

    def _made(self, folder: Path, saved: Savepoint) -> list[JobState]:
        plans = self._plans(saved)
        fitted = [self._fitted(part, plans, saved.job) for part in saved.parts]
        for number, part in enumerate(fitted):
            self._bring(folder / part_folder(number), part)
        fault("savepoint.files_brought")
        return [self._publish(part, saved.generation) for part in fitted]

    def _plans(self, saved: Savepoint) -> dict[str, JobPlan]:
        """Return the plan of each part, by its name."""
        groups = {"key_groups": saved.parts[0].state.key_groups}
        job = self.settings.job.model_copy(update=groups)
        settings = self.settings.model_copy(update={"job": job})
        plans = {one.job: one for one in split(make_plan(self.graph, self.bus, settings))}
        wanted = {self.graph.name + part.suffix for part in saved.parts}
        if wanted != set(plans):
            raise PartsError(
                f"savepoint {saved.name!r} has the parts {sorted(wanted)}, and the graph of job "
                f'{self.graph.name!r} is cut into {sorted(plans)}: via="bus" of a partition_by has '
                "changed; change it back",
                job=self.graph.name,
            )
        return plans

    def _fitted(self, part: SavedPart, plans: Mapping[str, JobPlan], job: str) -> SavedPart:
        """Return a part under the job's name, with as many tasks as it is to have.

        Raises:
            InvalidInputError: the graph does not fit the state.
        """
        part = renamed(part, job, self.graph.name)
        state, plan = part.state, plans[part.state.job]
        if state.rescaled_at >= 0:
            plan = with_task_counts(plan, state.task_counts)
        counts = task_counts(plan)
        if set(counts) == set(state.task_counts) and counts != state.task_counts:
            state = rescaled(state, counts, state.lineage)
            state = structs.replace(state, rescaled_at=-1)  # it has as many as the settings say
        create_feeds(plan, self.bus)
        check_graph(state, plan, part.catalog)
        return structs.replace(part, state=state)

    def _bring(self, source: Path, part: SavedPart) -> None:
        """Link or copy the files of a part to its storage; each is there whole, or not at all."""
        storage = self._storage(part)
        storage.create()
        copier = FileCopier(source, storage.root, self.files, self.clock)
        wanted = named_files(part.state)
        for file in wanted:
            target = storage.root / file.path
            with suppress(FileExistsError):
                try:
                    os.link(source / file.path, target)
                except FileExistsError:
                    raise
                except OSError:  # another file system
                    copier.copy(file)
            fault("savepoint.file_linked")
        for folder in {(storage.root / file.path).parent for file in wanted}:
            self.files.sync_folder(folder)

    def _storage(self, part: SavedPart) -> JobStorage:
        return JobStorage(places(self.settings, part.state.job).storage, self.files)

    def _publish(self, part: SavedPart, above: int) -> JobState:
        """Commit what a part begins with, above all generations that its files are of."""
        job, storage = part.state.job, self._storage(part)
        copier = open_copier(self.settings, job, self.clock, self.files)
        log = FileCommitLog(storage.root, self.files, self.clock)
        reign = Reign(job, log, self.clock, copier)
        reign.begin(above)
        unique = self.clock.new_id()
        save_catalog(storage.root, reign.generation, part.catalog, self.files, unique)
        lineage = self.clock.new_id()
        while not self._commit(reign, part.state, lineage):
            pass
        fault("savepoint.begun")
        if copier is not None:
            copier.finish(reign.state)
        return reign.state

    def _commit(self, reign: Reign, state: JobState, lineage: str) -> bool:
        held = reign.state if reign.has_begun else None
        last = max(state.epoch, -1 if held is None else held.epoch)
        begun = structs.replace(
            begin_lineage(state, lineage),
            origin="" if held is None else held.origin or held.lineage,
            epoch=last + 1,
            kept_from=last + 1,
            generation=reign.generation,
            durability=self.settings.state.durability,
            until=None,
        )
        return reign.create(begun) if held is None else reign.publish_next(begun)
