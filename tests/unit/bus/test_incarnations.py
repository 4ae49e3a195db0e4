"""Streams that are removed and created again, and processes that wake up with the older one."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus import BusOptions, Fence, FileBus, Fsync, Producer, Stream, StreamSpec
from headrace.bus.stream_stores import signed_json
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError
from headrace.faults import injected
from headrace.files import Files
from headrace.records.frame import encode_frame
from headrace.testing.bus_suite import CrashError

SCHEMA = pa.schema([("id", pa.int64())])
SPEC = StreamSpec("s", 2, SCHEMA)
PRICES = StreamSpec("s", 2, SCHEMA, key=("id",), compact=True)
NEVER = BusOptions(fsync=Fsync.NEVER, segment_bytes=400, adopt_bytes=4096)
ME = Producer("me", "1")


def rows(first: int, count: int = 1) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + count))], schema=SCHEMA)


def open_bus(root: Path) -> FileBus:
    return FileBus(root, NEVER)


def fill(stream: Stream, first: int = 0) -> None:
    for n in range(first, first + 12):
        stream.append(0, rows(n), producer=ME, sequence=n)


def ids_of(stream: Stream) -> list[int]:
    return [n for part in stream.read(0, 0) for n in part.batch.column("id").to_pylist()]


def again(root: Path, spec: StreamSpec) -> None:
    """What another process does while one is frozen."""
    with open_bus(root) as bus:
        bus.remove("s")
        fill(bus.create(spec), 100)


def adopt(stream: Stream, root: Path) -> None:
    path = root / "frames.seg"
    Files(sync=False).write_new(path, encode_frame(rows(500, 900)))
    stream.append_file(0, path)


ACTS: dict[str, Callable[[FileBus, Stream, Path], object]] = {
    "append": lambda bus, stream, root: stream.append(0, rows(50), producer=ME, sequence=200),
    "adopt": lambda bus, stream, root: adopt(stream, root),
    "trim": lambda bus, stream, root: stream.trim(0, 12),
    "compact": lambda bus, stream, root: stream.compact(0),
    "hold": lambda bus, stream, root: stream.hold("job", [3, 0]),
    "configure": lambda bus, stream, root: stream.configure(retain_ms=5),
    "remove": lambda bus, stream, root: bus.remove("s"),
}
POINTS = {
    "append": ["bus.frame_written", "bus.index_written"],
    "adopt": ["bus.frame_written", "bus.index_written"],
    "trim": ["trim.written", "trim.segment_removed", "trim.index_removed"],
    "compact": ["compact.segment_written", "compact.segment_named", "compact.written"],
    "remove": ["stream.chosen", "stream.removed"],
}


@pytest.mark.parametrize(
    ("act", "point"), [(act, point) for act, points in POINTS.items() for point in points]
)
def test_who_froze_in_an_act_does_nothing_to_a_stream_that_was_created_since(
    act: str, point: str, tmp_path: Path
) -> None:
    spec = PRICES if act == "compact" else SPEC
    frozen: list[str] = []

    def freeze(now: str) -> None:
        if now == point and not frozen:
            frozen.append(now)
            with suppress(InvalidInputError):  # the act itself has removed it
                again(tmp_path, spec)
            with open_bus(tmp_path) as other:
                if other.names() == []:
                    fill(other.create(spec), 100)

    with open_bus(tmp_path) as bus:
        stream = bus.create(spec)
        fill(stream)
        with injected(freeze, (point,)), suppress(HeadraceError):
            ACTS[act](bus, stream, tmp_path)
        assert frozen
        with open_bus(tmp_path) as other:
            found = other.stream("s")
            assert ids_of(found) == list(range(100, 112))
            assert (found.begins(), found.ends()) == ([0, 0], [12, 0])
            fill(found, 112)
            assert ids_of(found) == list(range(100, 124))
        assert ids_of(bus.stream("s")) == list(range(100, 124))


@pytest.mark.parametrize("act", ["append", "adopt", "trim", "compact", "hold", "configure"])
def test_an_open_stream_that_was_removed_is_told_from_another_of_its_name(
    act: str, tmp_path: Path
) -> None:
    spec = PRICES if act in {"compact", "hold"} else SPEC
    with open_bus(tmp_path) as bus:
        stream = bus.create(spec)
        fill(stream)
        again(tmp_path, spec)
        with pytest.raises(InvalidInputError, match="stream 's' was removed since it was opened"):
            ACTS[act](bus, stream, tmp_path)
        for look in (stream.ends, stream.begins, lambda: list(stream.read(0, 0))):
            with pytest.raises(InvalidInputError, match="stream 's' was removed since"):
                look()
        found = bus.stream("s")
        assert ids_of(found) == list(range(100, 112))
        assert found.holds() == {}
        assert found.settings.retain_ms is None


@pytest.mark.parametrize("rounds", [1, 2])
def test_who_wakes_up_creating_a_stream_takes_no_number_twice(rounds: int, tmp_path: Path) -> None:
    """Others created and removed the same one meanwhile, and maybe another after it."""
    frozen: list[str] = []

    def freeze(now: str) -> None:
        if not frozen:
            frozen.append(now)
            with open_bus(tmp_path) as other:
                for _ in range(rounds):
                    fill(other.create(SPEC), 100)
                    other.remove("s")

    with open_bus(tmp_path) as bus:
        with injected(freeze, ("stream.prepared",)):
            stream = bus.create(SPEC)
        assert stream.ends() == [0, 0]
        fill(stream)
        with open_bus(tmp_path) as other:
            assert other.names() == ["s"]
            assert ids_of(other.stream("s")) == list(range(12))


@pytest.mark.parametrize("point", ["stream.prepared", "stream.chosen", "stream.removed"])
def test_what_a_crash_leaves_of_a_creation_or_removal_is_in_nobodys_way(
    point: str, tmp_path: Path
) -> None:
    def crash(now: str) -> None:
        if now == point:
            raise CrashError

    def recreate() -> None:
        bus.remove("s")
        bus.create(SPEC)

    bus = open_bus(tmp_path)
    fill(bus.create(SPEC))
    with injected(crash, (point,)), pytest.raises(CrashError):
        recreate()
    with open_bus(tmp_path) as other:
        if other.names():
            other.remove("s")
        fill(other.create(SPEC), 40)
        other.remove("s")
        stream = other.create(SPEC)
        assert stream.ends() == [0, 0]
        there = sorted(path.name for path in (tmp_path / "streams/s").iterdir())
        assert len([name for name in there if name.startswith("0")]) == 1
        assert not [name for name in there if name.startswith("p-")]
        assert list(tmp_path.glob(".removed-*")) == []


def test_a_removal_that_was_taken_over_leaves_the_stream_of_the_new_run(tmp_path: Path) -> None:
    """The newer generation came when the older one had been compared, and had not removed it."""
    old, new = Fence("job", 1), Fence("job", 2)

    def take_over(now: str) -> None:
        if now != "stream.chosen" or bus.fenced("job") == 2:
            return
        with open_bus(tmp_path) as other:
            other.fence(new)
            other.remove("s", fence=new)
            fill(other.create(SPEC, fence=new))

    with open_bus(tmp_path) as bus:
        bus.create(SPEC, fence=old)
        with injected(take_over, ("stream.chosen",)), suppress(InvalidInputError):
            bus.remove("s", fence=old)
        assert ids_of(bus.stream("s")) == list(range(12))
        with pytest.raises(NotOwnerError):
            bus.remove("s", fence=old)


def test_a_stream_of_the_old_format_has_the_digest_of_its_file_for_an_identity(
    tmp_path: Path,
) -> None:
    with open_bus(tmp_path) as bus:
        fill(bus.create(SPEC))
        bus.create(StreamSpec("t", 2, SCHEMA))
    found = []
    for name in ("s", "t"):
        path = tmp_path / "streams" / name / "stream.json"
        content = json.loads(path.read_bytes())
        assert content["format"] == 3
        old = {key: content[key] for key in content if key not in {"identity", "checksum"}}
        path.write_bytes(signed_json({**old, "format": 1}))
    for _ in range(2):
        with open_bus(tmp_path) as bus:
            found.append([bus.stream(name).identity for name in ("s", "t")])
            assert ids_of(bus.stream("s")) == list(range(12))
    assert found[0] == found[1]
    assert len(set(found[0])) == 2
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "streams", copy / "streams")
    os.utime(copy / "streams/s/stream.json", (1, 1))
    with open_bus(copy) as bus:
        assert bus.stream("s").identity == found[0][0]
        bus.remove("s")
        assert bus.create(SPEC).identity not in found[0]
