"""Outputs: rows go where the bus puts their key, in order, in files shared or their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.limits import limit

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.plan.stages import OutputBinding
from headrace.records.frame import iterate_frames, read_frame
from headrace.runtime.chunk import Chunk
from headrace.runtime.outputs import OutputNode, OutputWriter
from headrace.testing import ManualClock, TestDriver

FILES = Files(sync=False)
SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string()), ("f", pa.float64())])
ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=3),
    st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
)


def chunk(rows: list[tuple[Any, ...]]) -> Chunk:
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(values, f.type) for values, f in zip(columns, SCHEMA, strict=True)]
    return Chunk(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def node(partitions: int, keys: tuple[str, ...] = (), task: int = 0) -> OutputNode:
    return OutputNode("o", OutputBinding("o", "out", partitions, SCHEMA, keys), task)


@given(
    rows=st.lists(ROW, min_size=1, max_size=20),
    partitions=st.integers(1, 5),
    keys=st.sampled_from([("k",), ("name",), ("f",), ("name", "k"), ("f", "name", "k")]),
)
def test_a_key_goes_where_the_bus_puts_it(
    rows: list[Any], partitions: int, keys: tuple[str, ...]
) -> None:
    """So a stream that is written by a job and by hand keeps one order for each key."""
    own = node(partitions, keys)
    own.push(chunk(rows))
    found = {partition: repr(batch.to_pylist()) for partition, batch in own.take()}
    with open_bus("memory:", clock=ManualClock()) as bus:
        stream = bus.create(StreamSpec("out", partitions, SCHEMA, None, keys))
        stream.append_rows(chunk(rows).batch)
        expected = {
            partition: repr(
                [row for part in stream.read(partition, 0) for row in part.batch.to_pylist()]
            )
            for partition in range(partitions)
        }
    assert {p: text for p, text in expected.items() if text != "[]"} == found


def test_rows_without_key_go_to_the_partition_of_the_task() -> None:
    for task in range(5):
        own = node(3, task=task)
        own.push(chunk([(1, "a", None), (2, "b", None)]))
        assert [(p, b.num_rows) for p, b in own.take()] == [(task % 3, 2)]
        assert list(own.take()) == []


def parts_of(
    writer: OutputWriter, nodes: list[OutputNode], root: Path
) -> list[list[dict[str, Any]]]:
    """What each part's range of its file holds."""
    parts = writer.add(nodes)
    writer.close()
    found = []
    for part in parts:
        data = FILES.map(root / part.path)
        frames = list(iterate_frames(data, part.begin, part.end, part.path))
        rows = [r for f in frames for r in read_frame(data, f, SCHEMA, part.path).to_pylist()]
        assert part.rows == len(rows)
        found.append(rows)
    return found


@pytest.mark.parametrize("adopt", [1, 700, 1 << 20])
def test_parts_share_a_file_or_have_their_own(tmp_path: Path, adopt: int) -> None:
    """From the size of adoption on a part is a whole file, so that the bus can take it as it is."""
    (tmp_path / "output").mkdir()
    nodes = []
    for task, count in enumerate([1, 50, 2]):
        own = node(2, task=task)
        own.push(chunk([(n, "x" * n, None) for n in range(count)]))
        nodes.append(own)
    writer = OutputWriter(FILES, tmp_path, "stem", adopt, 7)
    found = parts_of(writer, nodes, tmp_path)
    assert [[row["k"] for row in part] for part in found] == [[0], [*range(50)], [0, 1]]
    sizes = {ref.path: ref.size for ref in writer.written}
    assert sizes == {
        f"output/{path.name}": path.stat().st_size for path in (tmp_path / "output").iterdir()
    }
    assert len(sizes) == {1: 3, 700: 2, 1 << 20: 1}[adopt]
    assert {ref.epoch for ref in writer.written} == {7}


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    writer = OutputWriter(FILES, tmp_path, "stem", 1, 1)
    assert parts_of(writer, [node(2)], tmp_path) == []
    assert writer.written == []
    assert list(tmp_path.iterdir()) == []


def test_large_parts_are_cut_into_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, output_frame_rows=4)
    own = node(1)
    for first in (0, 5, 6):
        own.push(chunk([(n, None, None) for n in range(first, first + 5)]))
    found = parts_of(OutputWriter(FILES, tmp_path, "stem", 1 << 20, 1), [own], tmp_path)
    assert [len(rows) for rows in found] == [4, 4, 4, 3]
    assert [r["k"] for rows in found for r in rows] == [*range(5), *range(5, 10), *range(6, 11)]


@pytest.mark.parametrize("memory_bus", [True, False])
@pytest.mark.parametrize("adopt", [1, 1 << 20])
def test_outputs_keep_the_order_of_each_key_on_the_bus(
    memory_bus: bool, adopt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adopted or copied, in small frames, over several epochs: nothing lost, order kept."""
    limit(monkeypatch, output_frame_rows=3)

    @hr.job("copy")
    def copy(g: hr.Graph) -> None:
        g.input("in").partition_by("k").filter(hr.col("n") >= 0).send_to(
            g.output("out", partitions=3)
        )

    with TestDriver(copy, tasks=3, memory_bus=memory_bus, max_rows=40) as driver:
        for slot in range(2):
            object.__setattr__(driver.runner.host(slot), "adopt_bytes", adopt)
        driver.create("in", {"k": pa.int64(), "n": pa.int64()}, key=("k",))
        rng = np.random.default_rng(3)
        rows = [{"k": int(rng.integers(9)), "n": n} for n in range(200)]
        driver.feed("in", rows)
        driver.run()
        found = driver.output("out")
        for key in range(9):
            mine = [row["n"] for row in rows if row["k"] == key]
            assert mine == [row["n"] for row in found if row["k"] == key]
        with TestDriver(copy) as other:
            other.create("out", {"k": pa.int64(), "n": pa.int64()}, partitions=3, key=("k",))
            other.feed("out", rows)
            assert list(map(len, driver.partitions("out"))) == list(
                map(len, other.partitions("out"))
            )


def test_rows_of_two_streams_that_alternate_in_a_file_go_to_their_own() -> None:
    """Tasks of a slot share a file: parts of a partition lie apart in it."""

    @hr.job("both")
    def both(g: hr.Graph) -> None:
        rows = g.input("in")
        rows.send_to(g.output("whole"))
        rows.map("n").send_to(g.output("half"))

    with TestDriver(both, slots=1) as driver:
        driver.create("in", {"n": pa.int64(), "m": pa.int64()}, partitions=4)
        driver.create("whole", {"n": pa.int64(), "m": pa.int64()}, partitions=1)
        driver.create("half", {"n": pa.int64()}, partitions=1)
        for partition in range(4):
            driver.feed("in", [{"n": partition, "m": 7}], partition)
        driver.run()
        assert sorted(row["n"] for row in driver.output("half")) == [0, 1, 2, 3]
        assert sorted(row["n"] for row in driver.output("whole")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("at", "text"), [(-1 << 47, f"is {-1 << 47} ms in row 0"), (None, "is null in row 0")]
)
def test_an_event_time_that_the_bus_would_refuse_is_told_before_the_commit(
    at: int | None, text: str
) -> None:
    """A committed epoch must never be one whose outputs cannot be published."""

    @hr.job("copy")
    def copy(g: hr.Graph) -> None:
        g.input("in").send_to(g.output("out"), name="sent")

    with TestDriver(copy) as driver:
        driver.create("in", {"at": pa.int64()})
        driver.create("out", {"at": pa.int64()}, time="at")
        driver.feed("in", [{"at": at}])
        with pytest.raises(InvalidInputError, match=f"event time of output 'out' {text}") as error:
            driver.run()
        assert error.value.fields["operator"] == "sent"
        assert driver.coordinator.state.epoch == 0
        driver.crash()
        assert driver.start().state.epoch == 0
