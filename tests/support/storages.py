"""Object storages, and homes whose jobs are in one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.processes import command
from tests.support.runs import World

from headrace import objects
from headrace.files import new_name

__all__ = [
    "StoredWorld",
    "bucket_of",
    "exchange_servers",
    "forget_storages",
    "new_name",
    "objects_of",
]


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


def bucket_of(address: str) -> Any:
    """Return the object storage that an address is in."""
    found = objects.Address.read(address)
    return objects.open_storage(found.scheme, found.bucket)


def objects_of(address: str) -> list[str]:
    """Return the names of all objects below an address."""
    folder = objects.Address.read(address).prefix
    return [one.name for one in bucket_of(address).objects(folder)]


def exchange_servers(processes: Iterable[int]) -> list[int]:
    """Return those processes that serve exchange files to other hosts."""
    return [pid for pid in processes if "headrace.runtime.exchange_server" in command(pid)]
