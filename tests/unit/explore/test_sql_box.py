"""The SQL box: what it answers, and that nothing leaves it, by two walls that are independent."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.exploring import (
    Explored,
    ManualClock,
    read_select,
    run_unchecked,
    tables_read,
)
from tests.support.homes import Home
from tests.support.soak import more

from headrace.errors import InvalidInputError

BASE = 1_700_000_000_000
ATTACKS = Path(__file__).with_name("attacks.txt")
SECRET = "the-secret-that-no-query-reads"
ROWS = [
    {"at": BASE + n * 1000, "route": f"/r{n % 3}", "n": n, "payload": f'{{"user": {{"id": {n}}}}}'}
    for n in range(30)
]
COLUMNS = {"at": pa.int64(), "route": pa.string(), "n": pa.int64(), "payload": pa.string()}


def attacks() -> list[str]:
    lines = ATTACKS.read_text("utf-8").splitlines()
    return [one.replace("\\n", "\n") for one in lines if one and not one.startswith("#")]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explored]:
    with Home(tmp_path_factory.mktemp("box")) as home:
        home.create("web", COLUMNS, time="at")
        home.create("private.orders", {"card": pa.string()})
        home.send("web", ROWS[:20], 0)
        with Explored(home, ManualClock(BASE + 60_000), "explore.query_s=2") as first:
            first.step()
        with Explored(home, ManualClock(BASE + 60_000), "explore.query_s=2") as explored:
            home.send("web", ROWS[20:], 0)
            home.send("private.orders", [{"card": "1234"}], 0)
            explored.step()
            yield explored


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("select count(*) from web", [[30]]),
        ("SELECT route, sum(n) AS s FROM web GROUP BY route ORDER BY s DESC LIMIT 1",
         [["/r2", sum(range(2, 30, 3))]]),
        ("with a as (select route, n from web) select max(n) from a where route = '/r1'", [[28]]),
        ("select payload->'user'->>'id' from web where n = 7", [["7"]]),
        ("select json_extract_string(payload, '$.user.id') u from web order by n limit 1", [["0"]]),
        ("select count(*) from web where _time >= timestamptz '2023-11-14 22:13:40+00'", [[10]]),
        ("select sum(_sample_rate), min(_time_ms), max(_offset) from web", [[30, BASE, 29]]),
        ("select a.n from web a join web b on a.n = b.n + 1 where b.n = 4", [[5]]),
        ("select n, row_number() over (order by n desc) r from web order by n limit 1", [[0, 30]]),
        ("select time_bucket(interval '10 seconds', _time) t, count(*) c from web group by t "
         "order by t limit 1", [[BASE, 10]]),
        ("select card from private.orders", [["1234"]]),
        ("with web as (select * from web where n < 3) select count(*) from web", [[3]]),
        ("with a as (with web as (select 7 x) select x from web) select a.x, max(web.n) m "
         "from a, web group by 1", [[7, 29]]),
        ("select cast('-infinity' as date) d, cast('infinity' as timestamp) t, n from web "
         "where n = 4", [["out of range", "out of range", 4]]),
        ('select card from "private.orders"', [["1234"]]),
        ("select quantile_cont(n, 0.5), count(distinct route), avg(n) from web", [[14.5, 3, 14.5]]),
        ("select 1 union all select 2 order by 1", [[1], [2]]),
        ("select case when n > 28 then 'high' else 'low' end k, count(*) c from web group by k "
         "having count(*) < 5", [["high", 1]]),
    ],
)  # fmt: skip
def test_a_select_is_answered(box: Explored, text: str, rows: list[list[object]]) -> None:
    assert box.sql(text).rows == rows


def test_a_text_that_the_worker_does_not_take_for_a_select_leaves_it_alive() -> None:
    """DuckDB's Python has no name for the kind of this statement, and raises for it."""
    rows = pa.Table.from_pylist(ROWS[:3])
    assert run_unchecked("UPDATE EXTENSIONS", rows) == "expected one SELECT"


def test_rows_beyond_the_limit_are_left_out_and_said(box: Explored) -> None:
    result = box.service.sql("select n from web order by n", lambda _: True, 3)
    assert result.rows == [[0], [1], [2]]
    assert not result.complete
    assert "there are more rows: these are the first 3" in str(result.warning)


def test_a_stream_that_one_may_not_see_is_unknown(box: Explored) -> None:
    with pytest.raises(InvalidInputError, match=r"no stream 'private.orders' is kept"):
        box.sql("select * from private.orders", ["web"])
    with pytest.raises(InvalidInputError, match=r"no stream 'private.orders' is kept"):
        box.sql("select * from web where route in (select card from private.orders)", ["web"])


def test_mistakes_show_their_place(box: Explored) -> None:
    with pytest.raises(InvalidInputError, match=r"query:1:8: no column 'rote'; did you mean"):
        box.sql("select rote from web")
    with pytest.raises(InvalidInputError, match=r"query:2:6: no stream 'wep' is kept.*'web'"):
        box.sql("select *\nfrom wep")
    with pytest.raises(InvalidInputError, match=r"query:1:\d+: this is no SQL that is known here"):
        box.sql("select from where")
    with pytest.raises(InvalidInputError, match=r"query:1:1: this is no SQL that is known here"):
        box.sql("show all")
    with pytest.raises(InvalidInputError, match="a quote or a comment has no end"):
        box.sql("select 'a from web")


def test_a_query_without_end_is_ended_and_the_next_is_answered(box: Explored) -> None:
    many = " , ".join(f"web w{n}" for n in range(12))
    with pytest.raises(InvalidInputError, match="took more than 2 s"):
        box.sql(f"select count(*) from {many} where w0.n + w1.n + w2.n = w3.n * w4.n")
    assert box.sql("select count(*) from web").rows == [[30]]


def test_a_value_that_doubles_again_and_again_ends_its_process_alone(box: Explored) -> None:
    inner = "select payload x from web"
    for _ in range(12):
        inner = f"select x || x || x || x || x || x || x || x x from ({inner})"
    with pytest.raises(InvalidInputError) as refused:
        box.sql(f"select length(x) from ({inner})")
    said = refused.value.message
    assert "memory" in said or "took more than" in said or "emory" in said
    assert box.sql("select count(*) from web").rows == [[30]]


def test_all_known_attacks_are_refused() -> None:
    texts = attacks()
    assert len(texts) >= 200
    through = []
    for text in texts:
        try:
            query = read_select(text.format(file="/etc/hostname", new="/tmp/new"), ["web"])
        except InvalidInputError:
            continue
        through.append((text, query.sql))
    assert through == []


def test_nothing_of_a_refused_text_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """sqlglot warns of what it does not know, with the text: here, of a password."""
    for text in (*attacks(), f"set password = '{SECRET}'", f"attach '{SECRET}' as x (type mysql)"):
        with contextlib.suppress(InvalidInputError):
            read_select(text.format(file=SECRET, new="/tmp/new"), ["web"])
    assert caplog.records == []


@pytest.mark.parametrize("part", more(range(1), range(20)))
def test_attacks_that_nobody_has_checked_reach_nothing_from_duckdb(
    tmp_path: Path, part: int
) -> None:
    """The second wall: a locked DuckDB that is given the text as it is."""
    secret, new = tmp_path / "secret.csv", tmp_path / "new.parquet"
    secret.write_text(f"a,b\n{SECRET},1\n")
    rows = pa.Table.from_pylist(ROWS[:3])
    for text in attacks()[part::20]:
        said = run_unchecked(text.format(file=secret, new=new), rows, seconds=0.3)
        assert SECRET not in said, text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv"]


WORDS = str.split(
    """
    SELECT FROM WHERE GROUP BY ORDER LIMIT WITH AS RECURSIVE UNION ALL JOIN ON ( ) , . ; * 1 'a' web
    "web" n route count sum read_text read_csv query_table glob '{file}' "{file}" unnest values
    COPY TO ATTACH SET PRAGMA INSTALL INTO LATERAL EXISTS IN = || -> ->> :: [ ] { } $$ -- /* */
    range repeat getenv OVER FILTER CASE WHEN THEN END CAST VARCHAR TABLE DESCRIBE main system AT
    information_schema tables duckdb_settings USING SAMPLE QUALIFY HAVING DISTINCT EXCEPT REPLACE
    COLUMNS lambda x : x NOT NULL IS LIKE INTERVAL '1 day' DATE NATURAL ASOF POSITIONAL VALUES
    """
)
SEEDS = [
    "SELECT route, count(*) FROM web GROUP BY route",
    "WITH a AS (SELECT n FROM web) SELECT * FROM a JOIN web ON a.n = web.n",
    "SELECT n FROM web UNION ALL SELECT n FROM web WHERE n IN (SELECT n FROM web)",
    "SELECT sum(n) OVER (PARTITION BY route ORDER BY n), n::VARCHAR || 'x' FROM web",
    "SELECT payload->>'$.id', CASE WHEN n > 1 THEN 'a' END FROM web QUALIFY rank() OVER () = 1",
]


@pytest.mark.parametrize("seed", more(range(4), range(2_000)))
def test_what_passes_reads_streams_alone_however_words_are_mixed(seed: int) -> None:
    """DuckDB's own parser names the tables of what sqlglot's let through."""
    chance = random.Random(seed)
    pieces = [word.format(file="/etc/hostname") if "{file}" in word else word for word in WORDS]
    passed = 0
    for number in range(150):
        begun = chance.choice((SEEDS, attacks())[number % 2])
        words = begun.format(file="/etc/hostname", new="/x").split()
        for _ in range(min(number, chance.randint(0, 4))):
            at = chance.randint(0, len(words))
            if chance.random() < 0.5:
                words[at:at] = [chance.choice(pieces)]
            elif words:
                words[at : at + 1] = [chance.choice(pieces)]
        try:
            query = read_select(" ".join(words), ["web"])
        except InvalidInputError:
            continue
        passed += 1
        try:
            read = tables_read(query.sql)
        except Exception:  # noqa: BLE001 - DuckDB refuses it, which is as good
            continue
        assert read <= set(query.tables) | {"a"}, (query.sql, read)
    assert passed > 0
