"""Object storages, and homes whose jobs are in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import command
from tests.support.runs import World

from headrace import objects, remote
from headrace.cloud.storage import CloudStorage
from headrace.files import new_name

__all__ = [
    "StoredWorld",
    "bucket_of",
    "caching",
    "exchange_servers",
    "forget_storages",
    "give_up_soon",
    "names_below",
    "new_name",
    "objects_of",
    "put_object",
    "remove_object",
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


def put_object(address: str, data: bytes) -> None:
    """Put an object at an address."""
    bucket_of(address).put(objects.Address.read(address).prefix, data)


def remove_object(address: str) -> None:
    """Remove the object at an address, if it is there."""
    bucket_of(address).delete(objects.Address.read(address).prefix)


def names_below(address: str) -> list[str]:
    """Return the names of all objects below an address, without it."""
    prefix = f"{objects.Address.read(address).prefix}/"
    return [name.removeprefix(prefix) for name in objects_of(address)]


def objects_of(address: str) -> list[str]:
    """Return the names of all objects below an address."""
    folder = objects.Address.read(address).prefix
    return [one.name for one in bucket_of(address).objects(folder)]


@contextmanager
def caching(most_bytes: int) -> Iterator[None]:
    """Have this process keep so many bytes of objects on disk, in a block."""
    before = remote.cache_bytes()
    remote.bound_caches(most_bytes)
    try:
        yield
    finally:
        remote.bound_caches(before)


def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process try a call of a storage for a moment, in place of half a minute."""
    opened = partial(CloudStorage, patience_s=0.3)
    monkeypatch.setattr("headrace.objects.plugins.load", lambda *_: opened)
    forget_storages()


def exchange_servers(processes: Iterable[int]) -> list[int]:
    """Return those processes that serve exchange files to other hosts."""
    return [pid for pid in processes if "headrace.runtime.exchange_server" in command(pid)]
