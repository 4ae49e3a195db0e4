"""The readers of all parts of a job, and which of them has a store."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.places import newest_of
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.parts import part_folders
from headrace.coordinator.storage import check_job_name
from headrace.errors import InvalidInputError
from headrace.files import Files


def part_readers(settings: Settings, job: str, clock: Clock) -> list[JobReader]:
    """Return the readers of a job's parts, the first part's first; most jobs have one.

    Raises:
        InvalidInputError: there is no such job; names those that are there.
    """
    root = newest_of(settings, check_job_name(job))
    return [JobReader(root, job, Files(sync=False), clock), *other_parts(settings, job, clock)]


def other_parts(settings: Settings, job: str, clock: Clock) -> list[JobReader]:
    """Return the readers of the parts of a job but for the first."""
    folders = part_folders(settings, job)
    return [JobReader(folder, folder.name, Files(sync=False), clock) for folder in folders]


def reader_of(readers: Sequence[JobReader], store: str) -> JobReader:
    """Return the reader of the part that has a store.

    Raises:
        InvalidInputError: no part has it, or several do; names what is there.
    """
    if len(readers) == 1:
        return readers[0]  # which says itself what it does not have
    stores = {reader: reader.catalog(reader.state()).stores for reader in readers}
    for matches in (str.__eq__, lambda name, wanted: name.endswith(f".{wanted}")):
        found = [
            (reader, entry.name)
            for reader, entries in stores.items()
            for entry in entries
            if matches(entry.name, store)
        ]
        if len(found) == 1:
            return found[0][0]
        if found:
            break
    job = readers[0].job
    there = [name for _, name in found] or [e.name for own in stores.values() for e in own]
    raise InvalidInputError(
        f"job {job!r} has {'several stores' if found else 'no store'} {store!r}; it has "
        f"{', '.join(there) or 'none'}",
        job=job,
    )
