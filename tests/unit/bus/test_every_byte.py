"""Every byte of a small stream is flipped and cut away in turn: nothing wrong is ever read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import places

from headrace.bus import BusOptions, FileBus, Fsync, Producer, StreamSpec
from headrace.errors import CorruptDataError

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int32()))]
)
NOTED = SCHEMA.append(pa.field("note", pa.string()))
OPTIONS = BusOptions(fsync=Fsync.NEVER, segment_bytes=2000)
ME = Producer("me", "")
APPENDS = 10
EVOLVED = 9


def rows(number: int) -> list[dict[str, Any]]:
    """Return the rows of an append, some of them with nulls."""
    note = "-" if number < EVOLVED else "new"
    return [
        {"id": 3 * number + n, "at": 1000 + n, "name": None if n == 1 else "né", "tags": [n] * n}
        | {"note": note}
        for n in range(3)
    ]


class Small:
    """A stream of two segments, trimmed once, with sequences: all kinds of index entries.

    The last append has a column that was added before it, with a default for the others.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        with FileBus(root, OPTIONS) as bus:
            stream = bus.create(StreamSpec("s", 1, SCHEMA, "at", ("id",)))
            for number in range(APPENDS):
                if number == EVOLVED:
                    stream.evolve(NOTED, {"note": "-"})
                stream.append(
                    0,
                    pa.RecordBatch.from_pylist(rows(number), stream.spec.schema),
                    producer=ME,
                    sequence=number,
                )
                if number == 4:
                    self.begin = stream.trim(0, 12)
        folder = root / "streams" / "s" / "p-00000"
        self.indexes = sorted(folder.glob("index-*.log"))
        self.segments = sorted(folder.glob("*.seg"))
        (self.settings,) = folder.parent.glob("settings-*.json")

    def read(self, columns: list[str] | None = None) -> list[dict[str, Any]]:
        with FileBus(self.root, OPTIONS) as bus:
            stream = bus.stream("s")
            found = stream.read(0, stream.begins()[0], columns=columns)
            return [row for part in found for row in part.batch.to_pylist()]


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def flipped(good: bytes, at: int) -> bytes:
    return good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :]


def cut(good: bytes, at: int) -> bytes:
    return good[:at]


def expected(small: Small) -> list[dict[str, Any]]:
    every = [row for number in range(APPENDS) for row in rows(number)]
    return every[small.begin :]


def test_the_stream_has_all_there_is_to_damage(small):
    assert small.begin == 12
    assert (len(small.indexes), len(small.segments)) == (2, 2)
    assert expected(small) == small.read()


def test_all_damage_of_the_settings_that_tell_of_columns_is_found(small):
    good = small.settings.read_bytes()
    for damage in (flipped, cut):
        for at in places(len(good)):
            small.settings.write_bytes(damage(good, at))
            with pytest.raises(CorruptDataError, match=str(small.settings)):
                small.read()


def test_lost_settings_are_found_by_the_rows_that_need_them(small):
    small.settings.unlink()
    with pytest.raises(CorruptDataError, match="rows of schema 1, but the settings of stream 's'"):
        small.read()


def test_one_column_is_read_from_rows_that_have_it_and_rows_that_have_not(small):
    wanted = [{"note": row["note"]} for row in expected(small)]
    assert wanted == small.read(["note"])
    old = [{"id": row["id"]} for row in expected(small)]
    assert old == small.read(["id"])


@pytest.mark.parametrize("damage", [flipped, cut])
def test_all_damage_of_the_last_segment_is_found(
    small: Small, damage: Callable[[bytes, int], bytes]
):
    path = small.segments[-1]
    good = path.read_bytes()
    for at in places(len(good)):
        path.write_bytes(damage(good, at))
        with pytest.raises(CorruptDataError) as caught:
            small.read()
        assert str(path) in caught.value.message, at


def test_every_flip_of_the_index_is_found(small):
    for path in small.indexes:
        good = path.read_bytes()
        for at in places(len(good)):
            path.write_bytes(flipped(good, at))
            with pytest.raises(CorruptDataError) as caught:
                small.read()
            assert str(path) in caught.value.message, at
        path.write_bytes(good)


def test_every_cut_of_an_index_file_that_another_follows_is_found(small):
    path = small.indexes[0]
    good = path.read_bytes()
    for size in places(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptDataError) as caught:
            small.read()
        assert str(path) in caught.value.message or str(small.indexes[1]) in caught.value.message


def test_an_index_that_is_cut_anywhere_reads_whole_appends_or_is_found(small):
    """A cut looks like an append that died; what is read is what came before it."""
    path = small.indexes[-1]
    good, every = path.read_bytes(), expected(small)
    found = 0
    for size in places(len(good)):
        path.write_bytes(good[:size])
        try:
            seen = small.read()
        except CorruptDataError:
            found += 1
        else:
            assert every[: len(seen)] == seen
            assert len(seen) % 3 == 0
            assert len(seen) < len(every)
    without_trim = sum(size < 3 * 128 for size in places(len(good)))
    assert found >= without_trim  # it does not fit the file before it
