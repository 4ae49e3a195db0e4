"""``headrace bus configure --add-column`` and the like: streams get columns by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.cli import add_columns, done, parse_columns, refused

from headrace.bus import FileBus, StreamSpec


def append(name: str, rows: list[dict[str, Any]]) -> None:
    done("bus", "append", name, "-", stdin="".join(json.dumps(row) + "\n" for row in rows))


def tailed(name: str) -> list[dict[str, Any]]:
    return [json.loads(line)["row"] for line in done("bus", "tail", name, "--json").splitlines()]


def test_a_column_is_added_with_a_default_and_made_wider(home: Path) -> None:
    done("bus", "create", "s", "--schema", "id:int64,n:int32")
    append("s", [{"id": 1, "n": 2}])
    columns = ("--add-column", "note:string", "--add-column", "count:int64=7")

    told = done("bus", "configure", "s", *columns, "--widen-column", "n:int64")

    assert told == "stream s: column n:int64, column note:string, column count:int64=7\n"
    append("s", [{"id": 2, "n": 2**40, "note": "x", "count": 1}, {"id": 3, "n": 1}])
    rows = tailed("s")
    assert [(row["n"], row["note"], row["count"]) for row in rows] == [
        (2, None, 7),
        (2**40, "x", 1),
        (1, None, 7),
    ]
    assert "column count:int64=7" in done("bus", "describe", "s")
    assert json.loads(done("bus", "configure", "s", "--json"))["columns"][0]["column"] == "n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--add-column", "note"), "--add-column: found 'note', expected name:type"),
        (("--add-column", "n:int64"), "column 'n' is there already, as int32; add another name"),
        (("--add-column", "m:int8=300"), "column 'm' cannot have the default 300: expected one"),
        (("--widen-column", "m:int64"), "--widen-column: no column 'm'; found ['id', 'n']"),
        (("--widen-column", "n:string"), "column 'n' is int32 and cannot become string"),
        (("--widen-column", "id:float64"), "column 'id' is its key and stays int64"),
    ],
)
def test_columns_that_cannot_be_are_told(home: Path, words: tuple[str, ...], told: str) -> None:
    done("bus", "create", "s", "--schema", "id:int64,n:int32", "--key", "id")
    assert told in refused("bus", "configure", "s", *words)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_columns_of_a_file_are_added_where_that_is_allowed(
    home: Path, tmp_path: Path, form: str
) -> None:
    done("bus", "create", "s", "--schema", "id:int64")
    append("s", [{"id": 1}])
    file = tmp_path / f"rows.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"id": [2], "note": ["x"]}), file)
    else:
        text = {"jsonl": '{"id": 2, "note": "x"}\n', "csv": "id,note\n2,x\n"}[form]
        file.write_text(text)
        assert "--add-columns" in refused("bus", "append", "s", str(file))

    done("bus", "append", "s", str(file), "--add-columns")

    rows = tailed("s")
    assert [row.get("note") for row in rows] == [None, "x"]


def test_of_a_command_that_is_refused_nothing_is_done(home: Path) -> None:
    done("bus", "create", "s", "--schema", "id:int64,n:int32", "--key", "id")
    note = ("--add-column", "note:string")
    assert "in 1 partitions" in refused("bus", "configure", "s", *note, "--partitions", "5")
    wrong = ("--widen-column", "n:string", "--retain", "1h")
    assert "cannot become string" in refused("bus", "configure", "s", *wrong)
    assert done("bus", "configure", "s") == "stream s: keeps everything\n"


@pytest.mark.parametrize(
    ("kind", "default", "row"),
    [
        ("decimal(10,2)", "1.5", "1.50"),
        ("binary", "5", "NQ=="),
        ("date", "2024-02-29", "2024-02-29"),
    ],
)
def test_defaults_of_any_type_are_typed_as_they_are(
    home: Path, kind: str, default: str, row: str
) -> None:
    done("bus", "create", "s", "--schema", "id:int64")
    done("bus", "configure", "s", "--add-column", f"x:{kind}={default}")
    append("s", [{"id": 1}])
    assert row in str(tailed("s")[0]["x"])


def test_columns_that_two_add_at_once_are_all_there(tmp_path: Path) -> None:
    """Though each has looked at the schema before the other one changed it."""
    spec = StreamSpec("s", 1, pa.schema([("id", pa.int64())]))
    with FileBus(tmp_path) as one, FileBus(tmp_path) as two:
        other = one.create(spec)
        seen: list[list[str]] = []

        def change(known: pa.Schema) -> tuple[pa.Schema, dict[str, Any]]:
            seen.append(known.names)
            if len(seen) == 1:
                other.evolve(parse_columns(known, ["a:int64"], ())[0])
            return parse_columns(known, ["b:int64=7"], ())

        add_columns(two.stream("s"), change)
        assert seen == [["id"], ["id", "a"]]
        assert other.settings.columns[1].default == 7
