"""``headrace bus mirror`` from stream to stream; topics have tests with a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import done, headrace, refused
from tests.support.homes import read_stream

from headrace.testing.script import crash_at

POINTS = ("epoch.before_commit", "commit.published", "epoch.output_published")


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    home = ["--home", str(tmp_path / "home")]
    done("bus", "create", "rows", "--schema", "id:int64,name:string", "--partitions", "2", *home)
    return home


def append(place: list[str], first: int, count: int) -> None:
    lines = "".join(f'{{"id": {n}, "name": "n{n}"}}\n' for n in range(first, first + count))
    done("bus", "append", "rows", "-", *place, stdin=lines)


def mirror(*words: str) -> None:
    """Run a mirror; it says on stderr what it does."""
    ran = headrace("bus", "mirror", *words)
    assert ran.code == 0, ran.err


def copied(place: list[str]) -> list[int]:
    return sorted(row["id"] for row in read_stream(Path(place[1]), "copy"))


def test_each_run_copies_what_has_come_since(place: list[str]) -> None:
    for part in range(3):
        append(place, 10 * part, 10)
        mirror("rows", "file:copy", "--until-end", *place)
        assert copied(place) == list(range(10 * part + 10))
    mirror("rows", "copy", "--until-end", *place)
    assert copied(place) == list(range(30))
    described = json.loads(done("bus", "describe", "copy", "--json", *place))
    assert described["partitions"] == 2


def test_a_mirror_can_begin_at_the_end(place: list[str]) -> None:
    append(place, 0, 10)
    words = ("rows", "copy", "--until-end", "--from", "latest", *place)
    mirror(*words)
    append(place, 10, 5)
    mirror(*words)
    assert copied(place) == list(range(10, 15))


@pytest.mark.parametrize("point", POINTS)
def test_a_mirror_that_dies_is_continued_without_loss_and_doubles(
    place: list[str], point: str
) -> None:
    append(place, 0, 30)
    words = ["rows", "copy", "--until-end", "--set", "epoch.max_rows=7", *place]

    with crash_at(point, 2):
        mirror(*words)
    mirror(*words)
    assert copied(place) == list(range(30))


def test_mistakes_name_what_to_do(place: list[str]) -> None:
    assert "never ends; name another TARGET" in refused("bus", "mirror", "rows", "rows", *place)
    found = refused("bus", "mirror", "rows", "copy", "--schema", "id:int64", *place)
    assert "--schema is for topics" in found
    assert "no kind of log 'kafak'" in refused("bus", "mirror", "rows", "kafak://h/t", *place)
