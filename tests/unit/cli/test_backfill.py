"""``headrace backfill``: the settings that make a run over old data of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli.backfill import range_sets, rate_sets
from headrace.config import load_settings
from headrace.config.inputs import read_inputs
from headrace.testing.driver import TestDriver


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    g.input("rates").send_to(g.output("copied"))
    g.input("shop.orders", time="at").send_to(g.output("out"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, home=tmp_path) as made:
        made.create("shop.orders", {"code": pa.string(), "at": pa.int64()}, time="at")
        made.create("rates", {"code": pa.string(), "rate": pa.int64()}, key=["code"])
        yield made


def sets(
    driver: TestDriver,
    end: str | None = "2013-02-01",
    inputs: Mapping[str, Mapping[str, str]] | None = None,
) -> list[str]:
    settings = driver.settings.model_copy(update={"inputs": read_inputs(inputs or {})})
    return range_sets(settings, shop, driver.bus, "2013-01-01", end)


def test_inputs_with_event_times_get_the_range_and_others_are_read_whole(
    driver: TestDriver,
) -> None:
    found = sets(driver)
    assert found == [
        "inputs.shop.orders.from=2013-01-01",
        "inputs.shop.orders.to=2013-02-01",
    ]
    given = load_settings(None, [*found, f"home={driver.home}"]).inputs["shop.orders"]
    assert (given.begin, given.end) == ("2013-01-01", "2013-02-01")
    assert sets(driver, None) == ["inputs.shop.orders.from=2013-01-01"]


def test_what_the_settings_say_of_an_input_stays(driver: TestDriver) -> None:
    """A table gets the range; one whose days are chosen is read as they say."""
    table = {"table": "orders"}
    assert len(sets(driver, inputs={"shop.orders": table})) == 2
    assert sets(driver, inputs={"shop.orders": {**table, "days": "2013-01-01"}}) == []


def test_a_rate_is_a_bound_of_an_epoch_a_second() -> None:
    assert rate_sets(5000) == ["epoch.max_rows=5000", "epoch.interval_ms=1000"]
    assert rate_sets(None) == []
