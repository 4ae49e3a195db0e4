"""Tables in Delta's format: an epoch is one commit of the table's log, through delta-rs.

``snapshot_of`` reads such a table as the other ones are described. That a day is complete is kept
in mark files alone, which Delta's own readers ignore. A mark that is gone is written again by the
next epoch: by a driver that knew it as it was, else when a watermark has passed the day.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace import extras
from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.fencing import FencedFiles
from headrace.files import Files
from headrace.graph.sinks import (
    PARTITION,
    DailyTable,
    Receiver,
    ReceiverAwayError,
    SinkEpoch,
    SinkSite,
)
from headrace.records.schema import schema_to_text
from headrace.warehouse.day_files import packet_index
from headrace.warehouse.snapshot import (
    FORMAT,
    MARK,
    DataFile,
    Day,
    Snapshot,
    TableLocation,
    day_number,
    evolved_schema,
    folder_of,
    old_days,
    tag_of,
)


class CompletionMark(msgspec.Struct, frozen=True, kw_only=True):
    """What a mark says: the rows of a day, and the wall clock when it was complete."""

    rows: int
    late_rows: int = 0
    completed_ms: int


def marks_of(folder: Path) -> dict[str, CompletionMark]:
    """Return the marks of a table, by day; one that cannot be read counts as none."""
    found = {}
    for path in folder.glob(f"{folder_of('*')}/{MARK}"):
        with suppress(FileNotFoundError, msgspec.DecodeError):
            mark = msgspec.json.decode(path.read_bytes(), type=CompletionMark)
            found[path.parent.name.removeprefix(folder_of(""))] = mark
    return found


def has_mark(folder: Path, day: str) -> bool:
    """Say whether the mark of a day is there."""
    return (folder / folder_of(day) / MARK).exists()


def write_mark(folder: Path, day: str, mark: CompletionMark, files: Files) -> None:
    """Say that a day is complete, durably and in one step."""
    files.replace(folder / folder_of(day) / MARK, msgspec.json.encode(mark) + b"\n")


def remove_mark(folder: Path, day: str, files: Files) -> None:
    """Take a mark away, and the folder when nothing else is in it."""
    files.remove(folder / folder_of(day) / MARK)
    with suppress(OSError):
        (folder / folder_of(day)).rmdir()


DELTA_LOG = "_delta_log"
WATERMARK = "headrace.watermark"
LATE = "headrace.late"
"""What the commit of an epoch says beside its files: late rows of each day so far, as JSON."""

_FEW = 32


def delta_library() -> Any:
    """Return the library for Delta tables.

    Raises:
        InvalidInputError: it is not installed.
    """
    for part in ("deltalake.exceptions", "deltalake.transaction", "deltalake"):
        library = extras.load(part, 'format="delta"')
    return library


def columns_of(found: Any) -> pa.Schema:
    """Return the columns of an opened Delta table, without that of the partition."""
    plain = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    plain |= {pa.binary_view(): pa.binary(), pa.large_binary(): pa.binary()}
    fields = pa.schema(found.schema().to_arrow())
    kinds = [pa.field(one.name, plain.get(one.type, one.type)) for one in fields]
    return pa.schema([one for one in kinds if one.name != PARTITION])


def snapshot_of(folder: Path) -> Snapshot:
    """Return the newest version of a Delta table.

    Raises:
        InvalidInputError: the library for it is not installed, or no job has made it.
        CorruptDataError: its log cannot be read.
    """
    delta = delta_library()
    try:
        found = delta.DeltaTable(str(folder))
    except (delta.exceptions.DeltaError, OSError, ValueError) as error:
        raise CorruptDataError(
            f"the log of Delta table {folder} cannot be read: {str(error).splitlines()[0]}",
            file=str(folder / DELTA_LOG),
        ) from error
    writer = _writer_of(found.metadata().description)
    if found.metadata().partition_columns != [PARTITION] or "job" not in writer:
        raise InvalidInputError(
            f"Delta table {folder} was made by no job, of which tables have a partition "
            f"{PARTITION!r}; move it out of the warehouse"
        )
    days, marks = _files_by_day(found), marks_of(folder)
    complete = {day: mark.completed_ms for day, mark in marks.items()}
    late = late_by_day(found, marks)
    return Snapshot(
        FORMAT,
        writer["job"],
        writer.get("operator", ""),
        schema_to_text(columns_of(found)),
        writer.get("time", ""),
        version=found.version(),
        days={
            day: Day(tuple(files), complete.get(day), late.get(day, 0))
            for day, files in days.items()
        },
    )


def late_by_day(found: Any, marks: Mapping[str, CompletionMark]) -> dict[str, int]:
    """Return how many late rows have come to each day of an opened Delta table.

    Args:
        found: the table.
        marks: of its complete days, which say so as well, if its log does not go back so far.
    """
    for most in (1, _FEW, None):  # others commit as well: compactions, and what drops old days
        commits = found.history(most)
        own = next((one for one in commits if WATERMARK in one), None)
        if own is not None:
            return {str(day): int(rows) for day, rows in json.loads(own.get(LATE, "{}")).items()}
        if most is None or len(commits) < most:
            break
    return {day: mark.late_rows for day, mark in marks.items()}


def rows_by_day(found: Any) -> dict[str, int]:
    """Return how many rows an opened Delta table has, by day."""
    return {day: sum(f.rows for f in files) for day, files in _files_by_day(found).items()}


def _files_by_day(found: Any) -> dict[str, list[DataFile]]:
    days: dict[str, list[DataFile]] = {}
    for action in pa.table(found.get_add_actions(flatten=True)).to_pylist():
        day = str(action[f"partition.{PARTITION}"])
        name = Path(action["path"]).name
        file = DataFile(name, action["num_records"] or 0, action["size_bytes"])
        days.setdefault(day, []).append(file)
    return days


def _writer_of(description: str | None) -> dict[str, str]:
    """Return what the receiver says of itself; nothing, where others have written."""
    try:
        found = json.loads(description or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


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
        self._delta = delta_library()
        self._folder, self._table, self._site = folder, table, site
        self._schema = pa.schema([*site.schema, pa.field(PARTITION, pa.date32())])
        self._files = FencedFiles(site.files, TableLocation(folder).control, folder)
        self._sender = f"headrace-driver/{site.job}/{site.operator}"
        self._driver = f"{self._sender}/{site.origin}"
        said = {"job": site.job, "operator": site.operator, "time": table.time}
        writer = msgspec.json.encode(said).decode()
        if not self._delta.DeltaTable.is_deltatable(str(folder)):
            if folder.exists() and any(folder.iterdir()):
                raise InvalidInputError(f"folder {folder} holds files, but no Delta table")
            self._files.make_folder(folder)
            self._delta.DeltaTable.create(
                str(folder), self._schema, mode="ignore", partition_by=PARTITION, description=writer
            )
        self._set_torn_aside()
        found = self._opened()
        if found.metadata().description != writer:
            raise InvalidInputError(
                f"Delta table {folder} is of {found.metadata().description or 'nobody here'}; "
                f"expected {writer}: give each a table of its own"
            )
        if site.generation:
            self._files.take(site.generation, site.origin)
        else:
            self._files.join()
        self._check_newest(found)
        self._end_others(found)
        self._evolve(found)
        self._marks = marks_of(folder)
        self._open_days: set[str] = set()
        found = self._opened()
        self._files.sync_system(folder)  # a driver before may have died before it did
        self._durable = found.version()
        self._align_schema(found)

    def _set_torn_aside(self) -> None:
        """Rename the newest version if a power failure left only a part of it.

        Nobody can open such a table. Delta makes versions visible whole, but does not sync them; no
        epoch counts on one before ``sync_system``.
        """
        log = self._folder / "_delta_log"
        newest = max((path for path in log.glob("*.json") if path.stem.isdigit()), default=None)
        if newest is None:
            return
        lines = newest.read_bytes().splitlines()
        try:
            is_torn = not [msgspec.json.decode(line) for line in lines]
        except msgspec.DecodeError:
            is_torn = True
        if is_torn:
            self._site.files.rename(newest, newest.with_suffix(".torn"))
            self._site.files.sync_folder(log)

    def _opened(self) -> Any:
        with self._delta_errors():
            return self._delta.DeltaTable(str(self._folder))

    def _evolve(self, found: Any) -> None:
        held = columns_of(found)
        wanted = evolved_schema(held, self._site.schema, self._table.name)
        new = [field for field in wanted if field.name not in held.names]
        if new:
            fields = self._delta.Schema.from_arrow(pa.schema(new)).fields
            found.alter.add_columns(fields)

    def commit(self, epoch: SinkEpoch) -> None:
        """Put the files of an epoch in their places, then let one commit name them.

        The commit carries the epoch as the version of an application, which Delta's log takes
        from one of several drivers only, and the generation of the driver as that of another: one
        that froze on its way is refused by the log. Files of one that was refused are removed, and
        those of a driver that died by ``compact``.
        After it, days that are too old go, and days that the watermark has passed get their marks;
        who dies in between is followed by one that does that again. What the library writes into
        the log is made durable here, for it does not do that.

        Raises:
            ReceiverAwayError: the table cannot be reached, or another driver committed meanwhile.
            NotOwnerError: a newer driver sends to the table.
        """
        ends = [self._table.ends_ms(day_number(day)) for day in self._open_days]
        if not epoch.files and min(ends, default=epoch.watermark + 1) > epoch.watermark:
            return
        found = self._opened()
        self._check_newest(found)
        if epoch.files:
            self._add(found, epoch)
            found = self._opened()
        self._drop_old(found)
        self._make_durable(found.version())
        self._align_schema(found)
        self._complete(epoch.watermark)

    def _transactions(self) -> list[Any]:
        """Of which the log takes one at a time: of this driver, and of any that sends here."""
        delta, generation = self._delta, self._site.generation
        names = (self._driver, self._sender) if generation else ()
        return [delta.Transaction(name, generation) for name in names]

    def _end_others(self, found: Any) -> None:
        """Let the log refuse a driver of the job as it was before it was deleted."""
        is_first = self._site.generation and found.transaction_version(self._driver) is None
        if is_first and found.transaction_version(self._sender) is not None:
            properties = self._delta.CommitProperties(app_transactions=self._transactions())
            with self._delta_errors():
                found.create_write_transaction(
                    [], "append", self._schema, PARTITION, commit_properties=properties
                )

    def _check_newest(self, found: Any) -> None:
        """Refuse what a newer driver has made another's; the log itself refuses who is later."""
        newest = found.transaction_version(self._driver)
        self._files.check()
        if newest is not None and newest > self._site.generation > 0:
            raise NotOwnerError.taken_over(
                f"Delta table {self._folder}",
                self._site.generation,
                newer=newest,
                job=self._site.job,
            )

    def _make_durable(self, version: int) -> None:
        """Make what the log got since last time durable; each file of it is written once."""
        log, files = self._folder / DELTA_LOG, self._files
        since = range(self._durable + 1, version + 1)
        names = [f"{one:020d}{end}" for one in since for end in (".json", ".checkpoint.parquet")]
        for name in (*names, "_last_checkpoint"):
            with suppress(FileNotFoundError), (log / name).open("rb") as file:
                files.sync_file(file.fileno())
        files.sync_folder(log)
        self._durable = version

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
        properties = {WATERMARK: str(epoch.watermark), LATE: msgspec.json.encode(late).decode()}
        properties = delta.CommitProperties(
            custom_metadata=properties,
            app_transactions=[delta.Transaction(application, epoch.epoch), *self._transactions()],
        )
        with self._delta_errors():
            try:
                found.create_write_transaction(
                    actions, "append", self._schema, PARTITION, commit_properties=properties
                )
            except delta.exceptions.CommitFailedError:
                self._revert(actions)
                raise
        fault("warehouse.listed")

    def _revert(self, actions: Sequence[Any]) -> None:
        """Remove the files of a commit that was refused, unless the table names them after all."""
        named = {Path(uri).name for uri in self._opened().file_uris()}
        for action in actions:
            if Path(action.path).name not in named:
                self._files.remove(self._folder / action.path)

    @contextmanager
    def _delta_errors(self) -> Iterator[None]:
        """Report what Delta refuses as of a table that is away: the epoch is tried again."""
        try:
            yield
        except self._delta.exceptions.DeltaError as error:
            raise ReceiverAwayError(f"Delta table {self._folder}: {error}") from error

    def _drop_old(self, found: Any) -> None:
        """Delete the days that are older than the table is to go back, by one version."""
        old = old_days(rows_by_day(found), self._table, self._site.clock.now_ms())
        if old:
            with self._delta_errors():
                found.delete(f"{PARTITION} <= CAST('{old[-1]}' AS DATE)")
        for day in old:
            self._marks.pop(day, None)
            remove_mark(self._folder, day, self._files)

    def _align_schema(self, found: Any) -> None:
        """Let the marks that there are say what the table has, and learn which days have none."""
        files = self._files
        rows, self._late = rows_by_day(found), late_by_day(found, self._marks)
        self._rows, self._open_days = rows, set(rows) - set(self._marks)
        for day, mark in list(self._marks.items()):
            if day not in rows:  # deleted, and its driver died
                remove_mark(self._folder, day, files)
                del self._marks[day]
            elif mark != self._made(day, mark.completed_ms) or not has_mark(self._folder, day):
                self._mark(day, mark.completed_ms)

    def _complete(self, watermark: int) -> None:
        """Mark the days that a watermark has passed."""
        clock = self._site.clock
        for day in sorted(self._open_days):
            if self._table.ends_ms(day_number(day)) <= watermark:
                self._mark(day, clock.now_ms())
                self._open_days.remove(day)

    def _mark(self, day: str, completed_ms: int) -> None:
        mark = self._marks[day] = self._made(day, completed_ms)
        write_mark(self._folder, day, mark, self._files)
        fault("warehouse.shown")

    def _made(self, day: str, completed_ms: int) -> CompletionMark:
        late = self._late.get(day, 0)
        return CompletionMark(rows=self._rows[day], late_rows=late, completed_ms=completed_ms)

    def _placed(self, epoch: SinkEpoch) -> tuple[list[Any], Counter[str]]:
        """Write the files of an epoch under names of this attempt; returns its late rows by day."""
        files, unique = self._files, self._site.clock.new_id()
        actions: list[Any] = []
        late = Counter[str]()
        for prepared in epoch.files:
            content = files.map(prepared.path)
            for piece in packet_index(content, prepared.path):
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


def compact(folder: Path, keep_ms: int, files: Files) -> tuple[int, int]:
    """Let Delta merge the small files of a table; returns how many there were, and are since.

    Files that no version of the last week names are removed, with those of days that were dropped
    and those that no version ever named. A property of the table may say another time than a week.

    Args:
        folder: of the table.
        keep_ms: how long files stay at least, whatever the property says: somebody may read them,
            and the job may be writing those of its next version. An hour, where it is less.
        files: the file system.

    Raises:
        ReceiverAwayError: the job has dropped a day of it meanwhile; nothing is merged.
    """
    delta = delta_library()
    found = delta.DeltaTable(str(folder))
    before = len(found.file_uris())
    try:
        found.optimize.compact()
    except delta.exceptions.CommitFailedError as error:
        raise ReceiverAwayError(f"Delta table {folder}: {error}") from error
    # Only a full search finds files that a checkpoint has forgotten, or that no version ever named;
    # it would take the marks, too.
    least = max(1, -(-keep_ms // HOUR_MS))
    files.sync_system(folder)
    gone = set(found.vacuum(dry_run=True, full=True))
    gone &= set(found.vacuum(least, dry_run=True, enforce_retention_duration=False, full=True))
    for name in sorted(gone):
        if Path(name).name != MARK:
            (folder / name).unlink(missing_ok=True)
    return before, len(found.file_uris())


def untyped_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that Delta has no type for."""
    tests = (pa.types.is_unsigned_integer, pa.types.is_duration, pa.types.is_float16)
    return [
        f"column {field.name!r} is {field.type}, which Delta has no type for; cast it with map"
        for field in schema
        if any(test(field.type) for test in tests)
    ]
