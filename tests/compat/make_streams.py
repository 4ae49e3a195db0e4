"""Write streams of the file bus, as the code of this checkout leaves them, to one archive.

    python -m tests.compat.make_streams tests/compat/golden/streams-COMMIT.tar.xz

Run it in a checkout of the commit whose files are to be kept; an archive is never replaced by one
of later code. It holds ``bus/`` with three streams, and ``expected.json``:

- ``plain``: two partitions with sequences of two producers, several segments and index files, a
  torn tail, a trim, rows that were adopted, a column that was added and more partitions.
- ``prices``: compacted twice, with deletes, a hold and appends behind.
- ``empty``: nothing was ever appended to it.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.bus import BusOptions, FileBus, Fsync, Producer, Stream, StreamSpec
from headrace.clock import Clock
from headrace.files import Files
from headrace.records.frame import encode_frame
from headrace.testing.script import ManualClock

OPTIONS = BusOptions(fsync=Fsync.NEVER, segment_bytes=3_000, index_entries=20, adopt_bytes=4_096)
PLAIN = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
PRICES = pa.schema([("k", pa.int64()), ("price", pa.int64())])
NOTED = PLAIN.append(pa.field("note", pa.string()))
FIRST, SECOND = Producer("job/first", "lineage"), Producer("second", "")


def open_bus(root: Path, clock: Clock | None = None) -> FileBus:
    """Open the bus as it was written."""
    return FileBus(root, OPTIONS, clock=clock)


def rows(first: int, count: int) -> pa.RecordBatch:
    """Return rows of ``plain``; event times rise by a second and fall back now and then."""
    ids = list(range(first, first + count))
    times = [1_000_000 + 1000 * n - 5000 * (n % 7 == 0) for n in ids]
    return pa.record_batch([ids, times, [f"n{n}" for n in ids]], schema=PLAIN)


def prices(*pairs: tuple[int, int | None]) -> pa.RecordBatch:
    """Return rows of ``prices``; without a price a row deletes its key."""
    return pa.RecordBatch.from_pylist([{"k": k, "price": p} for k, p in pairs], PRICES)


def fill(bus: FileBus, folder: Path, clock: ManualClock) -> None:
    """Make the streams."""
    plain = bus.create(StreamSpec("plain", 2, PLAIN, time="at"))
    for number in range(60):
        clock.advance(1000)
        producer = (FIRST, SECOND)[number % 2]
        plain.append(number % 3 % 2, rows(10 * number, 3), producer=producer, sequence=number)
        if number == 30:
            plain.trim(0, 45)
    path = folder / "adopted.seg"
    Files(sync=False).write_new(path, encode_frame(rows(1000, 400)))
    plain.append_file(0, path, producer=FIRST, sequence=100)
    plain.evolve(NOTED, {"note": "-"})
    plain.append(1, rows(2000, 5), producer=SECOND, sequence=200)
    plain.configure(partitions=3, retain_bytes=10_000_000)
    plain.append(2, rows(3000, 5))
    compacted = bus.create(StreamSpec("prices", 1, PRICES, key=("k",), compact=True))
    for number in range(40):
        compacted.append(0, prices((number % 5, number), (number % 3, None)))
        if number in {15, 30}:
            compacted.compact(0)
    compacted.hold("reader", [70])
    bus.create(StreamSpec("empty", 1, PLAIN))


def seen(stream: Stream) -> dict[str, Any]:
    """Return all that a reader can know of a stream."""
    begins, ends = stream.begins(), stream.ends()
    return {
        "begins": begins,
        "ends": ends,
        "compacted": stream.compacted(),
        "stored": [list(one) for one in stream.stored()],
        "times": [
            None if (found := stream.time_range(p)) is None else list(found)
            for p in range(len(ends))
        ],
        "starts": []
        if stream.spec.time is None
        else [
            [stream.offset_at(p, at) for at in range(990_000, 4_100_000, 50_000)]
            for p in range(len(ends))
        ],
        "rows": [
            [
                [int(offset), row]
                for part in stream.read(p, begin)
                for offset, row in zip(part.offsets, part.batch.to_pylist(), strict=True)
            ]
            for p, begin in enumerate(begins)
        ],
        "holds": {name: list(held) for name, held in stream.holds().items()},
        "settings": {
            name: getattr(stream.settings, name)
            for name in ("retain_ms", "retain_bytes", "hold_ms")
        },
    }


def main(archive: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "bus"
        clock = ManualClock(1_700_000_000_000)
        with open_bus(root, clock) as bus:
            fill(bus, Path(place), clock)
        index = sorted((root / "streams/plain/p-00001").glob("index-*.log"))[-1]
        with index.open("ab") as file:  # as of a process that was killed while it wrote an entry
            file.write(bytes(range(1, 60)))
        with open_bus(root) as bus:
            expected = {name: seen(bus.stream(name)) for name in bus.names()}
        path = Path(place) / "expected.json"
        path.write_text(json.dumps(expected))
        with tarfile.open(archive, "x:xz") as packed:
            packed.add(root, "bus")
            packed.add(path, "expected.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
