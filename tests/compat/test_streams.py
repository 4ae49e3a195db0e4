"""Streams that earlier code has written are read and appended to by this code."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.compat.make_streams import (
    FIRST,
    NOTED,
    SECOND,
    open_bus,
    prices,
    rows,
    seen,
)
from tests.support.homes import unpack

from headrace.bus import FileBus, Stream

ARCHIVES = sorted((Path(__file__).parent / "golden").glob("streams-*.tar.xz"))


class Golden:
    """The bus of an archive, and what its readers saw when it was written."""

    def __init__(self, archive: Path, place: Path) -> None:
        unpack(archive, place)
        self.root = place / "bus"
        self.expected: dict[str, Any] = json.loads((place / "expected.json").read_text())

    def open(self) -> FileBus:
        return open_bus(self.root)


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(request.param, tmp_path)


def kept(stream: Stream, begins: list[int], upto: list[int]) -> list[list[Any]]:
    """Return the rows between two offsets of each partition."""
    return [
        [pair for pair in rows if begin <= pair[0] < end]
        for rows, begin, end in zip(seen(stream)["rows"], begins, upto, strict=True)
    ]


def test_all_that_readers_saw_is_seen(golden: Golden) -> None:
    with golden.open() as bus:
        assert {name: seen(bus.stream(name)) for name in bus.names()} == golden.expected


def test_all_that_was_there_stays_when_more_is_appended(golden: Golden) -> None:
    """Also for who opens the stream then, who finds all in index files of the new kind."""
    before = golden.expected
    for _ in range(3):  # each opens what the one before has left
        with golden.open() as bus, golden.open() as reader:
            for name, batch in (("plain", rows(5000, 3)), ("prices", prices((1, 1)))):
                stream, begins = bus.stream(name), before[name]["begins"]
                columns = stream.spec.schema
                for partition in range(stream.spec.partitions):
                    note = [] if name == "prices" else [["!"] * batch.num_rows]
                    for _ in range(15):
                        stream.append(
                            partition,
                            type(batch).from_arrays([*batch.columns, *note], schema=columns),
                        )
                for each in (stream, reader.stream(name)):
                    ends = before[name]["ends"]
                    assert kept(each, begins, ends) == before[name]["rows"]
                    assert each.begins() == begins
                    assert each.compacted() == before[name]["compacted"]
    with golden.open() as bus:
        plain = bus.stream("plain")
        grown = [stored.rows for stored in plain.stored()]
        assert grown == [45 * 3 + old[0] for old in before["plain"]["stored"]]
        held = bus.stream("prices")
        assert held.holds() == {"reader": (70,)}
        held.hold("reader", [71])
        assert held.holds() == {"reader": (71,)}
        held.release("reader")
        assert held.holds() == {}


def test_sequences_of_before_are_still_known(golden: Golden) -> None:
    """However often index files were begun since, and whichever were dropped."""
    with golden.open() as bus:
        for _ in range(40):
            bus.stream("plain").append(0, _noted(6000))
        bus.stream("plain").trim(0, bus.stream("plain").ends()[0])
    with golden.open() as bus:
        stream = bus.stream("plain")
        ends = stream.ends()
        for partition, producer, sequence in (
            (0, FIRST, 100),
            (0, SECOND, 57),
            (0, FIRST, 0),
            (1, SECOND, 200),
            (1, FIRST, 58),
        ):
            appended = stream.append(partition, _noted(7000), producer=producer, sequence=sequence)
            assert appended.duplicate, (partition, producer, sequence)
        assert stream.ends() == ends
        assert not stream.append(1, _noted(7000), producer=SECOND, sequence=201).duplicate


def test_what_was_compacted_is_compacted_on(golden: Golden) -> None:
    with golden.open() as bus:
        stream = bus.stream("prices")
        stream.release("reader")
        stream.append(0, prices((0, 777)))
        done = stream.compact(0)
        assert done.upto == stream.ends()[0]
        last = {row["k"]: row["price"] for _, row in seen(stream)["rows"][0]}
        before = golden.expected["prices"]["rows"][0]
        expected = {row["k"]: row["price"] for _, row in before} | {0: 777}
        alive = {k: price for k, price in expected.items() if price is not None}
        assert {k: price for k, price in last.items() if price is not None} == alive
    with golden.open() as bus:
        assert {row["k"]: row["price"] for _, row in seen(bus.stream("prices"))["rows"][0]} == last


def _noted(first: int) -> Any:
    batch = rows(first, 1)
    return type(batch).from_arrays([*batch.columns, ["x"]], schema=NOTED)
