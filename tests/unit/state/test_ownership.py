"""A directory has one owner, and an older generation never comes after a newer one."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import NotOwnerError
from headrace.fencing import DirectoryLock, DirectoryOwner, StoreHeldError
from headrace.state.backend import Position
from headrace.state.rocksdb import RocksDBBackend

JOB, OTHER = "aa" * 8, "bb" * 8
HOLDER = """
import sys
from pathlib import Path
from headrace.errors import HeadraceError
from headrace.fencing import DirectoryOwner
from headrace.state.backend import Position
from headrace.state.rocksdb import RocksDBBackend

owner = DirectoryOwner(sys.argv[2], int(sys.argv[3]))
backend = RocksDBBackend(Path(sys.argv[1]), ["a"])
backend.own(owner)
backend.apply({"a": ([b"k"], [b"old"])}, Position("l", 1, "x"))
print("open", flush=True)
for line in sys.stdin:
    try:
        backend.own(owner)
        backend.apply({"a": ([b"k"], [b"zombie"])}, Position("l", 2, "z"))
        print("wrote", flush=True)
    except HeadraceError as error:
        backend.close()
        print(type(error).__name__, flush=True)
"""


@contextmanager
def holder(directory: Path, generation: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has a database open, and writes when it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), JOB, str(generation)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def asked(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("write\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_zombie_of_another_process_neither_writes_nor_comes_back(tmp_path: Path) -> None:
    """It lets go at its next write once a newer generation has come by, and stays out."""
    with holder(tmp_path, 3) as zombie:
        assert asked(zombie) == "wrote"
        backend = RocksDBBackend(tmp_path, ["a"])
        backend.own(DirectoryOwner(JOB, 4))
        with pytest.raises(StoreHeldError, match=f"held by process {zombie.pid}"):
            _ = backend.position
        assert asked(zombie) == "NotOwnerError"
        assert backend.position == Position("l", 2, "z")
        backend.apply({"a": ([b"k"], [b"new"])}, Position("l", 3, "y"))
        assert asked(zombie) == "NotOwnerError"
        assert backend.get_many("a", [b"k"]) == [b"new"]
        backend.close()
    late = RocksDBBackend(tmp_path, ["a"])
    late.own(DirectoryOwner(JOB, 3))
    with pytest.raises(NotOwnerError, match="taken by generation 4"):
        _ = late.position


def test_the_same_process_serves_no_older_generation_either(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, DirectoryOwner(JOB, 5))
    lock.own(DirectoryOwner(JOB, 6))
    with pytest.raises(NotOwnerError, match="taken by generation 6"):
        lock.own(DirectoryOwner(JOB, 5))
    lock.release()
    DirectoryLock(tmp_path, DirectoryOwner(JOB, 6)).release()


def test_a_job_that_was_made_anew_begins_at_one(tmp_path: Path) -> None:
    """Generations of another job of the same name do not count, and their marks go."""
    DirectoryLock(tmp_path, DirectoryOwner(JOB, 9)).release()
    lock = DirectoryLock(tmp_path, DirectoryOwner(OTHER, 1))
    lock.own(DirectoryOwner(OTHER, 1))
    lock.release()
    assert [path.name for path in tmp_path.glob("owner-*")] == [DirectoryOwner(OTHER, 1).mark]


def test_an_opener_that_is_refused_leaves_no_lock(tmp_path: Path) -> None:
    DirectoryLock(tmp_path, DirectoryOwner(JOB, 2)).release()
    with pytest.raises(NotOwnerError):
        DirectoryLock(tmp_path, DirectoryOwner(JOB, 1))
    DirectoryLock(tmp_path, DirectoryOwner(JOB, 2)).release()


def test_a_lock_on_a_directory_that_was_collected_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has made and locked the directory since the file was opened."""
    directory, taken = tmp_path / "store", []

    def late(descriptor: int, how: int, flock: Callable[[int, int], None] = fcntl.flock) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(directory)
        taken.append(DirectoryLock(directory))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(StoreHeldError):
        DirectoryLock(directory)
    taken[0].release()
    DirectoryLock(directory).release()
