"""Jobs that send to a real PostgreSQL server: modes, types, refusals, crashes of the job."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.conftest import ask
from tests.support.plans import explain, plan
from tests.support.servers import resolved_url

import headrace as hr
from headrace import Job
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import FAULT_POINTS, TestDriver

STEPS = ("epoch.", "commit.", "slot.", "sink.")
NOT_PASSED = (
    "epoch.output_published",
    "slot.merge",
    "sink.merged",
    "sink.listed",
    "sink.part_sent",
    "sink.shared",
)
POINTS = [p for p in FAULT_POINTS if p.startswith(STEPS) and not p.startswith(NOT_PASSED)]
ORDERS = pa.schema({"id": pa.int64(), "price": pa.float64(), "gone": pa.bool_()})


def sending(sink: Any, *columns: str) -> Job:
    @hr.job("sending")
    def job(g: hr.Graph) -> None:
        stream = g.input("in").partition_by("id")
        (stream.map(*columns) if columns else stream).send_to(sink, name="out")

    return job


def run(job: Job, schema: pa.Schema, *epochs: list[dict[str, Any]], seed: int = 0) -> None:
    """Run a job over epochs of rows."""
    with TestDriver(job, tasks=2, seed=seed) as driver:
        driver.create("in", schema)
        for rows in epochs:
            driver.feed("in", rows)
            driver.run()


def order(number: int, price: float | None = 1.0, *, gone: bool | None = False) -> dict[str, Any]:
    return {"id": number, "price": price, "gone": gone}


def test_rows_are_inserted_and_the_table_is_made(url: str) -> None:
    sink = hr.sinks.postgres(url, "orders")
    run(sending(sink, "id", "price"), ORDERS, [order(1), order(1)], [order(2, None)])
    assert ask(url, "SELECT * FROM orders ORDER BY id") == [(1, 1.0), (1, 1.0), (2, None)]
    [(job, operator, epoch)] = ask(url, "SELECT job, operator, epoch FROM headrace_epochs")
    assert (job, operator) == ("sending", "out")
    assert epoch == 2


def test_the_last_row_of_a_key_takes_the_place_of_what_is_there(url: str) -> None:
    sink = hr.sinks.postgres(url, "orders", mode="upsert", key="id", delete_when="gone")
    run(
        sending(sink),
        ORDERS,
        [order(1, 1.0), order(1, 2.0), order(2, 1.0), order(3), order(4), order(5, gone=None)],
        [
            order(2, 7.0),
            order(3, gone=True),
            order(4, gone=True),
            order(4, 5.0),
            order(9, gone=True),
        ],
    )
    found = ask(url, "SELECT * FROM orders ORDER BY id")
    assert found == [(1, 2.0), (2, 7.0), (4, 5.0), (5, 1.0)]


def test_upsert_of_keys_alone_keeps_each_once(url: str) -> None:
    sink = hr.sinks.postgres(url, "seen", mode="upsert", key=["id"])
    run(sending(sink, "id"), ORDERS, [order(1), order(1)], [order(1), order(2)])
    assert ask(url, "SELECT * FROM seen ORDER BY id") == [(1,), (2,)]


def test_rows_of_keys_are_deleted(url: str) -> None:
    ask(url, "CREATE SCHEMA shop")
    ask(url, "CREATE TABLE shop.orders (id bigint NOT NULL, other text NOT NULL)")
    ask(url, "INSERT INTO shop.orders VALUES (1, 'a'), (1, 'b'), (2, 'c')")
    sink = hr.sinks.postgres(url, "shop.orders", mode="delete", key="id")
    run(sending(sink, "id"), ORDERS, [order(1), order(5)])
    assert ask(url, "SELECT * FROM shop.orders") == [(2, "c")]
    assert len(ask(url, "SELECT * FROM shop.headrace_epochs")) == 1


def test_every_type_comes_back_as_it_was_sent(url: str) -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "small": pa.int16(),
            "wide": pa.uint64(),
            "real": pa.float32(),
            "yes": pa.bool_(),
            "text": pa.string(),
            "bytes": pa.binary(),
            "at": pa.timestamp("us", tz="UTC"),
            "day": pa.date32(),
            "money": pa.decimal128(10, 2),
            "tags": pa.list_(pa.string()),
            "place": pa.struct({"x": pa.int64()}),
        }
    )
    at = datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    row = {
        "id": 1, "small": -3, "wide": 2**64 - 1, "real": 1.5, "yes": True,
        "text": 'a,"b"\n\\.\té', "bytes": b"\x00\xff", "at": at, "day": date(1999, 12, 31),
        "money": Decimal("-1.50"), "tags": ['a"', "b"], "place": {"x": 5},
    }  # fmt: skip
    empty = dict.fromkeys(schema.names) | {"id": 2, "text": "", "real": float("inf")}
    dot = dict.fromkeys(schema.names) | {"id": 3, "text": "\\."}
    run(sending(hr.sinks.postgres(url, "all_types")), schema, [row, empty, dot])
    found = ask(url, "SELECT * FROM all_types ORDER BY id")
    assert found == [tuple(row.values()), tuple(empty.values()), tuple(dot.values())]


class Numbered:
    """Counts the messages of each id: the n-th is another row than any other."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        number = store.get(message.id, 0) + 1
        store.put(message.id, number)
        context.emit({"id": message.id, "number": number})


def numbered(sink: Any) -> Job:
    @hr.job("numbered")
    def job(g: hr.Graph) -> None:
        keyed = g.input("in", schema={"id": int}).partition_by("id")
        rows = keyed.process(Numbered, {"n": int}, returns={"id": int, "number": int})
        rows.send_to(sink, name="out")

    return job


@pytest.mark.parametrize("point", POINTS)
def test_crash_at_every_step_loses_and_doubles_nothing(point: str, url: str) -> None:
    fed: Counter[int] = Counter()
    with TestDriver(numbered(hr.sinks.postgres(url, "rows")), tasks=3) as driver:
        driver.create("in", {"id": pa.int64()}, partitions=2, key=["id"])
        for nth in (1, 2, 0):
            ids = [number % 7 for number in range(30)]
            fed.update(ids)
            driver.feed("in", [{"id": one} for one in ids])
            assert not nth or driver.advance_with_crash(point, nth) or nth == 2
        driver.run()
    wanted = sorted((one, n) for one, count in fed.items() for n in range(1, count + 1))
    assert sorted(ask(url, "SELECT * FROM rows")) == wanted


def test_a_table_that_cannot_take_the_rows_is_told_whole(url: str) -> None:
    ask(url, "CREATE TABLE orders (id integer, price numeric NOT NULL, extra int NOT NULL)")
    sink = hr.sinks.postgres(url, "orders", mode="upsert", key="id")
    with pytest.raises(InvalidInputError) as failure:
        run(sending(sink, "id", "price", "gone"), ORDERS, [order(1)])
    told = str(failure.value)
    assert "column 'id' is integer; expected bigint or numeric" in told
    assert "column 'price' is numeric; expected double precision" in told
    assert "column 'price' is NOT NULL; name it in required=" in told
    assert "column 'gone' is missing; expected boolean" in told
    assert "column 'extra' is NOT NULL without a default, and not sent" in told
    assert 'make one: CREATE UNIQUE INDEX ON "orders" ("id")' in told


def test_a_wider_table_is_taken(url: str) -> None:
    ask(
        url,
        "CREATE TABLE orders (price double precision NOT NULL, id numeric, "
        "at timestamptz NOT NULL DEFAULT now(), serial bigserial)",
    )
    sink = hr.sinks.postgres(url, "orders", required="price")
    run(sending(sink, "id", "price"), ORDERS, [order(1)])
    assert ask(url, "SELECT price, id, serial FROM orders") == [(1.0, 1, 1)]


@pytest.mark.parametrize(
    ("options", "row", "message"),
    [
        ({"required": "price"}, order(1, None), "column 'price' is null in row 0 .* required"),
        ({}, {"id": 1, "text": "a\0b"}, "'text' of row 0 .* holds the character NUL"),
        ({}, {"id": 1, "tags": ["\0"]}, "'tags' of row 0 .* holds the character NUL"),
        ({}, {"id": 1, "day": 3_000_000}, "'day' of row 0 .* outside the years 1 to 9999"),
    ],
)
def test_a_row_is_refused_before_its_epoch_is_committed(
    url: str, options: dict[str, Any], row: dict[str, Any], message: str
) -> None:
    kinds = {"text": pa.string(), "tags": pa.list_(pa.string()), "day": pa.date32()}
    schema = pa.schema([*ORDERS, *kinds.items()])
    with TestDriver(sending(hr.sinks.postgres(url, "t", **options))) as driver:
        driver.create("in", schema)
        values = {**dict.fromkeys(schema.names), **row}
        days = pa.array([values["day"]], pa.int32()).cast(pa.date32())
        plain = [pa.array([values[name]], schema.field(name).type) for name in schema.names[:-1]]
        driver.feed("in", pa.table([*plain, days], schema=schema))
        with pytest.raises(InvalidInputError, match=message) as failure:
            driver.run()
        assert failure.value.fields["operator"] == "out"
        assert driver.coordinator.state.epoch == 0
    assert ask(url, "SELECT * FROM t") == []


def test_an_epoch_that_the_table_refuses_waits_until_it_is_mended(url: str) -> None:
    ask(url, "CREATE TABLE orders (id bigint UNIQUE)")
    with TestDriver(sending(hr.sinks.postgres(url, "orders"), "id")) as driver:
        driver.create("in", ORDERS)
        driver.feed("in", [order(1), order(2), order(1)])
        with pytest.raises(InvalidInputError, match=r"refuses epoch 1: duplicate key .*waits"):
            driver.run()
        assert ask(url, "SELECT * FROM orders") == []
        with pytest.raises(InvalidInputError, match="refuses epoch 1"):
            driver.start()
        ask(url, "ALTER TABLE orders DROP CONSTRAINT orders_id_key")
        driver.start()
        driver.run()
    assert sorted(ask(url, "SELECT * FROM orders")) == [(1,), (1,), (2,)]


def test_a_broken_connection_between_epochs_is_made_anew(url: str) -> None:
    with TestDriver(sending(hr.sinks.postgres(url, "orders"), "id")) as driver:
        driver.create("in", ORDERS)
        for number in (1, 2):
            driver.feed("in", [order(number)])
            driver.run()
            ask(
                url,
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = 'headrace'",
            )
    assert sorted(ask(url, "SELECT * FROM orders")) == [(1,), (2,)]


def test_wrong_logins_and_missing_servers_are_told_without_the_password(url: str) -> None:
    nobody = url.replace("tester@", "nobody:secret@")
    for address, kind, message in (
        (nobody, InvalidInputError, "refuses the connection: .*check user, password"),
        (url.replace("/test_", "/no_"), InvalidInputError, "refuses the connection"),
        ("postgresql://u:secret@127.0.0.1:1/db", hr.sinks.ReceiverAwayError, "does not answer"),
    ):
        with pytest.raises(kind, match=message) as failure:
            run(sending(hr.sinks.postgres(address, "orders")), ORDERS, [order(1)])
        assert "secret" not in str(failure.value)


def test_a_password_comes_from_the_environment() -> None:
    url = "postgresql://u:${THE_PASSWORD}@${HOST}/db"
    assert (
        resolved_url(url, {"THE_PASSWORD": "a/b@c", "HOST": "h"}) == "postgresql://u:a%2Fb%40c@h/db"
    )
    with pytest.raises(InvalidInputError, match=r"not set here: \['HOST'\]"):
        resolved_url(url, {"THE_PASSWORD": "x"})


def test_a_missing_library_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidInputError, match=r'pip install "headrace\[postgres\]"'):
        run(sending(hr.sinks.postgres(url, "orders")), ORDERS, [order(1)])


def test_another_job_that_sends_to_the_same_table_is_another_sender(url: str) -> None:
    sink = hr.sinks.postgres(url, "orders")
    run(sending(sink, "id"), ORDERS, [order(1)])
    run(sending(sink, "id"), ORDERS, [order(2)], seed=1)  # made anew: another lineage
    assert sorted(ask(url, "SELECT id FROM orders")) == [(1,), (2,)]
    assert len(ask(url, "SELECT * FROM headrace_epochs")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "mysql://u:secret@h/db"}, r"url is mysql://u@h/db; expected postgresql"),
        ({"table": "a.b.c"}, "table is 'a.b.c'; expected a name, or schema.name"),
        ({"mode": "merge"}, "mode is 'merge'; expected one of"),
        ({"mode": "upsert"}, r"mode is 'upsert' and key is \(\); expected key="),
        ({"key": "id"}, r"mode is 'insert' and key is \('id',\); expected no key="),
        ({"delete_when": "gone"}, "delete_when= is for mode 'upsert'"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(options: dict[str, Any], message: str) -> None:
    good = {"url": "postgresql://h/db", "table": "orders"}
    with pytest.raises(GraphError, match=message):
        numbered(hr.sinks.postgres(**{**good, **options})).build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "upsert", "key": "no"}, r"key names columns \['no'\]; found \['id', 'number'\]"),
        ({"required": ["no"]}, r"required names columns \['no'\]"),
        ({"mode": "upsert", "key": "id", "delete_when": "number"}, "expected a column of booleans"),
        ({"mode": "delete", "key": "id"}, r"its key \['id'\] only; found \['id', 'number'\]"),
    ],
)
def test_columns_that_do_not_fit_are_told_when_the_job_is_planned(
    options: dict[str, Any], message: str
) -> None:
    sink = hr.sinks.postgres("postgresql://h/db", "orders", **options)
    with pytest.raises(GraphError, match=message):
        plan(numbered(sink).build(), {})


def test_explain_says_what_is_promised_and_no_password(tmp_path: Path) -> None:
    sink = hr.sinks.postgres("postgresql://u:secret@h/db", "orders", mode="upsert", key="id")
    text = " ".join(explain(plan(numbered(sink).build(), {})).split())
    assert "sink PostgreSQL table orders (upsert by id)" in text
    assert "exactly-once, at postgresql://u@h/db: the rows of an epoch and its number" in text
    assert "secret" not in text
