"""What SQL apps insert into sinks is there once, wherever drivers die."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
from tests.support.cli import done
from tests.support.sql import ORDERS, POINTS, duckdb_session, orders

from headrace.sql import SqlText, load_app
from headrace.testing import TestDriver

APP = """CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, country, amount, units, ok)
    FROM SCRIBE("orders") TIME at LATENESS '1 minute';
CREATE SINK files(who VARCHAR, total INT)
    WITH (connector = 'parquet', folder = '{folder}/files', merge_bytes = 100000);
CREATE SINK days WITH (connector = 'warehouse', sort_by = ('user', 'amount'));
CREATE SINK copies(b, a) WITH (connector = 'stream', stream = 'copied', partitions = 1);
INSERT INTO files SELECT user, count(*) AS n FROM orders [1 minute] GROUP BY user;
INSERT INTO days SELECT at, user, amount FROM orders WHERE amount > 1;
INSERT INTO copies (a, b) WITH good AS (SELECT user, units FROM orders WHERE ok)
    SELECT user, units * 2 AS twice FROM good;
"""


def test_rows_are_in_each_sink_once_whatever_crashes(tmp_path: Path) -> None:
    dice = random.Random(7)
    rows = orders(dice, 150)
    app = load_app(SqlText(APP.format(folder=tmp_path), "shop.sql"))
    assert app.tables == {"copies": "copied"}
    with TestDriver(app.job, tasks=2, slots=2, home=tmp_path / "home") as driver:
        driver.create("orders", ORDERS, partitions=2, time="at")
        for begin in range(0, 150, 30):
            driver.feed("orders", rows[begin : begin + 30])
            driver.advance_with_crash(POINTS[begin // 30 % len(POINTS)])
        driver.finish()
        copied = driver.output("copied")
    given = pa.Table.from_pylist(rows, schema=pa.schema(ORDERS))
    files = tmp_path / "files" / "*" / "*.parquet"
    days = tmp_path / "home" / "warehouse" / "days" / "*" / "*.parquet"
    with duckdb_session() as connection:
        connection.register("orders", given)

        def found(text: str) -> Counter[object]:
            return Counter(connection.execute(text).fetchall())

        assert found(f"select who, total from '{files}'") == found(
            "select user, count(*)::int from orders group by user, (orders.at) // 60000"
        )
        assert found(f"select \"at\", user, amount from '{days}'") == found(
            'select "at", user, amount from orders where amount > 1'
        )
        assert Counter((row["a"], row["b"]) for row in copied) == found(
            "select user, units * 2 from orders where ok"
        )
        assert connection.execute(f"describe from '{files}'").fetchall()[1][:2] == (
            "total",
            "INTEGER",
        )


def test_a_trial_of_an_app_sends_nothing_to_its_sinks(tmp_path: Path) -> None:
    file = tmp_path / "shop.sql"
    file.write_text(APP.format(folder=tmp_path))
    rows = tmp_path / "shop.test" / "input" / "orders.jsonl"
    rows.parent.mkdir(parents=True)
    names = ", ".join(f'"{name}": {value}' for name, value in [("amount", "2.5"), ("units", "3")])
    rows.write_text(f'{{"at": 1000, "user": "ann", "country": "de", "ok": true, {names}}}\n')
    written = done("sql", "test", file, "--update")
    assert "files: 1 rows written" in written
    assert not (tmp_path / "files").exists()
    assert "copies: 1 rows as expected" in done("sql", "test", file)
    expected = (tmp_path / "shop.test" / "expected" / "files.jsonl").read_text()
    assert expected == '{"who": "ann", "total": 1}\n'
