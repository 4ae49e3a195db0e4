"""What a process that runs slots has to know of a job, and how it gets ready for it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.bus.address import open_bus
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.coordinator.backup.places import places
from headrace.coordinator.hosting import open_host
from headrace.files import Files
from headrace.sources.sourced import saved
from headrace.state.options import RocksDBSettings
from headrace.task.slot_host import SlotHost

PACKED = "HEADRACE_PACKED"
"""Set where code and environment came with the job."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker has to know of a job; travels once, with the slots.

    ``state_dir`` is a host's own folder; the variable ``HEADRACE_STATE_DIR`` of a host
    overrides it there.
    """

    job: str
    slot: int
    storage: str
    bus: str
    state_dir: str
    paths: tuple[str, ...]
    adopt_bytes: int
    cache_bytes: int
    block_cache_bytes: int
    write_buffer_bytes: int
    copy: str = ""
    keep_unused_s: float = 86_400.0
    standby_share: float = 0.5
    hot_keys: bool = True


def worker_settings(job: str, storage: Path, settings: Settings) -> WorkerSettings:
    """Return what the workers of a part have to know; of slot 0."""
    return WorkerSettings(
        job=job,
        slot=0,
        storage=str(storage),
        bus=str(settings.bus_dir),
        state_dir=str(settings.state_dir),
        paths=import_paths(),
        adopt_bytes=settings.bus.adopt_bytes,
        cache_bytes=settings.state.cache_bytes,
        block_cache_bytes=settings.state.block_cache_bytes,
        write_buffer_bytes=settings.state.write_buffer_bytes,
        keep_unused_s=settings.state.keep_unused_s,
        standby_share=settings.standby.share,
        hot_keys=settings.observe.hot_keys,
        copy=str(places(settings, job).copy or ""),
    )


def import_paths() -> tuple[str, ...]:
    """Folders that workers search for the user's modules: those of this process, existing.

    None where all was packed for them: a folder of the same name there is another.
    """
    if os.environ.get(PACKED):
        return ()
    here = os.getcwd()
    return tuple(dict.fromkeys(os.path.abspath(p or here) for p in sys.path if p != "" or here))


def open_worker(settings: WorkerSettings, state_dir: Path | None = None) -> SlotHost:
    """Make this process ready to run a slot; it finds the user's modules from now on.

    Args:
        settings: of the worker.
        state_dir: of this host; left out, that of the settings or of its environment.
    """
    for path in reversed(settings.paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    return open_host(
        storage=Path(settings.storage),
        bus=saved(open_bus(Path(settings.bus)), Path(settings.storage)),
        state_dir=state_dir or Path(os.environ.get("HEADRACE_STATE_DIR", settings.state_dir)),
        clock=SystemClock(),
        files=Files(),
        adopt_bytes=settings.adopt_bytes,
        copy=Path(settings.copy) if settings.copy else None,
        cache_bytes=settings.cache_bytes,
        standby_share=settings.standby_share,
        hot_keys=settings.hot_keys,
        rocksdb=RocksDBSettings.within(settings.block_cache_bytes, settings.write_buffer_bytes),
    )
