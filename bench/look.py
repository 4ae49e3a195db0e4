"""How quickly state commands answer over a large store, as JSON; docs/guide/state.md.

    python bench/look.py [--mb 1000] [--entry 130] [--segments 12]

Writes a job of four tasks with so many megabytes of keys and values in snapshots, and a changelog
over them of a tenth in several segments; then runs ``headrace state`` commands, each in a process
of its own, and reports the seconds that each took and the most memory that it held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from headrace.coordinator.catalog import FORMAT, Catalog, StoreEntry, save_catalog
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.manifest import JobState, TaskState, base_manifest, encode_manifest
from headrace.files import Files
from headrace.records.keys import encode_columns, group_range, key_groups
from headrace.records.schema import schema_to_text
from headrace.runtime.orders import SegmentRef
from headrace.state.backend import Position
from headrace.state.segment import header_at
from headrace.state.segment_writer import SegmentWriter
from headrace.state.value_types import describe

GROUPS, TASKS = 512, 4
FILES = Files(sync=False)


def write_file(root: Path, kind: str, number: int, ids: np.ndarray, value: bytes) -> SegmentRef:
    """Write one file with the entries of some ids."""
    encoded = encode_columns([pa.array(ids)])
    groups = key_groups(encoded.hashes(), GROUPS)
    keys = sorted(encoded.with_groups(groups))
    name = f"{kind if kind == 'snapshot' else 'segment'}/{number:012d}-00000001-0000-x{number}.seg"
    header = header_at(kind, "look", Position("l", number, f"a{number}"), 1, f"a{number}")  # type: ignore[arg-type]
    writer = SegmentWriter(FILES, root / name, header)
    ends = [group_range(task, TASKS, GROUPS)[1] for task in range(TASKS)]
    task = int(np.searchsorted(ends, groups[0], side="right"))
    writer.add("by-id", task, "values", keys, [value] * len(keys))
    info = writer.close()
    return SegmentRef(
        name, info.bytes, number, f"a{number}", info.checksum, info.bytes, len(keys), number
    )


def build(root: Path, mb: int, entry: int, segments: int) -> int:
    """Write the job; returns how many ids there are."""
    count = mb * 1_000_000 // entry
    ids = np.arange(count)
    groups = key_groups(encode_columns([pa.array(ids)]).hashes(), GROUPS)
    value = msgspec.msgpack.encode("x" * (entry - 13))
    tasks, number = {}, 0
    for task in range(TASKS):
        first, last = group_range(task, TASKS, GROUPS)
        own = ids[(groups >= first) & (groups < last)]
        number += 1
        snapshot = write_file(root, "snapshot", number, own, value)
        newer = []
        for part in range(segments):
            number += 1
            changed = own[part :: segments * 10]
            newer.append(write_file(root, "changelog", number, changed, value))
        tasks[f"by-id/{task}"] = TaskState(
            epoch=newer[-1].epoch,
            attempt=newer[-1].attempt,
            snapshots=(snapshot,),
            snapshot_epoch=snapshot.epoch,
            snapshot_attempt=snapshot.attempt,
            segments=tuple(newer),
        )
    state = JobState(
        job="look",
        lineage="l",
        generation=1,
        epoch=number,
        time_ms=0,
        digest="",
        key_groups=GROUPS,
        fingerprint={},
        inputs={},
        tasks=tasks,
        task_counts={"by-id": TASKS},
    )
    data, _ = encode_manifest(base_manifest(state, ""))
    FileCommitLog(root, FILES).publish(number, data)
    keys = schema_to_text(pa.schema([("id", pa.int64())]))
    store = StoreEntry("values", "by-id", "p", "rocksdb", "values", keys, describe(str))
    save_catalog(root, 1, Catalog(FORMAT, "look", (store,)), FILES)
    return count


def timed(home: Path, *words: object) -> dict[str, float | int]:
    """Run a command; seconds, and the peak of its memory in MB."""
    command = [sys.executable, "-m", "headrace.cli.main", "state", *map(str, words)]
    began = time.monotonic()
    process = subprocess.Popen([*command, "--home", str(home)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, words
    took = time.monotonic() - began
    return {
        "seconds": round(took, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": usage.ru_maxrss // 1024,
    }


def main() -> None:
    """Write the state, look at it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--entry", type=int, default=130)
    parser.add_argument("--segments", type=int, default=12)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.into is not None:
        print(build(chosen.into, chosen.mb, chosen.entry, chosen.segments))
        return
    home = Path(tempfile.mkdtemp(prefix="headrace-look-"))
    try:
        # In a process of its own, for what this one holds would count for the commands.
        own = [sys.executable, *sys.argv, "--into", str(home / "jobs" / "look")]
        count = int(subprocess.run(own, check=True, stdout=subprocess.PIPE).stdout)
        found = {
            "entries": count,
            "mb": chosen.mb,
            "nothing": timed(home, "ls", "--help"),
            "ls": timed(home, "ls", "look"),
            "get": timed(home, "get", "look", "values", count // 2),
            "scan": timed(home, "scan", "look", "values", "--limit", 100),
            "export": timed(home, "export", "look", "values", "--to", home / "x.parquet"),
        }
        found["parquet_mb"] = (home / "x.parquet").stat().st_size // 1_000_000
        print(json.dumps(found))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
