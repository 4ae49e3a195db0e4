"""How many producers a partition knows: a job's newest lineage always, of others the last ones."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus import BusOptions, Fence, FileBus, Fsync, MemoryBus, Producer, StreamSpec
from headrace.bus.index_table import KEPT

SCHEMA = pa.schema([("id", pa.int64())])
SPEC = StreamSpec("s", 1, SCHEMA)
ROW = pa.record_batch([[1]], schema=SCHEMA)
OPTIONS = BusOptions(fsync=Fsync.NEVER, segment_bytes=1 << 16)


def other(number: int) -> Producer:
    return Producer(f"redrive/{number}", "x")


def index_bytes(root: Path) -> int:
    return max(path.stat().st_size for path in root.glob("streams/s/p-00000/index-*.log"))


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_job_that_stood_still_is_known_and_old_programs_are_forgotten(
    tmp_path: Path, in_memory: bool
) -> None:
    """However many appended since, also for who opens the stream later."""
    bus = MemoryBus(OPTIONS) if in_memory else FileBus(tmp_path, OPTIONS)
    job, fence = Producer.of_job("sums", "a"), Fence("sums", 1)
    with bus:
        stream = bus.create(SPEC)
        first = stream.append(0, ROW, producer=job, sequence=7, fence=fence)
        for number in range(KEPT + 50):
            stream.append(0, ROW, producer=other(number), sequence=1)
        stream.trim(0, stream.ends()[0])
        again = stream.append(0, ROW, producer=job, sequence=7, fence=fence)
        assert again.duplicate
        assert stream.append(0, ROW, producer=other(50), sequence=1).duplicate
        assert not stream.append(0, ROW, producer=other(49), sequence=1).duplicate
        assert first.first_offset == 0
    if in_memory:
        return
    with FileBus(tmp_path, OPTIONS) as opened:
        stream = opened.stream("s")
        assert stream.append(0, ROW, producer=job, sequence=7, fence=fence).duplicate
        assert stream.append(0, ROW, producer=other(KEPT + 49), sequence=1).duplicate
        assert not stream.append(0, ROW, producer=job, sequence=8, fence=fence).duplicate


def test_of_a_job_only_the_newest_lineage_takes_room(tmp_path: Path) -> None:
    """One that was reset often does not push anybody out."""
    with FileBus(tmp_path, OPTIONS) as bus:
        stream = bus.create(SPEC)
        for lineage in range(300):
            job, fence = Producer.of_job("sums", f"n{lineage}"), Fence("sums", lineage + 1)
            stream.append(0, ROW, producer=job, sequence=0, fence=fence)
        stream.trim(0, stream.ends()[0])
        stream.append(0, ROW)
        assert index_bytes(tmp_path) <= 128 * 320
        stream.trim(0, stream.ends()[0])
        assert (newest := sorted(tmp_path.glob("streams/s/p-00000/index-*.log"))[-1]).exists()
        assert newest.stat().st_size <= 128 * 4
        assert stream.append(0, ROW, producer=job, sequence=0, fence=fence).duplicate


def test_what_a_trim_writes_is_bounded(tmp_path: Path) -> None:
    """The index file that it begins has the producers that are kept, and no more."""
    with FileBus(tmp_path, OPTIONS) as bus:
        stream = bus.create(SPEC)
        for number in range(3 * KEPT):
            stream.append(0, ROW, producer=other(number), sequence=1)
        stream.trim(0, stream.ends()[0])
        newest = sorted(tmp_path.glob("streams/s/p-00000/index-*.log"))[-1]
        assert newest.stat().st_size <= 128 * (KEPT + 3)
