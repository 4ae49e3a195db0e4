"""A backend in RocksDB: keyed state of any size, one database for each task.

Layout of a task's directory: ``LOCK`` names its owner, ``db-N`` is the database, ``DAMAGED``
says that the database was found unreadable and must be built again. Each clear begins the
next N: whatever still refers to the old one, such as a traceback, cannot block the new one.
Keys in the database are one byte for the store, then the full key; byte 0 is the position.
The database opens at first use, in the process that uses it.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rocksdict import DbClosedError, Rdict, SstFileWriter, WriteBatch

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
from headrace.state.bulk import with_prefix
from headrace.state.options import (
    DEFAULT_SETTINGS,
    RocksDBSettings,
    database_options,
    ingest_options,
    write_options,
)
from headrace.state.ownership import DirectoryLock, Owner
from headrace.state.position import Position, decode_position, encode_position

MAX_STORES = 200
LOADED_FILE_BYTES = 64 << 20
_POSITION_KEY = b"\0position"

_abandoned: list[Rdict] = []


class RocksDBBackend(Backend):
    """Committed entries of one task in its own RocksDB.

    Args:
        directory: of the task, on a local disk; made when missing.
        stores: names of the stores, in an order that stays.
        scope: what the data belongs to, such as the range of key groups; a database of
            another scope or other stores is thrown away at open.
        settings: memory and sizes.

    Raises:
        InvalidInputError: too many stores.
    """

    def __init__(
        self,
        directory: Path,
        stores: Sequence[str],
        scope: str = "",
        settings: RocksDBSettings = DEFAULT_SETTINGS,
    ) -> None:
        if len(stores) > MAX_STORES:
            raise InvalidInputError(f"found {len(stores)} stores, at most {MAX_STORES} fit a task")
        self._directory = directory
        self._prefixes = {name: bytes([1 + at]) for at, name in enumerate(stores)}
        self._scope = msgspec.json.encode([scope, list(stores)]).decode()
        self._settings = settings
        self._write_options = write_options()
        self._lock: DirectoryLock | None = None
        self._owner: Owner | None = None
        self._database: Rdict | None = None
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
        batch = WriteBatch(raw_mode=True)
        for store, (keys, values) in changes.items():
            _add_to(batch, self._prefix(store), keys, values)
        if position is None:
            batch.delete(_POSITION_KEY)
        else:
            batch.put(_POSITION_KEY, encode_position(self._scope, position))
        try:
            database.write(batch, self._write_options)
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("write", error)
        self._position = position

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Write sorted files beside the database and let it take them in, if there is much.

        Neither memtables nor compactions are in the way then.
        """
        prefix, rows = self._prefix(store), iter(batches)
        first = list(islice(rows, 2))
        if len(first) < 2:
            super().load(store, first)
            return
        database, paths = self._open(), list[Path]()
        try:
            for path in self._directory.glob("load-*.sst"):
                path.unlink()
            for writer, keys, values in self._sorted_files(chain(first, rows), prefix, paths):
                deque(map(writer.__setitem__, keys, values), maxlen=0)
            database.ingest_external_file([str(path) for path in paths], ingest_options())
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("load", error)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def _sorted_files(
        self, batches: Iterable[Columns], prefix: bytes, paths: list[Path]
    ) -> Iterator[tuple[SstFileWriter, list[bytes], list[bytes]]]:
        """Yield what to put into which file; each is finished when it is large enough."""
        writer = None
        for keys, values in batches:
            if writer is None:
                paths.append(self._directory / f"load-{len(paths)}.sst")
                writer = SstFileWriter(database_options(self._settings))
                writer.open(str(paths[-1]))
            yield writer, with_prefix(prefix, keys), values.to_pylist()
            if writer.file_size() >= LOADED_FILE_BYTES:
                writer.finish()
                writer = None
        if writer is not None:
            writer.finish()

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key by one batched read."""
        database = self._open()
        prefix = self._prefix(store)
        if not keys:
            return []
        try:
            found: list[bytes | None] = database.get(list(map(prefix.__add__, keys)))  # type: ignore[assignment]
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("read", error)
        return found

    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries in key order from a snapshot taken at the call."""
        prefix = self._prefix(store)
        begin = prefix + low
        end = bytes([prefix[0] + 1]) if high is None else prefix + high
        # Not with the bounds of rocksdict's ReadOptions: scans with them were seen to end at
        # other keys (0.3.29).
        scan = self._scan(self._open(), self._open().items(from_key=begin), begin, end)
        self._scans.add(scan)
        return scan

    def _scan(
        self, database: Rdict, items: Any, begin: bytes, end: bytes
    ) -> Generator[tuple[bytes, bytes]]:
        last = begin
        try:
            for last, value in items:
                if last >= end:
                    return
                yield last[1:], value
            _check_end(database, last)
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
        cursor = self._open().iter()
        cursor.seek_to_first()
        return not cursor.valid()

    def live_bytes(self) -> int:
        """Return RocksDB's estimate of live data, with what is still in memory."""
        database = self._open()
        files = database.property_int_value("rocksdb.estimate-live-data-size") or 0
        memory = database.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        empty = database.property_int_value("rocksdb.estimate-num-keys") == 0
        return 0 if empty else files + memory

    def flush(self, *, wait: bool = True) -> None:
        """Write what is in memory to files."""
        try:
            self._open().flush(wait)
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

    def _open(self) -> Rdict:
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
        options = database_options(self._settings)
        try:
            self._database = Rdict(str(path), options)
            kept = self._database.get(_POSITION_KEY)
        except Exception as error:
            failure = _translated("open", path, error)
            if isinstance(failure, UnavailableError):
                raise failure from error
            raise CorruptDataError(str(failure)) from error
        self._damaged = False
        self._position = None
        if kept is not None:
            self._position = self._position_from(kept)

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

    def _prefix(self, store: str) -> bytes:
        try:
            return self._prefixes[store]
        except KeyError:
            raise InvalidInputError(
                f"no store {store!r}; known: {sorted(self._prefixes)}"
            ) from None

    def _is_closed(self) -> ClosedError:
        return ClosedError(f"the state in {self._directory} was closed; open it again")


def _add_to(
    batch: WriteBatch, prefix: bytes, keys: Sequence[bytes], values: Sequence[bytes | None]
) -> None:
    if None in values:
        for key, value in zip(keys, values, strict=True):
            if value is None:
                batch.delete(prefix + key)
            else:
                batch.put(prefix + key, value)
    else:
        deque(map(batch.put, map(prefix.__add__, keys), values), maxlen=0)


def _check_end(database: Rdict, last: bytes) -> None:
    """Raise if a scan ended at damage; rocksdict's items end there as at the last entry."""
    cursor = database.iter()
    cursor.seek(last)
    if cursor.valid() and cursor.key() == last:
        cursor.next()
    if not cursor.valid():
        cursor.status()


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
