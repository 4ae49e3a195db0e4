"""What served tables are filled from: streams and daily tables; and the thread that follows.

A ``Source`` looks whether there is something newer than what its table shows, and brings it there.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from headrace.bus import OffsetGoneError, Stream
from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.graph.sinks import installed_warehouse
from headrace.records.keys import key_group
from headrace.serving.entries import Entries
from headrace.serving.rows import ColumnRows, Encoded
from headrace.serving.table import KEY_GROUPS, ServedTable, TableVersion

STEP_ROWS = 50_000
"""Changes that become visible in one step at most, where no epoch says it; readers wait so long."""

LOOK_S = 0.03
"""Between two looks for something newer; and so late a change is seen at most, once it is there."""

TABLE_LOOK_S = 5.0
FAILED_S = 1.0

Maker = Callable[[], Entries]


class Source(ABC):
    """What a table is filled from; of one thread.

    Args:
        table: which is filled.
        made: returns empty entries.
        look_s: between two looks.
    """

    def __init__(self, table: ServedTable, made: Maker, look_s: float = LOOK_S) -> None:
        self.table, self.made, self.look_s = table, made, look_s

    @abstractmethod
    def follow(self) -> bool:
        """Bring the table one step further; return whether there may be more.

        Raises:
            HeadraceError: it cannot be read now; the table stays as it is.
        """


def of_groups(table: ServedTable, rows: Encoded) -> Encoded:
    """Return those rows whose key groups a server has."""
    if not table.is_divided:
        return rows
    first, behind = table.groups
    kept = [first <= key_group(key, KEY_GROUPS) < behind for key in rows[0]]
    return (
        [key for key, is_own in zip(rows[0], kept, strict=True) if is_own],
        [value for value, is_own in zip(rows[1], kept, strict=True) if is_own],
    )


def column_rows(
    schema: pa.Schema,
    keys: Sequence[str],
    values: Sequence[str],
    *,
    is_bare: bool,
    origin: str,
) -> ColumnRows:
    """Return how rows of columns become entries.

    Args:
        schema: of the rows.
        keys: columns of the key.
        values: columns of the value; none: all others.
        is_bare: the value is that of its only column, not a map.
        origin: what has the columns, in words.

    Raises:
        InvalidInputError: a column that is not there, or no key.
    """
    values = values or [name for name in schema.names if name not in keys]
    unknown = [name for name in (*keys, *values) if name not in schema.names]
    if unknown or not keys or not values:
        problem = f"has no columns {unknown}" if unknown else "needs columns of a key and a value"
        raise InvalidInputError(
            f"{origin} {problem}; it has {', '.join(schema.names)}: name those of the key by --key"
        )
    if is_bare and len(values) > 1:
        raise InvalidInputError(
            f"--bare is for a value of one column; {origin} gives {', '.join(values)}: name one by "
            "--value"
        )
    shapes = [pa.schema([schema.field(name) for name in names]) for names in (keys, values)]
    return ColumnRows(*shapes, is_bare=is_bare)


class StreamSource(Source):
    """The latest value of each key of a stream; a row whose values are all null deletes its key.

    The rows of a key must be in one partition, else which of them is the latest is not known.

    Args:
        table: which is filled.
        made: returns empty entries.
        stream: to read.
        rows: which columns are key and value.
        clock: for the time of a version.
        opened: returns the stream as it is now, for one that is created again.

    Raises:
        InvalidInputError: the rows of a key may be in several partitions.
    """

    def __init__(
        self,
        table: ServedTable,
        made: Maker,
        stream: Stream,
        rows: ColumnRows,
        clock: Clock,
        opened: Callable[[], Stream],
    ) -> None:
        super().__init__(table, made)
        self._stream, self._rows, self._clock, self._opened = stream, rows, clock, opened
        self._columns = [*rows.key_schema.names, *rows.value_schema.names]
        self._columns = list(dict.fromkeys(self._columns))
        self._check_partitions()
        self._offsets: list[int] = []
        self._loading: Entries | None = None
        self._until: list[int] = []

    def follow(self) -> bool:
        """Read what was appended, some rows at a time."""
        self._check()
        stream = self._stream
        if self._loading is None and not self.table.is_loaded:
            self._begin()
        ends = stream.ends()
        self._check_partitions()
        self._offsets += stream.begins()[len(self._offsets) :]
        for partition, end in enumerate(ends):
            if self._offsets[partition] < end:
                self._read(partition, end)
                return True
        if self._loading is not None:
            with self._whole(self._loading):
                self._loading.loaded()
            loaded, self._loading = self._loading, None
            self.table.swap(loaded, self._version())
            return True
        return False

    def _check_partitions(self) -> None:
        """Refuse a stream whose rows of a key may be in several partitions; some can be added."""
        spec = self._stream.spec
        is_keyed = bool(spec.key) and set(spec.key) <= set(self._rows.key_schema.names)
        if spec.partitions > 1 and not is_keyed:
            columns = ", ".join(spec.key)
            raise InvalidInputError(
                f"stream {spec.name!r} has {spec.partitions} partitions by {columns or 'no key'}, "
                "so which row of a key is the latest is not known; "
                + (
                    f"let --key have {columns}, too"
                    if columns
                    else "send its rows to a stream with that key, and serve that"
                )
            )

    @contextmanager
    def _whole(self, loading: Entries) -> Iterator[None]:
        """Begin again where entries cannot take rows: what they have then is only a part."""
        try:
            yield
        except BaseException:
            loading.close()
            self._begin()
            raise

    def _begin(self) -> None:
        self._offsets = list(self._stream.begins())
        self._loading = self.made()

    def _check(self) -> None:
        """Begin once more with a stream that was created again, or lost deletes by compaction."""
        now = self._opened()
        # Not while it loads: then all that is left is read, from the beginning.
        lost = (
            self._loading is None
            and now.spec.compact
            and any(
                0 < have < end for have, end in zip(self._offsets, now.compacted(), strict=False)
            )
        )
        if now.identity != self._stream.identity or lost:
            self._stream = now
            if self._loading is not None:
                self._loading.close()
            self._begin()

    def _read(self, partition: int, end: int) -> None:
        begin = self._offsets[partition]
        try:
            parts = list(
                self._stream.read(partition, begin, end, columns=self._columns, max_rows=STEP_ROWS)
            )
        except OffsetGoneError:  # retention was faster: what is left counts
            self._offsets[partition] = max(self._stream.begins()[partition], begin)
            return
        loading, latest = self._loading, dict[bytes, bytes | None]()
        for part in parts:
            if loading is not None:
                with self._whole(loading):
                    self._load(loading, part.batch)
            else:
                latest |= self._changes(part.batch)
        self._offsets[partition] = parts[-1].next_offset if parts else end
        if loading is None:
            self.table.apply(list(latest), list(latest.values()), self._version())

    def _load(self, entries: Entries, batch: pa.RecordBatch) -> None:
        if not any(batch.column(name).null_count for name in self._rows.value_schema.names):
            entries.load(*of_groups(self.table, self._rows.encode(batch)))
            return
        changes = self._changes(batch)
        kept = {key: value for key, value in changes.items() if value is not None}
        entries.load(list(kept), list(kept.values()))
        if len(kept) < len(changes):
            entries.loaded()
            gone = [key for key, value in changes.items() if value is None]
            entries.apply(gone, [None] * len(gone))

    def _changes(self, batch: pa.RecordBatch) -> dict[bytes, bytes | None]:
        keys, values = self._rows.encode(batch)
        changes: dict[bytes, bytes | None] = dict(zip(keys, values, strict=True))
        columns = [batch.column(name) for name in self._rows.value_schema.names]
        if any(column.null_count for column in columns):
            nulls = [column.is_null().to_pylist() for column in columns]
            changes = {
                key: None if all(gone) else value
                for key, value, *gone in zip(keys, values, *nulls, strict=True)
            }
        if self.table.is_divided:
            own = set(of_groups(self.table, (list(changes), [b""] * len(changes)))[0])
            changes = {key: value for key, value in changes.items() if key in own}
        return changes

    def _version(self) -> TableVersion:
        offsets = ", ".join(map(str, self._offsets))
        return TableVersion(
            sum(self._offsets),
            self._clock.now_ms(),
            f"stream {self._stream.spec.name}, offsets {offsets}",
        )


class DailySource(Source):
    """Days of a table of the warehouse, loaded whole and swapped in one step.

    Args:
        table: which is filled.
        made: returns empty entries.
        folder: of the warehouse.
        name: of the table there.
        rows: which columns are key and value; of equal keys the last row counts.
        days: a day, several as ``2013-01-01..2013-01-31``, ``all``, or ``latest``: the last one
            that is complete, or where none is, the last one.
        clock: for the time of a version.
        look_s: between two looks.
    """

    def __init__(
        self,
        table: ServedTable,
        made: Maker,
        folder: Path,
        name: str,
        rows: ColumnRows,
        days: str,
        clock: Clock,
        look_s: float,
    ) -> None:
        super().__init__(table, made, look_s)
        self._folder, self._name, self._rows = folder, name, rows
        self._days, self._clock = days, clock
        self._shown: tuple[str, ...] | None = None

    def follow(self) -> bool:
        """Load the days again if their files are others than those that are shown."""
        found = installed_warehouse().named_table(self._folder, self._name)
        days = self._days
        if days == "latest":
            known = found.days
            complete = [one.day for one in known if one.is_complete]
            days = next(iter(complete[-1:] or [one.day for one in known[-1:]]), "")
        wanted = None if days == "all" else days
        files = tuple(found.places(wanted)) if days else ()
        if files == self._shown:
            return False
        entries = self.made()
        try:
            for batch in self._batches(found.batches(wanted) if days else iter(())):
                entries.load(*of_groups(self.table, self._rows.encode(batch)))
            entries.loaded()
        except BaseException:
            entries.close()
            raise
        label = f"table {self._name}, {days or 'no day yet'}"
        self.table.swap(entries, TableVersion(found.version, self._clock.now_ms(), label))
        self._shown = files
        return False

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(0, batch.num_rows, STEP_ROWS):
                yield batch.slice(begin, STEP_ROWS)


class Follower:
    """Follows each source in a thread of its own, so none waits while another one is loaded.

    Args:
        sources: of the tables.
        clock: for waiting.
        on_change: called with a table once it is loaded, and where it begins to fail; by one
            thread at a time.
    """

    def __init__(
        self, sources: Sequence[Source], clock: Clock, on_change: Callable[[ServedTable], None]
    ) -> None:
        self._clock, self._on_change = clock, on_change
        self._changing = threading.Lock()
        self._loaded: set[str] = set()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(source,),
                name=f"headrace-follower-{source.table.name}",
                daemon=True,
            )
            for source in sources
        ]

    @property
    def is_over(self) -> bool:
        """Whether it was stopped."""
        return self._over.is_set()

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, source: Source) -> None:
        while not self._over.is_set():
            looks_at = self._clock.monotonic() + self._step(source)
            self._over.wait(max(0.0, looks_at - self._clock.monotonic()))

    def _step(self, source: Source) -> float:
        """Bring a source one step further; return when it is to be asked again, seconds."""
        table = source.table
        before, looked_s = table.problem, self._clock.monotonic()
        try:
            if source.follow():
                return 0.0
        except Exception as error:  # noqa: BLE001 - what is shown is served all the same
            if self.is_over:
                return FAILED_S
            table.failed(error)
            if table.problem != before:
                self._changed(table)
            return FAILED_S
        table.caught_up(looked_s)
        if table.is_loaded and (before or table.name not in self._loaded):
            self._loaded.add(table.name)
            self._changed(table)
        return source.look_s

    def _changed(self, table: ServedTable) -> None:
        with self._changing, suppress(OSError):  # whether anybody reads that, tables are followed
            self._on_change(table)
