"""Opens what is known of a job for the ``state`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.options import settings_of

if TYPE_CHECKING:
    from headrace.coordinator.inspection.inspection import JobReader


def open_readers(job: str, home: Path | None) -> list[JobReader]:
    """Return the readers of all parts of a job below a home; most jobs have one."""
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.part_readers import part_readers

    return part_readers(settings_of(home), job, SystemClock())


def open_reader(job: str, store: str, home: Path | None) -> JobReader:
    """Return the reader of the part of a job that has a store, below a home."""
    from headrace.coordinator.inspection.part_readers import reader_of

    return reader_of(open_readers(job, home), store)
