"""Segment files: what was written is read, whole or by key group, and any damage is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.soak import places

from headrace.errors import ClosedError, CorruptDataError, InternalError, InvalidInputError
from headrace.files import Files
from headrace.state import segment_writer as writing
from headrace.state.segment import SegmentHeader, SegmentInfo, SegmentReader
from headrace.state.segment_writer import SegmentWriter

FILES = Files(sync=False)
HEADER = SegmentHeader("changelog", "job", "line", 3, 7, "attempt")


def full(group: int, key: bytes) -> bytes:
    return group.to_bytes(2, "big") + key


def write(path: Path, sections) -> SegmentInfo:
    writer = SegmentWriter(FILES, path, HEADER)
    for stage, task, store, entries in sections:
        writer.add(stage, task, store, list(entries), list(entries.values()))
    return writer.close()


def as_dict(read) -> dict[bytes, bytes | None]:
    keys, values = read
    assert keys == sorted(set(keys))
    return dict(zip(keys, values, strict=True))


def test_sections_come_back_with_their_header(tmp_path: Path) -> None:
    one = {full(1, b"a"): b"1", full(1, b"b"): None, full(5, b""): b""}
    two = {full(9, b"z"): b"x" * 1000}
    info = write(tmp_path / "s", [("s1", 0, "n", one), ("s1", 1, "n", two), ("s1", 1, "other", {})])
    reader = SegmentReader(FILES, tmp_path / "s", info.checksum)
    assert reader.header == HEADER
    assert (info.bytes, info.sections) == ((tmp_path / "s").stat().st_size, reader.sections)
    section = reader.sections[0]
    assert (section.stage, section.task, section.store) == ("s1", 0, "n")
    assert (section.rows, section.groups, section.starts) == (3, (1, 5), (0, 2))
    assert (section.first_group, section.last_group) == (1, 5)
    assert [(one.task, one.store) for one in reader.sections] == [(0, "n"), (1, "n")]
    assert as_dict(reader.read("n")) == one | two
    assert as_dict(reader.read("other")) == {}
    reader.verify()


@given(
    entries=st.dictionaries(
        st.tuples(st.integers(0, 6), st.binary(max_size=3)),
        st.none() | st.binary(max_size=3),
        max_size=40,
    ),
    cut=st.integers(0, 7),
    low=st.integers(0, 7),
    high=st.integers(0, 7),
    frame_rows=st.integers(1, 9),
)
def test_any_range_of_key_groups_can_be_read(
    tmp_path_factory, entries, cut, low, high, frame_rows
) -> None:
    path = tmp_path_factory.mktemp("segment") / "s"
    whole = {full(*key): entries[key] for key in sorted(entries)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "FRAME_ROWS", frame_rows)
        parts = [
            {key: value for key, value in whole.items() if (key < full(cut, b"")) is first}
            for first in (True, False)
        ]
        # Written in the wrong order on purpose: readers order sections by key group.
        write(path, [("s0", 1, "n", parts[1]), ("s0", 0, "n", parts[0])])
    found = as_dict(SegmentReader(FILES, path).read("n", (low, high)))
    wanted = {k: v for k, v in whole.items() if low <= int.from_bytes(k[:2], "big") < high}
    assert found == wanted


def test_reading_some_groups_reads_some_frames(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writing, "FRAME_ROWS", 10)
    entries = {full(group, bytes([n])): b"v" for group in range(10) for n in range(10)}
    write(tmp_path / "s", [("s0", 0, "n", entries)])
    reader = SegmentReader(FILES, tmp_path / "s")
    reader.read("n", (3, 4))
    one = reader.bytes_read
    reader.read("n")
    assert reader.bytes_read == 11 * one


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    entries = {full(1, b"key"): b"value", full(2, b"key"): None}
    write(tmp_path / "s", [("s0", 0, "n", entries), ("s0", 1, "m", {full(3, b"k"): b"v"})])
    whole = (tmp_path / "s").read_bytes()
    for at in places(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path = tmp_path / f"flipped-{at}"
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError, match=path.name):
            SegmentReader(FILES, path).verify()
        path.unlink()


def test_every_cut_and_every_tail_is_found(tmp_path: Path) -> None:
    write(tmp_path / "s", [("s0", 0, "n", {full(1, b"key"): b"value"})])
    whole = (tmp_path / "s").read_bytes()
    for size in places(len(whole)):
        path = tmp_path / f"cut-{size}"
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match=path.name):
            SegmentReader(FILES, path)
        path.unlink()
    (tmp_path / "long").write_bytes(whole + b"\0")
    with pytest.raises(CorruptDataError, match="trailer"):
        SegmentReader(FILES, tmp_path / "long")


def test_a_missing_file_and_another_file_are_found(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="missing"):
        SegmentReader(FILES, tmp_path / "none")
    one = write(tmp_path / "one", [("s0", 0, "n", {full(1, b"k"): b"1"})])
    write(tmp_path / "two", [("s0", 0, "n", {full(1, b"k"): b"2"})])
    with pytest.raises(CorruptDataError, match="the manifest says"):
        SegmentReader(FILES, tmp_path / "two", one.checksum)


def test_a_later_format_is_refused_with_both_numbers(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writing, "FORMAT", 3)
    write(tmp_path / "s", [])
    with pytest.raises(InvalidInputError, match="found format 3, this version reads 2"):
        SegmentReader(FILES, tmp_path / "s")


def test_changes_out_of_order_are_a_broken_invariant(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="found key group 1 after 2"):
        write(tmp_path / "s", [("s0", 0, "n", {full(2, b""): b"", full(1, b""): b""})])


def test_a_written_segment_takes_no_more(tmp_path: Path) -> None:
    writer = SegmentWriter(FILES, tmp_path / "s", HEADER)
    writer.close()
    with pytest.raises(ClosedError, match="begin another"):
        writer.add("s0", 0, "n", [], [])
    with pytest.raises(ClosedError, match="written already"):
        writer.close()


def test_an_existing_name_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "s", [])
    with pytest.raises(FileExistsError):
        write(tmp_path / "s", [])
