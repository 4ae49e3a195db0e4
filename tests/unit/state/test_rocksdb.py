"""RocksDB alone: what a kill leaves, damage on disk, ownership, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.fencing import DirectoryLock
from headrace.state.backend import Position
from headrace.state.rocksdb import (
    DEFAULT_SETTINGS,
    LOG_BYTES,
    ColumnFamilies,
    RocksDBBackend,
    encode_position,
)

FIRST, SECOND = Position("line", 1, "d1"), Position("line", 2, "d2")

WRITER = """
    import sys
    from pathlib import Path
    from headrace.state.backend import Position
    from headrace.state.rocksdb import RocksDBBackend
    from headrace.state.rocksdb import RocksDBSettings

    small = RocksDBSettings(memtable_bytes=96 << 10, write_buffer_bytes=1 << 20)
    backend = RocksDBBackend(Path(sys.argv[1]), ["a", "b"], "test", small)
    held = backend.position
    for epoch in range(held.epoch + 1 if held else 1, 1_000_000):
        value = b"%08d" % epoch * 10
        keys = [b"%05d" % n for n in range(400)]
        changes = (keys, [value] * len(keys))
        backend.apply({"a": changes, "b": changes}, Position("line", epoch, "d"))
        print(epoch, flush=True)
"""


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    source = str(Path(__file__).parents[3] / "src")
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_kill_in_mid_apply_leaves_data_and_position_together(tmp_path: Path) -> None:
    reached = 0
    for kill_after in (7, 20, 33):
        with python(WRITER, str(tmp_path)) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) >= reached + kill_after:
                    break
            writer.kill()
            applied = max([int(line), *(int(rest) for rest in writer.stdout if rest.strip())])
        backend = RocksDBBackend(tmp_path, ["a", "b"], "test")
        held = backend.position
        assert held is not None
        assert reached <= held.epoch <= applied + 1
        found = {value for store in "ab" for _, value in backend.scan(store)}
        assert found == {b"%08d" % held.epoch * 10}
        assert len(list(backend.scan("a"))) == len(list(backend.scan("b"))) == 400
        reached = held.epoch
        backend.close()
    assert reached > 0


def filled(directory: Path) -> None:
    backend = RocksDBBackend(directory, ["a"])
    keys = [b"%05d" % n for n in range(5000)]
    backend.apply({"a": (keys, [os.urandom(20) for _ in keys])}, FIRST)
    backend.close()


def damage(directory: Path, share: float) -> None:
    (path,) = directory.glob("db-1/*.sst")
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0xFF
    path.write_bytes(data)


def test_damage_found_by_a_read_is_remembered_and_cleared_at_the_next_open(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, 0.5)
    backend = RocksDBBackend(tmp_path, ["a"])
    assert backend.position == FIRST
    with pytest.raises(CorruptDataError, match="built again from committed segments"):
        backend.get_many("a", [b"%05d" % n for n in range(5000)])
    assert backend.is_damaged
    backend.close()
    again = RocksDBBackend(tmp_path, ["a"])
    assert (again.position, list(again.scan("a"))) == (None, [])
    again.close()


def test_damage_found_by_a_scan_is_an_error_not_an_early_end(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, 0.5)
    backend = RocksDBBackend(tmp_path, ["a"])
    with pytest.raises(CorruptDataError, match="cannot scan"):
        list(backend.scan("a"))
    backend.clear()
    assert (backend.position, list(backend.scan("a"))) == (None, [])
    backend.apply({"a": ([b"k"], [b"v"])}, SECOND)
    backend.close()


def test_damage_of_the_position_is_found_at_open(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, 0.001)
    backend = RocksDBBackend(tmp_path, ["a"])
    assert (backend.position, list(backend.scan("a"))) == (None, [])
    backend.close()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst", "rocksdict-config.json"])
@pytest.mark.parametrize("how", ["emptied", "removed", "garbage"])
def test_a_database_that_does_not_open_is_built_again(tmp_path: Path, name: str, how: str) -> None:
    filled(tmp_path)
    for path in tmp_path.glob(f"db-1/{name}"):
        if how == "removed":
            path.unlink()
        else:
            path.write_bytes(b"" if how == "emptied" else b"\x01garbage" * 100)
    backend = RocksDBBackend(tmp_path, ["a"])
    position, count = backend.position, len(list(backend.scan("a")))
    assert (position, count) in ((None, 0), (FIRST, 5000))
    backend.apply({"a": ([b"k"], [b"v"])}, SECOND)
    assert backend.get_many("a", [b"k"]) == [b"v"]
    backend.close()


def test_one_directory_has_one_owner(tmp_path: Path) -> None:
    backend = RocksDBBackend(tmp_path, ["a"])
    backend.apply({}, FIRST)
    with pytest.raises(UnavailableError, match=f"held by process {os.getpid()}"):
        _ = RocksDBBackend(tmp_path, ["a"]).position
    with pytest.raises(UnavailableError, match="held by"):
        RocksDBBackend(tmp_path, ["a"]).clear()
    assert backend.position == FIRST
    backend.close()
    again = RocksDBBackend(tmp_path, ["a"])
    assert again.position == FIRST
    again.close()


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    RocksDBBackend(tmp_path / "task", ["a"]).close()
    assert not (tmp_path / "task").exists()


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"x"
        with pytest.raises(UnavailableError, match="held by"):
            DirectoryLock(tmp_path)
        lock.release()
        DirectoryLock(tmp_path).release()
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)


def test_too_many_stores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="found 201 stores, at most 200"):
        RocksDBBackend(tmp_path, [f"s{n}" for n in range(201)])


def many(begin: int, end: int) -> list[tuple[pa.BinaryArray, pa.BinaryArray]]:
    rows = [f"{number:06d}".encode() for number in range(begin, end)]
    parts = [pa.array(rows[at : at + 500], pa.binary()) for at in range(0, len(rows), 500)]
    return [(part, part) for part in parts]


def test_a_large_load_goes_into_files_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them, none left behind, one store after the other; it survives the process."""
    monkeypatch.setattr("headrace.state.rocksdb.LOADED_FILE_BYTES", 4096)
    (tmp_path / "load-7.sst").write_bytes(b"of a process that was killed")
    backend = RocksDBBackend(tmp_path, ("a", "b"), "scope")
    backend.load("b", many(0, 5000))
    backend.load("a", many(3000, 9000))
    assert not list(tmp_path.glob("load-*"))
    assert backend.position is None
    position = Position("line", 1, "d")
    backend.apply({"b": ([b"000007"], [None])}, position)
    backend.close()
    again = RocksDBBackend(tmp_path, ("a", "b"), "scope")
    assert again.position == position
    assert len(list(again.scan("a"))) == 6000
    assert [key for key, _ in again.scan("b")][6:8] == [b"000006", b"000008"]
    again.close()


def test_a_load_that_fails_leaves_nothing_and_no_position(tmp_path: Path) -> None:
    def cut() -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        yield from many(0, 2000)
        raise CorruptDataError("a file is damaged")

    backend = RocksDBBackend(tmp_path, ("a",), "scope")
    with pytest.raises(CorruptDataError, match="a file is damaged"):
        backend.load("a", cut())
    assert not backend.is_damaged
    assert not list(tmp_path.glob("load-*"))
    assert backend.position is None
    backend.clear()
    backend.load("a", many(0, 1000))
    assert len(list(backend.scan("a"))) == 1000
    backend.close()


def test_a_store_that_changes_little_is_not_left_behind(tmp_path: Path) -> None:
    """What RocksDB flushes by itself is of all families: their positions stay together."""
    program = WRITER.replace('"b": changes}', '**({"b": changes} if epoch == 1 else {})}')
    with python(program, str(tmp_path)) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= 40:
                break
        writer.kill()
    backend = RocksDBBackend(tmp_path, ["a", "b"], "test")
    held = backend.position
    assert held is not None
    assert held.epoch > 20
    assert {value for _, value in backend.scan("a")} == {b"%08d" % held.epoch * 10}
    assert {value for _, value in backend.scan("b")} == {b"%08d" % 1 * 10}
    backend.close()


HALF_FLUSHED = """
    import os, signal, sys
    from pathlib import Path
    from headrace.state.backend import Position
    from headrace.state.rocksdb import RocksDBBackend

    backend = RocksDBBackend(Path(sys.argv[1]), ["a", "b"], "test")
    backend.apply({s: ([b"k1", b"k2"], [b"1", b"1"]) for s in "ab"}, Position("line", 1, "d"))
    backend.flush()
    backend.apply({s: ([b"k1", b"k3"], [None, b"2"]) for s in "ab"}, Position("line", 2, "d"))
    backend._database._families[sys.argv[2]].flush(True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("flushed", ["a", "b"])
def test_a_kill_between_the_flushes_of_two_stores(tmp_path: Path, flushed: str) -> None:
    """One store is ahead: all count as where the other is, and go on from there."""
    with python(HALF_FLUSHED, str(tmp_path), flushed) as writer:
        writer.wait()
    backend = RocksDBBackend(tmp_path, ["a", "b"], "test")
    assert backend.position == Position("line", 1, "d")
    ahead, behind = list(backend.scan(flushed)), list(backend.scan("ab".replace(flushed, "")))
    assert ahead == [(b"k2", b"1"), (b"k3", b"2")]
    assert behind == [(b"k1", b"1"), (b"k2", b"1")]
    backend.apply({s: ([b"k1", b"k3"], [None, b"2"]) for s in "ab"}, Position("line", 2, "d"))
    for store in "ab":
        assert list(backend.scan(store)) == [(b"k2", b"1"), (b"k3", b"2")]
    backend.close()


def test_a_half_loaded_database_has_no_position(tmp_path: Path) -> None:
    """Position of one store alone: nothing is known of the other."""
    families = ColumnFamilies(made(tmp_path / "db-1"), ["a", "b"], DEFAULT_SETTINGS)
    families.write({"a": ([b"k1"], [b"1"])}, encode_position('["test",["a","b"]]', FIRST))
    families._families["b"].delete(b"\0")
    families.flush(wait=True)
    families.close()
    backend = RocksDBBackend(tmp_path, ["a", "b"], "test")
    assert backend.position is None
    backend.close()


def made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_a_database_of_other_stores_or_another_layout_is_thrown_away(tmp_path: Path) -> None:
    database = Rdict(str(made(tmp_path / "db-1")), Options(raw_mode=True))
    database[b"\1k"] = b"v"
    database.close()
    backend = RocksDBBackend(tmp_path, ["a"])
    assert (backend.position, list(backend.scan("a"))) == (None, [])
    backend.apply({"a": ([b"k1"], [b"v"])}, FIRST)
    backend.close()
    other = RocksDBBackend(tmp_path, ["a", "b"])
    assert (other.position, list(other.scan("a"))) == (None, [])
    other.close()


@given(st.data())
def test_scans_of_a_store_with_prefix_filters(data: st.DataObject) -> None:
    """Any bounds give what a sorted list gives, in files, in memory, and after deletions."""
    parts = st.sampled_from([b"\0\0", b"\0\1", b"\xff\xff"])
    key = st.builds(bytes.__add__, parts, st.binary(max_size=14, min_size=0))
    near = st.builds(lambda k, cut: k[:cut] or b"\0\0", key, st.integers(2, 16))
    rows = data.draw(st.dictionaries(key, st.binary(max_size=3), max_size=40))
    with TemporaryDirectory() as folder:
        backend = RocksDBBackend(Path(folder), ["a"], by_prefix={"a"})
        for epoch, part in enumerate((sorted(rows)[::2], sorted(rows)[1::2]), start=1):
            backend.apply({"a": (part, [rows[k] for k in part])}, Position("line", epoch, "d"))
            if epoch == 1:
                backend.flush()
        gone = sorted(rows)[::5]
        backend.apply({"a": (gone, [None] * len(gone))}, Position("line", 3, "d"))
        left = {k: v for k, v in rows.items() if k not in gone}
        for _ in range(8):
            low = data.draw(st.one_of(near, st.sampled_from(sorted(rows) or [b"\0\0"])))
            high = data.draw(
                st.one_of(st.none(), near, st.just(after(low)), st.just(after(low[:11])))
            )
            wanted = sorted(
                (k, v) for k, v in left.items() if low <= k and (high is None or k < high)
            )
            assert list(backend.scan("a", low, high)) == wanted
        backend.close()


def after(prefix: bytes) -> bytes | None:
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None


def test_the_log_of_a_database_stays_small_while_it_is_open(tmp_path: Path) -> None:
    store = "a" * 4000  # each line of the log names it
    backend = RocksDBBackend(tmp_path, [store])
    for epoch in range(1, 61):
        backend.apply({store: ([b"key"], [b"%d" % epoch])}, Position("line", epoch, "d"))
        backend.flush()
    logs = [path.stat().st_size for path in tmp_path.glob("db-*/LOG*")]
    backend.close()
    assert sum(logs) < LOG_BYTES + (1 << 18)
