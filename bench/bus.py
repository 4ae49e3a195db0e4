"""How fast the file bus is: `python bench/bus.py [--folder DIR] [--rows N] [--streams N]`
prints JSON.

Records of 100 bytes: an int64 id, an int64 event time and 84 bytes of padding. The folder
should be on the disk that is meant; it is emptied afterwards.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bus import BusOptions, FileBus, Fsync, Stream, StreamSpec
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.coordinator.deployment import make_plan
from headrace.coordinator.epoch_ranges import plan_ranges
from headrace.coordinator.manifest import JobState
from headrace.files import Files

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("padding", pa.binary())])
BATCH_ROWS = 10_000
CLOCK = SystemClock()


def batch_of(rows: int) -> pa.RecordBatch:
    """Rows of 100 bytes with the schema of the streams."""
    ids = np.random.default_rng(7).integers(1, 1_000_001, rows)
    padding = pa.array([b"x" * 80] * rows, pa.binary())  # and 4 bytes for its end
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(ids + 10**12), padding], schema=SCHEMA
    )


def append_rate(stream: Stream, rows: int) -> float:
    """Rows a second in batches of 10,000."""
    batch = batch_of(BATCH_ROWS)
    begin = CLOCK.monotonic()
    for _ in range(rows // BATCH_ROWS):
        stream.append(0, batch)
    return rows / (CLOCK.monotonic() - begin)


def read_rate(root: Path, name: str, columns: list[str] | None) -> float:
    """Rows a second of the first read by a bus that has just been opened, ids summed."""
    with FileBus(root) as bus:
        stream = bus.stream(name)
        begin, rows, total = CLOCK.monotonic(), 0, 0
        for found in stream.read(0, 0, columns=columns):
            rows += found.batch.num_rows
            total += int(found.batch.column(0).to_numpy().sum())
        return rows / (CLOCK.monotonic() - begin)


def one_record_ms(stream: Stream, count: int = 300) -> float:
    """Median of appends of one record."""
    batch, times = batch_of(1), []
    for _ in range(count):
        begin = CLOCK.monotonic()
        stream.append(0, batch)
        times.append((CLOCK.monotonic() - begin) * 1e3)
    return statistics.median(times)


def wake_ms(root: Path, name: str, count: int = 100) -> float:
    """Median from the call of an append to the return of a wait in another bus object."""
    options = BusOptions(fsync=Fsync.NEVER)
    writer, reader = FileBus(root, options), FileBus(root, options)
    to, source = writer.stream(name), reader.stream(name)
    ready, woken, late = threading.Event(), threading.Event(), [0.0] * count

    def follow() -> None:
        for index in range(count):
            ends = source.ends()
            ready.set()
            source.wait(ends, 5)
            late[index] = CLOCK.monotonic()
            woken.set()

    thread = threading.Thread(target=follow)
    thread.start()
    delays, batch = [], batch_of(1)
    for index in range(count):
        ready.wait()
        ready.clear()
        CLOCK.sleep(0.002)
        called = CLOCK.monotonic()
        to.append(0, batch)
        woken.wait()
        woken.clear()
        delays.append((late[index] - called) * 1e3)
    thread.join()
    writer.close()
    reader.close()
    return statistics.median(delays)


def open_s(root: Path, partitions: int = 1000) -> float:
    """Seconds to open a stream of many partitions and to learn their ends."""
    with FileBus(root, BusOptions(fsync=Fsync.NEVER)) as bus:
        stream = bus.create(StreamSpec("wide", partitions, SCHEMA, "at"))
        batch = batch_of(10)
        for partition in range(partitions):
            stream.append(partition, batch)
    with FileBus(root) as bus:
        begin = CLOCK.monotonic()
        assert bus.stream("wide").ends() == [10] * partitions
        return CLOCK.monotonic() - begin


def compact_rate(root: Path, rows: int) -> float:
    """Rows a second of a compaction of one partition, of which a million keys are left at most."""
    with FileBus(root, BusOptions(fsync=Fsync.NEVER, compact_bytes=1 << 50)) as bus:
        spec = StreamSpec("compacted", 1, SCHEMA, "at", ("id",), compact=True)
        stream, batch = bus.create(spec), batch_of(rows)
        for begin in range(0, rows, BATCH_ROWS):
            stream.append(0, batch.slice(begin, BATCH_ROWS))
        begin_s = CLOCK.monotonic()
        done = stream.compact(0)
        took = CLOCK.monotonic() - begin_s
        assert done.rows == len(np.unique(batch.column(0).to_numpy()))
        return rows / took


def make_streams(root: Path, streams: int, partitions: int) -> None:
    """Make the streams of a pattern, with a record in each partition."""
    files, settings = Files(sync=False), BusOptions(fsync=Fsync.NEVER)
    with FileBus(root, settings, files=files) as bus:
        batch = batch_of(1)
        for number in range(streams):
            stream = bus.create(StreamSpec(f"errors.{number}", partitions, SCHEMA, "at"))
            for partition in range(partitions):
                stream.append(partition, batch)


def processor_s() -> float:
    """Seconds of a core that this process has used."""
    used = os.times()
    return used.user + used.system


def pattern_s(root: Path, streams: int, partitions: int = 30) -> dict[str, float]:
    """Seconds to plan a job over a pattern of streams, and to plan its first epochs."""
    make_streams(root / "bus", streams, partitions)
    gc.collect()  # what a job of its own would not find in its process

    @hr.job("alarms")
    def alarms(g: hr.Graph) -> None:
        errors = g.input("errors.*").partition_by("id")
        errors.aggregate(n=hr.agg.count()).send_to(g.output("alarms"))

    marks, busy = [CLOCK.monotonic()], [processor_s()]
    with FileBus(root / "bus") as bus:
        plan = make_plan(alarms.build(), bus, Settings(home=root))
        names = [binding.stream for binding in plan.stages[0].inputs]
        state = JobState("alarms", "", 1, 0, 0, "", 512, {}, {})
        marks.append(CLOCK.monotonic())
        busy.append(processor_s())
        for _ in range(2):
            ends = {name: bus.stream(name).ends() for name in names}
            ranges = plan_ranges(plan, state, ends, 1_000_000)
            assert len(ranges) == streams * partitions
            marks.append(CLOCK.monotonic())
            busy.append(processor_s())
    results = {}
    for number, step in enumerate(("job", "first_epoch", "next_epoch")):
        results[f"pattern_{step}_s"] = marks[number + 1] - marks[number]
        results[f"pattern_{step}_processor_s"] = busy[number + 1] - busy[number]
    return results


def main() -> None:
    """Run everything and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--streams", type=int, default=0, help="of a pattern, 30 partitions each")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=given.folder))
    results: dict[str, float] = {}
    try:
        for policy in Fsync:
            with FileBus(root, BusOptions(fsync=policy)) as bus:
                stream = bus.create(StreamSpec(f"rows-{policy}", 1, SCHEMA, "at"))
                results[f"append_rows_per_s_{policy}"] = append_rate(stream, given.rows)
                small = bus.create(StreamSpec(f"one-{policy}", 1, SCHEMA, "at"))
                results[f"one_record_ms_p50_{policy}"] = one_record_ms(small)
                if policy is Fsync.ALWAYS:
                    results["read_int_column_rows_per_s"] = read_rate(
                        root, stream.spec.name, ["id"]
                    )
                    results["read_all_rows_per_s"] = read_rate(root, stream.spec.name, None)
        results["append_to_wake_ms_p50"] = wake_ms(root, "one-always")
        results["open_1000_partitions_s"] = open_s(root)
        results["compact_rows_per_s"] = compact_rate(root, given.rows)
        if given.streams:
            results |= pattern_s(root / "pattern", given.streams)
    finally:
        shutil.rmtree(root)
    print(json.dumps({name: float(f"{value:.4g}") for name, value in results.items()}, indent=2))


if __name__ == "__main__":
    main()
