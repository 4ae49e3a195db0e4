"""``headrace dlq``: letters are counted, shown, and sent back once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace, refused

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = pa.schema([("k", pa.int64()), ("note", pa.string()), ("v", pa.int64())])
OUT = pa.schema([("v", pa.int64())])


class Strict:
    limit = 0

    def process(self, message: Any, context: hr.Context) -> None:
        context.emit({"v": 12 // message.v if message.v != self.limit else 1 // 0})


@hr.job("strict")
def strict(g: hr.Graph) -> None:
    source = g.input("in").partition_by("k")
    source.process(Strict, returns=OUT, uses=["v"], name="divide", on_error="dead_letter").send_to(
        g.output("out", partitions=1)
    )


@pytest.fixture
def driver(home: Path) -> Iterator[TestDriver]:
    with TestDriver(strict, tasks=2, key_groups=4, home=home, memory_bus=False) as driver:
        driver.create("in", COLUMNS, partitions=2, key=["k"])
        driver.feed("in", [{"k": k, "note": f"n{k}", "v": k % 3} for k in range(6)])
        driver.run()
        yield driver


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def rows_of(driver: TestDriver, stream: str) -> list[dict[str, Any]]:
    return sorted(driver.output(stream), key=str)


def test_letters_are_counted_by_operator_and_error(driver: TestDriver) -> None:
    (entry,) = objects(done("dlq", "ls", "--json"))

    assert entry | {"first_ms": 0, "last_ms": 0} == {
        "stream": "strict.dead",
        "job": "strict",
        "operator": "divide",
        "code": "HR102",
        "kind": "ZeroDivisionError",
        "letters": 2,
        "redrivable": 2,
        "first_ms": 0,
        "last_ms": 0,
    }
    assert "HR102 ZeroDivisionError" in done("dlq", "ls")


def test_there_may_be_none(home: Path) -> None:
    assert "no dead letters" in done("dlq", "ls")
    assert "there are none at all" in refused("dlq", "show", "strict")


def test_an_unknown_name_is_told_with_those_that_are_near(driver: TestDriver) -> None:
    assert "did you mean 'strict.dead'?" in refused("dlq", "redrive", "stric")


def test_letters_are_shown_with_their_record(driver: TestDriver) -> None:
    out = done("dlq", "show", "strict", "--where", "key = '3'")

    assert "operator divide  HR102 ZeroDivisionError" in out
    assert "from in " in out
    assert "key 3" in out
    assert "record k=3  note=n3  v=0" in out
    assert "n0" not in out


def test_letters_as_json_hold_the_whole_record(driver: TestDriver) -> None:
    found = objects(done("dlq", "show", "strict.dead", "-n", 0, "--json"))

    records = sorted((letter["record"] for letter in found), key=str)
    assert records == [{"k": 0, "note": "n0", "v": 0}, {"k": 3, "note": "n3", "v": 0}]


def test_only_the_last_letters_are_shown(driver: TestDriver) -> None:
    (letter,) = objects(done("dlq", "show", "strict", "-n", 1, "--json"))

    assert letter["letter"] == 1


def test_a_redrive_appends_the_original_records_once(driver: TestDriver) -> None:
    before = rows_of(driver, "in")
    assert "2 records would be appended to in" in done("dlq", "redrive", "strict", "--dry-run")
    assert before == rows_of(driver, "in")

    assert done("dlq", "redrive", "strict", "--where", "key = '3'") == "1 record appended to in\n"
    (told,) = objects(done("dlq", "redrive", "strict", "--json"))
    again = done("dlq", "redrive", "strict")

    assert (told["appended"], told["there"]) == ({"in": 1}, {"in": 1})
    assert again == "2 records had been appended to in before\n"
    bad = [{"k": k, "note": f"n{k}", "v": 0} for k in (0, 3)]
    assert rows_of(driver, "in") == sorted([*before, *bad], key=str)
    by_key = [{row["k"] for row in rows} for rows in driver.partitions("in")]
    assert not by_key[0] & by_key[1]


def test_a_redriven_record_is_taken_once_the_function_can(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strict, "limit", 99)
    monkeypatch.setattr(Strict, "process", lambda self, message, context: context.emit({"v": 7}))
    done("dlq", "redrive", "strict")
    driver.start()
    driver.run()

    assert [row["v"] for row in driver.output("out")].count(7) == 2
    assert len(driver.output("strict.dead")) == 2


def test_a_record_from_before_a_column_came_is_redriven_with_its_default(
    driver: TestDriver,
) -> None:
    stream = driver.bus.stream("in")
    stream.evolve(stream.spec.schema.append(pa.field("size", pa.int64())), {"size": 7})

    done("dlq", "redrive", "strict")

    redriven = [row for row in rows_of(driver, "in") if row["v"] == 0]
    assert [row["size"] for row in redriven] == [7] * 4


def test_a_stream_that_does_not_take_a_record_is_told(driver: TestDriver) -> None:
    letters = driver.bus.stream("strict.dead")
    found = next(iter(letters.read(0, 0))).batch
    at = found.schema.get_field_index("stream")
    gone = found.set_column(at, found.schema.field(at), pa.array(["gone"] * found.num_rows))
    letters.append(0, gone)

    ran = headrace("dlq", "redrive", "strict")

    assert ran.code == 1
    assert "2 records appended to in" in ran.out
    assert "not taken: letter 0/2: no stream 'gone'" in ran.err


def test_a_record_of_which_several_rows_are_refused_is_redriven_once(home: Path) -> None:
    @hr.job("pieces")
    def pieces(g: hr.Graph) -> None:
        halves = g.input("in").flat_map(
            lambda row: [row, row, row], returns=COLUMNS, uses=COLUMNS.names
        )
        whole = halves.map(
            lambda row: {"v": 12 // row.v}, returns=OUT, uses=["v"], on_error="dead_letter"
        )
        whole.send_to(g.output("out", partitions=1))

    with TestDriver(pieces, tasks=2, key_groups=4, home=home, memory_bus=False) as driver:
        driver.create("in", COLUMNS, partitions=2)
        for partition in range(2):
            rows = [{"k": k, "note": "", "v": 0} for k in range(2)]
            driver.feed("in", rows, partition=partition)
        driver.run()
        assert len(driver.output("pieces.dead")) == 12
        dry = done("dlq", "redrive", "pieces", "--dry-run")
        assert "4 records would be appended to in" in dry
        (told,) = objects(done("dlq", "redrive", "pieces", "--json"))
        assert (told["appended"], told["there"]) == ({"in": 4}, {"in": 8})
        assert len(rows_of(driver, "in")) == 8
