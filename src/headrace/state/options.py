"""How RocksDB is tuned, in one place, with the reason beside each choice.

The write-ahead log is off in every write: what a crash loses is applied again from
committed segments. Each store has a column family; RocksDB flushes all of a database together,
so that none stays behind because little is written to it (``families``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DataBlockIndexType,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    ReadOptions,
    SliceTransform,
    WriteBufferManager,
    WriteOptions,
)


@dataclass(frozen=True)
class RocksDBSettings:
    """Memory of all RocksDB stores of one process together, and sizes within each.

    Args:
        cache_bytes: blocks, indexes and filters that were read; the write buffers count
            towards it, so this is about what RocksDB uses in all.
        write_buffer_bytes: entries not yet written to files, over all stores of the process.
        memtable_bytes: the same for one store; a crash replays at most about this much.
        block_bytes: unit of reading and compression; small, because access is by key.
    """

    cache_bytes: int = 128 << 20
    write_buffer_bytes: int = 96 << 20
    memtable_bytes: int = 32 << 20
    block_bytes: int = 4096

    @classmethod
    def within(cls, cache_bytes: int, write_buffer_bytes: int) -> RocksDBSettings:
        """Return settings of so much memory; a store flushes at a third of the buffers."""
        memtable_bytes = min(cls.memtable_bytes, write_buffer_bytes // 3)
        return cls(cache_bytes, write_buffer_bytes, memtable_bytes)


DEFAULT_SETTINGS = RocksDBSettings()

ARENA_BLOCK_BYTES = 128 << 10
"""A family holds at least so much, for its position; a process has many."""

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
