"""Settings of what is written for others to read: streams, and tables of the warehouse."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.section import MIB, Folder, Section


class BusSettings(Section):
    """How streams are written."""

    fsync: Literal["always", "interval", "never"] = Field(
        "always",
        description="when an append survives a power cut: at its return, within the interval, "
        "or when the system gets to it; the death of a process loses nothing in any of them",
    )
    fsync_interval_ms: int = Field(200, ge=1, description="the interval of fsync = interval")
    segment_bytes: int = Field(64 * MIB, ge=4096, description="size at which a new file begins")
    adopt_bytes: int = Field(
        4 * MIB, ge=0, description="output segments from this size on are adopted without a copy"
    )
    compact_bytes: int = Field(
        64 * MIB,
        ge=4096,
        description="so much must be new in a partition of a compacted stream, and as much as is "
        "compacted, before it is compacted by itself",
    )
    batch_bytes: int = Field(64 * MIB, ge=1024, description="largest batch that is appended whole")
    record_bytes: int = Field(8 * MIB, ge=64, description="largest record that is appended")


class WarehouseSettings(Section):
    """Tables that jobs write by day."""

    dir: Folder | None = Field(
        None,
        description="folder of all tables, which the drivers' hosts reach; none: warehouse, below "
        "home",
    )
    file_bytes: int = Field(
        128 * MIB,
        ge=1024,
        description="aim of a file of a day; those below half of it are merged",
    )
    merge_files: int = Field(
        32, ge=2, description="so many small files of a day that is not complete are merged"
    )
    keep_s: float = Field(
        3600.0,
        ge=0,
        description="how long files that were merged, or dropped, stay for readers that have begun",
    )
