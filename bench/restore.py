"""How quick a store comes back from committed files, as JSON; docs/decisions/0005-large-state.md.

    python bench/restore.py [--mb 400] [--store rocksdb] [--entry 22] [--form snapshot]

Writes a state of so many megabytes as a snapshot, as merged changelogs (a snapshot, and three
segments of a quarter of the keys each), or as forty epochs, and fills an empty store from it.
Megabytes are of keys and values. ``mb_s_cpu`` is by the processor time of the whole process, so
it is what one core does; ``mb_s_wall`` by the clock on the wall. Also merges the same files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.state.backend import ChainStep, Position, SegmentChain, Target
from headrace.state.compaction import CompactionInput, SegmentCompaction, compact_files
from headrace.state.restore import TaskName
from headrace.state.segment import CHANGELOG, SNAPSHOT, SegmentHeader
from headrace.state.segment_writer import SegmentWriter
from headrace.state.task_state import TaskState

GROUPS = 128
KEY_BYTES = 11
FRAME = 60_000


class Fixed:
    """A chain that is always the same."""

    def __init__(self, chain: SegmentChain) -> None:
        self._chain = chain

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        return self._chain


def entries(ids: np.ndarray, width: int, seed: int) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Keys as Headrace writes them (two bytes of group, a tag, eight of the number), values."""
    groups = (ids * 2654435761 % (1 << 32) * GROUPS >> 32).astype(">u2")
    raw = np.empty((len(ids), KEY_BYTES), np.uint8)
    raw[:, :2] = groups.view(np.uint8).reshape(-1, 2)
    raw[:, 2] = 0x10
    raw[:, 3:] = ids.astype(">u8").view(np.uint8).reshape(-1, 8)
    order = np.lexsort((ids, groups))
    values = np.random.default_rng(seed).integers(0, 255, (len(ids), width), np.uint8)
    return column(raw[order]), column(values)


def column(rows: np.ndarray) -> pa.BinaryArray:
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


class Bench:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.files = folder, Files()
        self.kind, self.width = arguments.store, arguments.entry - KEY_BYTES
        self.rows = arguments.mb * 1_000_000 // arguments.entry
        self.entry = arguments.entry
        self.written = 0
        self.sums: dict[Path, int] = {}

    def write(self, kind: str, epoch: int, ids: np.ndarray) -> Path:
        path = self.folder / f"{kind}-{epoch}"
        header = SegmentHeader(kind, "bench", "line", 1, epoch, f"a{epoch}", epoch)  # type: ignore[arg-type]
        writer = SegmentWriter(self.files, path, header)
        keys, values = entries(ids, self.width, epoch)
        parts = range(0, len(keys), FRAME)
        writer.add_batches(
            "stage", 0, "s", ((keys[at : at + FRAME], values[at : at + FRAME]) for at in parts)
        )
        self.sums[path] = writer.close().checksum
        self.written += len(ids)
        return path

    def chain(self, form: str) -> SegmentChain:
        ids, rng = np.arange(self.rows), np.random.default_rng(1)
        if form == "snapshot":
            return self.chain_of(0, self.write(SNAPSHOT, 0, ids), [])
        if form == "merged":
            parts = [rng.choice(ids, self.rows // 4, replace=False) for _ in range(3)]
            return self.chain_of(
                0,
                self.write(SNAPSHOT, 0, ids),
                [self.write(CHANGELOG, n + 1, np.sort(part)) for n, part in enumerate(parts)],
            )
        every = [rng.choice(ids, self.rows // 20, replace=False) for _ in range(40)]
        files = [self.write(CHANGELOG, n + 1, np.sort(part)) for n, part in enumerate(every)]
        return self.chain_of(None, None, files)

    def chain_of(self, start: int | None, snapshot: Path | None, files: list[Path]) -> SegmentChain:
        steps = tuple(
            ChainStep(Position("line", n, f"a{n}"), (path,), n) for n, path in enumerate(files, 1)
        )
        first = None if start is None else Position("line", start, f"a{start}")
        return SegmentChain(first, () if snapshot is None else (snapshot,), steps, self.sums)

    def restore(self, chain: SegmentChain, to: Path) -> dict[str, float]:
        name = TaskName("bench", "stage", 0, (0, GROUPS))
        state = TaskState(name, [StoreSpec("s", self.kind, int)], to, self.files)
        last = chain.steps[-1].position if chain.steps else chain.start
        assert last is not None
        figures = self.measured(lambda: state.catch_up(Target(last, last.digest), Fixed(chain)))
        state.close()
        return figures

    def merge(self, chain: SegmentChain) -> dict[str, float]:
        paths = [*chain.snapshot, *(path for step in chain.steps for path in step.paths)]
        job = SegmentCompaction(
            self.folder / "merged",
            SegmentHeader(SNAPSHOT, "bench", "line", 1, 99, "a99", 0),
            "stage",
            0,
            (StoreSpec("s", self.kind),),
            tuple(CompactionInput(path, self.sums[path], (0, GROUPS)) for path in paths),
            0,
        )
        return self.measured(lambda: compact_files(job, self.files))

    def measured(self, work: Callable[[], Any]) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = self.written * self.entry / 1e6
        return {
            "mb": round(size, 1),
            "mb_s_cpu": round(size / cpu, 1),
            "mb_s_wall": round(size / wall, 1),
            "ns_an_entry_cpu": round(cpu / self.written * 1e9),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--store", choices=["rocksdb", "memory"], default="rocksdb")
    parser.add_argument("--entry", type=int, default=22)
    parser.add_argument("--form", choices=["snapshot", "merged", "epochs"], default="snapshot")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-restore-"))
    try:
        bench = Bench(folder, arguments)
        chain = bench.chain(arguments.form)
        found = {
            **vars(arguments),
            "restore": bench.restore(chain, folder / "store"),
            "merge": bench.merge(chain),
        }
        print(json.dumps(found))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
