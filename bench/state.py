"""Cost of task state for each key and access, as JSON; see docs/decisions/0003-state.md.

    python bench/state.py [--keys 1000000] [--batch 100000] [--epochs 10] [--store rocksdb]
                          [--clock cpu|wall] [--cache-mb 256] [--key int|string] [--windows 0]

A task of 512 key groups holds ``keys`` counters; each epoch touches ``batch`` distinct random
ones: prefetch, get + put, seal, write the segment, catch up from memory. Then the state is
rebuilt from its files. All figures but those with a unit in the name are microseconds a key, of
the calling thread's processor time, which other programs on the machine disturb least; with
``--clock wall`` of the clock on the wall, waiting for the disk included.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from columnar import TableBench

from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.records.keys import encode_columns, key_groups
from headrace.state.backend import ChainStep, Position, SegmentChain, Target
from headrace.state.compaction import CompactionInput, SegmentCompaction, compact_files
from headrace.state.object_store import CacheBudget
from headrace.state.restore import TaskName
from headrace.state.segment import SegmentReader, header_at
from headrace.state.segment_writer import SegmentWriter
from headrace.state.task_state import TaskState

GROUPS = 512
CLOCKS = {"cpu": time.thread_time, "wall": time.perf_counter}


class Source:
    """The epochs so far, as a chain."""

    def __init__(self) -> None:
        self.steps: list[ChainStep] = []

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        known = [step.position for step in self.steps]
        first = known.index(after) + 1 if after in known else 0
        return SegmentChain(after if first else None, (), tuple(self.steps[first:]))


class Bench:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.files = folder, Files()
        self.keys, self.batch = arguments.keys, arguments.batch
        self.epochs, self.kind = arguments.epochs, arguments.store
        self.clock = CLOCKS[arguments.clock]
        self.cache_bytes = arguments.cache_mb << 20
        self.source = Source()
        self.state = self.opened("task")
        self.figures: dict[str, list[float]] = defaultdict(list)
        self.segment_bytes = 0

    def opened(self, name: str) -> TaskState:
        specs = [StoreSpec("counts", self.kind, int)]
        return TaskState(
            TaskName("bench", "stage", 0, (0, GROUPS)),
            specs,
            self.folder / name,
            self.files,
            cache=CacheBudget(self.cache_bytes),
        )

    def timed(self, name: str, rows: int, action: Callable[[], Any]) -> Any:
        begin = self.clock()
        result = action()
        self.figures[name].append((self.clock() - begin) / rows * 1e6)
        return result

    def run_epoch(self, ids: list[int]) -> None:
        encoded = encode_columns([pa.array(ids)])
        groups, codes = key_groups(encoded.hashes(), GROUPS), encoded.to_list()
        state, rows = self.state, len(ids)
        epoch = len(self.source.steps) + 1
        state.begin(epoch, f"attempt-{epoch}")
        counts = state.objects("counts")
        self.timed("prefetch", rows, lambda: counts.prefetch(groups, ids, codes))
        self.timed("enter_get_put", rows, lambda: self.count(groups, ids))
        # Again, on keys of one group: what get and put cost without moving between groups.
        one = [key for key, group in zip(ids, groups.tolist(), strict=True) if group == groups[0]]
        many = one * (rows // len(one))
        self.timed("get_put", len(many), lambda: self.count(np.full(len(many), groups[0]), many))
        self.timed("overlay_bytes_us_a_call", 1, lambda: state.overlay_bytes)
        hits = state.counts()["cache.hits"]
        self.figures["cache_hit_percent"].append(hits / rows * 100)
        changes = self.timed("seal", rows, state.seal)
        position = Position("line", epoch, str(epoch))
        path = self.folder / f"segment-{epoch}"
        header = header_at("changelog", "bench", position, 1, f"attempt-{epoch}")
        writer = SegmentWriter(self.files, path, header)
        for store, (keys, values) in changes.items():
            writer.add("stage", 0, store, keys, values)
        info = self.timed("write_segment_with_fsync", rows, writer.close)
        self.segment_bytes += info.bytes
        self.source.steps.append(ChainStep(position, (path,)))
        target = Target(position, f"attempt-{epoch}")
        self.timed("apply_from_memory", rows, lambda: state.catch_up(target, self.source))

    def count(self, groups: Any, ids: list[int]) -> None:
        counts = self.state.objects("counts")
        enter, get, put, last = counts.enter, counts.get, counts.put, -1
        for group, key in zip(groups.tolist(), ids, strict=True):
            if group != last:
                enter(group)
                last = group
            put(key, get(key, 0) + 1)

    def rebuild(self) -> None:
        target = Target(self.source.steps[-1].position)
        fresh = self.opened("rebuilt")
        begin = self.clock()
        stats = fresh.catch_up(target, self.source)
        seconds = self.clock() - begin
        self.figures["rebuild"].append(seconds / stats.entries * 1e6)
        self.figures["rebuild_mb_per_s"].append(stats.bytes_read / seconds / 1e6)
        path = self.folder / "snapshot"
        sources = [path for step in self.source.steps for path in step.paths]
        job = SegmentCompaction(
            path,
            header_at("snapshot", "bench", target.position, 1, "s"),
            "stage",
            0,
            (),
            tuple(CompactionInput(source, None, (0, GROUPS)) for source in sources),
            0,
        )
        read = self.batch * self.epochs
        info = self.timed("merge_into_snapshot", read, lambda: compact_files(job, self.files))
        self.figures["snapshot_bytes_a_key"].append(info.bytes / self.keys)
        reader = SegmentReader(self.files, path)
        rows = sum(section.rows for section in reader.sections)
        self.timed("read_snapshot", rows, lambda: reader.read("counts"))
        fresh.close()

    def result(self) -> dict[str, Any]:
        middle = {name: round(statistics.median(v), 3) for name, v in self.figures.items()}
        parts = ("prefetch", "seal", "apply_from_memory")
        middle["prefetch_seal_apply"] = round(sum(middle[part] for part in parts), 3)
        middle["segment_bytes_a_key"] = round(self.segment_bytes / self.batch / self.epochs, 1)
        settings = {"store": self.kind, "keys": self.keys, "batch": self.batch}
        return {**settings, **dict(sorted(middle.items()))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--store", choices=["rocksdb", "memory", "columnar"], default="rocksdb")
    parser.add_argument("--key", choices=["int", "string"], default="int", help="columnar only")
    parser.add_argument("--windows", type=int, default=0, help="columnar only: clusters")
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu")
    parser.add_argument("--cache-mb", type=int, default=256)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        if arguments.store == "columnar":
            table = TableBench(folder, arguments, CLOCKS[arguments.clock])
            print(json.dumps(table.run(), indent=2))
            return
        bench = Bench(folder, arguments)
        for begin in range(0, bench.keys, bench.batch):  # every key once
            bench.run_epoch(list(range(begin, min(bench.keys, begin + bench.batch))))
        bench.figures.clear()
        bench.segment_bytes = 0
        draw = random.Random(1)
        for _ in range(bench.epochs):
            bench.run_epoch(draw.sample(range(bench.keys), bench.batch))
        bench.rebuild()
        bench.state.close()
        print(json.dumps(bench.result(), indent=2))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
