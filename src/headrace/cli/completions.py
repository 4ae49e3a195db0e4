"""What a shell offers at the tabulator key: names of streams, jobs and settings.

Called at each key press, so nothing may be slow, and nothing may fail.
"""

from __future__ import annotations

import os
from pathlib import Path


def _home() -> Path:
    return Path(os.environ.get("HEADRACE_HOME") or ".headrace").expanduser()


def _folders(parent: Path, begin: str) -> list[str]:
    try:
        return sorted(p.name for p in parent.iterdir() if p.is_dir() and p.name.startswith(begin))
    except OSError:
        return []


def stream_names(incomplete: str) -> list[str]:
    """Return the streams of the home in use that begin so."""
    return _folders(_home() / "bus" / "streams", incomplete)


def job_names(incomplete: str) -> list[str]:
    """Return the jobs of the home in use that begin so."""
    return _folders(_home() / "jobs", incomplete)


def setting_names(incomplete: str) -> list[str]:
    """Return the settings that begin so."""
    from headrace.config import setting_keys

    return [key for key in setting_keys() if key.startswith(incomplete)]
