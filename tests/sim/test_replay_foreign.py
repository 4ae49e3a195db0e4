"""A recording from somebody else: its digests hold, but it is not what Headrace would write."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.sim.test_replay import budget, filled, pay, record

from headrace.coordinator.recording import archive
from headrace.coordinator.recording.form import (
    MANIFEST,
    Member,
    Recording,
    decode_recording,
    encode_recording,
)
from headrace.errors import CorruptDataError
from headrace.testing import TestDriver

Change = Callable[[Recording], Recording]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    with filled() as driver:
        for amount in range(3):
            driver.feed("payments", [pay(user, amount) for user in "abc"])
            driver.run()
        record(driver, tmp_path / "whole", 3)
    return tmp_path / "whole"


def forged(
    whole: Path, change: Change = lambda one: one, rows: Callable[[bytes], bytes] | None = None
) -> Path:
    """Write a recording that says something else, with digests that hold."""
    path, members = whole.with_name("forged"), {}
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        recording = decode_recording(source.read(MANIFEST), "whole")
        for name in recording.members:
            data = source.read(name)
            if rows is not None and name.startswith("streams/"):
                data = rows(data)
            members[name] = Member(len(data), hashlib.blake2b(data, digest_size=16).hexdigest())
            target.writestr(name, data)
        recording = change(replace(recording, members=members))
        target.writestr(MANIFEST, encode_recording(recording))
    return path


def table_of(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def pointing_outside(data: bytes) -> bytes:
    """Move the ends of strings to far behind their bytes."""
    table = table_of(data).combine_chunks()
    ends = table.column("user").chunk(0).buffers()[1].to_pybytes()[: 4 * (table.num_rows + 1)]
    far = b"".join((n * 1_000_000).to_bytes(4, "little") for n in range(table.num_rows + 1))
    plain = bytes_of(table)
    assert ends in plain
    return plain.replace(ends, far)


def backwards(data: bytes) -> bytes:
    table = table_of(data)
    return bytes_of(table.take(list(reversed(range(table.num_rows)))))


def named(name: str) -> Change:
    return lambda one: replace(one, job=name, state=replace(one.state, job=name))


def with_state_file(path: str) -> Change:
    def change(one: Recording) -> Recording:
        name, task = next((name, task) for name, task in one.state.tasks.items() if task.segments)
        segments = tuple(replace(ref, path=path) for ref in task.segments)
        tasks = {**one.state.tasks, name: replace(task, segments=segments)}
        return replace(one, state=replace(one.state, tasks=tasks))

    return change


def with_settings(**own: Any) -> Change:
    return lambda one: replace(one, settings={**one.settings, "job": own})


@pytest.mark.parametrize(
    "change",
    [
        named("budget@/../../forged"),
        named("budget@\0"),
        with_state_file("../../../secrets"),
        lambda one: replace(one, members={**one.members, "state/segment/../../x": Member(0, "")}),
        with_settings(),
        with_settings(tasks="many", key_groups=64),
        with_settings(tasks=2, key_groups=64, host_wait_s=1.0),
    ],
    ids=["job", "null", "file", "member", "no settings", "no number", "other settings"],
)
def test_what_leads_elsewhere_is_refused_before_anything_is_written(
    whole: Path, change: Change
) -> None:
    path = forged(whole, change)
    before = set(whole.parent.rglob("*"))
    with pytest.raises(CorruptDataError, match="cannot be used"):
        TestDriver.replay(budget, path, home=whole.parent / "home")
    assert set(whole.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "rows",
    [
        lambda data: b"no rows",
        lambda data: bytes_of(table_of(data).drop_columns(["user"])),
        lambda data: bytes_of(table_of(data).drop_columns(["__offset"])),
        pointing_outside,
        backwards,
    ],
    ids=["no rows", "no column", "no offsets", "outside", "backwards"],
)
def test_rows_that_are_not_what_they_should_be_are_refused(
    whole: Path, rows: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(CorruptDataError, match="stream 'payments' is not what it should be"):
        TestDriver.replay(budget, forged(whole, rows=rows))


def test_one_that_says_too_much_is_not_read_to_its_end(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MANIFEST_BYTES", 1000)
    with pytest.raises(CorruptDataError):
        TestDriver.replay(budget, whole)
