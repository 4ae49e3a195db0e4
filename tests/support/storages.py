"""Object storages, and homes whose jobs are in one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.processes import command
from tests.support.runs import World

from headrace import objects
from headrace.files import new_name

__all__ = ["StoredWorld", "exchange_servers", "forget_storages", "new_name"]


def forget_storages() -> None:
    """Have this process open each storage again, by what its environment says then."""
    objects.forget_storages()


class StoredWorld(World):
    """A world whose jobs are in an object storage; its streams are on disk.

    Args:
        home: its folder, with the streams; no other part of it is shared.
        address: of the storage.
        sets: settings of all runs; ``bus.address`` puts the streams elsewhere.
    """

    def __init__(self, home: Path, address: str, *sets: str) -> None:
        own = home.parent / "reader"
        super().__init__(home, sets=(f"storage.address={address}", f"state.dir={own}", *sets))

    def job_dir(self, job: str) -> Path:
        """Return the path that stands for a job's storage in this process."""
        return self.settings().jobs_dir / job


def exchange_servers(processes: Iterable[int]) -> list[int]:
    """Return those processes that serve exchange files to other hosts."""
    return [pid for pid in processes if "headrace.runtime.exchange_server" in command(pid)]
