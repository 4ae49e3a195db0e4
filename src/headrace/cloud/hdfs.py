"""HDFS by the library hdfs-native, which needs no Java on the client.

An object is a file that is written beside its place, under a name that begins with a dot, and then
renamed: a rename shows all of it at once, and refuses a name that is taken. Who tries again after a
lost answer sees by the file beside whether it was renamed. Logins and NameNodes are those of the
files in ``HADOOP_CONF_DIR``, of Kerberos' tickets and of ``HADOOP_USER_NAME``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

from headrace import extras
from headrace.clock import Clock, Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.objects import ObjectInfo, ObjectStorage, StorageAwayError

RETRY_TIMEOUT_S = 30.0
"""So long is a call tried again before the storage counts as away."""

PAUSE_S, PAUSE_MOST_S = 0.1, 2.0
CHUNK_BYTES = 1 << 20
LEFT_S = 24 * 3600.0
"""A file beside an object is what a process left that died, once it is as old as this."""

KEPT_FOLDERS = 2
"""The first folders of a path, such as ``/user/ann``, stay when they are empty."""

_SYNCED = "dfs.datanode.synconclose"
_CLIENT = {"dfs.client.failover.max.attempts": "3", "dfs.client.failover.sleep.max.millis": "500"}
"""The library is to give up soon: the loop here knows how long it may try."""

_Result = TypeVar("_Result")


class HdfsStorage(ObjectStorage):
    """One HDFS.

    Args:
        scheme: ``hdfs``.
        name: host and port of its NameNode, or its name in ``HADOOP_CONF_DIR``.
        retry_timeout_s: how long a call is tried again.
        clock: for waiting and names.

    Raises:
        InvalidInputError: the library is not installed, or its files do not say that what is closed
            is on disk.
    """

    def __init__(
        self,
        scheme: str,
        name: str,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._address = f"{scheme}://{name}"
        self._retry_timeout_s, self._clock = retry_timeout_s, clock or SystemClock()
        self._library: Any = extras.load("hdfs_native", f"a storage at {self._address}")
        _check_synced(self._address)
        self._client: Any = self._library.Client(self._address, _CLIENT)

    def put_new(self, name: str, data: bytes) -> bool:
        """Create an object by a rename that takes no name twice; see ``ObjectStorage``."""
        return self._move(self._written(name, [data]), name, overwrite=False)

    def put(self, name: str, data: bytes) -> None:
        """Set the content of an object."""
        self._move(self._written(name, [data]), name, overwrite=True)

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file."""

        def chunks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    yield data

        self._move(self._written(name, chunks), name, overwrite=True)

    def _written(self, name: str, data: Iterable[bytes] | Callable[[], Iterable[bytes]]) -> str:
        """Return the path of a file beside an object, with the content that the object gets."""
        folder = _path(name).rpartition("/")[0]
        path = f"{folder}/.{self._clock.new_id()}"
        options = self._library.WriteOptions(overwrite=True, create_parent=True)

        def write() -> None:
            with self._client.create(path, options) as file:
                for chunk in data() if callable(data) else data:
                    file.write(chunk)

        self._call(name, write)
        return path

    def _move(self, path: str, name: str, *, overwrite: bool) -> bool:
        """Put a file in an object's place; False: another is there, and the file is gone."""
        try:
            self._call(name, lambda: self._client.rename(path, _path(name), overwrite))
        except FileNotFoundError:
            return True  # renamed by the first try, whose answer was lost
        except FileExistsError:
            is_there = self._status(path) is not None
            self._call(name, lambda: self._client.delete(path, False))
            return not is_there
        return True

    def get(self, name: str) -> bytes:
        """Return the content of an object."""
        return bytes(self._call(name, lambda: self._client.read(_path(name)).read()))

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Return a part of an object."""

        def read() -> bytes:
            file = self._client.read(_path(name))
            size = min(end, len(file)) - begin
            return bytes(file.read_range(begin, size)) if size > 0 else b""

        return self._call(name, read)

    def get_file(self, name: str, path: Path) -> None:
        """Download an object; what is broken off leaves no file."""

        def fetch() -> None:
            source = self._client.read(_path(name))
            with path.open("wb") as file:
                for chunk in source:
                    file.write(chunk)

        try:
            self._call(name, fetch)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def objects(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder; what dead processes left beside them is removed."""
        for one in self._listed(folder, recursive=True):
            if one.isdir:
                continue
            name = one.path.removeprefix("/")
            if not _is_beside(name):
                yield ObjectInfo(name, one.length, one.modification_time / 1000)
            elif one.modification_time / 1000 < self._clock.now_ms() / 1000 - LEFT_S:
                self.delete(name)

    def entries(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        found = []
        for one in self._listed(folder, recursive=False):
            path = one.path.removeprefix("/")
            if not _is_beside(path) and (not one.isdir or self._has_any(path)):
                found.append(path.rpartition("/")[2])
        return sorted(found)

    def _has_any(self, folder: str) -> bool:
        def ask() -> bool:
            below = self._client.list_status(_path(folder), True)
            return any(not one.isdir and not _is_beside(one.path) for one in below)

        try:
            return self._call(folder, ask)
        except FileNotFoundError:
            return False

    def _listed(self, folder: str, *, recursive: bool) -> list[Any]:
        def ask() -> list[Any]:
            return list(self._client.list_status(_path(folder), recursive))

        try:
            found = self._call(folder, ask)
        except FileNotFoundError:
            return []
        # Of a file HDFS lists the file itself.
        return [one for one in found if one.path != _path(folder)]

    def info(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object."""
        one = self._status(_path(name))
        if one is None or one.isdir:
            return None
        return ObjectInfo(name, one.length, one.modification_time / 1000)

    def _status(self, path: str) -> Any:
        try:
            return self._call(path, lambda: self._client.get_file_info(path))
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        """Remove an object, and the folders that are empty then."""
        path = _path(name)
        self._call(name, partial(self._client.delete, path, False))
        while path.count("/") > KEPT_FOLDERS + 1:
            path = path.rpartition("/")[0]
            try:
                self._call(name, partial(self._client.delete, path, False))
            except OSError:  # it has others, or somebody else removed it
                return

    def _call(self, name: str, act: Callable[[], _Result]) -> _Result:
        """Ask the library for something; its errors become those of the contract."""
        deadline, pause = Deadline(self._clock, self._retry_timeout_s), PAUSE_S
        while True:
            try:
                return act()
            except (FileNotFoundError, FileExistsError):
                raise
            except (OSError, RuntimeError) as error:
                said = str(error)
                if "PathIsNotEmptyDirectory" in said:
                    raise OSError(39, "folder is not empty", f"{self._address}/{name}") from error
                if "AccessControlException" in said or "gssapi" in said.lower():
                    raise InvalidInputError(
                        f"storage {self._address} refuses {name}: {_reason(said)}; use a "
                        "login that may list, read, write and delete there: a ticket of "
                        "Kerberos, or HADOOP_USER_NAME where HDFS asks for none"
                    ) from error
                if deadline.expired:
                    raise StorageAwayError(
                        f"storage {self._address} does not answer for {name}: {_reason(said)}"
                    ) from error
                self._clock.sleep(deadline.remaining(pause))
                pause = min(2 * pause, PAUSE_MOST_S)


def _path(name: str) -> str:
    return f"/{name}"


def _is_beside(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _reason(said: str) -> str:
    """Return what the server says, without its trace."""
    line = said.replace("\\n", "\n").partition("\n")[0]
    return line.rpartition('Exception", "')[2][:300]


def _check_synced(address: str) -> None:
    """Make sure that a file is on disk once it is closed.

    Raises:
        InvalidInputError: the settings that clients have do not say so: a power cut could lose
            what was committed.
    """
    folder = os.environ.get("HADOOP_CONF_DIR") or str(
        Path(os.environ.get("HADOOP_HOME", "/"), "etc/hadoop")
    )
    file = Path(folder, "hdfs-site.xml")
    try:
        settings = ElementTree.parse(file).getroot()
        found = {one.findtext("name"): one.findtext("value") for one in settings.iter("property")}
    except (OSError, ElementTree.ParseError):
        found = {}
    if str(found.get(_SYNCED)).strip().lower() != "true":
        raise InvalidInputError(
            f"storage {address} may lose what was committed when hosts lose power: {file} does not "
            f"set {_SYNCED}=true; set it for all DataNodes and in that file, and HADOOP_CONF_DIR "
            "to its folder"
        )
