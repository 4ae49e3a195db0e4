"""Object storage: what a job's storage needs of S3, GCS, Azure or HDFS, and nothing more.

``ObjectStorage`` is the contract; ``headrace.testing.object_storage_contract`` has a suite that
checks it. Who implements it is a plug-in, found by the scheme of an address; ``headrace.remote``
puts a job's files there.

An object is written whole, once, under a name; a name is taken by ``put_new`` alone, which one of
all that try wins. What a call has returned from is durable and seen by all calls that begin later.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from headrace import plugins
from headrace.errors import InvalidInputError, UnavailableError

_ADDRESS = re.compile(r"([a-z][a-z0-9]*)://([A-Za-z0-9][A-Za-z0-9._:-]*)(?:/(.*))?")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]*")


class StorageAwayError(UnavailableError, OSError):
    """An object storage does not answer. The epoch is dropped, and the job retries."""

    code = "HR214"
    move = "bring it back; the job continues where it was"


class ObjectInfo(NamedTuple):
    """An object: its name in the bucket, its bytes, and when it was written, s since 1970.

    The time is that of the storage's own clock.
    """

    name: str
    size: int
    written_s: float


class ObjectStorage(ABC):
    """A bucket of objects. Safe for any number of processes and threads.

    Any method raises ``StorageAwayError`` where the storage does not answer in its time, and
    ``InvalidInputError`` where it refuses: no such bucket, or no right to do that.
    """

    @abstractmethod
    def put_new(self, name: str, data: bytes) -> bool:
        """Create an object; False when another's is there, which stays.

        Answers for this very call: where an answer was lost and the call made again, its own
        object of the first try is a success.
        """

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Set the content of an object, which may be there."""

    @abstractmethod
    def put_file(self, name: str, path: Path) -> None:
        """Do as ``put`` with the content of a file, of any size; all of it shows, or nothing."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            FileNotFoundError: it is not there.
        """

    @abstractmethod
    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Return the bytes of an object from ``begin`` up to before ``end``, fewer at its end.

        Raises:
            FileNotFoundError: it is not there.
        """

    @abstractmethod
    def get_file(self, name: str, path: Path) -> None:
        """Write the content of an object to a new file.

        Raises:
            FileNotFoundError: the object is not there.
        """

    @abstractmethod
    def objects(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield all objects below a folder, however deep, in no order; ``""``: all there are."""

    @abstractmethod
    def entries(self, folder: str) -> list[str]:
        """Return the sorted names right below a folder: of objects, and of folders with any."""

    @abstractmethod
    def info(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object; ``None``: it is not there."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object, which may be gone already."""


class Address(NamedTuple):
    """An address of an object storage, taken apart: ``s3://bucket/prefix``."""

    scheme: str
    bucket: str
    prefix: str

    @classmethod
    @lru_cache
    def read(cls, text: str) -> Address:
        """Return an address.

        Raises:
            InvalidInputError: it is none, or no plug-in is for its scheme.
        """
        found = _ADDRESS.fullmatch(text.rstrip("/"))
        parts = found[3].split("/") if found is not None and found[3] else []
        if found is None or not all(map(_PART.fullmatch, parts)):
            raise InvalidInputError(
                f"no storage at {text!r}; expected s3://BUCKET/PREFIX, with a prefix of letters, "
                "digits, '.', '_', '-' and '/', or gs://, az:// or hdfs:// likewise"
            )
        if (wrong := plugins.mistake(plugins.STORAGES, found[1])) is not None:
            raise InvalidInputError(wrong)
        return cls(found[1], found[2], "/".join(parts))

    def __str__(self) -> str:
        """Return it as users write it."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


_open: dict[tuple[str, str], ObjectStorage] = {}
_provided: dict[tuple[str, str], ObjectStorage] = {}
_process = 0


def provide(scheme: str, bucket: str, storage: ObjectStorage) -> None:
    """Have this process use a storage that no address of a user names."""
    _provided[scheme, bucket] = storage


def open_storage(scheme: str, bucket: str) -> ObjectStorage:
    """Return the storage of a bucket, which this process opens once.

    Raises:
        InvalidInputError: no plug-in is for that scheme, or the storage cannot be used.
        StorageAwayError: it does not answer.
    """
    global _process  # noqa: PLW0603 - connections belong to the process that made them
    if os.getpid() != _process:
        _open.clear()
        _process = os.getpid()
    key = scheme, bucket
    if key in _provided:
        return _provided[key]
    if key not in _open:
        _open[key] = plugins.load(plugins.STORAGES, scheme)(scheme, bucket)
    return _open[key]


def forget_storages() -> None:
    """Have this process open each storage again, as after a change of its environment."""
    _open.clear()
