"""Compacted partitions on disk: deaths, races, damage, and any order of everything."""

import fcntl
import itertools
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.faults import SteppedFiles
from tests.support.soak import places

from headrace.bus import (
    BusOptions,
    CompactionStoppedError,
    FileBus,
    Fsync,
    MemoryBus,
    Producer,
    Stream,
    StreamSpec,
)
from headrace.bus.log_stream import LogStream
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.faults import injected
from headrace.testing import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
SPEC = StreamSpec("s", 1, SCHEMA, "at", ("id",), compact=True)
SMALL = BusOptions(fsync=Fsync.NEVER, segment_bytes=900, index_entries=5)
ME = Producer("me", "")
POINTS = [
    "compact.segment_written",
    "compact.segment_named",
    "compact.written",
    "compact.segment_removed",
    "trim.index_removed",
]


class Died(BaseException):
    """Raised where a process would have died; nothing may catch it."""


def append(stream: Stream, keys: list[int], sequence: int) -> None:
    end = stream.ends()[0]
    rows = [{"id": key, "at": end + n, "name": f"n{end + n}"} for n, key in enumerate(keys)]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    stream.append(0, batch, producer=ME, sequence=sequence)


def found(stream: Stream, start: int | None = None) -> list[tuple[int, dict[str, Any]]]:
    begin = stream.begins()[0] if start is None else start
    return [
        pair
        for part in stream.read(0, begin)
        for pair in zip(part.offsets.tolist(), part.batch.to_pylist(), strict=True)
    ]


def latest(rows: list[tuple[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for _, row in rows}


def files(root: Path, ending: str) -> list[str]:
    return sorted(p.name for p in (root / "streams/s/p-00000").iterdir() if p.name.endswith(ending))


def filled(root: Path) -> list[tuple[int, dict[str, Any]]]:
    """Make a partition that was compacted once and has appends behind that; return its rows."""
    with FileBus(root, SMALL) as bus:
        stream = bus.create(SPEC)
        for number in range(12):
            append(stream, [number % 3, number % 5, 7], number)
        stream.compact(0)
        for number in range(12, 20):
            append(stream, [number % 3, number % 7], number)
        return found(stream)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("which", [1, 2])
def test_a_compaction_that_died_anywhere_loses_nothing(tmp_path, point, which):
    """Readers see all as it was, or compacted, and the next ones clear up."""
    before = filled(tmp_path)
    seen = 0

    def die(at: str) -> None:
        nonlocal seen
        seen += at == point
        if at == point and seen == which:
            raise Died(at)

    bus = FileBus(tmp_path, SMALL)
    stream = bus.stream("s")
    try:
        with injected(die, (point,)):
            stream.compact(0)
    except Died:
        counts = POINTS.index(point) >= POINTS.index("compact.written")
        for there in (stream, FileBus(tmp_path).stream("s")):
            assert latest(before) == latest(found(there))
            assert (there.compacted() == there.ends()) is counts
            assert len(found(there)) < len(before) if counts else found(there) == before
    assert seen >= 1
    with FileBus(tmp_path, SMALL) as again, FileBus(tmp_path) as reader:
        stream = again.stream("s")
        end = stream.ends()[0]
        append(stream, [1], 19)
        append(stream, [1], 20)
        assert stream.ends() == [end + 1]
        stream.compact(0)
        now = latest(before) | latest(found(stream, end))
        assert now == latest(found(stream)) == latest(found(reader.stream("s")))
        assert len(found(stream)) == len(now)
        named = {part.split("-")[0] for part in files(tmp_path, ".seg")}
        assert len(named) == len(files(tmp_path, ".seg"))
        hidden = [p.name for p in (tmp_path / "streams/s/p-00000").glob(".compact-*")]
        assert hidden == []
    bus.close()


def dying_at(step: int) -> Callable[[], None]:
    left = itertools.count(step, -1)

    def die() -> None:
        if next(left) == 0:
            raise Died

    return die


def test_a_compaction_that_died_between_any_two_operations_loses_nothing(tmp_path):
    """Cut at each of its writes, renames, syncs and removals in turn."""
    whole = tmp_path / "whole"
    before = filled(whole)
    options = replace(SMALL, fsync=Fsync.ALWAYS)
    steps, is_over = 0, False
    while not is_over:
        home = tmp_path / str(steps)
        shutil.copytree(whole, home)
        bus = FileBus(home, options, files=SteppedFiles(dying_at(steps)))
        try:
            bus.stream("s").compact(0)
            is_over = True
        except Died:
            steps += 1
        with FileBus(home, SMALL) as again:
            stream = again.stream("s")
            assert latest(before) == latest(found(stream))
            append(stream, [1], 100)
            assert stream.ends() == [before[-1][0] + 2]
            stream.compact(0)
            assert len(found(stream)) == len(latest(before))
            assert latest(before) | latest(found(stream)[-1:]) == latest(found(stream))
    assert steps > 15


def test_any_order_of_everything_is_like_a_dict(tmp_path):
    """Appends, compactions, trims and holds, read by three who look in more or less often."""
    dice = random.Random(11)
    clock = ManualClock()
    options = BusOptions(fsync=Fsync.NEVER, segment_bytes=700, index_entries=6)
    log: list[dict[str, Any]] = []
    held, begin = 0, 0
    with (
        FileBus(tmp_path, options, clock=clock) as bus,
        FileBus(tmp_path, clock=clock) as often,
        FileBus(tmp_path, clock=clock) as seldom,
        MemoryBus(options, clock=clock) as memory,
    ):
        streams = [bus.create(SPEC), memory.create(SPEC)]
        for step in range(250):
            clock.advance(1000)
            what = dice.random()
            if what < 0.6:
                rows = [
                    {"id": dice.randrange(20), "at": len(log) + n, "name": dice.choice("abc")}
                    for n in range(dice.randint(1, 9))
                ]
                log += rows
                for stream in streams:
                    stream.append(0, pa.RecordBatch.from_pylist(rows, SCHEMA))
            elif what < 0.8:
                for stream in streams:
                    stable = found(stream, held)
                    assert stream.compact(0).upto <= held
                    assert stable == found(stream, held)
            elif what < 0.9:
                held = dice.randint(max(held, begin), len(log))
                for stream in streams:
                    stream.hold("me", [held])
            elif what < 0.95 and held > begin:
                wanted = dice.randint(begin, held)
                begins = {stream.trim(0, wanted) for stream in streams[:1]}
                begin = begins.pop()
                memory.stream("s").trim(0, begin)
            if not held:
                held = len(log)
                for stream in streams:
                    stream.hold("me", [held])
            readers = [bus, often] + ([seldom] if step % 37 == 0 else [])
            for reader in readers:
                pairs = found(reader.stream("s"))
                assert all(log[offset] == row for offset, row in pairs)
                everything = {row["id"]: row for row in log[begin:]}
                assert everything == latest(pairs)
        assert bus.stream("s").compacted()[0] > begin > 0
        assert len(files(tmp_path, ".log")) < 12


def test_a_hold_that_is_set_meanwhile_wins(tmp_path):
    """The compaction changes nothing: a range that is read now stays the same."""
    before = filled(tmp_path)
    with FileBus(tmp_path, SMALL) as bus, FileBus(tmp_path) as other:
        stream = bus.stream("s")

        def hold(at: str) -> None:
            if at == "compact.segment_written":
                other.stream("s").hold("job", [40])

        with injected(hold), pytest.raises(CompactionStoppedError, match="reader began to hold it"):
            stream.compact(0)
        assert before == found(stream)
        assert not list((tmp_path / "streams/s/p-00000").glob(".compact-*"))
        assert stream.compact(0).upto <= 40


def test_a_trim_meanwhile_wins(tmp_path):
    """The compaction was of rows that are gone."""
    filled(tmp_path)
    with FileBus(tmp_path, SMALL) as bus, FileBus(tmp_path, SMALL) as other:
        stream = bus.stream("s")

        def trim(at: str) -> None:
            if at == "compact.segment_written" and other.stream("s").begins() == [0]:
                assert other.stream("s").trim(0, other.stream("s").ends()[0]) > 0

        with injected(trim), pytest.raises(CompactionStoppedError, match="was trimmed"):
            stream.compact(0)
        assert stream.begins() == stream.ends()
        append(stream, [1, 1], 100)
        assert stream.compact(0).rows == 1


def test_appends_go_on_during_a_compaction(tmp_path):
    """They are behind what it compacts, and appenders of others do not clear it up."""
    before = filled(tmp_path)
    with FileBus(tmp_path, SMALL) as bus, FileBus(tmp_path, SMALL) as other:
        stream = bus.stream("s")
        added: list[str] = []

        def add(at: str) -> None:
            if at == "compact.segment_written":
                append(other.stream("s"), [1, 99], 100 + len(added))
                added.append(at)

        with injected(add):
            done = stream.compact(0)
        assert done.upto == before[-1][0] + 1
        assert stream.ends() == [done.upto + 2 * len(added)]
        assert latest(found(stream))[99]["at"] == stream.ends()[0] - 1
        assert latest(before).keys() | {99} == latest(found(stream)).keys()


def test_appenders_compact_in_the_background(tmp_path):
    """Once as much is new as is compacted; the segment that is written stays as it is."""
    options = BusOptions(fsync=Fsync.NEVER, segment_bytes=4000, compact_bytes=4000)
    bus = FileBus(tmp_path, options)
    with bus:
        stream = bus.create(SPEC)
        for number in range(5_000):
            append(stream, [0, 1, 2, number] * 5, number)
            if number >= 59 and stream.compacted()[0]:
                break
        bus.compactions.close()  # which leaves what nobody has begun
        assert 0 < stream.compacted()[0] < stream.ends()[0]
        assert len(found(stream)) < 20 * (number + 1)
        assert len(latest(found(stream))) == number + 1


def test_two_compactions_of_a_partition_take_turns(tmp_path):
    """The second one waits, and has nothing left to do."""
    before = filled(tmp_path)
    with FileBus(tmp_path, SMALL) as one, FileBus(tmp_path, SMALL) as two:
        answers: list[int] = []
        started = threading.Event()

        def second() -> None:
            started.wait(30)
            answers.append(two.stream("s").compact(0).rows_before)

        thread = threading.Thread(target=second)
        thread.start()

        def go(at: str) -> None:
            if at == "compact.segment_written":
                started.set()

        with injected(go):
            rows = one.stream("s").compact(0).rows
        thread.join(30)
        assert [rows] == answers
        assert latest(before) == latest(found(two.stream("s")))


def test_a_version_that_knows_no_identity_refuses_the_stream(tmp_path):
    """Its file has another format; settings of compaction are only told where they are set."""
    with FileBus(tmp_path) as bus:
        bus.create(SPEC)
        bus.create(StreamSpec("plain", 1, SCHEMA, "at", ("id",))).configure(retain_ms=5)
    formats = {
        name: json.loads((tmp_path / f"streams/{name}/stream.json").read_text())
        for name in ("s", "plain")
    }
    assert (formats["s"]["format"], formats["s"]["compact"]) == (3, True)
    assert formats["plain"]["format"] == 3
    assert "compact" not in formats["plain"]
    text = (tmp_path / "streams/plain/settings-000001.json").read_text()
    assert "hold_ms" not in text
    assert "compact_after_ms" not in text


def test_settings_of_compaction_are_checked(tmp_path):
    with FileBus(tmp_path) as bus:
        stream = bus.create(SPEC)
        stream.configure(keep_deletes_ms=5, compact_after_ms=7, hold_ms=9)
        for wrong in ({"keep_deletes_ms": 0}, {"hold_ms": None}, {"compact_after_ms": -1}):
            with pytest.raises(InvalidInputError, match=f"{next(iter(wrong))} is .*from 1 on"):
                stream.configure(**wrong)
    with FileBus(tmp_path) as bus:
        settings = bus.stream("s").settings
        assert (settings.keep_deletes_ms, settings.compact_after_ms, settings.hold_ms) == (5, 7, 9)


def flipped(good: bytes, at: int) -> bytes:
    return good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :]


def cut(good: bytes, at: int) -> bytes:
    return good[:at]


def read_all(root: Path) -> list[tuple[int, dict[str, Any]]]:
    with FileBus(root, SMALL) as bus:
        return found(bus.stream("s"))


@pytest.mark.parametrize("damage", [flipped, cut])
def test_all_damage_of_compacted_segments_is_found(
    tmp_path: Path, damage: Callable[[bytes, int], bytes]
):
    filled(tmp_path)
    with FileBus(tmp_path, SMALL) as bus:
        bus.stream("s").configure(keep_deletes_ms=10**9)
        rows = [{"id": 3, "at": 0, "name": None}]
        bus.stream("s").append(0, pa.RecordBatch.from_pylist(rows, SCHEMA))
        bus.stream("s").compact(0)
    paths = sorted((tmp_path / "streams/s/p-00000").glob("*.seg"))
    assert paths
    for path in paths:
        good = path.read_bytes()
        for at in places(len(good)):
            path.write_bytes(damage(good, at))
            with pytest.raises(CorruptDataError) as caught:
                read_all(tmp_path)
            assert str(path) in caught.value.message, at
        path.write_bytes(good)


def test_every_flip_of_a_compacted_index_is_found(tmp_path):
    filled(tmp_path)
    for path in sorted((tmp_path / "streams/s/p-00000").glob("index-*.log")):
        good = path.read_bytes()
        for at in places(len(good)):
            path.write_bytes(flipped(good, at))
            with pytest.raises(CorruptDataError) as caught:
                read_all(tmp_path)
            assert str(path) in caught.value.message, at
        path.write_bytes(good)


def test_a_compacted_index_that_lost_a_file_or_a_part_is_found(tmp_path):
    """No file that is still needed can go unseen, nor an entry behind a header."""
    filled(tmp_path)
    paths = sorted((tmp_path / "streams/s/p-00000").glob("index-*.log"))
    assert len(paths) >= 2
    for path in paths[:-1]:
        good = path.read_bytes()
        path.unlink()
        with pytest.raises(CorruptDataError):
            read_all(tmp_path)
        for size in places(len(good)):
            path.write_bytes(good[:size])
            with pytest.raises(CorruptDataError):
                read_all(tmp_path)
        path.write_bytes(good)
    read_all(tmp_path)


def test_a_damaged_hold_stops_compactions(tmp_path):
    """Better than to take from a reader what it holds."""
    filled(tmp_path)
    with FileBus(tmp_path, SMALL) as bus:
        stream = bus.stream("s")
        stream.hold("job", [3])
        (path,) = tmp_path.glob("streams/s/holds/job~*.json")
        good = path.read_bytes()
        for at in places(len(good)):
            path.write_bytes(flipped(good, at))
            with pytest.raises((CorruptDataError, InvalidInputError), match=r"job~.*\.json"):
                stream.compact(0)
        path.write_bytes(good)
        stream.release("job")
        assert stream.compact(0).upto == stream.ends()[0]


def test_a_hold_under_the_name_of_former_versions_counts_until_the_next_one(tmp_path):
    filled(tmp_path)
    with FileBus(tmp_path, SMALL) as bus:
        stream = bus.stream("s")
        stream.hold("job", [3])
        (path,) = tmp_path.glob("streams/s/holds/job~*.json")
        path.rename(path.with_name("job.json"))
        assert stream.compact(0).upto <= 3
        stream.hold("job", [40])
        assert stream.holds() == {"job": (40,)}
        assert 3 < stream.compact(0).upto <= 40


class WaitingClock(ManualClock):
    """Does something, once, while somebody waits."""

    meanwhile: Callable[[], None] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            work()


def test_columns_that_come_while_a_compaction_waits_are_kept(tmp_path):
    """It has looked at the settings before, and at the rows after; nothing is taken for less."""
    filled(tmp_path)
    clock = WaitingClock()
    with FileBus(tmp_path, SMALL, clock=clock) as late, FileBus(tmp_path, SMALL) as other:
        stream = other.stream("s")
        stream.configure(keep_deletes_ms=1)
        lock = os.open(tmp_path / "streams/s/p-00000/compact.lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)

        def evolve() -> None:
            stream.evolve(SCHEMA.append(pa.field("note", pa.string())))
            rows = [{"id": key, "at": 0, "name": None, "note": f"of {key}"} for key in (1, 99)]
            stream.append(0, pa.RecordBatch.from_pylist(rows, stream.spec.schema))
            os.close(lock)

        clock.meanwhile = evolve
        for _ in range(3):
            late.stream("s").compact(0)
            clock.advance(10)
        notes = {key: row["note"] for key, row in latest(found(stream)).items()}
        assert (notes[1], notes[99]) == ("of 1", "of 99")


class TouchingClock(ManualClock):
    """Touches a file, if any, while somebody waits."""

    touched: int | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.touched is not None:
            at_ns = os.fstat(self.touched).st_mtime_ns + 1
            os.utime(self.touched, ns=(at_ns, at_ns))


def test_a_compaction_waits_for_one_that_is_at_work_and_not_for_a_frozen_one(tmp_path):
    """One that is at work touches its lock."""
    filled(tmp_path)
    clock = TouchingClock()
    with FileBus(tmp_path, SMALL, clock=clock) as bus:
        stream = bus.stream("s")
        path = tmp_path / "streams/s/p-00000/compact.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        clock.touched, begun = lock, clock.monotonic()
        with pytest.raises(CompactionStoppedError, match="another process compacts"):
            stream.compact(0)
        waited_s, clock.touched, begun = clock.monotonic() - begun, None, clock.monotonic()
        assert SMALL.lock_timeout_s <= waited_s < SMALL.lock_timeout_s + 1
        assert stream.compact(0).upto == stream.ends()[0]
        waited_s = clock.monotonic() - begun
        assert SMALL.seal_after_s <= waited_s < SMALL.seal_after_s + 1
        os.close(lock)


def overtaken(stream: Stream, act: Callable[[], object], at: int = 1) -> None:
    """Let something happen when a compaction looks, for the at-th time, if it is stopped."""
    assert isinstance(stream, LogStream)
    order, looks = stream._order, itertools.count(1)

    def stopped() -> bool:
        if next(looks) == at:
            act()
        return False

    stream._compactions._order = lambda: order()._replace(stopped=stopped)


def test_a_compaction_that_a_trim_overtakes_is_told_so(tmp_path):
    """Its rows are dropped while it reads them."""
    filled(tmp_path)
    with FileBus(tmp_path, SMALL) as one, FileBus(tmp_path, SMALL) as two:
        stream = one.stream("s")
        end = stream.ends()[0]
        overtaken(stream, lambda: two.stream("s").trim(0, end))
        with pytest.raises(CompactionStoppedError, match="it was trimmed"):
            stream.compact(0)
        assert stream.begins() == [end]


@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_compaction_that_another_overtakes_is_told_so(tmp_path, at):
    """It has mapped what the other one replaces, so nothing is missing when it writes its own."""
    filled(tmp_path)
    options = replace(SMALL, seal_after_s=0.0)
    with FileBus(tmp_path, options) as one, FileBus(tmp_path, options) as two:
        stream, left = one.stream("s"), []
        found(stream)

        def compact() -> None:
            append(two.stream("s"), [1, 2], 30)
            two.stream("s").compact(0)
            left.extend(found(two.stream("s")))

        overtaken(stream, compact, at)
        with pytest.raises(CompactionStoppedError, match="compacted by others"):
            stream.compact(0)
        assert left == found(stream)
        assert left == found(two.stream("s"))
