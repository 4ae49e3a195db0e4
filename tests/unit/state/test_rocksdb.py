"""RocksDB alone: what a kill leaves, damage on disk, ownership, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.state import Position, RocksDBBackend
from headrace.state.ownership import DirectoryLock

FIRST, SECOND = Position("line", 1, "d1"), Position("line", 2, "d2")

WRITER = """
    import sys
    from pathlib import Path
    from headrace.state import Position, RocksDBBackend
    from headrace.state.options import RocksDBSettings

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
