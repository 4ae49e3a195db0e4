"""A table of the committed state of a job: the replica that advances by ``catch_up``.

Of a processor's store each epoch brings its changes, by the code that brings a task's store to a
committed position; here the changes of all tasks become visible in one step. Of totals and windows
an epoch brings the rows of the files that it added, and those of which they say that they are gone,
as windows that were sent; where they do not continue what is shown, the table is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from headrace.clock import Clock
from headrace.coordinator.catalog import StoreEntry
from headrace.coordinator.commit_log import load_state
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.inspection.store_view import TableView
from headrace.coordinator.manifest import JobState
from headrace.coordinator.worker_host import ManifestSegments
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files
from headrace.graph.operators import COLUMNAR
from headrace.records.keys import group_range
from headrace.records.schema import schema_from_text
from headrace.serving.entries import Entries
from headrace.serving.rows import ColumnRows, RowShape, StoreShape
from headrace.serving.sources import STEP_ROWS, Maker, Source, of_groups
from headrace.serving.table import ServedTable, TableVersion
from headrace.state.backend import Backend, Changes, Columns, Position
from headrace.state.compaction import SegmentRange
from headrace.state.restore import RestoreCounts, StateRestorer, TaskName
from headrace.state.segment import SegmentReader

_SERVED = {"values": 0, "totals": 0, "latest": 0, "windows": 2, "periodic": 1}
"""Forms of stores that can be served, with the number of moments before the key of a row."""

RESTS = 2.0
"""A table that is made again is left alone for so many times as long as that took."""


class _ReplacedError(Exception):
    """Committed files no longer continue what is shown: the table is to be filled again."""


class _TaskReplica(Backend):
    """What a task's committed files say, passed on to the table of all tasks.

    Args:
        store: the one that is served.
        passed: takes changes by key, with key groups.
    """

    def __init__(self, store: str, passed: Callable[[Changes], None]) -> None:
        self._store, self._passed = store, passed
        self._position: Position | None = None

    @property
    def position(self) -> Position | None:
        """The committed state that was passed on."""
        return self._position

    def apply(self, changes: Mapping[str, Changes], position: Position | None) -> None:
        """Pass changes on."""
        keys, values = changes.get(self._store, ((), ()))
        if keys:
            self._passed((keys, values))
        self._position = position

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Pass entries on."""
        del store
        for keys, values in batches:
            self._passed((keys.to_pylist(), values.to_pylist()))

    def clear(self) -> None:
        """Have the whole table filled again: what other tasks passed on cannot be distinguished."""
        if self._position is not None:
            raise _ReplacedError

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Nothing is kept here."""
        del store
        return [None] * len(keys)

    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Nothing is kept here."""
        del store, low, high
        return iter(())

    def store_bytes(self) -> dict[str, int]:
        """Nothing is kept here."""
        return {}

    def flush(self, *, wait: bool = True) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """Nothing is kept here."""


class StoreSource(Source):
    """A store of a job.

    Args:
        table: which is filled.
        made: returns empty entries.
        opened: returns the reader of the job, or of the part that has the store.
        store: its name.
        clock: for resting.
    """

    def __init__(
        self,
        table: ServedTable,
        made: Maker,
        opened: Callable[[], JobReader],
        store: str,
        clock: Clock,
    ) -> None:
        super().__init__(table, made)
        self._opened, self._store, self._clock = opened, store, clock
        self._reader = opened()
        self._files = Files(sync=False)
        self._known: JobState | None = None
        self._entry: StoreEntry | None = None
        self._generation = -1
        self._tasks: dict[str, _TaskReplica] = {}
        self._news: dict[bytes, bytes | None] = {}
        self._passed: Callable[[Changes], None] = self._note
        self._made: object = None
        self._positions: dict[str, Position] = {}

    def follow(self) -> bool:
        """Show the newest committed epoch."""
        try:
            state = load_state(self._reader.log, known=self._known)
        except CorruptDataError:
            if self._known is None:
                raise
            self._reader, self._known = self._opened(), None
            return True  # manifests that follow the known one were swept meanwhile
        if state is None:
            self._reader = self._opened()  # which says what is wrong, or finds the job made again
            raise CorruptDataError(f"job {self._reader.job!r} had no manifest")
        if self._known is not None and state.digest == self._known.digest:
            return False
        try:
            self._show(state)
        except CorruptDataError:
            self._reader = self._opened()
            if self._reader.kept().oldest <= state.epoch:
                raise
            return True  # the files of that epoch were swept meanwhile
        self._known = state
        return False

    def _show(self, state: JobState) -> None:
        entry = self._entry_of(state)
        version = TableVersion(
            state.epoch,
            state.time_ms,
            f"job {state.job}, store {entry.name}, epoch {state.epoch}",
        )
        if is_followed(entry):
            try:
                self._follow(state, entry, version)
            except _ReplacedError:
                self._tasks = {}
                self._follow(state, entry, version)
        else:
            self._make(state, entry, version)

    def _entry_of(self, state: JobState) -> StoreEntry:
        if self._entry is None or state.generation != self._generation:
            self._entry = self._reader.entry(state, self._store)
            self._generation = state.generation
            self.table.shape = shape_of(self._entry)
        return self._entry

    # Entry by entry.

    def _follow(self, state: JobState, entry: StoreEntry, version: TableVersion) -> None:
        if self._tasks and self.table.is_loaded:
            self._catch_up(state, entry)
            keys, values = self._changes(entry)
            self.table.apply(keys, values, version)
            return
        self._tasks, self._news = {}, {}
        entries = self.made()
        count = 0

        def loaded(changes: Changes) -> None:
            nonlocal count
            count += len(changes[0])
            self._load(entries, changes)

        try:
            self._catch_up(state, entry, loaded)
            entries.loaded()
            self._check_keys(entries, count, entry)
        except BaseException:
            self._tasks = {}
            entries.close()
            raise
        self.table.swap(entries, version)

    def _catch_up(
        self,
        state: JobState,
        entry: StoreEntry,
        loaded: Callable[[Changes], None] | None = None,
    ) -> None:
        """Bring the replica of each task to its committed position, and note what is new."""
        self._passed = loaded or self._note
        segments = ManifestSegments(lambda _: state, self._reader.root, state.epoch)
        for name, held in state.tasks.items():
            stage, _, number = name.rpartition("/")
            if stage != entry.stage or not held.files:
                continue
            groups = group_range(int(number), state.task_counts[stage], state.key_groups)
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = _TaskReplica(entry.name, self._pass)
            restorer = StateRestorer(TaskName(state.job, stage, int(number), groups), self._files)
            target = Position(state.lineage, held.epoch, held.attempt)
            if task.position != target:
                restorer.fill(task, (entry.name,), target, segments, RestoreCounts())

    def _pass(self, changes: Changes) -> None:
        self._passed(changes)  # to what is loaded, or to the news of the epoch

    def _note(self, changes: Changes) -> None:
        self._news.update(zip(*changes, strict=True))

    def _changes(self, entry: StoreEntry) -> Changes:
        """Return what is new by key, without key groups."""
        news, self._news = self._news, {}
        alive = {key[2:]: value for key, value in news.items() if value is not None}
        if (twice := sum(value is not None for value in news.values()) - len(alive)) > 0:
            self._tasks = {}  # what is shown does not follow, so the next look loads all
            raise _refusal(entry, twice)
        # Deletes first: a key may have gone from one key group to another.
        changes: dict[bytes, bytes | None] = {key[2:]: None for key in news}
        changes |= alive
        return self._own(list(changes), list(changes.values()))

    def _load(self, entries: Entries, changes: Changes) -> None:
        keys, values = self._own([key[2:] for key in changes[0]], changes[1])
        entries.load(keys, values)  # type: ignore[arg-type] # deleted ones were left out

    def _own(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Changes:
        if not self.table.is_divided:
            return keys, values
        return of_groups(self.table, (list(keys), list(values)))  # type: ignore[arg-type]

    def _check_keys(self, entries: Entries, count: int, entry: StoreEntry) -> None:
        """Refuse a store with the same key in several key groups, as far as it can be seen."""
        if not self.table.is_divided and 0 < entries.count() < count:
            raise _refusal(entry, count - entries.count())

    # As rows.

    def _make(self, state: JobState, entry: StoreEntry, version: TableVersion) -> None:
        """Bring the table to an epoch if the files of its tasks are others."""
        positions = {
            name: Position(state.lineage, task.epoch, task.attempt)
            for name, task in state.tasks.items()
            if name.rpartition("/")[0] == entry.stage
        }
        if positions == self._positions and self.table.is_loaded:
            self.table.apply((), (), version)
            return
        rows = self.table.shape
        assert isinstance(rows, ColumnRows)
        continues = (state.lineage, state.generation, state.task_counts[entry.stage])
        added = self._added(state, entry, positions) if continues == self._made else None
        if added is not None:
            changes = dict[bytes, bytes | None]()
            for there, gone in added.changes():
                changes |= dict.fromkeys(rows.encode_keys(gone))
                changes |= zip(*rows.encode(there), strict=True)
            self.table.apply(*self._own(list(changes), list(changes.values())), version)
            self.look_s = LOOK_LEAST_S
        else:
            began = self._clock.monotonic()
            self._load_all(state, rows, version)
            self.look_s = max(LOOK_LEAST_S, (self._clock.monotonic() - began) * RESTS)
        self._positions, self._made = positions, continues

    def _load_all(self, state: JobState, rows: ColumnRows, version: TableVersion) -> None:
        entries = self.made()
        try:
            for batch in self._reader.view(self._store, state.epoch).batches():
                for begin in range(0, batch.num_rows, STEP_ROWS):
                    part = batch.slice(begin, STEP_ROWS)
                    entries.load(*of_groups(self.table, rows.encode(part)))
            entries.loaded()
        except BaseException:
            entries.close()
            raise
        self.table.swap(entries, version)

    def _added(
        self, state: JobState, entry: StoreEntry, positions: Mapping[str, Position]
    ) -> TableView | None:
        """Return rows of the files that were added since; ``None``: they do not say all."""
        is_plain = entry.form in ("totals", "windows") and not entry.by_event
        if entry.kind != COLUMNAR or not is_plain or entry.ttl_ms is not None:
            return None
        segments = ManifestSegments(lambda _: state, self._reader.root, state.epoch)
        sources = []
        for name, target in positions.items():
            shown, number = self._positions.get(name), int(name.rpartition("/")[2])
            if shown == target:
                continue
            groups = group_range(number, state.task_counts[entry.stage], state.key_groups)
            chain = segments.chain(entry.stage, number, groups, shown)
            is_inside = bool(chain.steps) and shown is not None and chain.steps[0].is_within(shown)
            if shown is None or chain.start != shown or is_inside:
                return None
            for step in chain.steps:
                for path in step.paths:
                    reader = SegmentReader(self._files, path, chain.checksums.get(path))
                    sources.append(SegmentRange(reader, groups, entry.stage))
        return TableView(entry, state.time_ms, state.epoch, state.key_groups, sources)


LOOK_LEAST_S = 0.03


def _refusal(entry: StoreEntry, keys: int) -> InvalidInputError:
    return InvalidInputError(
        f"store {entry.name!r} has {keys} keys more than once, under several keys of its messages, "
        "so a key alone does not say which entry is meant; let its keys begin with those of "
        "partition_by, or send what is to be served to a stream, and serve that"
    )


def is_followed(entry: StoreEntry) -> bool:
    """Say whether a store is served entry by entry, and not made of what is stored."""
    return entry.form == "values" and entry.kind != COLUMNAR


def shape_of(entry: StoreEntry) -> RowShape:
    """Return what the rows of a store are.

    Raises:
        InvalidInputError: it has nothing that can be served by key.
    """
    if not entry.in_files:
        reason = "remote: its server answers" if entry.kind == "remote" else "not logged"
        raise InvalidInputError(
            f"store {entry.name!r} is not in the job's files, for it is {reason}"
        )
    if entry.form not in _SERVED or entry.waits:
        raise InvalidInputError(
            f"store {entry.name!r} holds {entry.form}, which have no value for a key; send "
            "results to a stream, and serve that by --stream"
        )
    keys = schema_from_text(entry.keys)
    if is_followed(entry):
        return StoreShape(entry, keys)
    from headrace.coordinator.inspection.store_rows import StoreRows  # noqa: PLC0415

    shown = StoreRows(entry).schema
    moments = _SERVED[entry.form]
    first = list(shown)[: moments and 1]
    rest = [field for field in list(shown)[moments and 1 :] if field.name not in keys.names]
    return ColumnRows(pa.schema([*keys, *first]), pa.schema(rest))
