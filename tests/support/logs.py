"""Commit logs of tests, for processes that need nothing else of them."""

from __future__ import annotations

from pathlib import Path

from headrace.coordinator.commit_log import CommitLog, FileCommitLog
from headrace.files import Files


def open_log(location: str) -> CommitLog:
    """Return the log at a path of this host, or at one that stands for a bucket."""
    return FileCommitLog(Path(location), Files(sync=False))
