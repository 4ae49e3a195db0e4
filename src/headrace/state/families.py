"""One RocksDB with a column family for each store, and in each the position that it holds.

A family is flushed as one, so its data and its position reach the disk together. The flushes
that RocksDB begins itself are of all families at once (``atomic_flush``); one that is asked for
is of one family after the other, so a crash in it leaves some families ahead of others. What
the database holds is then the oldest of their positions: later changes are applied once more,
and the newest win (``docs/decisions/0003-state.md``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rocksdict import Rdict, RdictIter, ReadOptions, SstFileWriter, WriteBatch

from headrace.errors import CorruptDataError
from headrace.state.backend import Changes
from headrace.state.options import (
    PREFIX_BYTES,
    RocksDBSettings,
    database_options,
    family_options,
    ingest_options,
    prefix_scan_options,
    scan_options,
    write_options,
)

_POSITION_KEY = b"\0"
_FIRST_KEY = b"\0\0"  # full keys begin with two bytes of key group


class Families:
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
