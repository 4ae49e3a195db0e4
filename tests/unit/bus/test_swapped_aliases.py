"""Several aliases swapped in one step, by processes that die at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.spec import StreamSpec
from headrace.faults import injected

BEFORE = {"a": "a1", "b": "b1"}
AFTER = {"a": "a2", "b": "b2"}


class Died(BaseException):
    """The process that swaps ends here."""


def opened(folder: Path) -> Bus:
    return open_bus(folder, BusOptions(fsync=Fsync.NEVER))


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with opened(tmp_path) as made:
        for name in ("a1", "b1", "a2", "b2", "c1"):
            made.create(StreamSpec(name, 1, pa.schema([("n", pa.int64())])))
        made.swap(BEFORE)
        yield made


@pytest.mark.parametrize(
    ("point", "nth"),
    [("aliases.swapped", 1), ("aliases.one_written", 1), ("aliases.one_written", 2)],
)
def test_who_dies_has_swapped_all(bus: Bus, tmp_path: Path, point: str, nth: int) -> None:
    passed = []

    def die(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == nth:
                raise Died

    with pytest.raises(Died), injected(die, (point,)):
        bus.swap(AFTER)
    with opened(tmp_path) as other:
        assert other.aliases() == AFTER
        assert other.stream("a").spec.name == "a2"
        other.alias("a", "c1")
        assert other.aliases() == {"a": "c1", "b": "b2"}
        other.unalias("b")
        assert other.aliases() == {"a": "c1"}


def test_a_look_in_between_sees_all_or_nothing(bus: Bus, tmp_path: Path) -> None:
    seen = []
    with opened(tmp_path) as other, injected(lambda name: seen.append(other.aliases())):
        bus.swap(AFTER)
    assert len(seen) == 3
    assert all(found == AFTER for found in seen)
