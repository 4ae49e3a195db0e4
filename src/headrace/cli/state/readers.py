"""Opens what is known of a job for the ``state`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.options import settings_of

if TYPE_CHECKING:
    from headrace.coordinator.inspection.inspection import JobReader


def open_reader(job: str, home: Path | None) -> JobReader:
    """Return the reader of a job below a home."""
    from headrace.clock import SystemClock
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.storage import check_job_name
    from headrace.files import Files

    root = newest_of(settings_of(home), check_job_name(job))
    return JobReader(root, job, Files(sync=False), SystemClock())
