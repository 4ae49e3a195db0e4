"""``bus append`` with lines that do not fit and columns that are guessed; ``bus describe``."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.cli import done, headrace, refused

import headrace as hr
from headrace.testing import TestDriver

SCHEMA = "id:int64,at:timestamp,name:string,ok:bool,x:float64"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def stream() -> str:
    done("bus", "create", "s", "--schema", SCHEMA, "--time", "at", "--key", "id")
    return "s"


def tailed(name: str, *words: object) -> list[dict[str, Any]]:
    out = done("bus", "tail", name, "--json", "-n", 1000, *words)
    return [json.loads(line)["row"] for line in out.splitlines()]


def set_aside(*words: object, stdin: str | bytes) -> tuple[str, str]:
    ran = headrace("bus", "append", *words, "--on-bad", "dead-letter", stdin=stdin)
    assert ran.code == 6
    return ran.out, ran.err


def test_lines_that_do_not_fit_go_aside_with_their_bytes(stream: str) -> None:
    text = '{"id":1,"at":1000}\n{"id":"x","at":1000}\n\nno json\n{"id":2,"at":2000}\n{"id":3}\n'
    out, err = set_aside(stream, "-", stdin=text)
    assert out == "2 rows appended to s\n"
    assert "3 lines did not fit and went to s.dead; look at them with: headrace bus tail" in err
    assert [row["id"] for row in tailed(stream)] == [1, 2]
    dead = tailed("s.dead")
    assert [(row["file"], row["line"]) for row in dead] == [("stdin", n) for n in (2, 4, 6)]
    assert dead[0]["message"] == "column 'id': found \"x\", expected int64"
    assert base64.b64decode(dead[1]["bytes"]) == b"no json"


def test_bytes_that_are_no_text_are_kept(stream: str) -> None:
    set_aside(stream, "-", stdin=b'{"id":1,"at":1,"name":"\xff"}\n{"id":2,"at":2}\n')
    assert [row["id"] for row in tailed(stream)] == [2]


def test_lines_of_csv_go_aside_too(stream: str, tmp_path: Path) -> None:
    file = tmp_path / "o.csv"
    file.write_text(
        'id,at,name\n1,1000,a\nx,1000,b\n3,1000\n4,1000,"c\nd"\n5,99999999999999999,e\n'
    )
    out, _ = set_aside(stream, file, stdin="")
    assert out == "2 rows appended to s\n"
    assert [(row["id"], row["name"]) for row in tailed(stream)] == [(1, "a"), (4, "c\nd")]
    assert [row["line"] for row in tailed("s.dead")] == [3, 4, 7]


def test_a_quote_inside_of_a_field_loses_nothing(stream: str, tmp_path: Path) -> None:
    file = tmp_path / "o.csv"
    file.write_text('id,at,name\n1,1000,5" pipe\n2,1000,6" pipe\n3,1000,c\n')
    told = refused("bus", "append", stream, file)
    assert "line 3: found a quote inside of a field that does not begin with one" in told


def test_nothing_bad_is_success(stream: str) -> None:
    text = '{"id":1,"at":1000}\n'
    assert done("bus", "append", stream, "-", "--on-bad", "dead-letter", stdin=text)
    assert "s.dead" not in done("bus", "ls")


def test_each_line_of_text_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n2013-01-31 "\xc3\xa4, b\nlast')
    words = ("--format", "text", "--infer")
    assert done("bus", "append", "logs", file, *words) == "4 rows appended to logs\n"
    assert done("bus", "append", "logs", "-", "--format", "text", stdin="7\n") == (
        "1 row appended to logs\n"
    )
    assert [row["line"] for row in tailed("logs")] == [
        '{"a": 1}',
        "",
        '2013-01-31 "ä, b',
        "last",
        "7",
    ]
    assert json.loads(done("bus", "describe", "logs", "--json"))["columns"] == {"line": "string"}


def test_lines_of_text_leave_other_columns_null() -> None:
    done("bus", "create", "s", "--schema", "n:int64,line:string")
    done("bus", "append", "s", "-", "--format", "text", stdin="a\n")
    assert tailed("s") == [{"n": None, "line": "a"}]


def test_lines_that_are_no_text_are_refused_or_go_aside() -> None:
    words = ("logs", "-", "--format", "text", "--infer")
    told = refused("bus", "append", *words, stdin=b"a\n\xff\n")
    assert "stdin line 2: found the byte 0xff, expected text in UTF-8" in told
    set_aside(*words, stdin=b"a\n\xff\n")
    assert tailed("logs") == [{"line": "a"}]


def test_lines_of_text_need_a_stream_for_them(stream: str) -> None:
    told = refused("bus", "append", stream, "-", "--format", "text", stdin="a\n")
    assert "for lines of text, expected line:string" in told
    done("bus", "create", "timed", "--schema", "line:string,at:timestamp", "--time", "at")
    told = refused("bus", "append", "timed", "-", "--format", "text", stdin="a\n")
    assert "needs the event time 'at', which lines of text do not have" in told


def test_columns_are_guessed_from_json() -> None:
    rows = [
        {"id": 1, "at": "2013-01-31T05:15:00Z", "p": 1, "n": None, "l": [1]},
        {"id": 2, "at": "2013-01-31T05:16:00Z", "p": 1.5, "n": None, "l": []},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    words = ("--infer", "--time", "at", "--key", "id", "--partitions", 2)
    assert done("bus", "append", "new", "-", *words, stdin=text) == "2 rows appended to new\n"
    found = json.loads(done("bus", "describe", "new", "--json"))
    assert found["columns"] == {
        "id": "int64", "at": "timestamp", "p": "float64", "n": "string", "l": "list<int64>",
    }  # fmt: skip
    assert (found["time"], found["key"], found["partitions"]) == ("at", ["id"], 2)
    assert sorted(row["p"] for row in tailed("new")) == [1.0, 1.5]
    assert done("bus", "append", "new", "-", "--infer", stdin=text) == "2 rows appended to new\n"


def test_columns_are_guessed_from_csv_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name,on\n1,x,true\n2,y,false\n")
    done("bus", "append", "a", tmp_path / "a.csv", "--infer")
    assert tailed("a") == [
        {"id": 1, "name": "x", "on": True}, {"id": 2, "name": "y", "on": False},
    ]  # fmt: skip
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "b.parquet")
    done("bus", "append", "b", tmp_path / "b.parquet", "--infer")
    assert [row["n"] for row in tailed("b")] == [1, 2]


def test_what_cannot_be_guessed_is_told() -> None:
    assert "stdin is empty" in refused("bus", "append", "n", "-", "--infer", stdin="\n")
    told = refused("bus", "append", "n", "-", "--infer", stdin="no json\n")
    assert "its columns cannot be guessed" in told
    assert "no stream 'n'" in refused("bus", "append", "n", "-", stdin="{}\n")


def test_tail_filters_by_a_condition(stream: str) -> None:
    text = "".join(json.dumps({"id": n, "at": n * 1000, "x": n / 2}) + "\n" for n in range(3000))
    done("bus", "append", stream, "-", stdin=text)
    assert [row["id"] for row in tailed(stream, "--where", "x > 1490", "-n", 3)] == [
        2997, 2998, 2999,
    ]  # fmt: skip
    found = tailed(stream, "--where", "id % 1000 = 7", "--from", "earliest")
    assert [row["id"] for row in found] == [7, 1007, 2007]
    assert [row["id"] for row in tailed(stream, "--where", "_offset = 5")] == [5]
    assert tailed(stream, "--where", "id < 0", "--from", "earliest") == []
    told = refused("bus", "tail", stream, "--where", "nope > 1")
    assert "--where:1:1: no column 'nope'; expected at, id" in told
    assert "^^^^" in told


def test_trim_drops_what_is_asked_for(stream: str) -> None:
    done("bus", "append", stream, "-", stdin='{"id":1,"at":1000}\n')
    found = json.loads(done("bus", "trim", stream, "--before", "latest", "--json"))
    assert found["name"] == "s"
    assert found["begins"] in ([0], [1])
    assert "row" in done("bus", "trim", stream)
    told = refused("bus", "trim", stream, "--before", "soon")
    assert "--before 'soon' cannot be read" in told


def test_another_name_is_swapped_in_one_step(stream: str) -> None:
    assert "no aliases" in done("bus", "alias")
    done("bus", "create", "t", "--schema", "n:int64")
    assert done("bus", "alias", "now", stream) == "alias now: s\n"
    assert done("bus", "alias", "now", "t") == "alias now: t, before s\n"
    assert json.loads(done("bus", "alias", "--json")) == {"alias": "now", "stream": "t"}
    assert json.loads(done("bus", "describe", "t", "--json"))["aliases"] == ["now"]
    done("bus", "append", "now", "-", stdin='{"n":1}\n')
    assert tailed("t") == [{"n": 1}]
    assert "no stream 'u'" in refused("bus", "alias", "now", "u")
    assert done("bus", "alias", "now", "--remove") == "alias now: removed, before t\n"
    assert "no alias 'now'" in refused("bus", "alias", "now", "--remove")
    assert headrace("bus", "alias", "now").code == 2


def test_how_long_rows_are_kept_is_configured(stream: str) -> None:
    told = json.loads(done("bus", "configure", stream, "--retain", "7d", "--json"))
    assert told["retain_ms"] == 7 * 86_400_000
    told = json.loads(done("bus", "configure", stream, "--retain-bytes", 5000, "--json"))
    assert (told["retain_ms"], told["retain_bytes"]) == (7 * 86_400_000, 5000)
    done("bus", "configure", stream, "--retain", "none", "--retain-bytes", "none")
    assert done("bus", "configure", stream) == "stream s: keeps everything\n"
    assert "error HR1" in refused("bus", "configure", stream, "--partitions", 3)  # it has a key
    assert "--retain" in refused("bus", "configure", stream, "--retain", "soon")


@hr.job("shop")
def shop(g: Any) -> None:
    g.input("orders", time="at").filter(lambda order: True).send_to(g.output("seen"))


def test_describe_tells_who_reads(home: Path) -> None:
    with TestDriver(shop, home=home, memory_bus=False) as driver:
        driver.create("orders", {"id": pa.int64(), "at": pa.int64()}, partitions=2, time="at")
        driver.feed("orders", [{"id": 1, "at": 1000}, {"id": 2, "at": 3000}], partition=0)
        driver.run()
        driver.feed("orders", [{"id": 3, "at": 5000}], partition=1)
        found = json.loads(done("bus", "describe", "orders", "--json"))
        assert [(part["begin"], part["end"]) for part in found["ends"]] == [(0, 2), (0, 1)]
        assert found["rows_per_s"] == 0.75
        assert [(one["job"], one["lag"]) for one in found["readers"]] == [("shop", 1)]
        assert json.loads(done("bus", "describe", "seen", "--json"))["writers"] == ["shop"]
        text = done("bus", "describe", "orders")
        assert "rows         3" in text
        assert "shop" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.jsonl", '{"id":1,"at":-14182940000}\n{"id":2,"at":"1969-07-20T20:17:41.5Z"}\n'),
        ("o.csv", "id,at\n1,-14182940000\n2,1969-07-20T20:17:41.5Z\n"),
    ],
)
def test_times_before_1970_are_read_and_shown(
    stream: str, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    done("bus", "append", stream, tmp_path / name)
    shown = [row["at"] for row in tailed(stream)]
    assert shown == ["1969-07-20T20:17:40Z", "1969-07-20T20:17:41.500000Z"]
    listed = done("bus", "describe", stream)
    assert "1969-07-20 20:17:40" in listed
    assert "1969-07-20 20:17:41.500" in listed
    assert [row["id"] for row in tailed(stream, "--from", "1969-07-20T20:17:41")] == [2]
