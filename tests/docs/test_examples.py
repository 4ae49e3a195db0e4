"""The examples do what their first lines say, and stay short."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.cli import load_job
from tests.support.homes import read_inputs
from tests.support.plans import Input

from headrace.testing import TestDriver

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
MINUTE = 60_000


EXEMPT = {"alerting": "tells of machines that are silent", "notify": "asks a server"}
"""Examples whose bounded runs may have other results."""

Start = Callable[[str], TestDriver]


class Batch(TestDriver):
    """Has all of its inputs before it begins, and is neither watched nor stopped on the way."""

    def run(self, limit: int = 10_000) -> int:
        return super().run(limit) if self._is_ending else 0

    def advance_with_crash(
        self, point: str, nth: int = 1, step: Callable[[], object] | None = None
    ) -> bool:
        del point, nth, step
        return True

    def crash(self, *, lose_hosts: Sequence[int] = ()) -> None:
        del lose_hosts

    def output(self, stream: str) -> list[dict[str, Any]]:
        return super().output(stream) if stream in self.bus.names() else []

    def finish(self) -> int:
        self._is_ending = True
        return super().finish()

    _is_ending = False


class FromFiles(Batch):
    """Reads files that hold what its inputs do, a file for each partition."""

    def finish(self) -> int:
        here = self.home / "files"
        said: dict[str, dict[str, Any]] = {}
        for operator in self.job.build().operators:
            if isinstance(operator, Input):
                stream = self.bus.stream(operator.stream)
                folder = here / operator.stream
                folder.mkdir(parents=True, exist_ok=True)
                for partition in range(stream.spec.partitions):
                    rows = [part.batch for part in stream.read(partition, 0)]
                    table = pa.Table.from_batches(rows, stream.spec.schema)
                    pq.write_table(table, folder / f"{partition:04d}.parquet", row_group_size=2)
                said[operator.stream] = {
                    "files": str(folder), "partitions": stream.spec.partitions
                }  # fmt: skip
        self.settings = replace(self.settings, inputs=read_inputs(said))
        return super().finish()


def example(name: str, kind: type[TestDriver] = TestDriver) -> TestDriver:
    return kind(load_job(str(EXAMPLES[0].parent / name)))


@pytest.fixture(params=[TestDriver, Batch, FromFiles], ids=["stream", "bounded", "files"])
def start(request: pytest.FixtureRequest) -> Start:
    """What starts an example that has the same results as a stream and as a bounded run."""
    kind: type[TestDriver] = request.param
    return lambda name: example(name, kind)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_has_fewer_than_eighty_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80


def test_every_example_but_those_named_has_one_result_as_a_stream_bounded_and_from_files() -> None:
    started = set(re.findall(r"with start\(\"(\w+)\.py\"\)", Path(__file__).read_text()))
    assert started == {path.stem for path in EXAMPLES} - set(EXEMPT)


def test_word_count(start: Start) -> None:
    with start("word_count.py") as driver:
        driver.create("lines", {"text": pa.string(), "at": pa.int64()}, time="at")
        driver.feed("lines", [{"text": "To be, or not to be", "at": 1}, {"text": "to", "at": 2}])
        driver.run()
        driver.feed("lines", [{"text": "be quick", "at": 3}])
        driver.finish()
        latest = {row["word"]: row["times"] for row in driver.output("words")}
    assert latest == {"to": 3, "be": 3, "or": 1, "not": 1, "quick": 1}


def click(page: str, at: int, agent: str = "person", load_ms: int = 5) -> dict[str, Any]:
    return {"page": page, "at": at, "agent": agent, "load_ms": load_ms}


def test_click_counts(start: Start) -> None:
    columns = {"page": pa.string(), "at": pa.int64(), "agent": pa.string(), "load_ms": pa.int64()}
    with start("click_counts.py") as driver:
        driver.create("clicks", columns, time="at", key=["page"])
        driver.feed("clicks", [click("/", 1), click("/", 2, load_ms=9), click("/a", 3)])
        driver.feed("clicks", [click("/", 4, agent="Googlebot"), click("/", MINUTE)])
        driver.feed("clicks", [click("/", 3 * MINUTE), click("/", MINUTE - 1)])  # late, not lost
        driver.finish()
        minutes = [(r["page"], r["clicks"], r["slowest_ms"]) for r in driver.output("page_minutes")]
        totals = {row["page"]: row["clicks"] for row in driver.output("page_totals")}
    assert sorted(minutes) == [("/", 1, 5), ("/", 1, 5), ("/", 3, 9), ("/a", 1, 5)]
    assert totals == {"/": 5, "/a": 1}


def test_order_values(start: Start) -> None:
    with start("order_values.py") as driver:
        named = {"customer": pa.string(), "name": pa.string()}
        driver.create("customers", named, compact=True, key=["customer"])
        driver.create("rates", {"currency": pa.string(), "rate": pa.float64(), "at": pa.int64()})
        columns = {"customer": pa.string(), "currency": pa.string(), "amount": pa.float64()}
        driver.create("orders", {**columns, "at": pa.int64()})
        driver.feed("customers", [{"customer": "c1", "name": "Ada"}])
        rates = [(2.0, 0), (3.0, 50_000)]
        driver.feed("rates", [{"currency": "X", "rate": rate, "at": at} for rate, at in rates])
        for at in (90_000, 20_000, 60_000):
            order = {"customer": "c1", "currency": "X", "amount": 1.0, "at": at}
            driver.feed("orders", [order])
        driver.finish()
        valued = {row["at"]: (row["euros"], row["name"]) for row in driver.output("valued")}
        last = driver.output("per_customer")[-1]
    assert valued == {20_000: (2.0, "Ada"), 60_000: (3.0, "Ada"), 90_000: (3.0, "Ada")}
    assert (last["customer"], last["name"], last["spent"]) == ("c1", "Ada", 8.0)


def test_alerting() -> None:
    columns = {"machine": pa.string(), "degrees": pa.float64(), "at": pa.int64()}

    def reading(machine: str, degrees: float, at: int) -> dict[str, Any]:
        return {"machine": machine, "degrees": degrees, "at": at}

    with example("alerting.py") as driver:
        driver.create("readings", columns, time="at", key=["machine"])

        driver.run()

        def alerts(*readings: dict[str, Any]) -> list[tuple[str, str]]:
            before = Counter((row["machine"], row["kind"]) for row in driver.output("alerts"))
            for one in readings:
                driver.feed("readings", [one])
                driver.run()
            after = Counter((row["machine"], row["kind"]) for row in driver.output("alerts"))
            return sorted((after - before).elements())

        assert alerts(reading("a", 90, 0), reading("b", 20, 0), reading("a", 70, 30_000)) == []
        hot = [reading("a", 90, MINUTE), reading("a", 91, 2 * MINUTE), reading("b", 20, 3 * MINUTE)]
        assert alerts(*hot) == [("a", "hot")]
        assert alerts(reading("a", 92, 4 * MINUTE)) == []
        assert alerts(reading("a", 60, 5 * MINUTE)) == [("a", "well again")]
        silent = alerts(reading("b", 20, 6 * MINUTE), reading("c", 20, 12 * MINUTE))
        assert silent == [("a", "silent"), ("b", "silent")]


def paid(number: int, currency: str) -> dict[str, Any]:
    at = datetime(2013, 1, 31, tzinfo=UTC)
    return {"id": number, "at": at, "currency": currency, "amount": 10.0}


def make_exchange(driver: TestDriver) -> None:
    driver.create("rates", {"currency": pa.string(), "rate": pa.float64()}, key=["currency"])
    columns = {"id": pa.int64(), "at": pa.timestamp("us", tz="UTC"), "currency": pa.string()}
    driver.create("payments", {**columns, "amount": pa.float64()}, time="at", partitions=2)


def test_exchange_rates(start: Start) -> None:
    """A rate that is there before the payments is theirs; of two the later one."""
    with start("exchange_rates.py") as driver:
        make_exchange(driver)
        rates = [("USD", 0.5), ("DM", 2.0), ("USD", 0.25)]
        driver.feed("rates", [{"currency": name, "rate": rate} for name, rate in rates])
        driver.run()
        driver.feed("payments", [paid(1, "USD"), paid(2, "FF")], partition=0)
        driver.feed("payments", [paid(3, "DM")], partition=1)
        driver.finish()
        euros = {row["id"]: row["euros"] for row in driver.output("euros")}
        unknown = [row["currency"] for row in driver.output("unknown")]
    assert euros == {1: 2.5, 3: 20.0}
    assert unknown == ["FF"]


def test_exchange_rates_that_change() -> None:
    """A new one counts from the next epoch on, so a bounded run knows the last ones alone."""
    with example("exchange_rates.py") as driver:
        make_exchange(driver)
        driver.feed("rates", [{"currency": "USD", "rate": 0.5}])
        driver.feed("payments", [paid(1, "USD")], partition=0)
        driver.feed("payments", [paid(2, "DM")], partition=1)
        driver.run()
        driver.feed("rates", [{"currency": "USD", "rate": 0.25}, {"currency": "DM", "rate": 2.0}])
        driver.feed("payments", [paid(3, "USD"), paid(4, "DM")], partition=1)
        driver.run()
        euros = {row["id"]: row["euros"] for row in driver.output("euros")}
        unknown = [row["currency"] for row in driver.output("unknown")]
    assert euros == {1: 5.0, 3: 2.5, 4: 20.0}
    assert unknown == ["DM"]


def test_email_digest(start: Start) -> None:
    """A mail has what came in four hours, the views of a slow stream too, and nothing twice."""
    hour = 60 * MINUTE
    with start("email_digest.py") as driver:
        number, text = pa.int64(), pa.string()
        driver.create("invites", {"user": text, "sender": text, "at": number}, time="at")
        driver.create("views", {"viewed": text, "by": text, "at": number}, time="at", partitions=2)
        driver.create("news", {"user": text, "title": text, "at": number}, time="at")
        driver.feed("invites", [{"user": "ada", "sender": "bob", "at": hour}])
        driver.feed("news", [{"user": "ada", "title": "a job", "at": 2 * hour}])
        driver.feed("news", [{"user": "ada", "title": "tomorrow", "at": 20 * hour}])
        driver.run()
        assert driver.output("mails") == []
        for partition in (0, 1):
            views = [{"viewed": "ada", "by": "cy", "at": at * hour} for at in (3 + partition, 20)]
            driver.feed("views", views, partition)
        driver.run()
        driver.crash(lose_hosts=[0])
        driver.feed("invites", [{"user": "bob", "sender": "ada", "at": 21 * hour}])
        driver.finish()
        mails = driver.output("mails")
    assert [(m["user"], m["by"], m["views"], m["news"]) for m in mails] == [
        ("ada", ["bob"], 2, ["a job"]),
        ("ada", [], 2, ["tomorrow"]),
        ("bob", ["ada"], 0, []),
    ]


def test_ad_clicks(start: Start) -> None:
    views = {"view": pa.int64(), "ad": pa.string(), "at": pa.int64()}
    with start("ad_clicks.py") as driver:
        driver.create("views", views, time="at")
        driver.create("clicks", {"view": pa.int64(), "at": pa.int64()}, time="at")
        ads = [(1, "shoes", 1), (2, "shoes", 2), (3, "hats", 50)]
        driver.feed("clicks", [{"view": 1, "at": 5 * MINUTE}, {"view": 1, "at": 6 * MINUTE}])
        driver.feed("clicks", [{"view": 2, "at": 20 * MINUTE}])  # not of this view any more
        driver.feed("views", [{"view": n, "ad": ad, "at": at * MINUTE} for n, ad, at in ads])
        driver.finish()
        seen = {row["view"]: row["clicked_at"] for row in driver.output("seen")}
        hours = [(row["ad"], row["views"], row["clicks"]) for row in driver.output("ad_hours")]
    assert seen == {1: 5 * MINUTE, 2: None, 3: None}
    assert sorted(hours) == [("hats", 1, 0), ("shoes", 2, 1)]


def test_trending(start: Start) -> None:
    columns = {"type": pa.string(), "event": pa.string(), "dimension": pa.string()}

    def post(event: str, text: str, minute: int, dimension: str = "de") -> dict[str, Any]:
        at = minute * MINUTE + 1
        return {"type": "post", "event": event, "dimension": dimension, "text": text, "at": at}

    with start("trending.py") as driver:
        driver.create("dimensions", {"dimension": pa.string(), "language": pa.string()})
        driver.create("events", {**columns, "text": pa.string(), "at": pa.int64()}, time="at")
        driver.feed("dimensions", [{"dimension": "de", "language": "German"}])
        driver.feed(
            "events", [post("final", "a goal", 0), {**post("x", "a goal", 0), "type": "ad"}]
        )
        driver.feed("events", [post("final", "goal", 1)] * 3 + [post("cup", "goal", 1)] * 2)
        driver.feed("events", [post("cup", "goal", 1, "fr"), post("hit", "a song", 2)])
        driver.run()
        driver.crash(lose_hosts=[0])
        driver.feed("events", [post("late", "nothing", 20)])
        driver.finish()
        top = {
            row["topic"]: [(one["event"], round(one["score"], 2)) for one in row["top"]]
            for row in driver.output("trending")
        }
    assert top["sports in German"][:2] == [("final", 2.73), ("cup", 2.0)]
    assert top["music in German"][0] == ("hit", 1.0)


def test_counter_node(start: Start) -> None:
    with start("counter_node.py") as driver:
        driver.create("events", {"event": pa.string(), "at": pa.int64()}, time="at")
        for at in (1_000, 2_000, 7_000, 61_000, 130_000):
            driver.feed("events", [{"event": "A", "at": at}])
            driver.advance_with_crash("epoch.before_commit")
            driver.run()
        driver.finish()
        told = [(row["minute"], row["counter"]) for row in driver.output("counters")]
    first = [counter for minute, counter in told if minute == 0]
    assert first == [3] * 12
    assert [counter for minute, counter in told if minute == 1] == [1] * 12


def test_dimension_counts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"country": pa.string(), "app": pa.string(), "error": pa.string()}
    monkeypatch.delenv("REDIS_URL", raising=False)
    with start("dimension_counts.py") as driver:
        driver.create("calls", {**columns, "took_ms": pa.int64(), "at": pa.int64()}, time="at")
        call = {"country": "de", "app": "web", "error": None, "took_ms": 5, "at": 1}
        driver.feed("calls", [call, {**call, "app": "ios", "took_ms": 9, "error": "late"}])
        driver.run()
        driver.feed("calls", [{**call, "at": 2 * MINUTE}])
        driver.finish()
        totals = {(r["dimension"], r["of"]): tuple(r["value"]) for r in driver.output("totals")}
    assert totals == {
        ("country", "de"): (3, 9),
        ("app", "web"): (2, 5),
        ("app", "ios"): (1, 9),
        ("error", "late"): (1, 9),
    }


def test_delay_radar(start: Start) -> None:
    """The demo compares both of its modes over a year with DuckDB; here some hours, by hand."""
    midnight = datetime(2013, 1, 1, tzinfo=UTC)
    flights: list[dict[str, Any]] = [
        {
            "departed_at": midnight + timedelta(minutes=17 * n),
            "origin": "JFK",
            "dest": f"D{n * 7 % 13:02d}",
            "carrier": "AB"[n % 2],
            "dep_delay": None if n % 11 == 5 else n * 37 % 90,
        }
        for n in range(200)
    ]
    routes: dict[tuple[datetime, str], list[int]] = {}
    carriers: dict[tuple[str, int], list[int]] = {}
    for one in flights:
        if (delay := one["dep_delay"]) is None:
            continue
        hour = one["departed_at"].replace(minute=0)
        routes.setdefault((hour, one["dest"]), []).append(delay)
        for day in range(one["departed_at"].day, 4):
            carriers.setdefault((one["carrier"], day), []).append(delay)
    by_hour: dict[datetime, list[tuple[float, str]]] = {}
    for (hour, dest), delays in routes.items():
        by_hour.setdefault(hour, []).append((-mean(delays), dest))
    ranked = {
        (hour, rank): (dest, -late)
        for hour, found in by_hour.items()
        for rank, (late, dest) in enumerate(sorted(found)[:10], 1)
    }
    types = {"origin": pa.string(), "dest": pa.string(), "carrier": pa.string()}
    columns = {"departed_at": pa.timestamp("us", "UTC"), **types, "dep_delay": pa.int64()}
    with start("delay_radar.py") as driver:
        driver.create("flights", columns, time="departed_at", partitions=2)
        for begin in range(0, len(flights), 50):
            driver.feed("flights", flights[begin : begin + 25], partition=0)
            driver.feed("flights", flights[begin + 25 : begin + 50], partition=1)
            driver.run()
        driver.finish()
        told = driver.output("route_delays")
        totals = driver.output("carrier_totals")
        worst = driver.output("worst_routes")
    assert {
        (row["window_start"], row["dest"]): (row["flights"], row["mean_delay"], row["worst_delay"])
        for row in told
    } == {key: (len(found), mean(found), max(found)) for key, found in routes.items()}
    assert len(told) == len(routes)
    assert sorted((row["carrier"], row["flights"], row["delay"]) for row in totals) == sorted(
        (carrier, len(found), sum(found)) for (carrier, _), found in carriers.items()
    )
    assert ranked == {(row["hour"], row["rank"]): (row["dest"], row["mean_delay"]) for row in worst}


class _Profiles(BaseHTTPRequestHandler):
    """Knows members whose names do not begin with x; those with an m have a mail."""

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.send_response(404 if name.startswith("x") else 200)
        self.end_headers()
        mail = f"{name}@example.org" if "m" in name else None
        self.wfile.write(json.dumps({"mail": mail}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_notify(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Profiles) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PROFILES", f"127.0.0.1:{server.server_address[1]}")
        with example("notify.py") as driver:
            driver.create("updates", {"member": pa.string(), "text": pa.string()}, key=["member"])
            names = ["mia", "tom", "eve", "xan", *["mia"] * 5]
            driver.feed("updates", [{"member": n, "text": str(i)} for i, n in enumerate(names)])
            driver.run()
            notes = sorted((row["member"], row["text"]) for row in driver.output("notes"))
            letters = [row["key"] for row in driver.output("notify.dead")]
        server.shutdown()
    assert notes == [("mia", "0"), ("mia", "4"), ("mia", "5"), ("tom", "1")]
    assert letters == ['"xan"']
