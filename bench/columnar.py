"""Cost of a columnar table for each key and step; ``bench/state.py --store columnar`` runs it.

A task holds ``keys`` rows of one integer; each epoch touches ``batch`` distinct random ones: sort
the request, get, put, seal, write the segment, open it. Files are merged by four, as tiers do.
Figures are nanoseconds a key, but those with a unit in their name.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.files import Files
from headrace.records.schema import TableLayout
from headrace.state.backend import Position
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import TableKeys
from headrace.state.run_merge import merge_runs, merged_schema
from headrace.state.segment import SegmentReader, header_at, open_runs
from headrace.state.segment_writer import SegmentWriter
from headrace.state.sorted_run import SortedRun

GROUPS = 512
FAN_IN = 4
VALUES = pa.schema([("count", pa.int64())])
KEYS = {
    "int": (pa.int64(), pa.array),
    "string": (pa.string(), lambda ids: pa.array(np.char.add("user-", ids.astype(str)))),
}


class TableBench:
    """One table over its epochs.

    Args:
        folder: of the files.
        arguments: of the command.
        clock: that figures are of, seconds.
    """

    def __init__(
        self, folder: Path, arguments: argparse.Namespace, clock: Callable[[], float]
    ) -> None:
        self.folder, self.files, self.clock = folder, Files(), clock
        self.keys, self.batch, self.epochs = arguments.keys, arguments.batch, arguments.epochs
        kind, self.array = KEYS[arguments.key]
        self.schema = pa.schema([("id", kind)])
        self.layout = TableLayout(self.schema, VALUES, cluster=arguments.windows > 0)
        self.windows, self.key = arguments.windows, arguments.key
        self.table = ColumnarTable(self.layout)
        self.runs: list[SortedRun] = []
        self.figures: dict[str, list[float]] = defaultdict(list)
        self.bytes: list[float] = []
        self.written = 0
        self.now_ms: int | None = None

    def timed(self, name: str, rows: int, action: Callable[[], Any]) -> Any:
        """Do something and note what it cost a key."""
        begin = self.clock()
        result = action()
        self.figures[name].append((self.clock() - begin) / max(1, rows) * 1e9)
        return result

    def write(self, name: str, schema: pa.Schema, batches: Any) -> SortedRun:
        """Write a run and open it, as the next epoch does."""
        self.written += 1
        path = self.folder / f"run-{self.written}"
        header = header_at("changelog", "bench", Position("line", 1, "d"), 1, "a")
        writer = SegmentWriter(self.files, path, header)
        writer.add_table("stage", 0, "t", schema, batches, GROUPS)
        begin = self.clock()
        info = writer.close()
        [run] = open_runs(SegmentReader(self.files, path), "t", self.layout)
        self.figures[name].append((self.clock() - begin) / run.rows * 1e9)
        self.bytes.append(info.bytes / run.rows)
        return run

    def run_epoch(self, ids: np.ndarray[Any, Any]) -> None:
        """Count some ids once."""
        batch = pa.RecordBatch.from_arrays([self.array(ids)], schema=self.schema)
        clusters = ids % self.windows if self.windows else None
        table, rows = self.table, len(ids)
        table.begin(0)
        keys = self.timed("keys", rows, lambda: TableKeys.of(self.layout, batch, clusters))
        found = self.timed("get", rows, lambda: table.get(keys))
        counts = np.ones(rows, np.int64)
        counts[found.index] += found.values[0].to_numpy()
        values = pa.record_batch({"count": counts})
        self.timed("put", rows, lambda: table.put(keys, values))
        changes = self.timed("seal", rows, table.seal)
        self.runs.append(self.write("write_with_fsync_and_open", *changes))
        self.merge()
        self.timed("attach_us_a_call", 1000, lambda: table.attach(self.runs))
        self.figures["runs"].append(len(self.runs))

    def merge(self) -> None:
        """Merge the newest files when four of about one size have gathered."""
        begin = len(self.runs) - 1
        total = self.runs[begin].rows
        while begin and self.runs[begin - 1].rows <= total:
            begin -= 1
            total += self.runs[begin].rows
        if len(self.runs) - begin < FAN_IN:
            return
        own = self.runs[begin:]
        schema = merged_schema(own, self.layout, begin == 0)
        batches = merge_runs(own, self.layout, begin == 0, self.now_ms)
        rows = sum(run.rows for run in own)
        self.runs[begin:] = [self.timed("merge", rows, lambda: self.write("", schema, batches))]

    def scan(self) -> None:
        """Read all rows."""
        rows = sum(run.rows for run in self.runs)
        held = self.timed("scan", rows, lambda: sum(b.num_rows for b in self.table.scan()))
        assert held == self.keys, (held, self.keys)

    def run(self) -> dict[str, Any]:
        """Fill the table, run the epochs, return the figures."""
        for begin in range(0, self.keys, self.batch):
            self.run_epoch(np.arange(begin, min(self.keys, begin + self.batch)))
        self.figures.clear()
        self.bytes.clear()
        draw = np.random.default_rng(1)
        for _ in range(self.epochs):
            self.run_epoch(draw.permutation(self.keys)[: self.batch])
            self.scan()
        self.figures.pop("", None)
        middle = {name: round(statistics.median(v), 1) for name, v in self.figures.items()}
        middle["get_worst"] = round(max(self.figures["get"]), 1)
        middle["bytes_a_row"] = round(statistics.median(self.bytes), 1)
        asked = {"store": "columnar", "key": self.key, "windows": self.windows}
        return {**asked, "keys": self.keys, "batch": self.batch, **dict(sorted(middle.items()))}
