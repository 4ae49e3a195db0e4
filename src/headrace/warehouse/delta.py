"""Tables in Delta's format: an epoch is one commit of the table's log, through delta-rs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.graph.daily import PARTITION, DailyTable
from headrace.graph.sinks import Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.warehouse.delta_log import columns_of, library
from headrace.warehouse.evolving import evolved
from headrace.warehouse.packet import pieces_of
from headrace.warehouse.snapshot import folder_of, tag_of


class DeltaReceiver(Receiver):
    """Commits epochs into a Delta table, which holds the last one of each lineage itself.

    Args:
        folder: of the table; made when it is missing.
        table: what was asked for.
        site: who sends.

    Raises:
        InvalidInputError: the table is of another job, or has columns that do not fit.
    """

    def __init__(self, folder: Path, table: DailyTable, site: SinkSite) -> None:
        self._delta = library()
        self._folder, self._table, self._site = folder, table, site
        self._schema = pa.schema([*site.schema, pa.field(PARTITION, pa.date32())])
        said = {"job": site.job, "operator": site.operator, "time": table.time}
        writer = msgspec.json.encode(said).decode()
        if not self._delta.DeltaTable.is_deltatable(str(folder)):
            if folder.exists() and any(folder.iterdir()):
                raise InvalidInputError(f"folder {folder} holds files, but no Delta table")
            self._delta.DeltaTable.create(
                str(folder), self._schema, mode="ignore", partition_by=PARTITION, description=writer
            )
        found = self._opened()
        if found.metadata().description != writer:
            raise InvalidInputError(
                f"Delta table {folder} is of {found.metadata().description or 'nobody here'}; "
                f"expected {writer}: give each a table of its own"
            )
        self._evolve(found)

    def _opened(self) -> Any:
        try:
            return self._delta.DeltaTable(str(self._folder))
        except self._delta.exceptions.DeltaError as error:
            raise ReceiverAwayError(f"Delta table {self._folder} cannot be opened: {error}") from (
                error
            )

    def _evolve(self, found: Any) -> None:
        held = columns_of(found)
        wanted = evolved(held, self._site.schema, self._table.name)
        new = [field for field in wanted if field.name not in held.names]
        if new:
            fields = self._delta.Schema.from_arrow(pa.schema(new)).fields
            found.alter.add_columns(fields)

    def commit(self, epoch: SinkEpoch) -> None:
        """Put the files of an epoch in their places, then let one commit name them.

        The commit carries the epoch as the version of an application, which Delta's log takes
        from one of several drivers only. Files that none names are removed by Delta's ``vacuum``.

        Raises:
            ReceiverAwayError: the table cannot be reached, or another driver committed meanwhile.
        """
        if not epoch.files:
            return
        site, found = self._site, self._opened()
        application = f"headrace/{site.job}/{site.operator}/{tag_of(epoch.lineage)}"
        held = found.transaction_version(application)
        if held is not None and held >= epoch.epoch:
            return
        actions = self._placed(epoch)
        fault("warehouse.written")
        delta = self._delta
        properties = delta.CommitProperties(
            custom_metadata={"headrace.watermark": str(epoch.watermark)},
            app_transactions=[delta.Transaction(application, epoch.epoch)],
        )
        try:
            found.create_write_transaction(
                actions, "append", self._schema, PARTITION, commit_properties=properties
            )
        except delta.exceptions.DeltaError as error:
            raise ReceiverAwayError(f"Delta table {self._folder}: {error}") from error
        fault("warehouse.listed")

    def _placed(self, epoch: SinkEpoch) -> list[Any]:
        """Write the files of an epoch under names of this attempt."""
        files, unique = self._site.files, self._site.clock.new_id()
        actions: list[Any] = []
        for prepared in epoch.files:
            content = files.map(prepared.path)
            for piece in pieces_of(content, prepared.path):
                name = f"{epoch.epoch:012d}-{len(actions):06d}-{unique}.parquet"
                path = f"{folder_of(piece.day)}/{name}"
                files.write_new(
                    self._folder / path, [content.slice(piece.begin, piece.bytes)], durable=False
                )
                actions.append(
                    self._delta.transaction.AddAction(
                        path,
                        piece.bytes,
                        {PARTITION: piece.day},
                        self._site.clock.now_ms(),
                        True,
                        msgspec.json.encode({"numRecords": piece.rows}).decode(),
                    )
                )
        files.sync_system(self._folder)
        return actions


def compact(folder: Path) -> tuple[int, int]:
    """Let Delta merge the small files of a table; returns how many there were, and are since."""
    found = library().DeltaTable(str(folder))
    before = len(found.file_uris())
    found.optimize.compact()
    return before, len(found.file_uris())
