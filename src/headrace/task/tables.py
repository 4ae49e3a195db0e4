"""The broadcast stores of a worker process: one copy each, read up to the epoch's offsets.

A table is a pure function of (stream, offsets) or of a file's digest, so it has no changelog:
a new process reads it again. All tasks that run in the process share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.errors import CorruptDataError, InternalError
from headrace.files import Files
from headrace.plan.stages import JobPlan, TableBinding
from headrace.records.evolution import as_planned
from headrace.records.schema import normalise
from headrace.state.broadcast.table import BroadcastTable


class Tables:
    """The tables that this process holds, by name.

    Args:
        bus: where streams are read.
        files: where files are read.
        storage: of the job, which holds the files.
    """

    def __init__(self, bus: Bus, files: Files, storage: Path) -> None:
        self._bus, self._files, self._storage = bus, files, storage
        self._held: dict[str, tuple[TableBinding, BroadcastTable]] = {}

    def at(
        self, plan: JobPlan, names: Collection[str], offsets: Mapping[str, Sequence[int]]
    ) -> dict[str, BroadcastTable]:
        """Return tables as they are at an epoch's offsets.

        The objects stay the same from epoch to epoch while the plan binds them alike.

        Args:
            plan: of the job.
            names: of the tables.
            offsets: by name, those up to which each partition is read.

        Raises:
            InvalidInputError: the stream does not hold its first records any more.
            CorruptDataError: the stream or the file is damaged.
        """
        found = {}
        for binding in plan.tables:
            if binding.name in names:
                table = self._table(binding)
                if binding.stream is not None:
                    self._follow(binding, binding.stream, table, offsets.get(binding.name, ()))
                found[binding.name] = table
        return found

    def _table(self, binding: TableBinding) -> BroadcastTable:
        held = self._held.get(binding.name)
        if held is not None and held[0] == binding:
            return held[1]
        partitions = binding.partitions if binding.stream is not None else 1
        table = BroadcastTable(binding.key, binding.schema, binding.values, partitions)
        if binding.stream is None:
            rows = self._read_file(binding)
            table.apply({0: (rows, rows.num_rows)})
        self._held[binding.name] = binding, table
        return table

    def _follow(
        self, binding: TableBinding, name: str, table: BroadcastTable, upto: Sequence[int]
    ) -> None:
        if len(upto) != len(table.offsets):
            raise InternalError(
                f"broadcast store {binding.name!r} has {len(table.offsets)} partitions, found "
                f"{len(upto)} offsets"
            )
        if any(have > want for have, want in zip(table.offsets, upto, strict=True)):
            table.clear()  # an older epoch is run again
        columns = list(dict.fromkeys((*binding.schema.names, *binding.values)))
        stream = self._bus.stream(name)
        if _missed(table.offsets, upto, stream):
            table.clear()
        news = {}
        for partition, (have, want) in enumerate(zip(table.offsets, upto, strict=True)):
            if want > have:
                parts = stream.read(partition, have, want, columns=columns)
                rows = normalise(pa.Table.from_batches([part.batch for part in parts]))
                news[partition] = as_planned(rows, binding.schema, name), want
        table.apply(news)

    def _read_file(self, binding: TableBinding) -> pa.RecordBatch:
        data = self._files.read(self._storage / binding.file)
        if hashlib.blake2b(data, digest_size=16).hexdigest() != binding.digest:
            raise CorruptDataError(
                f"{binding.file} of broadcast store {binding.name!r} does not match its digest; "
                "start the job again, which copies the file anew",
                file=binding.file,
            )
        return normalise(pa.ipc.open_stream(data).read_all())


def _missed(have: Sequence[int], want: Sequence[int], stream: Stream) -> bool:
    """Say whether a compaction may have removed deletes that a table has not seen."""
    if not stream.spec.compact:
        return False
    compacted = stream.compacted()
    return any(0 < h < min(c, w) for h, c, w in zip(have, compacted, want, strict=True))
