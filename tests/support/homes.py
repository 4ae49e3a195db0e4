"""Homes: streams made and read in them, settings of runs there, and what jobs have committed.

A ``Home`` looks from outside, at streams and manifests on disk, while a driver runs or not, in this
process or in another. A ``TestDriver`` with a folder and ``memory_bus=False`` has one, too.
"""

from __future__ import annotations

import shutil
import tarfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa
import pytest

from headrace import redaction
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import StreamSpec
from headrace.clock import Clock
from headrace.config import Settings, load_settings, setting_keys
from headrace.config.inputs import read_inputs
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.inspection.job_reader import JobReader, committed_entries
from headrace.coordinator.job_events import JobEventFile
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.manifest import JobState
from headrace.files import Bytes, Files
from headrace.records.keys import decode_key
from headrace.sinks import Prepared, SinkEpoch, SinkSite
from headrace.sinks.files import control_folder
from headrace.warehouse.sink import TableSink

__all__ = [
    "FILES",
    "SWEPT",
    "Bytes",
    "Files",
    "Home",
    "Settings",
    "committed_state",
    "control_folder",
    "copied",
    "entries_in",
    "load_settings",
    "read_inputs",
    "read_stream",
    "rows_in",
    "setting_keys",
    "unnamed",
    "write_visits",
]

Rows = list[dict[str, Any]]
FILES = Files(sync=False)
SWEPT = ("orders", "exchange", "segment", "snapshot", "output")
"""Folders of a job's storage whose files go when nothing names them."""


def rows_in(bus: Bus, stream: str) -> Rows:
    """Return all records of a stream, partition after partition; none where there is no stream."""
    if stream not in bus.names():
        return []
    target = bus.stream(stream)
    return [
        row
        for partition, begin in enumerate(target.begins())
        for part in target.read(partition, begin)
        for row in part.batch.to_pylist()
    ]


def read_stream(home: Path, stream: str) -> Rows:
    """Return all records of a stream in a home, partition after partition."""
    with open_bus(home / "bus") as bus:
        return rows_in(bus, stream)


def committed_state(storage: Path) -> JobState:
    """Return what the newest manifest of a job's storage, or of a copy of it, says."""
    state = load_state(FileCommitLog(storage, FILES))
    assert state is not None
    return state


def copied(prepared: Path, target: Path) -> Path:
    """Return a copy of a folder that was made once for many tests; nobody else writes in it."""
    shutil.copytree(prepared, target, symlinks=True)
    return target


def entries_in(storage: Path, store: str) -> dict[bytes, bytes]:
    """Return the bytes of a store by full key, as the newest manifest of a storage has them."""
    return committed_entries(committed_state(storage), storage, store, FILES)


def write_visits(folder: Path, clock: Clock) -> None:
    """Make a table of the warehouse with two rows of one day."""
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("user", pa.string())])
    sink = TableSink("visits", "at", folder=str(folder))
    files = Files(sync=False)
    rows = [{"at": 1_000_000, "user": "ann"}, {"at": 2_000_000, "user": None}]
    packet = folder.with_name("packet")
    batch = pa.RecordBatch.from_pylist(rows, schema)
    files.write_new(packet, sink.prepare([batch], schema))
    receiver = sink.open(SinkSite("shop", "to_visits", schema, clock, files))
    receiver.commit(SinkEpoch("lineage", 1, (Prepared(packet, 2),)))
    packet.unlink()


class Home:
    """A folder with streams and jobs.

    Args:
        path: the folder; made when the first stream is.
        sets: settings of all runs, as the command line has them: ``epoch.max_rows=100``.
    """

    def __init__(self, path: Path, *sets: str) -> None:
        self.home = path
        self.sets = [f"home={path}", *sets]
        is_elsewhere = any(one.startswith("bus.address=") for one in sets)
        self.bus = open_bus(self.settings().bus_dir if is_elsewhere else path / "bus")
        weakref.finalize(self, self.bus.close).atexit = False

    def settings(self, *sets: str) -> Settings:
        """Return the settings of a run, with some of its own."""
        return load_settings(None, [*self.sets, *sets], {})

    def create(
        self,
        stream: str,
        columns: pa.Schema | Mapping[str, pa.DataType],
        *,
        partitions: int = 1,
        time: str | None = None,
        key: Sequence[str] = (),
        compact: bool = False,
    ) -> Stream:
        """Make a stream."""
        schema = columns if isinstance(columns, pa.Schema) else pa.schema(list(columns.items()))
        spec = StreamSpec(stream, partitions, schema, time, tuple(key), compact=compact)
        return self.bus.create(spec)

    def send(self, stream: str, rows: Rows | pa.Table, partition: int | None = None) -> None:
        """Append records to a stream; by key where no partition is named."""
        target = self.bus.stream(stream)
        table = rows
        if not isinstance(table, pa.Table):
            table = pa.Table.from_pylist(rows, schema=target.spec.schema)
        if partition is None:
            target.append_rows(table)
        else:
            target.append(partition, table)

    def rows(self, stream: str) -> Rows:
        """Return all records of a stream, partition after partition."""
        return rows_in(self.bus, stream)

    def count(self, stream: str) -> int:
        """Return how many records a stream holds, without reading them; 0 where there is none."""
        if stream not in self.bus.names():
            return 0
        target = self.bus.stream(stream)
        return sum(target.ends()) - sum(target.begins())

    def job_dir(self, job: str) -> Path:
        """Return the folder of a job, or of the copy of one that commits to its host."""
        return self.home / "jobs" / job

    def storage(self, job: str, *sets: str) -> Path:
        """Return the folder that a job's epochs commit to, by the settings of its runs."""
        return job_storages(self.settings(*sets), job).storage

    def reader(self, job: str) -> JobReader:
        """Return what reads any epoch of a job that is kept."""
        return JobReader(self.job_dir(job), job, FILES)

    def state(self, job: str, epoch: int | None = None) -> JobState:
        """Return a job's state after an epoch, by the manifests on disk; the newest by default."""
        return self.reader(job).state(epoch)

    def has_begun(self, job: str) -> bool:
        """Say whether a job has committed anything."""
        return self._last_state(job) is not None

    def _last_state(self, job: str) -> JobState | None:
        return load_state(FileCommitLog(self.job_dir(job), FILES))

    def read_so_far(self, job: str) -> int:
        """Return how many rows of input a job has committed; 0 before it was created."""
        state = self._last_state(job)
        return 0 if state is None else state.counts.get("in", 0)

    def events(self, job: str) -> list[str]:
        """Return what the log of a job's events says, the oldest first."""
        return [event.text for event in JobEventFile(self.job_dir(job)).read()]

    def store(self, job: str, name: str) -> dict[Any, Any]:
        """Return a processor's store as committed, by the first column of its key."""
        return {
            decode_key(key[2:])[0]: msgspec.msgpack.decode(value)
            for key, value in self.raw_store(job, name).items()
        }

    def raw_store(self, job: str, name: str) -> dict[bytes, bytes]:
        """Return the committed bytes of a store, over all parts of the job."""
        entries: dict[bytes, bytes] = {}
        for folder in (self.job_dir(job), *sorted((self.home / "jobs").glob(f"{job}@*"))):
            entries |= entries_in(folder, name)
        return entries

    def leftovers(self, job: str) -> list[str]:
        """Return the files of finished epochs that no epoch names, of those that are kept."""
        newest = self.state(job)
        log = FileCommitLog(self.job_dir(job), FILES)
        kept = [load_state(log, epoch) for epoch in range(newest.kept_from, newest.epoch + 1)]
        named = {path for state in kept if state is not None for path in state.files()}
        named |= newest.merging()  # ordered, and not yet in the place of its sources
        return unnamed(self.job_dir(job), named)

    def close(self) -> None:
        """Close the streams."""
        self.bus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def unpack(archive: Path, place: Path) -> None:
    """Unpack an archive of the tests' own.

    The first releases of Python 3.11 have no argument ``filter``.
    """
    with tarfile.open(archive) as tar:
        tar.extraction_filter = lambda member, path: member
        tar.extractall(place)


def forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no secret be known that this process has met, as in a new process."""
    monkeypatch.setattr(redaction, "_known", {})
    monkeypatch.setattr(redaction, "_ordered", ())


def unnamed(storage: Path, named: Iterable[str]) -> list[str]:
    """Return the files of a job's storage that are none of the named ones, ``folder/name``."""
    known = set(named)
    return [
        path
        for folder in SWEPT
        for name in sorted(FILES.names(storage / folder))
        if (path := f"{folder}/{name}") not in known
    ]
