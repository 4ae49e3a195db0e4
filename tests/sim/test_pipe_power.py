"""The power goes at any step of a pipe, and with it all that was not synced."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import headrace
from tests.support.homes import Home
from tests.support.power import Disk
from tests.support.soak import more

from headrace.testing import DriverCrash, call_at

ROWS = 20
CLIENT = 'while read -r line; do echo "$line" >>seen; echo "$line"; done'
"""Keeps what it was sent where a loss of power does not reach: in another system, so to say."""

STEPS = ("pipe.acknowledged", "pipe.output_staged", "pipe.checkpointed", "pipe.appended")
CASES = [
    (point, nth, luck)
    for point in (*STEPS, "bus.index_written")
    for nth in (1, 2, 5)
    for luck in range(4)
]


def pipe(home: Path) -> int:
    words = ("--stream", "orders", "--every-rows", 4, "--output", "copy", "--until", "latest")
    return headrace("pipe", "--home", home, *words, "--", "sh", "-c", CLIENT).code


@pytest.mark.parametrize(("point", "nth", "luck"), more(CASES[::5], CASES))
def test_each_row_is_sent_at_least_once_and_its_output_is_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, nth: int, luck: int
) -> None:
    """The disk keeps what was synced, and with luck some of the rest."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    with Home(home) as made:
        for name in ("orders", "copy"):
            made.create(name, {"id": pa.int64()})
        made.send("orders", [{"id": number} for number in range(ROWS)])
    disk = Disk(home, random.Random(luck) if luck else None)

    def lose() -> None:
        disk.cut()
        raise DriverCrash

    with disk.watched():
        with suppress(DriverCrash), call_at(point, lose, nth) as passed:
            pipe(home)
        assert len(passed) >= nth
        disk.restore()
        assert pipe(home) == 0
        disk.cut()
        disk.restore()  # what the pipe said was done is durable

    found = [json.loads(line) for line in Path("seen").read_text().splitlines()]
    ids = [one["id"] for one in found if isinstance(one, dict)]
    assert [*dict.fromkeys(ids)] == [*range(ROWS)]
    assert all(later <= earlier + 1 for earlier, later in pairwise(ids))
    with Home(home) as left:
        assert [row["id"] for row in left.rows("copy")] == [*range(ROWS)]
