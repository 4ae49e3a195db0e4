"""A table bound to its warehouse: how rows become files, who commits them, compaction by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import pyarrow as pa

from headrace.clock import Clock, Deadline
from headrace.config import Settings
from headrace.files import Bytes, Files
from headrace.graph.sinks import DailyTable, Receiver, ReceiverAwayError, SinkSite
from headrace.remote import is_remote
from headrace.warehouse import delta
from headrace.warehouse.day_files import FileSizeTargets, encode_packet
from headrace.warehouse.delta import DELTA_LOG, DeltaReceiver
from headrace.warehouse.object_table import (
    ObjectTableLocation,
    ObjectTableReceiver,
    location_of,
    refuse_delta,
)
from headrace.warehouse.receiver import TableReceiver
from headrace.warehouse.snapshot import TableLocation, existing_snapshot


@dataclass(frozen=True)
class TableSink(DailyTable):
    """A daily table that knows its folder.

    Args:
        folder: of the table, absolute; the driver's host must reach it.
        aims: of its files.
    """

    folder: str = ""
    aims: FileSizeTargets = field(default_factory=FileSizeTargets)

    @property
    def commits(self) -> str:
        """How readers see an epoch."""
        if self.form == "delta":
            return "an epoch is one version"
        whole = "an epoch is there whole or not at all, and once"
        if is_remote(self.folder):
            return f"{whole}; read it with hr.warehouse.Table"
        return f"{whole}; read {self.name}/*/*.parquet"

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return what is wrong with the columns, for the format too."""
        wrong = super().column_mistakes(schema)
        return wrong + (delta.untyped_columns(schema) if self.form == "delta" else [])

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the files of all days, one after the other."""
        assert self.time is not None
        return encode_packet(batches, schema, self.time, self.order)

    def open(self, site: SinkSite) -> Receiver:
        """Take the table, which is made when it is missing."""
        if self.form == "delta":
            return DeltaReceiver(Path(self.folder), self, site)
        return _receiver(location_of(Path(self.folder)), self, self.aims, site)


def _receiver(
    place: TableLocation, table: DailyTable, aims: FileSizeTargets, site: SinkSite
) -> TableReceiver:
    if isinstance(place, ObjectTableLocation):
        return ObjectTableReceiver(place, table, aims, site)
    return TableReceiver(place, table, aims, site)


def table_sink(table: DailyTable, settings: Settings) -> TableSink:
    """Return the sink of a table in the warehouse of the settings."""
    if is_remote(settings.warehouse_dir):
        refuse_delta(table, settings.warehouse.address)
    own = {one.name: getattr(table, one.name) for one in fields(DailyTable)}
    folder = str(settings.warehouse_dir / table.name)
    return TableSink(**own, folder=folder, aims=size_targets_of(settings))


def size_targets_of(settings: Settings) -> FileSizeTargets:
    """Return how large files are to be by the settings."""
    found = settings.warehouse
    return FileSizeTargets(found.file_bytes, found.merge_files, int(found.keep_s * 1000))


WAIT_S = 30.0
_PAUSE_S = 0.05


def compact_table(
    folder: Path, aims: FileSizeTargets, files: Files, clock: Clock
) -> tuple[int, int]:
    """Merge the small files of all days of a table, however few they are.

    A running job waits for a step of it, or each step for an epoch, up to half a minute.

    Args:
        folder: of the table.
        aims: of its files.
        files: the file system.
        clock: time and names.

    Returns:
        How many files there were before, and are since.

    Raises:
        InvalidInputError: there is no such table, or its file system cannot exchange folders.
        ReceiverAwayError: the job writes to it all the time.
    """
    deadline = Deadline(clock, WAIT_S)

    def begin_again() -> None:
        nonlocal deadline
        deadline = Deadline(clock, WAIT_S)

    while True:
        try:
            if (folder / DELTA_LOG).is_dir():
                return delta.compact(folder, aims.keep_ms, files)
            return _compact(folder, aims, files, clock, begin_again)
        except ReceiverAwayError:
            if deadline.expired:
                raise
            clock.sleep(_PAUSE_S)


def _compact(
    folder: Path, aims: FileSizeTargets, files: Files, clock: Clock, on_step: Callable[[], None]
) -> tuple[int, int]:
    place = location_of(folder)
    held = existing_snapshot(place)
    table = DailyTable(folder.name, held.time, held.order)
    site = SinkSite(held.job, held.operator, held.schema, clock, files)
    receiver = _receiver(place, table, aims, site)
    try:
        return receiver.compact(on_step)
    finally:
        receiver.leave()
