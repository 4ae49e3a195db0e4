"""A table bound to its warehouse: how rows become files, and who takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pyarrow as pa

from headrace.config.settings import Settings
from headrace.errors import InvalidInputError
from headrace.files import Bytes
from headrace.graph.daily import DailyTable
from headrace.graph.operators import JobGraph, Operator, SendToSink
from headrace.graph.sinks import Receiver, SinkSite
from headrace.warehouse.compaction import Aims
from headrace.warehouse.delta import DeltaReceiver
from headrace.warehouse.packet import encode
from headrace.warehouse.receiver import TableReceiver
from headrace.warehouse.snapshot import Place


@dataclass(frozen=True)
class TableSink(DailyTable):
    """A daily table that knows its folder.

    Args:
        folder: of the table, absolute; the driver's host must reach it.
        aims: of its files.
    """

    folder: str = ""
    aims: Aims = field(default_factory=Aims)

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the files of all days, one after the other."""
        assert self.time is not None
        return encode(batches, schema, self.time, self.order)

    def open(self, site: SinkSite) -> Receiver:
        """Take the table, which is made when it is missing."""
        if self.form == "delta":
            return DeltaReceiver(Path(self.folder), self, site)
        return TableReceiver(Place(Path(self.folder)), self, self.aims, site)


def with_warehouse(graph: JobGraph, settings: Settings) -> JobGraph:
    """Return the graph with the folder of each table.

    Raises:
        InvalidInputError: two outputs of the job have the same table.
    """
    seen: set[str] = set()

    def bound(operator: Operator) -> Operator:
        if not (isinstance(operator, SendToSink) and isinstance(operator.sink, DailyTable)):
            return operator
        table = operator.sink
        if table.name in seen:
            raise InvalidInputError(
                f"table {table.name!r} is sent to by several operators; merge their streams first, "
                "or give each a table of its own"
            )
        seen.add(table.name)
        own = {one.name: getattr(table, one.name) for one in fields(DailyTable)}
        folder = str(settings.warehouse_dir / table.name)
        return replace(operator, sink=TableSink(**own, folder=folder, aims=aims_of(settings)))

    return replace(graph, operators=tuple(map(bound, graph.operators)))


def aims_of(settings: Settings) -> Aims:
    """Return how large files are to be by the settings."""
    found = settings.warehouse
    return Aims(found.file_bytes, found.merge_files, int(found.keep_s * 1000))
