"""A recording from somebody else: its digests hold, but it is not what Headrace would write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.sim.test_replay import budget, filled, pay
from tests.support.changes import record
from tests.support.recordings import Change, Member, Recording, bound_manifest, forged

from headrace.errors import CorruptDataError
from headrace.testing import TestDriver


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    with filled() as driver:
        for amount in range(3):
            driver.feed("payments", [pay(user, amount) for user in "abc"])
            driver.run()
        record(driver, tmp_path / "whole", 3)
    return tmp_path / "whole"


def with_rows(whole: Path, rows: Callable[[bytes], bytes]) -> Path:
    """Write a recording with other rows in its streams."""

    def member(name: str, data: bytes) -> bytes:
        return rows(data) if name.startswith("streams/") else data

    return forged(whole, lambda one: one, member)


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
    path = forged(whole, change, lambda name, data: data)
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
        TestDriver.replay(budget, with_rows(whole, rows))


def test_one_that_says_too_much_is_not_read_to_its_end(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound_manifest(monkeypatch, 1000)
    with pytest.raises(CorruptDataError):
        TestDriver.replay(budget, whole)
