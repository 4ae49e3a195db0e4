"""Saves a job as its driver, or nobody, drives it: for commands and the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.places import newest_of, places
from headrace.coordinator.deploy import open_copier
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.coordinator.savepoints.cutting import asked, stopped
from headrace.coordinator.savepoints.form import Savepoint
from headrace.coordinator.savepoints.places import savepoints_dir
from headrace.coordinator.savepoints.taking import SavepointWriter
from headrace.coordinator.storage import DriverLock
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.files import Files


@dataclass(frozen=True)
class JobSaver:
    """Makes savepoints of one job.

    Args:
        settings: with the durability that the job was last run with.
        job: its name.
        bus: with its streams.
        files: the file system.
        clock: time and names.
        folder: that savepoints are put into; the job's own when left out.
        tell: called with a line when something is wrong although it goes on.
    """

    settings: Settings
    job: str
    bus: Bus
    files: Files
    clock: Clock
    folder: Path | None = None
    tell: Callable[[str], None] = lambda line: None

    @property
    def _writer(self) -> SavepointWriter:
        readers = part_readers(self.settings, self.job, self.clock)
        folder = self.folder or savepoints_dir(self.settings, self.job)
        return SavepointWriter(readers, self.bus, folder, self.files, self.clock)

    def save(self, name: str | None, wait_s: float) -> tuple[Path, Savepoint]:
        """Save the job: by its driver's word where one runs on this host, else right away.

        Args:
            name: of the savepoint; made of the time when left out.
            wait_s: how long a driver may take to answer: its epoch may be long.

        Returns:
            The folder of the savepoint, and what it says.

        Raises:
            InvalidInputError: there is no such job, or nothing could go on from it.
            UnavailableError: the driver does not answer.
        """
        try:
            lock = DriverLock(places(self.settings, self.job).storage, self.job, self.clock)
        except NotOwnerError:
            return self.save_running(name, wait_s)
        with lock:
            return self._save_stopped(name)

    def save_running(self, name: str | None, wait_s: float) -> tuple[Path, Savepoint]:
        """Save the job, whose driver runs; arguments and errors as of ``save``."""
        return self._writer.write(asked(self.files, self.clock, wait_s), name)

    def _save_stopped(self, name: str | None) -> tuple[Path, Savepoint]:
        storage, newest = (
            places(self.settings, self.job).storage,
            newest_of(self.settings, self.job),
        )
        if storage != newest:
            raise InvalidInputError(
                f"this host has no storage of job {self.job!r}, only its copy in {newest}; start "
                "it here once, which brings it back, or save it where it ran",
                job=self.job,
            )
        writer = self._writer
        copier = open_copier(self.settings, self.job, self.clock, self.files, self.tell)
        return writer.write(stopped(self.bus, self.files, self.clock, copier), name)
