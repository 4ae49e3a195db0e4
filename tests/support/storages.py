"""Object storages, and homes whose jobs are in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.homes import Files
from tests.support.processes import REAL_CLOCK, command
from tests.support.runs import World

from headrace import objects, remote
from headrace.cloud.storage import CloudStorage
from headrace.files import new_name
from headrace.runtime.host_storage import HostStorage, ServedStorage, StorageServer

__all__ = [
    "StoredWorld",
    "WaitingBucket",
    "bucket_of",
    "caching",
    "exchange_servers",
    "forget_storages",
    "get_object",
    "give_up_soon",
    "names_below",
    "new_name",
    "objects_of",
    "put_object",
    "remove_object",
    "waiting_bucket",
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


def get_object(address: str) -> bytes:
    """Return the content of the object at an address."""
    content: bytes = bucket_of(address).get(objects.Address.read(address).prefix)
    return content


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


class WaitingBucket(HostStorage):
    """A bucket in a folder, which can wait before it creates an object of a job's files."""

    def __init__(self, served: ServedStorage) -> None:
        super().__init__(served, REAL_CLOCK)
        self.wait: Callable[[], None] = lambda: None
        self.written = Counter[str]()

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self.written[Path(name).name] += 1

    def put_new(self, name: str, data: bytes) -> bool:
        if Path(name).parent.name in {"segment", "snapshot", "output"}:
            self.wait()
        return super().put_new(name, data)


@contextmanager
def waiting_bucket(folder: Path) -> Iterator[WaitingBucket]:
    """Let this process find one at ``s3://waiting/jobs``."""
    place = folder / "jobs"
    place.mkdir(parents=True)
    with StorageServer(place, "waiting", "127.0.0.1", Files(sync=False)) as server:
        found = WaitingBucket(server.served)
        objects.provide("s3", "waiting", found)
        yield found


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
    opened = partial(CloudStorage, retry_timeout_s=0.3)
    monkeypatch.setattr("headrace.objects.plugins.load", lambda *_: opened)
    forget_storages()


def exchange_servers(processes: Iterable[int]) -> list[int]:
    """Return those processes that serve exchange files to other hosts."""
    return [pid for pid in processes if "headrace.runtime.exchange_server" in command(pid)]
