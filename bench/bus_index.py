"""What a partition costs by how much it keeps: `python bench/bus_index.py [--most N]`
prints JSON.

Partitions of 10,000 appends of one row, and ten times as many up to N (10,000,000), are opened by a
process of their own each: the time and the memory until it knows where the partition ends, appends
with and without `retain_ms`, reads of one row at a random offset. Then a trim, behind which every
append was of another producer. `growth` is the largest partition against the smallest.

The index entries of a partition are written here, 16,384 to a file as by appenders, and all name
one frame, which is why 10 million of them fit on a laptop. Nothing is synced.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from headrace.bus import BusOptions, FileBus, Fsync, Producer, StreamSpec
from headrace.bus.index_files import IndexFiles
from headrace.bus.index_table import END, Entry
from headrace.clock import SystemClock
from headrace.files import Files

CLOCK = SystemClock()
OPTIONS = BusOptions(fsync=Fsync.NEVER)
SCHEMA = pa.schema([("id", pa.int64())])
ROW = pa.record_batch([[1]], schema=SCHEMA)
MONTH_MS = 30 * 86_400_000
REPEATS = 200


def fill(root: Path, appends: int) -> None:
    """Make a partition whose index has that many appends."""
    with FileBus(root, OPTIONS) as bus:
        bus.create(StreamSpec("s", 1, SCHEMA)).append(0, ROW)
    files, folder = Files(sync=False), root / "streams/s/p-00000"
    index = IndexFiles(files, str(folder), 0, "s", CLOCK)
    first = next(index.view().between(0))
    begun = 1  # appends in the file that is written
    while (end := index.view().next_offset) < appends:
        if begun >= OPTIONS.index_entries:
            closing = Entry(END, 0, end, 0, 0, 0, 0, 0, 0).pack()
            with index.path.open("ab") as file:
                file.write(closing)
            index.refresh()
            index.begin(0, index.known().stored)
            begun = 0
        count = min(OPTIONS.index_entries - begun, appends - end)
        with index.path.open("ab") as file:
            for offset in range(end, end + count):
                file.write(first._replace(first_offset=offset).pack())
        begun += count


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median of a few calls."""
    times = []
    for _ in range(repeats):
        begin = CLOCK.monotonic()
        work()
        times.append((CLOCK.monotonic() - begin) * 1e3)
    return statistics.median(times)


def resident_mb() -> float:
    """The memory of this process; its peak would begin with that of the parent."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def measure(root: Path) -> dict[str, float]:
    """What it costs to open and use the partition, for a process that has just begun."""
    before = resident_mb()
    begin = CLOCK.monotonic()
    bus = FileBus(root, OPTIONS)
    stream = bus.stream("s")
    (end,) = stream.ends()
    opened = (CLOCK.monotonic() - begin) * 1e3
    memory = resident_mb() - before
    dice = random.Random(7)

    def read() -> None:
        at = dice.randrange(end)
        assert sum(part.batch.num_rows for part in stream.read(0, at, at + 1)) == 1

    found = {
        "open_ms": opened,
        "open_mb": memory,
        "append_ms": median_ms(lambda: stream.append(0, ROW)),
        "read_ms": median_ms(read),
    }
    stream.configure(retain_ms=MONTH_MS)
    stream.append(0, ROW)
    found["append_retained_ms"] = median_ms(lambda: stream.append(0, ROW))
    bus.close()
    return found


def trim_ms(root: Path, producers: int) -> float:
    """A trim of a partition to which so many producers have appended once each."""
    with FileBus(root, OPTIONS) as bus:
        stream = bus.create(StreamSpec(f"t{producers}", 1, SCHEMA))
        for number in range(producers):
            stream.append(0, ROW, producer=Producer(f"one/{number}", ""), sequence=1)

        def trim() -> None:
            stream.append(0, ROW)
            stream.trim(0, stream.ends()[0])

        return median_ms(trim, 20)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(given.measure)))
        return
    sizes = [size for power in range(4, 10) if (size := 10**power) <= given.most]
    appends: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        for size in sizes:
            root = Path(place) / str(size)
            fill(root, size)
            command = [sys.executable, __file__, "--measure", str(root)]
            appends[size] = json.loads(subprocess.check_output(command))
        trims = {count: trim_ms(Path(place) / "trims", count) for count in (1_000, 20_000)}
    smallest, largest = appends[sizes[0]], appends[sizes[-1]]
    shown = {
        "appends": {
            str(size): {name: round(value, 3) for name, value in found.items()}
            for size, found in appends.items()
        },
        "growth": {name: round(largest[name] / max(smallest[name], 0.1), 2) for name in largest},
        "trim_ms": {str(count): round(value, 3) for count, value in trims.items()},
        "trim_growth": round(trims[20_000] / trims[1_000], 2),
    }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
