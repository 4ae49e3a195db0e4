"""A backend in RocksDB: keyed state of any size, one database for each task.

Layout of a task's directory: ``LOCK`` names its owner, ``db-N`` is the database, ``DAMAGED`` says
that it was found unreadable and must be built again. Each clear begins the next N: whatever still
refers to the old one, such as a traceback, cannot block the new one. A store is a column family,
flushed as one, so its data and its position reach the disk together. The write-ahead log is off:
what a crash loses is applied again from committed segments. A flush that is asked for may leave
some families ahead of others; the database then holds the oldest of their positions
(docs/decisions/0003-state.md). The tuning, with the reason beside each choice, is at the top.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DataBlockIndexType,
    DbClosedError,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SliceTransform,
    SstFileWriter,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from headrace.errors import (
    ClosedError,
    CorruptDataError,
    HeadraceError,
    InternalError,
    InvalidInputError,
    UnavailableError,
)
from headrace.fencing import DirectoryLock, DirectoryOwner
from headrace.files import DiskFullError
from headrace.state.backend import Backend, Changes, Columns, Position


@dataclass(frozen=True)
class RocksDBSettings:
    """Memory of all RocksDB stores of one process together, and sizes within each.

    Args:
        cache_bytes: blocks, indexes and filters that were read; the write buffers count
            towards it, so this is about what RocksDB uses in all.
        write_buffer_bytes: entries not yet written to files, over all stores of the process.
        memtable_bytes: the same for one store; a crash replays at most about this much.
        block_bytes: unit of reading and compression; small, because access is by key.
        in_pieces: indexes and filters are read in blocks, too. For more keys than the cache has
            room for the filters of (1.25 bytes each): otherwise a read of any key takes those of a
            whole file, some MB.
    """

    cache_bytes: int = 128 << 20
    write_buffer_bytes: int = 96 << 20
    memtable_bytes: int = 32 << 20
    block_bytes: int = 4096
    in_pieces: bool = False

    @classmethod
    def within(cls, cache_bytes: int, write_buffer_bytes: int) -> RocksDBSettings:
        """Return settings of so much memory; a store flushes at a third of the buffers."""
        memtable_bytes = min(cls.memtable_bytes, write_buffer_bytes // 3)
        return cls(cache_bytes, write_buffer_bytes, memtable_bytes)


DEFAULT_SETTINGS = RocksDBSettings()

ARENA_BLOCK_BYTES = 128 << 10
"""A family holds at least so much, for its position; a process has many."""

LOG_BYTES = 1 << 20
"""Of what RocksDB notes about its work; each new file begins with up to 160 kB of options."""

PREFIX_BYTES = 11
"""The key group, and an integer or the first letters of a text."""


@dataclass(frozen=True)
class _Shared:
    pid: int
    cache: Cache
    buffers: WriteBufferManager


_shared: dict[RocksDBSettings, _Shared] = {}


def _shared_of(settings: RocksDBSettings) -> _Shared:
    found = _shared.get(settings)
    if found is None or found.pid != os.getpid():
        cache = Cache(settings.cache_bytes)
        buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            settings.write_buffer_bytes, False, cache
        )
        found = _shared[settings] = _Shared(os.getpid(), cache, buffers)
    return found


def database_options(settings: RocksDBSettings) -> Options:
    """Return the options of one task's database."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_write_buffer_manager(_shared_of(settings).buffers)
    options.set_paranoid_checks(True)
    options.set_max_background_jobs(2)  # a slot is one core; compaction must not starve it
    options.set_max_open_files(256)  # a host holds many tasks
    options.set_max_file_opening_threads(1)  # else 16 begin and end for each family when it opens
    options.set_max_log_file_size(LOG_BYTES)  # else one file grows as long as a process lives
    options.set_keep_log_file_num(1)
    options.set_max_manifest_file_size(1 << 20)
    return options


def family_options(settings: RocksDBSettings, by_prefix: bool = False) -> Options:
    """Return the options of one store's column family; the cache is shared in the process.

    Args:
        settings: memory and sizes.
        by_prefix: whether filters also hold the first bytes of keys, so that a scan by the
            first part of a key leaves out the files and memtables that lack it.
    """
    tables = BlockBasedOptions()
    tables.set_block_cache(_shared_of(settings).cache)
    tables.set_block_size(settings.block_bytes)
    tables.set_bloom_filter(10, False)  # 1 % false reads of files that lack a key
    tables.set_format_version(5)
    tables.set_checksum_type(ChecksumType.xxh3())
    tables.set_data_block_index_type(DataBlockIndexType.binary_and_hash())  # point reads
    tables.set_cache_index_and_filter_blocks(True)  # else they escape the memory bound
    if settings.in_pieces:
        tables.set_index_type(BlockBasedIndexType.two_level_index_search())
        tables.set_partition_filters(True)
        tables.set_metadata_block_size(settings.block_bytes)
        tables.set_pin_top_level_index_and_filter(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_size(settings.memtable_bytes)
    options.set_arena_block_size(ARENA_BLOCK_BYTES)
    options.set_memtable_prefix_bloom_ratio(0.1)  # most reads are of keys that are elsewhere
    options.set_memtable_whole_key_filtering(True)
    options.set_compression_type(DBCompressionType.lz4())
    if by_prefix:
        options.set_prefix_extractor(SliceTransform.create_max_len_prefix(PREFIX_BYTES))
    return options


def write_options() -> WriteOptions:
    """Return the options of every write: no write-ahead log."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property
    return options


def ingest_options() -> IngestExternalFileOptions:
    """Return the options for taking in files that were written beside the database."""
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    return options


def scan_options() -> ReadOptions:
    """Return the options of scans: all keys in order, whether or not there is a prefix filter."""
    options = ReadOptions()
    options.set_total_order_seek(True)
    return options


def prefix_scan_options() -> ReadOptions:
    """Return the options of scans that end with the first bytes of their first key."""
    options = ReadOptions()
    options.set_prefix_same_as_start(True)
    return options


_POSITION_KEY = b"\0"
_FIRST_KEY = b"\0\0"  # full keys begin with two bytes of key group


class ColumnFamilies:
    """An open database. All methods raise what rocksdict raises, which is plain ``Exception``.

    Args:
        path: of the database; a directory that is there.
        stores: their names.
        settings: memory and sizes.
        by_prefix: stores that also have a filter over the first bytes of keys.

    Raises:
        CorruptDataError: the database has families of other stores.
    """

    def __init__(
        self,
        path: Path,
        stores: Sequence[str],
        settings: RocksDBSettings,
        by_prefix: Collection[str] = (),
    ) -> None:
        options = database_options(settings)
        if (path / "CURRENT").exists():
            found = set(Rdict.list_cf(str(path), options)) - {"default"}
            if found != {_family(store) for store in stores}:
                raise CorruptDataError(f"{path} has column families {sorted(found)}")
        self._options = {store: family_options(settings, store in by_prefix) for store in stores}
        self._by_prefix = frozenset(by_prefix)
        self._scan_options, self._prefix_options = scan_options(), prefix_scan_options()
        self._write_options = write_options()
        self._database = Rdict(
            str(path),
            options,
            column_families={_family(store): self._options[store] for store in stores},
        )
        self._families = {s: self._database.get_column_family(_family(s)) for s in stores}
        self._handles = {s: self._database.get_column_family_handle(_family(s)) for s in stores}

    def positions(self) -> list[bytes | None]:
        """Return what each family says that it holds."""
        return [family.get(_POSITION_KEY) for family in self._families.values()]

    def write(self, changes: Mapping[str, Changes], position: bytes | None) -> None:
        """Write changes, and the position into every family, in one batch."""
        batch = WriteBatch(raw_mode=True)
        for store, handle in self._handles.items():
            batch.set_default_column_family(handle)
            keys, values = changes.get(store, ((), ()))
            _add_to(batch, keys, values)
            if position is None:
                batch.delete(_POSITION_KEY)
            else:
                batch.put(_POSITION_KEY, position)
        self._database.write(batch, self._write_options)

    def sorted_file(self, store: str, path: Path) -> SstFileWriter:
        """Return an open file, for keys that rise, that ``ingest`` can take."""
        writer = SstFileWriter(self._options[store])
        writer.open(str(path))
        return writer

    def ingest(self, store: str, paths: Sequence[Path]) -> None:
        """Take files into a family that holds none of their keys."""
        self._families[store].ingest_external_file([str(path) for path in paths], ingest_options())

    def get_many(self, store: str, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        return self._families[store].get(keys)  # type: ignore[return-value, arg-type]  # given a list

    def scan(self, store: str, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries as they are now: ``low <= key < high``; ``None`` has no upper end."""
        family = self._families[store]
        if store in self._by_prefix and shares_prefix(low, high):
            cursor = family.iter(self._prefix_options)
            cursor.seek(max(low, _FIRST_KEY))
            return _until(high, cursor)
        # Not with the bounds of rocksdict's ReadOptions: scans with them were seen to end at
        # other keys (0.3.29).
        items: Any = family.items(from_key=max(low, _FIRST_KEY), read_opt=self._scan_options)
        return _before(high, items, family, self._scan_options, low)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all, not even a position."""
        for family in self._families.values():
            cursor = family.iter(self._scan_options)
            cursor.seek_to_first()
            if cursor.valid():
                return False
        return True

    def store_bytes(self) -> dict[str, int]:
        """Return RocksDB's estimate of live data of each store, with what is still in memory."""
        return {store: _live_bytes(family) for store, family in self._families.items()}

    def key_count(self, store: str) -> int:
        """Return RocksDB's estimate of keys; one counts again until its files are compacted."""
        return self._families[store].property_int_value("rocksdb.estimate-num-keys") or 0

    def flush(self, *, wait: bool) -> None:
        """Write what is in memory to files, family by family."""
        for family in self._families.values():
            family.flush(wait)

    def close(self) -> None:
        """Close the database; each family keeps it open for itself, also where one fails."""
        self._handles.clear()
        with ExitStack() as last:
            for opened in (self._database, *self._families.values()):
                last.callback(opened.close)


def _family(store: str) -> str:
    return f"store:{store}"


def shares_prefix(low: bytes, high: bytes | None) -> bool:
    """Whether all keys from ``low`` to before ``high`` begin with the bytes that filters hold."""
    prefix = low[:PREFIX_BYTES]
    return (
        high is not None
        and len(prefix) == PREFIX_BYTES
        and high <= prefix[:-1] + bytes([min(prefix[-1] + 1, 255)])
    )


def _until(high: bytes | None, cursor: RdictIter) -> Iterator[tuple[bytes, bytes]]:
    while cursor.valid():
        key = cursor.key()
        if high is not None and key >= high:
            return
        yield key, cursor.value()
        cursor.next()
    cursor.status()


def _before(
    high: bytes | None, items: Any, family: Rdict, options: ReadOptions, low: bytes
) -> Iterator[tuple[bytes, bytes]]:
    last = low
    for last, value in items:
        if high is not None and last >= high:
            return
        yield last, value
    # rocksdict's items end at damage as they do at the last entry.
    cursor = family.iter(options)
    cursor.seek(last)
    if cursor.valid() and cursor.key() == last:
        cursor.next()
    if not cursor.valid():
        cursor.status()


def _live_bytes(family: Rdict) -> int:
    files = family.property_int_value("rocksdb.estimate-live-data-size") or 0
    memory = family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
    empty = family.property_int_value("rocksdb.estimate-num-keys") == 0
    return 0 if empty else files + memory


def _add_to(batch: WriteBatch, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    if None in values:
        for key, value in zip(keys, values, strict=True):
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
    else:
        deque(map(batch.put, keys, values), maxlen=0)


_POSITION = msgspec.json.Decoder(tuple[str, Position])


def encode_position(scope: str, position: Position) -> bytes:
    """Return the bytes that a store keeps beside its data."""
    return msgspec.json.encode((scope, position))


def decode_position(data: bytes) -> tuple[str, Position]:
    """Return the scope and the position of what ``encode_position`` wrote.

    Raises:
        msgspec.DecodeError: the bytes are something else.
    """
    return _POSITION.decode(data)


MAX_STORES = 200
LOADED_FILE_BYTES = 64 << 20

_abandoned: list[ColumnFamilies] = []


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
        self._owner: DirectoryOwner | None = None
        self._database: ColumnFamilies | None = None
        self._position: Position | None = None
        self._pid = 0
        self._damaged = self._closed = False
        self._scans: weakref.WeakSet[Generator[tuple[bytes, bytes]]] = weakref.WeakSet()

    def own(self, owner: DirectoryOwner | None) -> None:
        """Continue for an owner, and see whether a newer one has come for the directory."""
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

    def key_count(self, store: str) -> int:
        """Return about how many keys a store has."""
        return self._open().key_count(store)

    def flush(self, *, wait: bool = True) -> None:
        """Write what is in memory to files."""
        try:
            self._open().flush(wait=wait)
        except Exception as error:  # noqa: BLE001  rocksdict raises plain Exception
            self._fail("flush", error)

    def close(self) -> None:
        """Flush, close the database, release the directory."""
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

    def _open(self) -> ColumnFamilies:
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
            self._database = ColumnFamilies(path, self._stores, self._settings, self._by_prefix)
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
        return DiskFullError(f"{where}; free space, then it continues")
    if "IO error" in text or "Busy" in text or "space" in text.lower():
        return UnavailableError(f"{where}; check the disk, then try again")
    return InternalError(where)
