"""``headrace bus``: what goes in comes out, and each mistake is told in one message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.cli import done, headrace, refused

from headrace.bus import open_bus

SCHEMA = "id:int64,at:timestamp,price:float64,note:string"
EPOCH_2013 = 1_357_016_400_000
ROW = {"id": 1, "at": "2013-01-01T05:00:00Z", "price": 1.5, "note": "a"}


@pytest.fixture
def orders(home: Path) -> Path:
    """A home with the empty stream ``orders``."""
    done("bus", "create", "orders", "--schema", SCHEMA, "--time", "at", "--partitions", 2)
    return home


def lines(*rows: Mapping[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def tailed(*words: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in done("bus", "tail", *words, "--json").splitlines()]


def ids(*words: object) -> list[object]:
    rows = [line["row"] for line in tailed(*words)]
    return [row["id"] for row in rows if isinstance(row, dict)]


def test_a_stream_is_created_as_told(home: Path) -> None:
    out = done(
        "bus", "create", "s", "--schema", "a:int,b:list<text>,c:decimal(10, 2)", "--key", "a"
    )

    assert out == "stream s: 1 partition, a:int64,b:list<string>,c:decimal(10,2)\n"
    with open_bus(home / "bus") as bus:
        assert bus.stream("s").spec.key == ("a",)


def test_home_can_be_given_to_a_command(tmp_path: Path, home: Path) -> None:
    done("bus", "create", "s", "--schema", "a:int64", "--home", tmp_path / "other")

    assert "s " in done("bus", "ls", "--home", tmp_path / "other")
    assert "no streams in" in done("bus", "ls")
    assert not home.exists()


def test_a_stream_can_be_like_a_file(home: Path, tmp_path: Path) -> None:
    table = pa.table({"id": [3, 4], "name": pa.array(["x", "y"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "t.parquet")

    done("bus", "create", "s", "--like", tmp_path / "t.parquet")
    done("bus", "append", "s", tmp_path / "t.parquet")

    rows = [line["row"] for line in tailed("s")]
    assert rows == [{"id": 3, "name": "x"}, {"id": 4, "name": "y"}]


def test_the_same_stream_may_be_there_when_told_so(orders: Path) -> None:
    words = ("bus", "create", "orders", "--schema", SCHEMA, "--time", "at")

    assert "2 partitions" in done(*words, "--partitions", 2, "--exist-ok")
    assert "another partitions: found 2, expected 3" in refused(
        *words, "--partitions", 3, "--exist-ok"
    )
    assert "stream 'orders' exists" in refused(*words, "--partitions", 2)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a:in64", "unknown type 'in64'; did you mean int64?"),
        ("a", "found 'a', expected name:type, such as id:int64"),
        ("a:int64,a:string", "column 'a' is given twice"),
        ("a:decimal(2,3)", "expected 1 to 38 digits"),
        ("a:list<in8>", "did you mean int8?"),
    ],
)
def test_a_wrong_schema_is_told(home: Path, schema: str, told: str) -> None:
    assert told in refused("bus", "create", "s", "--schema", schema)
    assert not home.exists()


def test_columns_must_be_given_once(home: Path, tmp_path: Path) -> None:
    assert "--like" in refused("bus", "create", "s", code=2)
    assert "--like" in refused("bus", "create", "s", "--schema", "a:int64", "--like", "f", code=2)
    assert "no file" in refused("bus", "create", "s", "--like", tmp_path / "none.parquet")
    (tmp_path / "t").write_text("x")
    assert "is not Parquet" in refused("bus", "create", "s", "--like", tmp_path / "t")


def test_json_lines_are_typed_by_the_schema(orders: Path) -> None:
    """Times are ISO 8601, without a zone in UTC, or milliseconds; what is left out is null."""
    text = lines(ROW, {"id": 2, "at": EPOCH_2013}, {"at": "2013-01-01 05:00:00", "id": 3}) + "\n"

    assert done("bus", "append", "orders", "-", stdin=text) == "3 rows appended to orders\n"

    at = "2013-01-01T05:00:00Z"
    assert [line["row"] for line in tailed("orders")] == [
        ROW,
        {"id": 2, "at": at, "price": None, "note": None},
        {"id": 3, "at": at, "price": None, "note": None},
    ]


def test_every_type_can_be_appended(home: Path) -> None:
    done(
        "bus", "create", "s", "--schema",
        "i:int8,u:uint64,f:float32,b:bool,s:string,x:binary,d:date,m:decimal(5,2),l:list<int64>",
    )  # fmt: skip
    row = {
        "i": -128, "u": 2**64 - 1, "f": 0.5, "b": True, "s": "ä", "x": "AAE=", "d": "2013-01-31",
        "m": "1.25", "l": [1, None],
    }  # fmt: skip

    done("bus", "append", "s", "-", stdin=lines(row))

    assert [{"partition": 0, "offset": 0, "row": row}] == tailed("s")


def test_csv_is_typed_by_the_schema(orders: Path, tmp_path: Path) -> None:
    """An empty field is null, but text stays text; a quoted line break is one row."""
    file = tmp_path / "o.csv"
    file.write_text('at,id,note\n2013-01-01T05:00:00Z,1,"a\nb"\n1357016400000,,\n')

    done("bus", "append", "orders", file)

    at = "2013-01-01T05:00:00Z"
    assert [line["row"] for line in tailed("orders")] == [
        {"id": 1, "at": at, "price": None, "note": "a\nb"},
        {"id": None, "at": at, "price": None, "note": ""},
    ]


def test_lists_stand_in_csv_as_json(home: Path) -> None:
    done("bus", "create", "s", "--schema", "l:list<int64>")

    done("bus", "append", "s", "-", "--format", "csv", stdin='l\n"[1,2]"\n')

    assert [line["row"] for line in tailed("s")] == [{"l": [1, 2]}]
    told = refused("bus", "append", "s", "-", "--format", "csv", stdin="l\nx\n")
    assert "column 'l': found \"x\", expected list<int64>" in told


def test_rows_with_a_key_go_to_its_partition(home: Path) -> None:
    done("bus", "create", "s", "--schema", "k:int64", "--key", "k", "--partitions", 4)
    text = lines(*({"k": n % 8} for n in range(80)))

    done("bus", "append", "s", "-", stdin=text)

    places: dict[object, set[object]] = {}
    for line in tailed("s", "-n", 100):
        assert isinstance(line["row"], dict)
        places.setdefault(line["row"]["k"], set()).add(line["partition"])
    assert [len(found) for found in places.values()] == [1] * 8


def test_rows_without_a_key_fill_the_shortest_partition(orders: Path) -> None:
    for number in range(3):
        done("bus", "append", "orders", "-", stdin=lines(ROW | {"id": number}))
    done("bus", "append", "orders", "-", "--partition", 1, stdin=lines(ROW | {"id": 3}))

    assert [ids("orders", "--partition", p) for p in (0, 1)] == [[0, 2], [1, 3]]


@pytest.mark.usefixtures("home")
def test_many_rows_without_a_key_go_to_all_partitions_in_turn() -> None:
    rows = lines(*({"n": n} for n in range(250)))
    for name in ("a", "b"):
        done("bus", "create", name, "--partitions", 3, "--schema", "n:int64")
        done("bus", "append", name, "-", stdin=lines({"n": -1}))
        done("bus", "append", name, "-", stdin=rows)
    found = [
        [row["row"] for row in tailed("a", "--from", "earliest", "--partition", p)]
        for p in range(3)
    ]
    wanted = [[-1, *range(200, 250)], [*range(100)], [*range(100, 200)]]
    assert found == [[{"n": n} for n in of_one] for of_one in wanted]
    assert tailed("a", "--from", "earliest") == tailed("b", "--from", "earliest")


@pytest.mark.usefixtures("home")
def test_partitions_that_rest_get_no_rows_in_turn() -> None:
    done("bus", "create", "s", "--partitions", 3, "--schema", "n:int64")
    done("bus", "configure", "s", "--partitions", 2)
    done("bus", "append", "s", "-", stdin=lines(*({"n": n} for n in range(300))))
    assert {row["partition"] for row in tailed("s", "--from", "earliest")} == {0, 1}


@pytest.mark.usefixtures("home")
def test_a_record_that_is_too_large_says_what_other_partitions_have() -> None:
    done("bus", "create", "s", "--partitions", 2, "--schema", "t:string")
    rows = [{"t": "x"}] * 150 + [{"t": "x" * (9 << 20)}]
    told = refused("bus", "append", "s", "-", stdin=lines(*rows))
    assert "0 rows before its batch and 100 rows of it were appended, to other partitions" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"id": "a"}, "column 'id': found \"a\", expected int64"),
        ({"id": 1.5}, "column 'id': found 1.5, expected int64"),
        ({"id": 2**63}, "expected int64 <= 9,223,372,036,854,775,807"),
        ({"at": "soon"}, "column 'at': found \"soon\", expected timestamp, such as"),
        ({"at": None}, "column 'at': found null, expected timestamp"),
        ({"nota": "x"}, "found column 'nota', which is not there; did you mean 'note'?"),
        ({"zzz": 1}, "found column 'zzz', which is not there; expected id, at, price, note"),
        ({"note": 7}, "column 'note': found 7, expected string"),
    ],
)
def test_a_line_that_does_not_fit_is_told(orders: Path, line: dict[str, object], told: str) -> None:
    text = lines(ROW) + lines(ROW | line)

    message = refused("bus", "append", "orders", "-", stdin=text)

    assert "error HR100: stdin line 2: " in message
    assert told in message
    assert "nothing of it was appended" in message
    assert tailed("orders") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]\n", "stdin line 1: found [1], expected a JSON object of columns"),
        ('{"id": 1}\n', "line 1: column 'at': found nothing, expected timestamp: it is the event"),
        ('{"id": \n', 'line 1: found {"id":, expected a JSON object'),
        ('{"note": "\\ud800", "at": 1}\n', "line 1: "),
    ],
)
def test_what_is_no_row_is_told(orders: Path, text: str, told: str) -> None:
    assert told in refused("bus", "append", "orders", "-", stdin=text)


def test_a_value_that_only_arrow_refuses_is_told_with_its_line(home: Path) -> None:
    done("bus", "create", "s", "--schema", "m:decimal(3,1),u:uint64")

    told = refused("bus", "append", "s", "-", stdin='{"m": "1.5"}\n\n{"m": "100.5"}\n')
    assert "stdin line 3: column 'm': found \"100.5\", expected decimal(3,1): " in told
    told = refused("bus", "append", "s", "-", stdin=f'{{"u": {2**64}}}\n')
    assert "stdin line 1: column 'u': found 18446744073709551616, expected uint64" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id,at\n1,x\n", "o.csv line 2: column 'at': found \"x\", expected timestamp"),
        ("id,at\n1\n", "o.csv line 2: found 1 fields, expected 2 as in the header"),
        ("id,at,prize\n", "line 1: found columns ['prize'] in the header, expected id, at, price"),
        ('id,at\n1,"x\n', "o.csv line 3: unexpected end of data"),
        ("id,at\n1,\n", "line 2: column 'at': found nothing, expected timestamp"),
    ],
)
def test_a_wrong_line_of_csv_is_told(orders: Path, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "o.csv").write_text(text)

    assert told in refused("bus", "append", "orders", tmp_path / "o.csv")


def test_a_wrong_parquet_file_is_told(orders: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.parquet"
    file.write_text("x")
    assert "cannot be read as Parquet" in refused("bus", "append", "orders", file)

    pq.write_table(pa.table({"id": [1]}), file)
    assert "columns do not fit: missing ['at'" in refused("bus", "append", "orders", file)

    rows = {"id": [1, 2], "at": pa.array([1, None], pa.timestamp("ms")), "price": [1.0, 2.0]}
    pq.write_table(pa.table(rows | {"note": ["a", "b"]}), file)
    told = refused("bus", "append", "orders", file)
    assert f"{file} row 2: event time 'at': found None" in told


def test_files_are_looked_at_before_anything_is_appended(orders: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(ROW))

    told = refused("bus", "append", "orders", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert "b.jsonl; check the path" in told
    told = refused("bus", "append", "orders", tmp_path / "a.jsonl", tmp_path / "b.xyz")
    assert "the format of .xyz is unknown; give --format jsonl, csv, parquet or text" in told
    assert tailed("orders") == []


def test_an_append_that_failed_half_way_can_go_on(orders: Path, tmp_path: Path) -> None:
    """Batches before the one with the mistake stay; the message says how to go on."""
    file = tmp_path / "o.jsonl"
    rows = [ROW | {"id": number} for number in range(5)]
    file.write_text(lines(*rows[:3], rows[3] | {"id": "x"}, rows[4]))

    told = refused("bus", "append", "orders", file, "--batch-rows", 2)
    assert "2 rows before its batch were appended; once it is fixed, continue with --skip 2" in told

    file.write_text(lines(*rows))
    done("bus", "append", "orders", file, "--batch-rows", 2, "--skip", 2)
    assert sorted(ids("orders"), key=str) == [0, 1, 2, 3, 4]


def test_skip_counts_rows_of_parquet_too(home: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(10))}), tmp_path / "t.parquet")
    done("bus", "create", "s", "--schema", "id:int64")

    done("bus", "append", "s", tmp_path / "t.parquet", "--batch-rows", 4, "--skip", 5)

    assert ids("s") == [5, 6, 7, 8, 9]


def test_lines_of_a_pipe_are_appended_as_they_come(orders: Path) -> None:
    """A program that writes a line and then goes on for hours has its line appended."""
    source = Path(__file__).parents[3] / "src"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "bus", "append", "orders", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    assert process.stdin is not None
    with open_bus(orders / "bus") as bus:
        stream = bus.stream("orders")
        process.stdin.write(lines(ROW).encode())
        process.stdin.flush()
        assert sum(stream.wait([0, 0], 60.0)) == 1
    out, _ = process.communicate(json.dumps(ROW).encode(), timeout=60)
    assert (process.returncode, out) == (0, b"2 rows appended to orders\n")


def test_tail_shows_the_last_rows_in_order_of_time(orders: Path) -> None:
    for partition, start in ((0, 0), (1, 1)):
        text = lines(*({"id": n, "at": EPOCH_2013 + n} for n in range(start, 20, 2)))
        done("bus", "append", "orders", "-", "--partition", partition, stdin=text)

    assert list(range(10, 20)) == ids("orders")
    assert ids("orders", "-n", 2) == [18, 19]
    assert ids("orders", "--from", "earliest", "-n", 3) == [0, 1, 2]
    assert list(range(20)) == ids("orders", "--from", "earliest"), "as many as there are"
    assert ids("orders", "--partition", 1, "-n", 2) == [17, 19]
    assert ids("orders", "--partition", 1, "--from", 4, "-n", 2) == [9, 11]
    assert ids("orders", "--from", "latest") == []
    assert ids("orders", "--from", "2013-01-01T05:00:00.012", "-n", 2) == [12, 13]
    assert list(range(20)) == ids("orders", "--from", "earliest", "-n", 20, "--follow")


def test_tail_ends_where_it_is_told(orders: Path) -> None:
    """At an offset, or before the first row of a time; also when that comes only later."""
    for partition, start in ((0, 0), (1, 1)):
        text = lines(*({"id": n, "at": EPOCH_2013 + n} for n in range(start, 30, 2)))
        done("bus", "append", "orders", "-", "--partition", partition, stdin=text)

    twelve = "2013-01-01T05:00:00.012"
    assert list(range(12)) == ids("orders", "--from", "earliest", "--until", twelve)
    assert ids("orders", "--until", twelve, "-n", 2) == [10, 11]
    assert ids("orders", "--from", twelve, "--until", "2013-01-01T05:00:00.015") == [12, 13, 14]
    assert list(range(30)) == ids("orders", "--from", "earliest", "--until", "latest")
    assert ids("orders", "--partition", 1, "--from", 3, "--until", 5) == [7, 9]
    assert ids("orders", "--partition", 1, "--from", 13, "--until", 99) == [27, 29]
    assert list(range(12)) == ids("orders", "--from", "earliest", "--until", twelve, "-f")
    assert ids("orders", "--until", twelve, "-n", 1, "--follow") == [11]


def test_tail_follows_until_the_end_comes(orders: Path) -> None:
    """It waits for rows at the time in each partition."""
    rows = ({"id": n, "at": EPOCH_2013 + n} for n in range(4))
    done("bus", "append", "orders", "-", "--partition", 0, stdin=lines(*rows))
    words = ("--from", "earliest", "--until", "2013-01-01T05:00:01", "--follow")
    following = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "bus", "tail", "orders", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    seen = [following.stdout.readline() for _ in range(4)]
    for partition in (0, 1):
        after = ({"id": 10 + n, "at": EPOCH_2013 + 999 + n} for n in range(2))
        done("bus", "append", "orders", "-", "--partition", partition, stdin=lines(*after))
    rest, _ = following.communicate(timeout=60)
    found = [line.split()[1] for line in (*seen, *rest.splitlines())]
    assert found == ["id=0", "id=1", "id=2", "id=3", "id=10", "id=10"]
    assert following.returncode == 0


def test_a_stream_is_compacted_as_told(home: Path) -> None:
    words = ("--schema", SCHEMA, "--time", "at", "--key", "id", "--compact")
    done("bus", "create", "latest", *words)
    rows = [{"id": n % 3, "at": EPOCH_2013 + n, "note": str(n)} for n in range(9)]
    done("bus", "append", "latest", "-", stdin=lines(*rows))

    assert ids("latest", "-n", 2) == [1, 2]
    assert "stream latest: 6 rows removed, " in done("bus", "compact", "latest")
    assert [line["offset"] for line in tailed("latest")] == [6, 7, 8]
    assert [line["offset"] for line in tailed("latest", "--from", 2, "--until", 8)] == [6, 7]
    assert ids("latest", "-n", 2) == [1, 2]
    found = json.loads(done("bus", "describe", "latest", "--json"))
    (part,) = found["ends"]
    assert (found["compact"], found["rows"], found["holds"]) == (True, 3, {})
    assert (part["begin"], part["end"], part["rows"], part["compacted"]) == (0, 9, 3, 9)
    assert "id, compacted" in done("bus", "describe", "latest")
    again = json.loads(done("bus", "compact", "latest", "--partition", 0, "--json"))
    assert (again["partition"], again["rows_before"], again["rows"]) == (0, 3, 3)
    given = ("--keep-deletes", "2h", "--hold-for", "3d", "--compact-after", "1h")
    told = done("bus", "configure", "latest", *given)
    assert "compact_after_ms 3600000" in told
    assert "keep_deletes_ms 7200000" in told
    assert "hold_ms 259200000" in told
    with open_bus(home / "bus") as bus:
        bus.stream("latest").hold("job", [4])
    assert "held by" in (text := done("bus", "describe", "latest"))
    assert "job from 4" in text


def test_what_cannot_be_compacted_is_told(orders: Path) -> None:
    assert "stream 'orders' is not compacted" in refused("bus", "compact", "orders")
    words = ("--schema", SCHEMA, "--compact")
    assert "the last record of each key, and has none" in refused("bus", "create", "s", *words)


def test_tail_prints_a_line_a_row_to_a_pipe(orders: Path) -> None:
    done("bus", "append", "orders", "-", stdin=lines(ROW, {"id": 2, "at": EPOCH_2013 + 1}))

    assert done("bus", "tail", "orders") == (
        "0/0  id=1  at=2013-01-01 05:00:00  price=1.5  note=a\n"
        "0/1  id=2  at=2013-01-01 05:00:00.001  price=-  note=-\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "yesterday"), "expected earliest, latest, an offset, or a time such as"),
        (("--from", "3"), "is of one partition; add --partition, from 0 to 1"),
        (("--from", "3", "--partition", "0"), "partition 0 has no offset 3; expected 0 to 0"),
        (("--partition", "2"), "stream 'orders' has no partition 2; expected 0 to 1"),
    ],
)
def test_tail_says_what_is_not_there(orders: Path, words: tuple[str, ...], told: str) -> None:
    assert told in refused("bus", "tail", "orders", *words)


def test_a_stream_that_is_not_there_is_told_with_those_near(orders: Path) -> None:
    told = refused("bus", "tail", "order")

    assert "no stream 'order'; did you mean 'orders'?" in told
    assert 'headrace bus create order --schema "column:type,..."' in told
    assert "did you mean 'orders'?" in refused("bus", "append", "oders", "-", stdin="{}")


def test_ls_lists_rows_bytes_and_times(orders: Path) -> None:
    done("bus", "append", "orders", "-", stdin=lines(ROW, ROW | {"at": EPOCH_2013 + 1000}))
    done("bus", "create", "empty", "--schema", "a:int64", "--key", "a")

    table = done("bus", "ls")
    found = [json.loads(line) for line in done("bus", "ls", "--json").splitlines()]

    assert [entry["name"] for entry in found] == ["empty", "orders"]
    assert found[1].pop("bytes") > 0
    assert found[1] == {
        "name": "orders",
        "partitions": 2,
        "rows": 2,
        "first_ms": EPOCH_2013,
        "last_ms": EPOCH_2013 + 1000,
        "time": "at",
        "key": [],
        "compact": False,
        "columns": {"id": "int64", "at": "timestamp", "price": "float64", "note": "string"},
    }
    assert "2013-01-01 05:00:00  2013-01-01 05:00:01" in table


def test_a_damaged_stream_is_corrupt_data(orders: Path) -> None:
    (orders / "bus" / "streams" / "orders" / "stream.json").write_text("{}")

    assert "error HR400: " in refused("bus", "tail", "orders", code=5)


def test_who_stops_reading_is_no_error(orders: Path) -> None:
    """``headrace bus tail ... | head`` ends without a word."""
    text = lines(*(ROW | {"note": "x" * 200} for _ in range(2000)))
    done("bus", "append", "orders", "-", stdin=text)
    source = Path(__file__).parents[3] / "src"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "bus", "tail", "orders", "-n", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 141


def test_a_sentence_that_nobody_reads_is_no_error(orders: Path) -> None:
    begin, end = os.pipe()
    os.close(begin)
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "bus", "configure", "orders", "--retain", "1d"],
        stdout=end,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        check=False,
    )
    os.close(end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_unknown_command_is_wrong_usage() -> None:
    assert "Did you mean 'create'?" in headrace("bus", "craete").err
    assert headrace("bus", "craete").code == 2
