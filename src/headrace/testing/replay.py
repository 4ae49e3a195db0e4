"""What a test driver needs of a recorded epoch, to stand before it in one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.bus import MemoryBus
from headrace.config import JobSettings
from headrace.coordinator.bindings import LoadedFile, broadcast_specs
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deployment import Deployment, deploy
from headrace.coordinator.job_storage import JobContext, JobStorage
from headrace.coordinator.operations.recorder import (
    KEPT_SETTINGS,
    check_names,
    restore_recorded_streams,
    restore_state,
    restored_files,
)
from headrace.coordinator.operations.recording_archive import ArchiveReader, Recording
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.graph.builder import Job
from headrace.graph.operators import JobGraph
from headrace.plan.stages import job_of


class Replay:
    """A recorded epoch whose rows and state are in reach of a driver.

    Args:
        archive: of the recording.
        job: as it is now.
        path: of the archive.

    Raises:
        CorruptDataError: names in it lead out of the job's folder.
        InvalidInputError: it is of another job.
    """

    def __init__(self, archive: ArchiveReader, job: Job, path: Path) -> None:
        self.recording: Recording = archive.recording
        self._tables: Mapping[str, LoadedFile] = {}
        check_names(self.recording, str(path))
        self._origin = str(path)
        recorded = job_of(self.recording.job)
        if recorded != job.name:
            raise InvalidInputError(f"{path} was recorded of job {recorded!r}; found {job.name!r}")

    def options(self) -> dict[str, Any]:
        """Return those of the driver that results depend on.

        Raises:
            CorruptDataError: they are not those that a recording has.
        """
        settings = self.recording.settings
        try:
            own = dict(settings["job"])
            tasks, _ = own.pop("tasks"), own.pop("key_groups")
            overlay = settings["state"]["overlay_bytes"]
            JobSettings(**own, tasks=tasks)
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(str(error)) from error
        if foreign := own.keys() - KEPT_SETTINGS["job"]:
            raise self._foreign(", ".join(sorted(foreign)))
        groups = self.recording.state.key_groups
        named = {"tasks": tasks, "key_groups": groups, "overlay_bytes": overlay}
        return {**named, "job_settings": own}

    def _foreign(self, what: str) -> CorruptDataError:
        return CorruptDataError(
            f"recording {self._origin} cannot be used: it has settings that none has ({what}); "
            "record the epoch again",
            file=self._origin,
        )

    def load(self, archive: ArchiveReader, context: JobContext) -> None:
        """Put rows and state where the driver works.

        Raises:
            CorruptDataError: a member of the archive is damaged.
        """
        assert isinstance(context.bus, MemoryBus)
        restore_recorded_streams(archive, context.bus)
        storage = JobStorage(context.settings.jobs_dir / self.recording.job, context.files)
        restore_state(archive, storage, FileCommitLog(storage.root, context.files))
        self._tables = restored_files(archive)

    def deployed(self, graph: JobGraph, context: JobContext) -> Sequence[Deployment]:
        """Deploy the part that was recorded, with files of broadcast stores as they were."""
        own = {spec.file for spec in broadcast_specs(graph).values() if spec.file is not None}
        tables = self._tables if own <= set(self._tables) else None
        every = deploy(graph, context, tables=tables)
        return [one for one in every if one.plan.job == self.recording.job]

    def prepare(self, coordinator: Coordinator) -> None:
        """Let a driver that is about to start run the epoch as it was."""
        coordinator.replay(self.recording.plan)

    def is_over(self, epoch: int) -> bool:
        """Say whether the epoch is committed."""
        return epoch >= self.recording.epoch
