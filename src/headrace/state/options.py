"""How RocksDB is tuned, in one place, with the reason beside each choice.

The write-ahead log is off in every write: what a crash loses is applied again from
committed segments. All stores of a task live in the one default column family, under a
prefix byte, so that data and position share a memtable and reach the disk together
whatever triggers the flush (``docs/decisions/0003-state.md``).
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
    """Return the options of one task's database; the cache is shared in the process."""
    shared = _shared_of(settings)
    tables = BlockBasedOptions()
    tables.set_block_cache(shared.cache)
    tables.set_block_size(settings.block_bytes)
    tables.set_bloom_filter(10, False)  # 1 % false reads of files that lack a key
    tables.set_format_version(5)
    tables.set_checksum_type(ChecksumType.xxh3())
    tables.set_data_block_index_type(DataBlockIndexType.binary_and_hash())  # point reads
    tables.set_cache_index_and_filter_blocks(True)  # else they escape the memory bound
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_manager(shared.buffers)
    options.set_write_buffer_size(settings.memtable_bytes)
    options.set_memtable_prefix_bloom_ratio(0.1)  # most reads are of keys that are elsewhere
    options.set_memtable_whole_key_filtering(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_paranoid_checks(True)
    options.set_max_background_jobs(2)  # a slot is one core; compaction must not starve it
    options.set_max_open_files(256)  # a host holds many tasks
    options.set_keep_log_file_num(1)
    options.set_max_manifest_file_size(1 << 20)
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
