"""A backend in RocksDB: keyed state of any size, one database for each task.

Layout of a task's directory: ``LOCK`` names its owner, ``db-N`` is the database, ``DAMAGED``
says that the database was found unreadable and must be built again. Each clear begins the
next N: whatever still refers to the old one, such as a traceback, cannot block the new one.
What is in the database is in ``families``. It opens at first use, in the process that uses it.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn

import msgspec
from rocksdict import DbClosedError, SstFileWriter

from headrace.errors import (
    ClosedError,
    CorruptDataError,
    HeadraceError,
    InternalError,
    InvalidInputError,
    UnavailableError,
)
from headrace.files import DiskFullError
from headrace.state.backend import Backend, Changes, Columns
from headrace.state.families import Families
from headrace.state.options import DEFAULT_SETTINGS, RocksDBSettings
from headrace.state.ownership import DirectoryLock, Owner
from headrace.state.position import Position, decode_position, encode_position

MAX_STORES = 200
LOADED_FILE_BYTES = 64 << 20

_abandoned: list[Families] = []


class RocksDBBackend(Backend):
    """Committed entries of one task in its own RocksDB.

    Args:
        directory: of the task, on a local disk; made when missing.
        stores: names of the stores, in an order that stays.
        scope: what the data belongs to, such as the range of key groups; a database of
            another scope or other stores is thrown away at open.
        settings: memory and sizes.
        by_prefix: stores that have a filter over the first bytes of keys, for scans by prefix.

    Raises:
        InvalidInputError: too many stores.
    """

    def __init__(
        self,
        directory: Path,
        stores: Sequence[str],
        scope: str = "",
        settings: RocksDBSettings = DEFAULT_SETTINGS,
        *,
        by_prefix: Collection[str] = (),
    ) -> None:
        if len(stores) > MAX_STORES:
            raise InvalidInputError(f"found {len(stores)} stores, at most {MAX_STORES} fit a task")
        self._directory = directory
        self._stores = tuple(stores)
        self._scope = msgspec.json.encode([scope, list(stores)]).decode()
        self._settings, self._by_prefix = settings, by_prefix
        self._lock: DirectoryLock | None = None
        self._owner: Owner | None = None
        self._database: Families | None = None
        self._position: Position | None = None
        self._pid = 0
        self._damaged = self._closed = False
        self._scans: weakref.WeakSet[Generator[tuple[bytes, bytes]]] = weakref.WeakSet()

    def own(self, owner: Owner | None) -> None:
        """Go on for an owner, and see whether a newer one has come for the directory."""
        self._owner = owner
        if self._lock is not None and self._pid == os.getpid():
            self._lock.own(owner)

    @property
    def position(self) -> Position | None:
        """The committed state held; opens the database."""
        self._open()
        return self._position

    @property
    def is_damaged(self) -> bool:
        """Say whether a read or write found unreadable data."""
        return self._damaged

    def apply(self, changes: Mapping[str, Changes], position: Position | None) -> None:
        """Write changes and position in one batch."""
        database = self._open()
        for store in changes:
            self._check(store)
        mark = None if position is None else encode_position(self._scope, position)
        try:
            database.write(changes, mark)
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("write", error)
        self._position = position

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Write sorted files beside the database and let it take them in, if there is much.

        Neither memtables nor compactions are in the way then.
        """
        self._check(store)
        rows = iter(batches)
        first = list(islice(rows, 2))
        if len(first) < 2:
            super().load(store, first)
            return
        database, paths = self._open(), list[Path]()
        try:
            for path in self._directory.glob("load-*.sst"):
                path.unlink()
            for writer, keys, values in self._sorted_files(store, chain(first, rows), paths):
                deque(map(writer.__setitem__, keys, values), maxlen=0)
            database.ingest(store, paths)
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("load", error)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def _sorted_files(
        self, store: str, batches: Iterable[Columns], paths: list[Path]
    ) -> Iterator[tuple[SstFileWriter, list[bytes], list[bytes]]]:
        """Yield what to put into which file; each is finished when it is large enough."""
        database, writer = self._open(), None
        for keys, values in batches:
            if writer is None:
                paths.append(self._directory / f"load-{len(paths)}.sst")
                writer = database.sorted_file(store, paths[-1])
            yield writer, keys.to_pylist(), values.to_pylist()
            if writer.file_size() >= LOADED_FILE_BYTES:
                writer.finish()
                writer = None
        if writer is not None:
            writer.finish()

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key by one batched read."""
        database = self._open()
        self._check(store)
        if not keys:
            return []
        try:
            return database.get_many(store, list(keys))
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("read", error)

    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries in key order from a snapshot taken at the call."""
        self._check(store)
        scan = self._scan(self._open().scan(store, low, high))
        self._scans.add(scan)
        return scan

    def _scan(self, entries: Iterator[tuple[bytes, bytes]]) -> Generator[tuple[bytes, bytes]]:
        try:
            yield from entries
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("scan", error)

    def clear(self) -> None:
        """Throw the database away and begin an empty one."""
        if self._closed:
            raise self._is_closed()
        if self._is_fresh():
            return
        self._close_database()
        self._own()
        self._wipe()
        self._position = None
        self._damaged = False

    def _is_fresh(self) -> bool:
        if self._damaged or self.position is not None:
            return False
        return self._open().is_empty

    def store_bytes(self) -> dict[str, int]:
        """Return RocksDB's estimate of live data of each store, with what is still in memory."""
        return self._open().store_bytes()

    def flush(self, *, wait: bool = True) -> None:
        """Write what is in memory to files."""
        try:
            self._open().flush(wait=wait)
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("flush", error)

    def close(self) -> None:
        """Flush, close the database, let go of the directory."""
        if self._closed:
            return
        try:
            if self._database is not None and self._pid == os.getpid() and not self._damaged:
                self.flush()
        finally:
            self._closed = True
            try:
                self._close_database()
            finally:
                if self._lock is not None:
                    self._lock.release()

    def _open(self) -> Families:
        if self._closed:
            raise self._is_closed()
        if self._database is not None and self._pid == os.getpid():
            return self._database
        self._close_database()
        self._own()
        if (self._directory / "DAMAGED").exists():
            self._wipe()
        try:
            self._open_database()
        except CorruptDataError:
            self._close_database()
            self._wipe()
            self._open_database()
        assert self._database is not None
        return self._database

    def _own(self) -> None:
        if self._lock is None or self._pid != os.getpid():
            self._lock = DirectoryLock(self._directory, self._owner)
            self._pid = os.getpid()

    def _open_database(self) -> None:
        path = self._directory / f"db-{max(self._numbers(), default=1)}"
        try:
            self._database = Families(path, self._stores, self._settings, self._by_prefix)
            kept = self._database.positions()
        except CorruptDataError:
            raise
        except Exception as error:
            failure = _translated("open", path, error)
            if isinstance(failure, UnavailableError):
                raise failure from error
            raise CorruptDataError(str(failure)) from error
        self._damaged = False
        self._position = self._oldest(kept)

    def _oldest(self, kept: Sequence[bytes | None]) -> Position | None:
        """Return what all stores hold at least; ``None`` where they do not belong together."""
        found = [self._position_from(mark) for mark in kept if mark is not None]
        if len(found) < len(kept) or len({position.lineage for position in found}) != 1:
            return None
        return min(found, key=lambda position: position.epoch)

    def _position_from(self, kept: bytes) -> Position:
        try:
            scope, position = decode_position(kept)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"{self._directory} holds no readable position") from error
        if scope != self._scope:
            raise CorruptDataError(
                f"{self._directory} holds state of {scope}, expected {self._scope}"
            )
        return position

    def _wipe(self) -> None:
        # The next one is there before the old ones go: a crash in between leaves no database
        # that looks whole, for the highest number counts.
        old = self._numbers()
        (self._directory / f"db-{max(old, default=0) + 1}").mkdir()
        (self._directory / "DAMAGED").unlink(missing_ok=True)
        for number in old:
            shutil.rmtree(self._directory / f"db-{number}", ignore_errors=True)

    def _numbers(self) -> list[int]:
        return [int(path.name[3:]) for path in self._directory.glob("db-*")]

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is None:
            return
        if self._pid != os.getpid():
            _abandoned.append(database)  # the threads that closing waits for stayed behind
            return
        for scan in list(self._scans):
            scan.close()
        try:
            database.close()
        except Exception as error:
            raise _translated("close", self._directory, error) from error

    def _fail(self, action: str, error: Exception) -> NoReturn:
        failure = _translated(action, self._directory, error)
        if isinstance(failure, CorruptDataError):
            self._damaged = True
            (self._directory / "DAMAGED").touch()
        raise failure from error

    def _check(self, store: str) -> None:
        if store not in self._stores:
            raise InvalidInputError(f"no store {store!r}; known: {sorted(self._stores)}")

    def _is_closed(self) -> ClosedError:
        return ClosedError(f"the state in {self._directory} was closed; open it again")


def _translated(action: str, path: Path, error: Exception) -> HeadraceError:
    text = str(error)
    where = f"cannot {action} the state in {path}: {text}"
    if isinstance(error, DbClosedError):
        return ClosedError(where)
    if "Corruption" in text or "No such file" in text:
        return CorruptDataError(f"{where}; it is built again from committed segments")
    if "No space left" in text or "quota" in text.lower():
        return DiskFullError(f"{where}; make room, then it goes on")
    if "IO error" in text or "Busy" in text or "space" in text.lower():
        return UnavailableError(f"{where}; check the disk, then try again")
    return InternalError(where)
