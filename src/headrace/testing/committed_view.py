"""What a test sees of a job: its streams, its stores and open windows as committed, its counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.bus import Bus
from headrace.config import Settings
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.inspection.diagnosis import JobDiagnosis, diagnose
from headrace.coordinator.inspection.job_reader import (
    JobReader,
    committed_entries,
    reader_of,
    table_rows,
)
from headrace.coordinator.job_parts import group_state
from headrace.coordinator.manifest import JobState
from headrace.coordinator.operations.dead_letters import read_letters
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.plan.dead_letters import dead_stream
from headrace.records.keys import decode_key
from headrace.records.schema import DELETED, HASH, WRITTEN
from headrace.runtime.dead_letters import from_record
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.state.store import without_stamp

_WINDOWS = ("windows", "panes", "slices", "whole")


class CommittedView(ABC):
    """Looks at a job from outside, as the commands do: at what is committed, and nothing else."""

    bus: Bus
    settings: Settings
    job: Job
    _files: Files

    @abstractmethod
    def _folders(self) -> list[Path]:
        """The storages of the parts of the job."""

    def output(self, stream: str) -> list[dict[str, Any]]:
        """Return the records of a stream, partition after partition, in offset order."""
        return [row for part in self.partitions(stream) for row in part]

    def partitions(self, stream: str) -> list[list[dict[str, Any]]]:
        """Return the records of each partition of a stream."""
        target = self.bus.stream(stream)
        found = []
        for partition, begin in enumerate(target.begins()):
            batches = [part.batch for part in target.read(partition, begin)]
            found.append([row for batch in batches for row in batch.to_pylist()])
        return found

    def store(self, name: str) -> dict[Any, Any]:
        """Return the committed contents of a processor's store: keys to values, over all tasks.

        Args:
            name: of the store, or the end of its name if that is unique.

        Raises:
            InvalidInputError: no such store; names the existing ones.
        """
        if not any(True for _ in self._committed()):
            return {}
        reader = self._reader(name)
        name = reader.entry(reader.state(), name).name
        return {
            _plain(decode_key(key[2:])): msgspec.msgpack.decode(without_stamp(value))
            for key, value in self.raw_store(name).items()
        }

    def raw_store(self, name: str) -> dict[bytes, bytes]:
        """Return the committed bytes of any store, by full key."""
        found: dict[bytes, bytes] = {}
        for root, state in self._committed():
            found |= committed_entries(state, root, name, self._files)
        return found

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the committed rows of a columnar store, with all columns.

        Args:
            name: of the operator, as in ``explain``.
        """
        batches = [
            batch
            for root, state in self._committed()
            for batch in table_rows(state, root, name, self._files)
        ]
        own = (HASH, WRITTEN, DELETED)
        return [
            {column: value for column, value in row.items() if column not in own}
            for batch in batches
            for row in batch.to_pylist()
        ]

    def rows(self, name: str, *, partials: bool = False) -> list[dict[str, Any]]:
        """Return the committed rows of any store, as ``headrace state`` shows them.

        Args:
            name: of the store, or the end of its name if that is unique.
            partials: also return what aggregates store, not only their results.

        Raises:
            InvalidInputError: no such store; names the existing ones.
        """
        view = self._reader(name).view(name, partials=partials)
        return [row for batch in view.batches() for row in batch.to_pylist()]

    def windows(self, name: str, *, partials: bool = False) -> list[dict[str, Any]]:
        """Return the windows of an operator that are still open or kept, with their contents.

        One row for each key and window, sorted by bounds and key. For overlapping windows these
        are the panes that they share, for sessions slices that a later message can join.

        Args:
            name: of the ``window`` operator.
            partials: also return what aggregates store, not only their results.

        Raises:
            InvalidInputError: it keeps no windows.
        """
        self._entry(name, _WINDOWS, "windows")
        return sorted(self.rows(name, partials=partials), key=_order)

    def timers(self, name: str) -> list[dict[str, Any]]:
        """Return the timers of an operator that are not yet due, by due time.

        Args:
            name: of the ``process`` operator.

        Raises:
            InvalidInputError: it has no timers.
        """
        stores = [e for reader in self._readers() for e in reader.catalog(reader.state()).stores]
        found = [e.name for e in stores if e.form == "timers" and name in (e.operator, e.name)]
        if not found:
            known = sorted(e.operator for e in stores if e.form == "timers")
            raise InvalidInputError(f"operator {name!r} has no timers; those that do: {known}")
        return sorted(self.rows(found[0]), key=_order)

    @property
    def state(self) -> JobState:
        """The committed state of all parts.

        Raises:
            InvalidInputError: the job has not been started.
        """
        states = [state for _, state in self._committed()]
        if not states:
            raise InvalidInputError("the job has not been started; advance it first")
        return group_state(states)

    @property
    def counts(self) -> dict[str, int]:
        """What the job has counted so far: rows ``in`` and ``out``, ``late`` and others."""
        return self.state.counts

    @property
    def operators(self) -> dict[str, dict[str, int]]:
        """What each operator has counted so far, by its name."""
        states = [state for _, state in self._committed()]
        return {name: one.counts for state in states for name, one in state.operators.items()}

    @property
    def watermarks(self) -> dict[str, int | None]:
        """The watermark of each stage, ms; ``None``: unknown."""
        open_ends = (NO_WATERMARK, END_WATERMARK)
        return {name: None if at in open_ends else at for name, at in self.state.watermarks.items()}

    def why(self) -> list[JobDiagnosis]:
        """Return what holds windows back and where rows went, as ``jobs why`` does; by part."""
        return [diagnose(reader, self.bus) for reader in self._readers()]

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return the dead letters so far, each ``record`` as a dict."""
        name = dead_stream(self.job.name, self.settings.job.dead_letters)
        if name not in self.bus.names():
            return []
        letters = read_letters(self.bus.stream(name))
        rows = [row for batch in letters for row in batch.to_pylist()]
        return [{**row, "record": _record(row["record"])} for row in rows]

    def _committed(self) -> Iterator[tuple[Path, JobState]]:
        """The storage and the last state of each part."""
        for root in self._folders():
            state = load_state(FileCommitLog(root, self._files))
            if state is not None:
                yield root, state

    def _readers(self) -> list[JobReader]:
        committed = self._committed()  # of a replay one part may be all that there is
        return [JobReader(root, root.name, self._files) for root, _ in committed]

    def _reader(self, store: str) -> JobReader:
        readers = self._readers()
        if not readers:
            raise InvalidInputError("the job has not been started; advance it first")
        return reader_of(readers, store)

    def _entry(self, name: str, forms: tuple[str, ...], what: str) -> None:
        reader = self._reader(name)
        entry = reader.entry(reader.state(), name)
        if entry.form not in forms:
            raise InvalidInputError(f"store {entry.name!r} holds {entry.form}, not {what}")


def _record(data: bytes | None) -> dict[str, Any] | None:
    return None if data is None else from_record(data).to_pylist()[0]


def _order(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """By the columns in turn, whatever their types: moments first, then the key."""
    return tuple((type(value).__name__, str(value)) for value in row.values())


def _plain(key: tuple[Any, ...]) -> Any:
    return key[0] if len(key) == 1 else key
