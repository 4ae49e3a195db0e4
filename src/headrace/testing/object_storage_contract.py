"""What every object storage must do, as a test class that its author subclasses.

Example:
    >>> class TestMine(ObjectStorageContract):
    ...     def open(self):
    ...         return MyStorage("mine", "bucket")
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from headrace.files import new_name
from headrace.objects import ObjectStorage

RACERS = 8
ROUNDS = 4
LARGE = (20 << 20) + 7
"""More than one part of any client."""


class ObjectStorageContract(ABC):
    """The contract of ``headrace.objects.ObjectStorage``."""

    @abstractmethod
    def open(self) -> ObjectStorage:
        """Return the storage; opened many times."""

    @pytest.fixture
    def folder(self) -> str:
        """A folder of objects that no other test uses."""
        return f"contract/{new_name()}"

    def test_what_was_put_is_there_for_everybody(self, folder: str) -> None:
        """The bytes come back as they went, through another instance as well."""
        data = bytes(range(256)) * 40
        self.open().put(f"{folder}/a", data)
        self.open().put(f"{folder}/empty", b"")
        storage = self.open()
        assert (storage.get(f"{folder}/a"), storage.get(f"{folder}/empty")) == (data, b"")
        storage.put(f"{folder}/a", b"other")
        assert self.open().get(f"{folder}/a") == b"other"

    def test_a_name_is_created_once(self, folder: str) -> None:
        """A second create answers false and changes nothing, with the same bytes, too."""
        storage = self.open()
        assert storage.put_new(f"{folder}/a", b"first")
        for data in (b"second", b"first"):
            assert not self.open().put_new(f"{folder}/a", data)
        assert storage.get(f"{folder}/a") == b"first"

    def test_a_name_that_was_set_cannot_be_created(self, folder: str) -> None:
        """Whichever call took it; once it is removed, it is free."""
        storage = self.open()
        storage.put(f"{folder}/a", b"set")
        assert not storage.put_new(f"{folder}/a", b"created")
        storage.delete(f"{folder}/a")
        assert storage.put_new(f"{folder}/a", b"created")

    def test_of_racers_one_creates_each_name(self, folder: str) -> None:
        """All try at the same time: one winner for each, whose bytes are there."""
        storages = [self.open() for _ in range(RACERS)]
        won: list[list[int]] = [[] for _ in range(ROUNDS)]

        def race(racer: int) -> None:
            for number in range(ROUNDS):
                if storages[racer].put_new(f"{folder}/{number}", str(racer).encode()):
                    won[number].append(racer)

        threads = [threading.Thread(target=race, args=(racer,)) for racer in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, winners in enumerate(won):
            assert len(winners) == 1
            assert self.open().get(f"{folder}/{number}") == str(winners[0]).encode()

    def test_what_is_not_there_says_so(self, folder: str, tmp_path: Path) -> None:
        """By the error of a missing file; removing it is no error; nothing is left of a try."""
        storage = self.open()
        with pytest.raises(FileNotFoundError):
            storage.get(f"{folder}/a")
        with pytest.raises(FileNotFoundError):
            storage.get_range(f"{folder}/a", 0, 1)
        with pytest.raises(FileNotFoundError):
            storage.get_file(f"{folder}/a", tmp_path / "a")
        assert not (tmp_path / "a").exists()
        assert storage.info(f"{folder}/a") is None
        storage.delete(f"{folder}/a")

    def test_names_are_listed_at_once(self, folder: str) -> None:
        """What is there after a call is in each list that begins later, and what went is not."""
        storage, other = self.open(), self.open()
        for name in ("b/2", "b/1", "a", "c/d/e"):
            storage.put(f"{folder}/{name}", name.encode())
            assert f"{folder}/{name}" in {one.name for one in other.objects(folder)}
        assert other.entries(folder) == ["a", "b", "c"]
        assert other.entries(f"{folder}/b") == ["1", "2"]
        assert other.entries(f"{folder}/none") == []
        storage.delete(f"{folder}/b/1")
        assert other.entries(f"{folder}/b") == ["2"]
        assert sorted(one.name for one in other.objects(folder)) == [
            f"{folder}/{name}" for name in ("a", "b/2", "c/d/e")
        ]
        storage.delete(f"{folder}/b/2")
        assert other.entries(f"{folder}/b") == []
        assert list(other.objects(f"{folder}/b")) == []

    def test_a_folder_is_not_what_its_name_begins(self, folder: str) -> None:
        """``ab`` is not below ``a``."""
        storage = self.open()
        storage.put(f"{folder}/a/1", b"x")
        storage.put(f"{folder}/ab/2", b"x")
        assert [one.name for one in storage.objects(f"{folder}/a")] == [f"{folder}/a/1"]
        assert storage.entries(f"{folder}/a") == ["1"]

    def test_many_names_are_all_listed(self, folder: str) -> None:
        """More than one answer of a server holds."""
        storage = self.open()
        wanted = [f"{number:04d}" for number in range(1_100)]
        threads = [
            threading.Thread(
                target=lambda part: [storage.put(f"{folder}/{name}", b"") for name in part],
                args=(wanted[begin::8],),
            )
            for begin in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert storage.entries(folder) == wanted
        assert len(list(storage.objects(folder))) == len(wanted)

    def test_a_part_is_read(self, folder: str) -> None:
        """From any byte up to any other; beyond the end there is nothing."""
        storage = self.open()
        storage.put(f"{folder}/a", b"0123456789")
        assert storage.get_range(f"{folder}/a", 2, 5) == b"234"
        assert storage.get_range(f"{folder}/a", 8, 20) == b"89"
        assert storage.get_range(f"{folder}/a", 3, 3) == b""

    def test_a_large_file_goes_there_and_back(self, folder: str, tmp_path: Path) -> None:
        """In parts, if the storage wants it so; its size is that of the file."""
        storage, block = self.open(), bytes(range(251)) * 4096
        data = (block * (LARGE // len(block) + 1))[:LARGE]
        (tmp_path / "large").write_bytes(data)
        storage.put_file(f"{folder}/large", tmp_path / "large")
        found = self.open().info(f"{folder}/large")
        assert found is not None
        assert (found.name, found.size) == (f"{folder}/large", LARGE)
        storage.get_file(f"{folder}/large", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data
        assert storage.get_range(f"{folder}/large", LARGE - 5, LARGE) == data[-5:]

    def test_the_clock_is_the_storages_own(self, folder: str) -> None:
        """A later object is not older than an earlier one."""
        storage = self.open()
        times = []
        for name in ("a", "b"):
            storage.put(f"{folder}/{name}", b"x")
            found = storage.info(f"{folder}/{name}")
            assert found is not None
            times.append(found.written_s)
        assert times[0] <= times[1]
