"""Every task and every retry of an epoch sees the same version of a broadcast store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

RATES = {"currency": pa.string(), "rate": pa.float64(), "note": pa.string()}
PAYMENTS = {"id": pa.int64(), "currency": pa.string(), "amount": pa.float64()}
rates = hr.broadcast("rates", stream="rates", key="currency")


@hr.job("joined")
def joined(g: hr.Graph) -> None:
    g.input("payments").join_table(rates, columns=["rate"]).send_to(g.output("out"))


class Convert:
    def process(self, message: Any, context: Any) -> None:
        rate = context.store("rates").get(message.currency)
        total = context.store("total")
        total.put("n", total.get("n", 0) + 1)
        context.emit((message.id, None if rate is None else rate.rate * message.amount))


@hr.job("converted")
def converted(g: hr.Graph) -> None:
    g.input("payments").partition_by("id").process(
        Convert,
        stores=[hr.store("total", int), rates],
        returns={"id": pa.int64(), "euros": pa.float64()},
    ).send_to(g.output("out"))


def rate(currency: str, value: float | None, note: str | None = None) -> dict[str, Any]:
    return {"currency": currency, "rate": value, "note": note}


def pay(number: int, currency: str | None, amount: float = 1.0) -> dict[str, Any]:
    return {"id": number, "currency": currency, "amount": amount}


@pytest.fixture
def driver() -> Iterator[TestDriver]:
    yield from opened(joined)


@pytest.fixture
def converting() -> Iterator[TestDriver]:
    yield from opened(converted)


def opened(job: hr.Job, **settings: Any) -> Iterator[TestDriver]:
    with TestDriver(job, **settings) as driver:
        driver.create("payments", PAYMENTS, partitions=2, key=["id"])
        driver.create("rates", RATES, partitions=2, key=["currency"])
        yield driver


def by_id(driver: TestDriver, column: str) -> dict[int, Any]:
    return {row["id"]: row[column] for row in driver.output("out")}


def test_rows_that_are_there_at_the_start_are_seen_by_the_first_message(driver: TestDriver) -> None:
    driver.feed("rates", [rate("EUR", 1.0), rate("USD", 0.8), rate("USD", 0.9)])
    driver.feed("payments", [pay(1, "EUR"), pay(2, "USD"), pay(3, "GBP"), pay(4, None)])
    driver.run()
    assert by_id(driver, "rate") == {1: 1.0, 2: 0.9, 3: None, 4: None}
    assert set(driver.output("out")[0]) == {"id", "currency", "amount", "rate"}


def test_a_row_of_nulls_deletes_its_key(driver: TestDriver) -> None:
    driver.feed("rates", [rate("EUR", 1.0), rate("USD", 0.9)])
    driver.feed("payments", [pay(1, "USD")])
    driver.run()
    driver.feed("rates", [rate("USD", None), rate("EUR", None, "unknown")])
    driver.feed("payments", [pay(2, "USD"), pay(3, "EUR")])
    driver.run()
    assert by_id(driver, "rate") == {1: 0.9, 2: None, 3: None}


def test_a_retry_sees_the_version_of_its_epoch_and_not_what_came_since(
    driver: TestDriver,
) -> None:
    driver.feed("rates", [rate("EUR", 1.0)])
    driver.feed("payments", [pay(1, "EUR")])
    driver.runner.doubled = "last"
    original = driver.runner.run_one

    def run_one(order: Any) -> Any:
        report = original(order)
        driver.feed("rates", [rate("EUR", 2.0)])  # comes between the two attempts
        return report

    driver.runner.run_one = run_one  # type: ignore[method-assign]
    driver.advance()
    driver.runner.run_one = original  # type: ignore[method-assign]
    assert by_id(driver, "rate") == {1: 1.0}
    assert sum(driver.coordinator.state.tables["rates"]) == 1
    driver.feed("payments", [pay(2, "EUR")])
    driver.run()
    assert by_id(driver, "rate") == {1: 1.0, 2: 2.0}


def test_a_bounded_run_reads_the_table_to_its_end_first(converting: TestDriver) -> None:
    converting.feed("rates", [rate("EUR", 2.0)])
    converting.feed("payments", [pay(n, "EUR", n) for n in range(4)])
    converting.coordinator.end_at_present()
    converting.feed("rates", [rate("EUR", 99.0)])  # after the end
    converting.run()
    assert by_id(converting, "euros") == {n: 2.0 * n for n in range(4)}
    assert sum(converting.coordinator.state.tables["rates"]) == 1


def test_many_partitions_that_are_not_by_the_key_are_refused() -> None:
    with TestDriver(joined) as driver:
        driver.create("payments", PAYMENTS)
        driver.create("rates", RATES, partitions=3)
        with pytest.raises(GraphError, match="3 partitions that are not by columns of the key"):
            driver.start()


def test_a_stream_need_not_be_keyed_when_it_has_one_partition() -> None:
    with TestDriver(joined) as driver:
        driver.create("payments", PAYMENTS)
        driver.create("rates", RATES)
        driver.feed("rates", [rate("EUR", 1.0), rate("EUR", 3.0)])
        driver.feed("payments", [pay(1, "EUR")])
        driver.run()
        assert by_id(driver, "rate") == {1: 3.0}


def test_a_table_may_come_go_and_change_under_the_state_of_a_job(converting: TestDriver) -> None:
    converting.feed("rates", [rate("EUR", 2.0)])
    converting.feed("payments", [pay(1, "EUR")])
    converting.run()
    other = hr.broadcast("rates", stream="others", key="currency")
    converting.create("others", RATES)
    converting.feed("others", [rate("EUR", 5.0)])

    @hr.job("converted")
    def changed(g: hr.Graph) -> None:
        g.input("payments").partition_by("id").process(
            Convert,
            stores=[hr.store("total", int), other],
            returns={"id": pa.int64(), "euros": pa.float64()},
        ).send_to(g.output("out"))

    converting.job = changed
    converting.start()
    converting.feed("payments", [pay(2, "EUR")])
    converting.run()
    assert by_id(converting, "euros") == {1: 2.0, 2: 5.0}


COUNTRIES = pl.DataFrame({"code": ["DE", "FR", "DE"], "name": ["old", "France", "Germany"]})


def write(path: Path, frame: pl.DataFrame) -> None:
    kind = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}
    getattr(frame, kind[path.suffix])(path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_file_is_read_at_the_start_and_its_changes_at_the_next(
    tmp_path: Path, suffix: str, how: str
) -> None:
    path = tmp_path / f"countries{suffix}"
    write(path, COUNTRIES)
    countries = hr.broadcast("countries", file=str(path), key="code")

    @hr.job("files")
    def files(g: hr.Graph) -> None:
        visits = g.input("visits")
        named = visits.join_table(countries, on={"from": "code"}, how=how, columns={"who": "name"})
        named.partition_by("id").send_to(g.output("out"))

    def visit(driver: TestDriver, number: int) -> dict[int, Any]:
        driver.feed("visits", [{"id": number, "from": "DE"}, {"id": number + 1, "from": "XX"}])
        driver.run()
        return by_id(driver, "who")

    with TestDriver(files) as driver:
        driver.create("visits", {"id": pa.int64(), "from": pa.string()})
        missing = {2: None} if how == "left" else {}
        assert visit(driver, 1) == {1: "Germany"} | missing
        write(path, pl.DataFrame({"code": ["DE"], "name": ["Deutschland"]}))
        driver.crash()
        path_before = {3: "Deutschland", 4: None} if how == "left" else {3: "Deutschland"}
        assert visit(driver, 3) == {1: "Germany"} | missing | path_before
        path.unlink()
        driver.crash()
        with pytest.raises(InvalidInputError, match="does not exist"):
            driver.start()


def test_several_keys_schemas_and_what_a_processor_sees(tmp_path: Path) -> None:
    path = tmp_path / "shops.csv"
    path.write_text("chain,number,city,size\n01,1,Rome,2\n01,2,Oslo,3\n")
    columns = {"chain": pa.string(), "number": pa.int64(), "city": pa.string()}
    shops = hr.broadcast("shops", file=str(path), key=["chain", "number"], schema=columns)

    class Look:
        def open(self, context: Any) -> None:
            self.all = [key for key, _ in context.store("shops").scan()]

        def process(self, message: Any, context: Any) -> None:
            shop = context.store("shops").get((message.chain, message.number))
            context.emit((message.number, shop and shop.city, len(self.all)))

    @hr.job("shops")
    def job(g: hr.Graph) -> None:
        looked = g.input("sales").process(
            Look, stores=[shops], returns={"id": pa.int64(), "city": pa.string(), "n": pa.int64()}
        )
        looked.send_to(g.output("out"))

    with TestDriver(job) as driver:
        driver.create("sales", {"chain": pa.string(), "number": pa.int64()})
        driver.feed("sales", [{"chain": "01", "number": n} for n in (1, 2, 3)])
        driver.run()
        assert by_id(driver, "city") == {1: "Rome", 2: "Oslo", 3: None}
        assert {row["n"] for row in driver.output("out")} == {2}


def test_copies_of_files_go_when_no_plan_has_used_them_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "countries.csv"

    @hr.job("tidy")
    def tidy(g: hr.Graph) -> None:
        table = hr.broadcast("countries", file=str(path), key="code")
        g.input("visits").join_table(table, on="from").send_to(g.output("out"))

    with TestDriver(tidy) as driver:
        driver.create("visits", {"from": pa.string()})
        folder = driver.storage / "tables"
        kept = []
        for name, age_s in (("first", 10_000), ("second", 0), ("third", 0)):
            write(path, pl.DataFrame({"code": ["DE"], "name": [name]}))
            driver.start()
            kept.append(len(list(folder.iterdir())))
            for copy in folder.iterdir():
                at = copy.stat().st_mtime - age_s
                os.utime(copy, (at, at))
        assert kept == [1, 1, 2]
        write(path, pl.DataFrame({"code": ["DE"], "name": ["second"]}))
        for copy in folder.iterdir():
            os.utime(copy, (0, 0))
        driver.start()  # an old version that is in use again is kept
        driver.feed("visits", [{"from": "DE"}])
        driver.run()
        assert driver.output("out")[0]["name"] == "second"


def test_a_damaged_copy_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "countries.csv"
    write(path, COUNTRIES)

    @hr.job("damaged")
    def damaged(g: hr.Graph) -> None:
        table = hr.broadcast("countries", file=str(path), key="code")
        g.input("visits").join_table(table, on="from").send_to(g.output("out"))

    with TestDriver(damaged) as driver:
        driver.create("visits", {"from": pa.string()})
        driver.start()
        (copy,) = (driver.storage / "tables").iterdir()
        data = bytearray(copy.read_bytes())
        data[len(data) // 2] ^= 1
        copy.write_bytes(data)
        driver.feed("visits", [{"from": "DE"}])
        with pytest.raises(Exception, match="does not match its digest"):
            driver.advance()
