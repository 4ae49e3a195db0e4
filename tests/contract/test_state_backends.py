"""Both backends keep the shipped contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.state.backend import Backend
from headrace.state.memory import MemoryBackend
from headrace.state.rocksdb import RocksDBBackend
from headrace.testing.store_contract import STORES, StoreContract


class TestMemory(StoreContract):
    def open(self, directory: Path, stores: Sequence[str] = STORES, scope: str = "test") -> Backend:
        return MemoryBackend(directory, stores, scope)


class TestRocksDB(StoreContract):
    is_durable = True

    def open(self, directory: Path, stores: Sequence[str] = STORES, scope: str = "test") -> Backend:
        return RocksDBBackend(directory, stores, scope)
