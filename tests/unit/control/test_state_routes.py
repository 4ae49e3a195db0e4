"""``/v1/state``: stores of a running job, as committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.watching import Client, api_server, new_live_job, show_parts
from tests.unit.control.test_every_route import answered

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"user": pa.string(), "shop": pa.int64(), "price": pa.float64(), "at": pa.int64()}


class Last:
    def process(self, message: Any, context: hr.Context) -> None:
        context.store("last").put((message.user, "price"), {"price": message.price})


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders", time="at")
    by_user = orders.partition_by("user")
    by_user.aggregate(name="spent", price=hr.agg.sum("price")).send_to("totals")
    by_user.process(Last, stores=[hr.store("last", dict[str, float])], name="seen")
    orders.partition_by("user", "shop").aggregate(name="both", n=hr.agg.count()).send_to("counts")


@pytest.fixture(scope="module")
def asked() -> Any:
    """A job and its API for all tests: one of them commits an epoch more, with a row of u7."""
    with TestDriver(shop, tasks=2) as driver:
        driver.create("orders", COLUMNS, time="at")
        rows = [
            {"user": f"u{n}", "shop": n % 2, "price": float(n), "at": 1_000 + n} for n in range(9)
        ]
        rows.append({"user": "a/b ?&ü", "shop": 1, "price": float("nan"), "at": 2_000})
        driver.feed("orders", rows)
        live = new_live_job("shop", driver.settings)
        while (summary := driver.advance()) is not None:
            show_parts(live, driver)
            live.observe(summary)
        server = api_server(live, driver.storage)
        server.start()
        client = Client(driver.storage, "shop")

        def get(path: str) -> Any:
            return client.get(f"/v1/state{path}")

        get.driver, get.client = driver, client  # type: ignore[attr-defined]
        yield get
        server.stop()


Asked = Callable[[str], Any]


def test_stores_are_listed(asked: Asked) -> None:
    assert {one["store"] for one in asked("")} == {"spent", "last", "both", "seen.timers"}


def test_a_key_has_its_committed_rows(asked: Asked) -> None:
    found = asked("/spent/u3")
    epoch = asked.driver.coordinator.state.epoch  # type: ignore[attr-defined]
    row = {"user": "u3", "price": 3.0}
    assert found["rows"][0].items() >= row.items()
    assert (found["job"], found["epoch"], found["more"]) == ("shop", epoch, False)
    assert asked("/both?key=u3&key=1")["rows"][0]["n"] == 1
    assert asked("/last?key=u3&key=price")["rows"][0]["value"] == {"price": 3.0}
    assert asked("/spent?key=a/b%20%3F%26%C3%BC")["rows"][0]["price"] is None, "NaN is no JSON"


def test_a_scan_is_bounded_and_as_the_command_shows_it(asked: Asked) -> None:
    home = asked.driver.home  # type: ignore[attr-defined]
    lines = done("state", "scan", "shop", "spent", "--home", home, "--json").splitlines()
    everything = asked("/spent")
    assert (len(everything["rows"]), everything["more"]) == (len(lines), False)
    assert len(lines) == 10
    some = asked("/spent?limit=4")
    assert (some["rows"], some["more"]) == (everything["rows"][:4], True)
    assert {row["user"] for row in asked("/spent?from=u2&before=u5")["rows"]} == {"u2", "u3", "u4"}
    assert len(asked("/both?prefix=u4")["rows"]) == 1
    assert {row["user"] for row in asked("/spent?prefix=u*")["rows"]} == {f"u{n}" for n in range(9)}


def test_an_earlier_epoch_can_be_asked_for(asked: Asked) -> None:
    driver = asked.driver  # type: ignore[attr-defined]
    before = driver.coordinator.state.epoch
    driver.feed("orders", [{"user": "u7", "shop": 1, "price": 5.0, "at": 3_000}])
    driver.run()
    assert asked("/spent/u7")["rows"][0]["price"] == 12.0
    assert asked(f"/spent/u7?epoch={before}")["rows"][0]["price"] == 7.0


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/spent/nobody", 404, "has nothing for key"),
        ("/nothing/u3", 409, "spent"),
        ("/both/u3", 409, "found a key of 1, expected 2"),
        ("/both?key=u3&key=x", 409, "found 'x', expected int64"),
        ("/spent?limit=0", 422, "limit"),
        ("/spent?limit=10001", 422, "limit"),
        ("/spent?epoch=x", 422, "epoch"),
        ("/spent?prefix=a&from=b", 409, "give either"),
    ],
)
def test_what_cannot_be_answered_says_why(asked: Asked, path: str, status: int, said: str) -> None:
    client = asked.client  # type: ignore[attr-defined]
    headers = {"Authorization": f"Bearer {client.place.token}"}
    code, text = answered(client, "GET", f"/v1/state{path}", headers)
    assert code == status, text
    assert said in text
    assert answered(client, "GET", f"/v1/state{path}", {})[0] == 401
