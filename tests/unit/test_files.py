"""Files: written once, published once, whole or not there; a refusing disk is told by name."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import CorruptDataError, UnavailableError
from headrace.files import Files, disk_error

FILES = Files(sync=False)


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_written_once(tmp_path: Path, sync: bool) -> None:
    files, path = Files(sync=sync), tmp_path / "new" / "folder" / "f"
    assert files.write_new(path, [b"ab", memoryview(b"cd"), b"", pa.py_buffer(b"e")]) == 5
    assert files.read(path) == b"abcde"
    with pytest.raises(FileExistsError):
        files.write_new(path, [b"x"])
    assert files.read(path) == b"abcde"
    files.sync_folder(tmp_path)


def test_publishing_creates_or_answers_no(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert FILES.publish(path, b"first")
    assert not FILES.publish(path, b"second")
    assert path.read_bytes() == b"first"
    assert FILES.names(tmp_path) == ["f"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_publish_that_dies_leaves_no_name(tmp_path: Path) -> None:
    def stop() -> None:
        assert FILES.names(tmp_path) == []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FILES.publish(tmp_path / "f", b"x", stop)
    assert list(tmp_path.iterdir()) == []


def test_of_racing_publishers_one_wins(tmp_path: Path) -> None:
    barrier, won = threading.Barrier(8), []

    def race(number: int) -> None:
        barrier.wait()
        if FILES.publish(tmp_path / "f", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in won] == [(tmp_path / "f").read_bytes()]


def test_replace_sets_the_whole_content(tmp_path: Path) -> None:
    for data in (b"long content", b"x"):
        FILES.replace(tmp_path / "f", data)
        assert (tmp_path / "f").read_bytes() == data
    assert FILES.names(tmp_path) == ["f"]


def test_append_takes_any_number_of_chunks(tmp_path: Path) -> None:
    path = tmp_path / "f"
    chunks = [b"%d," % n for n in range(2000)] + [b""]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        FILES.append(descriptor, chunks)
        FILES.append(descriptor, [])
        FILES.append(descriptor, [b"end"])
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"".join(chunks) + b"end"


def test_a_map_stays_after_the_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    FILES.write_new(path, [b"content"])
    mapped = FILES.map(path)
    FILES.remove(path)
    FILES.remove(path)
    assert mapped.to_pybytes() == b"content"
    with pytest.raises(CorruptDataError, match="is missing, though it is named"):
        FILES.map(path)


def test_names_are_sorted_and_without_temporary_ones(tmp_path: Path) -> None:
    for name in ("b", ".hidden.tmp", "a"):
        (tmp_path / name).touch()
    assert FILES.names(tmp_path) == ["a", "b"]
    assert FILES.names(tmp_path / "none") == []


def test_a_full_disk_names_the_file_and_gives_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``/dev/full`` is a disk that is always full."""
    path = tmp_path / "f"
    real = open

    def full(name: str | Path, mode: str, buffering: int = -1) -> object:
        real(name, mode, buffering=buffering).close()
        return real("/dev/full", "wb", buffering=0)

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OSError, match="No space left") as error:
        FILES.write_new(path, [b"x"])
    assert error.value.filename == str(path)
    assert not path.exists()
    told = disk_error(error.value)
    assert isinstance(told, UnavailableError)
    assert f"the disk refused {path}: No space left on device" in told.message


def test_a_refusal_without_a_name_is_told_as_well() -> None:
    assert (
        "the disk refused a file: Input/output error"
        in disk_error(OSError(errno.EIO, os.strerror(errno.EIO))).message
    )
