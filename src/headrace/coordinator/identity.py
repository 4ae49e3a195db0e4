"""Who a host is to its jobs: the identity of its state directory."""

from __future__ import annotations

from pathlib import Path

from headrace.clock import Clock
from headrace.files import Files


def host_identity(state_dir: Path, clock: Clock, files: Files) -> str:
    """Return the identity of a host's state directory, made at its first use.

    What has to be found again is the disk with the stores, not the machine's name.
    """
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = state_dir / "host-id"
    if not path.exists():
        files.publish(path, clock.new_id().encode(), clock.new_id())
    return files.read(path).decode()
