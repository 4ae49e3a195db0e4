"""Every kind of rule, of a real job, at every place: told when it begins, and when it is over."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.homes import load_settings
from tests.support.watching import alert_watch, new_live_job, show_parts

import headrace as hr
from headrace.testing import TestDriver

DAY_MS = 86_400_000
RULES: list[dict[str, Any]] = [
    {"name": "late", "kind": "lag", "above": 1},
    {"name": "quiet", "kind": "no_output", "for": "1m"},
    {"name": "loop", "kind": "restart_loop", "above": 1, "for": "1d"},
    {"name": "copies", "kind": "standby_behind", "above": 5},
]
BEGIN = {(rule["name"], "firing") for rule in RULES}
END = {(rule["name"], "over") for rule in RULES}


class Last:
    def process(self, message: Any, context: hr.Context) -> None:
        context.store("last").put(message.user, message.n)
        context.emit({"user": message.user})


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    by_user = g.input("orders").partition_by("user")
    last = by_user.process(Last, stores={"last": int}, returns={"user": str}, name="last")
    last.send_to(g.output("seen"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    """A job whose tasks have standbys that are up."""
    options: dict[str, Any] = {"tasks": 6, "slots": 3, "hosts": 3, "standby_copies": 1}
    with TestDriver(shop, home=tmp_path, **options) as made:
        made.create("orders", {"user": pa.string(), "n": pa.int64()})
        for _ in range(8):
            feed(made, 30)
            made.run()
        yield made


def feed(driver: TestDriver, rows: int) -> None:
    driver.feed("orders", [{"user": f"user {n}", "n": n} for n in range(rows)])


def rows_of(driver: TestDriver) -> list[dict[str, Any]]:
    if "alerts" not in driver.bus.names():
        return []
    read = driver.bus.stream("alerts").read(0, 0)
    return [row for one in read for row in one.batch.to_pylist()]


def test_every_kind_is_told_to_the_log_the_webhook_and_the_stream(
    driver: TestDriver, server: Any
) -> None:
    sets = [f"alerts.webhook={server.url}", "alerts.stream=alerts"]
    settings = load_settings(overrides=[f"alerts.rules={json.dumps(RULES)}", *sets], environ={})
    live, told = new_live_job("shop", settings, driver.clock), list[str]()
    show_parts(live, driver)
    watch = alert_watch(driver, live, told)

    def at_all_places() -> list[set[tuple[str, str]]]:
        begins = [one.partition(":")[0].split() for one in told]
        return [
            {(words[-1], "over" if "(over)" in words else "firing") for words in begins},
            {(one["rule"], one["state"]) for _, one in server.got},
            {(row["rule"], row["state"]) for row in rows_of(driver)},
        ]

    watch.look()
    assert at_all_places() == [set(), set(), set()]

    driver.lose_host(0)
    feed(driver, 30)
    driver.advance()  # new standbys, which hold nothing yet
    feed(driver, 2)
    for _ in range(2):
        driver.start()
    driver.clock.advance(60_000)
    moment = driver.clock.now_ms() / 1000
    for path in (driver.storage / "generations").iterdir():
        os.utime(path, (moment, moment))
    show_parts(live, driver)
    watch.look()
    assert at_all_places() == [BEGIN] * 3

    for _ in range(6):
        feed(driver, 30)
        summary = driver.advance()
        assert summary is not None
        live.observe(summary)
    driver.clock.advance(DAY_MS + 1_000)
    watch.look()
    assert at_all_places() == [BEGIN | END] * 3
    assert len(server.got) == len(rows_of(driver)) == 2 * len(RULES)
