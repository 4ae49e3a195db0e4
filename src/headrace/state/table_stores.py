"""The tables of one task, and which committed files each of them lies over.

Nothing is applied and nothing copied: to catch up is to know which runs count. They are
mapped from the files that the manifest names, or that this process wrote itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.records.layout import TableLayout
from headrace.state.chain import SegmentSource
from headrace.state.columnar.files import open_runs
from headrace.state.columnar.run import Run
from headrace.state.columnar.table import ColumnarTable, TableChanges
from headrace.state.follower import Counts, TaskName
from headrace.state.position import Position, Target
from headrace.state.segment_reader import SegmentReader

Groups = tuple[int, int]


class _File(NamedTuple):
    """A file of the chain, and the key groups of it that count."""

    path: Path
    groups: Groups


class TableStores:
    """All columnar stores of a task.

    Args:
        name: which task.
        layouts: of each store.
        files: where segments are read.
    """

    def __init__(self, name: TaskName, layouts: Mapping[str, TableLayout], files: Files) -> None:
        self._name, self._files = name, files
        self.tables = {store: ColumnarTable(layout) for store, layout in layouts.items()}
        self._opened: dict[_File, dict[str, list[Run]]] = {}
        self._shape: int | None = None
        self._written: tuple[Path, int | None] | None = None
        self.position: Position | None = None

    def is_at(self, target: Target) -> bool:
        """Say whether the tables show what is asked for, from the files that hold it now."""
        return self.position == target.position and self._shape == target.shape

    def begin(self, wall_ms: int, watermark: int | None = None) -> None:
        """Begin an epoch.

        Args:
            wall_ms: its wall clock.
            watermark: of the stage before it, for tables that go by event time.
        """
        self._written = None
        for table in self.tables.values():
            table.begin(watermark if table.layout.by_event else wall_ms)

    def seal(self) -> dict[str, TableChanges]:
        """Return the changes of those tables that have any."""
        sealed = {store: table.seal() for store, table in self.tables.items()}
        return {store: changes for store, changes in sealed.items() if changes is not None}

    def written(self, path: Path, checksum: int | None) -> None:
        """Learn which file holds the sealed changes."""
        self._written = (path, checksum)

    def go_on(self, target: Target, counts: Counts) -> bool:
        """Lay what was sealed, and has been committed since, over the other runs.

        Returns:
            False when that cannot be: then follow the committed files.
        """
        if self._written is None or self._shape != target.shape or self.position is None:
            return False
        path, checksum = self._written
        self._open(_File(path, self._name.groups), checksum, counts)
        self._attach(target)
        return True

    def follow(self, target: Target, source: SegmentSource, counts: Counts) -> None:
        """Open the committed files that are not open yet, and let go of those that are gone.

        Raises:
            CorruptDataError: one is missing or damaged; names it.
        """
        name = self._name
        chain = source.chain(name.stage, name.task, name.groups, None)
        named = [_File(*found) for found in chain.snapshots(name.groups)]
        named += [_File(path, name.groups) for step in chain.steps for path in step.paths]
        before, self._opened = self._opened, {}
        for file in named:
            if file in before:
                self._opened[file] = before[file]
            else:
                counts.opens(file.path)
                self._open(file, chain.checksums.get(file.path), counts)
        self._attach(target)

    def _open(self, file: _File, checksum: int | None, counts: Counts) -> None:
        counts.opens(file.path)
        reader = SegmentReader(self._files, file.path, checksum)
        # A job that began from another one's savepoint has files of that one, by their checksums.
        if checksum is None and reader.header.job != self._name.job:
            raise CorruptDataError(
                f"segment {file.path} is of job {reader.header.job!r}, expected {self._name.job!r}",
                file=str(file.path),
            )
        self._opened[file] = {
            store: open_runs(reader, store, table.layout, file.groups)
            for store, table in self.tables.items()
        }
        counts.files.add(file.path)

    def _attach(self, target: Target) -> None:
        for store, table in self.tables.items():
            table.attach([run for runs in self._opened.values() for run in runs[store]])
        self.position, self._shape = target.position, target.shape
        self._written = None

    def discard(self) -> None:
        """Forget the changes of the epoch."""
        for table in self.tables.values():
            table.discard()

    @property
    def overlay_bytes(self) -> int:
        """How much memory the changes of the epoch take."""
        return sum(table.overlay_bytes for table in self.tables.values())

    @property
    def store_bytes(self) -> dict[str, int]:
        """About how many bytes the live rows of each table take."""
        return {store: table.live_bytes for store, table in self.tables.items()}

    def close(self) -> None:
        """Let go of all files."""
        self.discard()
        self._opened = {}
        for table in self.tables.values():
            table.attach(())
