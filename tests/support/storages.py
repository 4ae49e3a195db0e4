"""Object storages, and homes whose jobs are in one."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import World

from headrace import objects
from headrace.files import new_name

__all__ = ["StoredWorld", "forget_storages", "new_name"]


def forget_storages() -> None:
    """Have this process open each storage again, by what its environment says then."""
    objects.forget_storages()


class StoredWorld(World):
    """A world whose streams are on disk and whose jobs are in an object storage.

    Args:
        home: its folder, with the streams; no other part of it is shared.
        address: of the storage.
    """

    def __init__(self, home: Path, address: str) -> None:
        own = home.parent / "reader"
        super().__init__(home, sets=(f"storage.address={address}", f"state.dir={own}"))

    def job_dir(self, job: str) -> Path:
        """Return the path that stands for a job's storage in this process."""
        return self.settings().jobs_dir / job
