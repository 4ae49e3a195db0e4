"""Committed files read as one store, against a dict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.limits import limit

from headrace.files import Files
from headrace.state.compaction import MergedEntries, SegmentRange
from headrace.state.segment import CHANGELOG, SNAPSHOT, SegmentHeader, SegmentReader
from headrace.state.segment_writer import SegmentWriter

FILES = Files(sync=False)
GROUPS = 16


def write(
    path: Path, epoch: int, tasks: dict[int, dict[bytes, bytes | None]], kind: str = CHANGELOG
) -> SegmentReader:
    header = SegmentHeader(kind, "job", "l", 1, epoch, "a")  # type: ignore[arg-type]
    writer = SegmentWriter(FILES, path, header)
    for task, entries in tasks.items():
        keys = sorted(entries)
        writer.add("stage", task, "store", keys, [entries[key] for key in keys])
    writer.close()
    return SegmentReader(FILES, path)


def full(group: int, key: int) -> bytes:
    return group.to_bytes(2, "big") + b"%06d" % key


@pytest.mark.parametrize("seed", range(6))
def test_the_newest_value_of_each_key_is_read(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However entries are spread over files and groups, and however small the steps are."""
    rng = random.Random(seed)
    limit(monkeypatch, merge_chunk_rows=rng.choice([1, 7, 50, 10_000]))
    monkeypatch.setattr("headrace.state.segment_writer.FRAME_ROWS", rng.choice([1, 9, 1000]))
    model: dict[bytes, bytes] = {}
    sources = []
    for epoch in range(rng.randint(1, 6)):
        changes: dict[bytes, bytes | None] = {}
        for _ in range(rng.randint(1, 200)):
            group = rng.choice([0, 3, 3, 3, rng.randrange(GROUPS)])
            value = None if rng.random() < 0.3 else b"%d" % rng.randrange(1000)
            changes[full(group, rng.randrange(40))] = value
        for key, value in changes.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
        reader = write(tmp_path / f"{epoch}.seg", epoch, {0: changes})
        sources.append(SegmentRange(reader, (0, GROUPS)))
    view = MergedEntries("store", sources)
    found = [pair for keys, values in view.batches() for pair in zip(keys, values, strict=True)]
    assert sorted(model.items()) == found
    for group in range(GROUPS):
        for number in range(0, 40, 7):
            assert model.get(full(group, number)) == view.get(full(group, number))
    assert view.rows >= len(model)


def test_a_file_counts_only_for_its_key_groups(tmp_path: Path) -> None:
    """What another task wrote into a file may be out of date there."""
    old = write(tmp_path / "a.seg", 1, {0: {full(1, 1): b"x"}, 1: {full(9, 1): b"stale"}})
    new = write(tmp_path / "b.seg", 2, {1: {full(9, 2): b"y"}}, SNAPSHOT)
    view = MergedEntries("store", [SegmentRange(old, (0, 8)), SegmentRange(new, (8, 16))])
    assert [([full(1, 1), full(9, 2)], [b"x", b"y"])] == list(view.batches())
    assert view.get(full(9, 1)) is None
    assert list(view.batches((9, 10))) == [([full(9, 2)], [b"y"])]


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """A look-up reads the frames of one key group."""
    entries: dict[bytes, bytes | None] = {
        full(group, key): b"v" * 100 for group in range(GROUPS) for key in range(500)
    }
    writer_rows = 500
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.state.segment_writer.FRAME_ROWS", writer_rows)
        reader = write(tmp_path / "a.seg", 1, {0: entries})
    size = (tmp_path / "a.seg").stat().st_size
    assert (
        MergedEntries("store", [SegmentRange(reader, (0, GROUPS))]).get(full(5, 77)) == b"v" * 100
    )
    assert reader.bytes_read < size / 8


def test_rows_are_exact_only_for_snapshots_of_distinct_groups(tmp_path: Path) -> None:
    one = write(tmp_path / "a.seg", 1, {0: {full(1, 1): b"x"}}, SNAPSHOT)
    two = write(tmp_path / "b.seg", 1, {1: {full(9, 1): b"x"}}, SNAPSHOT)
    log = write(tmp_path / "c.seg", 2, {1: {full(9, 1): b"z"}})
    assert MergedEntries("store", [SegmentRange(one, (0, 8)), SegmentRange(two, (8, 16))]).is_exact
    assert not MergedEntries(
        "store", [SegmentRange(two, (0, 16)), SegmentRange(log, (0, 16))]
    ).is_exact
    assert MergedEntries("other", [SegmentRange(two, (0, 16))]).is_exact
