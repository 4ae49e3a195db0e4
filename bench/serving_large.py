"""A served table larger than memory: `python bench/serving_large.py [--keys N]` prints JSON.

A stream has N keys of twelve digits, in an order like none, each with a number. `headrace serve
--keep disk` reads it within a control group that has `--memory` MiB for its process and for the
pages of its files; where no group can be made, `bounded` is false. `served_keys_a_second` is from
the start of the command until the table is served, and `load_cpu_s` the seconds of cores that this
took, which another program beside does not change much; then `redis-benchmark` asks for keys by
chance.

`--filters` is another measurement: how many keys a second one thread reads, one by one, from
3 million on disk with a cache of 3 MB, where filters are read whole, and in pieces as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import serving

from headrace.bus import FileBus, StreamSpec
from headrace.records.keys import encode_key
from headrace.serving.entries import DiskEntries
from headrace.state.rocksdb import RocksDBSettings

GROUPS = Path("/sys/fs/cgroup")
STEP = 50_000
PRIME = 7_919
"""Consecutive rows have keys so far apart."""


def batches(keys: int) -> Iterator[pa.RecordBatch]:
    """Yield rows; each key from 0 to `keys` comes once."""
    for begin in range(0, keys, STEP):
        numbers = np.arange(begin, min(begin + STEP, keys), dtype=np.int64) * PRIME % keys
        ids = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 12, "0")
        yield pa.RecordBatch.from_arrays([ids, pa.array(numbers)], schema=serving.SCHEMA)


class MemoryGroup:
    """A control group with a limit of memory, of version 1 or 2 of control groups.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        parent = GROUPS / "memory" if (GROUPS / "memory").is_dir() else GROUPS
        self._is_old = parent != GROUPS
        self._folder = parent / f"headrace-bench-{os.getpid()}"
        self.is_there = False
        with contextlib.suppress(OSError):
            self._folder.mkdir()
            self._write("memory.limit_in_bytes" if self._is_old else "memory.max", limit)
            self.is_there = True

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value))

    def take(self, process: int) -> None:
        """Bring a process there that has just begun."""
        if self.is_there:
            self._write("cgroup.procs", process)

    def most(self) -> int:
        """Return the most that was used so far, bytes."""
        name = "memory.max_usage_in_bytes" if self._is_old else "memory.peak"
        return int((self._folder / name).read_text()) if self.is_there else 0

    def remove(self) -> None:
        """Remove it, once its processes have ended."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def own_memory(process: int) -> int:
    """Return the memory of a process that is not of files, bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) * 1024


def cpu_s(process: int) -> float:
    """Return the seconds of a core that a process has used, of all its threads."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def folder_bytes(folder: Path) -> int:
    """Return the size of the files in a folder."""
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def filters(keys: int = 3_000_000, seconds: float = 4.0) -> dict[str, int]:
    """Return reads a second with a cache that is smaller than the filters."""
    found = {}
    for name, in_pieces in (("whole", False), ("in_pieces", True)):
        settings = RocksDBSettings(3 << 20, 1 << 20, 1 << 18, in_pieces=in_pieces)
        with tempfile.TemporaryDirectory() as folder:
            entries = DiskEntries(Path(folder) / "entries", settings)
            for batch in batches(keys):
                entries.load(*serving.ROWS.encode(batch))
            entries.loaded()
            dice, reads, end = random.Random(1), 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                key = encode_key((f"{dice.randrange(keys):012}",))
                assert entries.get_many([key])[0] is not None
                reads += 1
            entries.close()
        found[name] = round(reads / seconds)
    return found


def main() -> None:
    """Measure, and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--keys", type=int, default=100_000_000)
    words.add_argument("--memory", type=int, default=600, help="MiB")
    words.add_argument("--requests", type=int, default=100_000)
    words.add_argument("--folder", type=Path)
    words.add_argument("--filters", action="store_true")
    given = words.parse_args()
    if given.filters:
        print(json.dumps(filters()))
        return
    group = MemoryGroup(given.memory << 20)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        home = Path(name)
        with FileBus(home / "bus") as bus:
            stream = bus.create(StreamSpec("key", 1, serving.SCHEMA, key=("id",)))
            for batch in batches(given.keys):
                stream.append(0, batch)
        command = [*serving.command(home), "--keep", "disk"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            group.take(process.pid)
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            began = time.perf_counter()
            try:
                served = json.loads(process.stdout.readline())
                load_s, load_cpu_s = time.perf_counter() - began, cpu_s(process.pid)
                port = int(told["address"].rpartition(":")[2])
                rates = serving.rates(port, given.keys, given.requests)
                found = {
                    "keys": served["keys"],
                    "served_keys_a_second": round(served["keys"] / load_s),
                    "load_s": round(load_s),
                    "load_cpu_s": round(load_cpu_s),
                    "limit_mb": given.memory,
                    "bounded": group.is_there,
                    "group_most_mb": group.most() >> 20,
                    "process_mb": own_memory(process.pid) >> 20,
                    "table_mb": folder_bytes(home / "serving") >> 20,
                    "keys_a_second": {what: round(value) for what, value in rates.items()},
                }
            finally:
                process.terminate()
        group.remove()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
