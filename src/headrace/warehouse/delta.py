"""Tables in Delta's format: an epoch is one commit of the table's log, through delta-rs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.graph.daily import PARTITION, DailyTable
from headrace.graph.sinks import Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.warehouse.days import day_number
from headrace.warehouse.delta_log import (
    LATE,
    WATERMARK,
    columns_of,
    late_by_day,
    library,
    rows_by_day,
)
from headrace.warehouse.delta_marks import Mark, has_mark, marks_of, remove_mark, write_mark
from headrace.warehouse.evolving import evolved
from headrace.warehouse.packet import pieces_of
from headrace.warehouse.retention import old_days
from headrace.warehouse.snapshot import MARK, folder_of, tag_of

HOUR_MS = 3_600_000


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
        self._marks = marks_of(folder)
        self._open_days: set[str] = set()
        self._bring_in_line(self._opened())

    def _opened(self) -> Any:
        with self._told():
            return self._delta.DeltaTable(str(self._folder))

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
        from one of several drivers only. Files of one that was refused are removed, and those of
        a driver that died by ``compact``.
        After it, days that are too old go, and days that the watermark has passed get their marks;
        who dies in between is followed by one that does that again.

        Raises:
            ReceiverAwayError: the table cannot be reached, or another driver committed meanwhile.
        """
        ends = [self._table.ends_ms(day_number(day)) for day in self._open_days]
        if not epoch.files and min(ends, default=epoch.watermark + 1) > epoch.watermark:
            return
        found = self._opened()
        if epoch.files:
            self._add(found, epoch)
            found = self._opened()
        self._drop_old(found)
        self._bring_in_line(found)
        self._complete(epoch.watermark)

    def _add(self, found: Any, epoch: SinkEpoch) -> None:
        """Commit the files of an epoch, unless the table has it."""
        application = f"headrace/{self._site.job}/{self._site.operator}/{tag_of(epoch.lineage)}"
        held = found.transaction_version(application)
        if held is not None and held >= epoch.epoch:
            return
        actions, came = self._placed(epoch)
        fault("warehouse.written")
        delta, before = self._delta, late_by_day(found, self._marks)
        there = rows_by_day(found) if before else {}
        late = came + Counter({day: rows for day, rows in before.items() if day in there})
        told = {WATERMARK: str(epoch.watermark), LATE: msgspec.json.encode(late).decode()}
        properties = delta.CommitProperties(
            custom_metadata=told,
            app_transactions=[delta.Transaction(application, epoch.epoch)],
        )
        with self._told():
            try:
                found.create_write_transaction(
                    actions, "append", self._schema, PARTITION, commit_properties=properties
                )
            except delta.exceptions.CommitFailedError:
                self._take_back(actions)
                raise
        fault("warehouse.listed")

    def _take_back(self, actions: Sequence[Any]) -> None:
        """Remove the files of a commit that was refused, unless the table names them after all."""
        named = {Path(uri).name for uri in self._opened().file_uris()}
        for action in actions:
            if Path(action.path).name not in named:
                self._site.files.remove(self._folder / action.path)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell of what Delta refuses as of a table that is away: the epoch is tried again."""
        try:
            yield
        except self._delta.exceptions.DeltaError as error:
            raise ReceiverAwayError(f"Delta table {self._folder}: {error}") from error

    def _drop_old(self, found: Any) -> None:
        """Delete the days that are older than the table is to go back, by one version."""
        old = old_days(rows_by_day(found), self._table, self._site.clock.now_ms())
        if old:
            with self._told():
                found.delete(f"{PARTITION} <= CAST('{old[-1]}' AS DATE)")
        for day in old:
            self._marks.pop(day, None)
            remove_mark(self._folder, day, self._site.files)

    def _bring_in_line(self, found: Any) -> None:
        """Let the marks that there are say what the table has, and learn which days have none."""
        files, clock = self._site.files, self._site.clock
        rows, self._late = rows_by_day(found), late_by_day(found, self._marks)
        self._rows, self._open_days = rows, set(rows) - set(self._marks)
        for day, mark in list(self._marks.items()):
            if day not in rows:  # deleted, and its driver died
                remove_mark(self._folder, day, files)
                del self._marks[day]
            elif mark != self._made(day, mark.completed_ms) or not has_mark(self._folder, day):
                self._mark(day, mark.completed_ms, clock)

    def _complete(self, watermark: int) -> None:
        """Mark the days that a watermark has passed."""
        clock = self._site.clock
        for day in sorted(self._open_days):
            if self._table.ends_ms(day_number(day)) <= watermark:
                self._mark(day, clock.now_ms(), clock)
                self._open_days.remove(day)

    def _mark(self, day: str, completed_ms: int, clock: Clock) -> None:
        mark = self._marks[day] = self._made(day, completed_ms)
        write_mark(self._folder, day, mark, self._site.files, clock)
        fault("warehouse.shown")

    def _made(self, day: str, completed_ms: int) -> Mark:
        late = self._late.get(day, 0)
        return Mark(rows=self._rows[day], late_rows=late, completed_ms=completed_ms)

    def _placed(self, epoch: SinkEpoch) -> tuple[list[Any], Counter[str]]:
        """Write the files of an epoch under names of this attempt; tells its late rows by day."""
        files, unique = self._site.files, self._site.clock.new_id()
        actions: list[Any] = []
        late = Counter[str]()
        for prepared in epoch.files:
            content = files.map(prepared.path)
            for piece in pieces_of(content, prepared.path):
                late[piece.day] += piece.late
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
        return actions, late


def compact(folder: Path, keep_ms: int) -> tuple[int, int]:
    """Let Delta merge the small files of a table; returns how many there were, and are since.

    Files that no version of the last week names are removed, with those of days that were dropped
    and those that no version ever named. A property of the table may say another time than a week.

    Args:
        folder: of the table.
        keep_ms: how long files stay at least, whatever the property says: somebody may read them,
            and the job may be writing those of its next version. An hour, where it is less.

    Raises:
        ReceiverAwayError: the job has dropped a day of it meanwhile; nothing is merged.
    """
    delta = library()
    found = delta.DeltaTable(str(folder))
    before = len(found.file_uris())
    try:
        found.optimize.compact()
    except delta.exceptions.CommitFailedError as error:
        raise ReceiverAwayError(f"Delta table {folder}: {error}") from error
    # Only a full search finds files that a checkpoint has forgotten, or that no version ever named;
    # it would take the marks, too.
    least = max(1, -(-keep_ms // HOUR_MS))
    gone = set(found.vacuum(dry_run=True, full=True))
    gone &= set(found.vacuum(least, dry_run=True, enforce_retention_duration=False, full=True))
    for name in sorted(gone):
        if Path(name).name != MARK:
            (folder / name).unlink(missing_ok=True)
    return before, len(found.file_uris())
