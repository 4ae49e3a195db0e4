"""Alerts: each turn of a rule is told once, to every place, whatever restarts or fails."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.watching import driver_watch, show_watched

import headrace as hr
from headrace.bus.memory import MemoryBus
from headrace.config import Settings, load_settings
from headrace.config.sections import AlertRule
from headrace.control.alert_rules import (
    ALERTS_FILE,
    AlertEvent,
    RuleState,
    evaluate_rule,
    load_alerts,
)
from headrace.control.alerts import (
    FIRST_PAUSE_MS,
    MAX_TRIES,
    AlertEngine,
    AlertReceiver,
    AlertWatch,
    RefusedError,
    StreamReceiver,
    WebhookReceiver,
    alert_receivers,
)
from headrace.control.live_job import LiveJob
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_group import JobGroup
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.testing import ManualClock, TestDriver

FILES = Files(sync=False)
LATE = AlertRule(name="late", kind="lag", above=10, for_ms=60_000)
QUIET = AlertRule(name="quiet", kind="no_output", for_ms=60_000)
LOOP = AlertRule(name="loop", kind="restart_loop", above=3, for_ms=600_000)


class Kept:
    """A place that keeps what it gets, unless it is away."""

    shown = "kept"

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []
        self.is_away = False

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        if self.is_away:
            raise UnavailableError("the place is away")
        self.events.append(event)


def always(value: int | None, rule: AlertRule) -> int | None:
    return value


def course(
    storage: Path, clock: ManualClock, told: list[str], *rules: AlertRule, **places: AlertReceiver
) -> AlertEngine:
    return AlertEngine(
        "shop", rules, places, storage=storage, files=FILES, clock=clock, notify=told.append
    )


def model(looks: list[tuple[int, int | None]], rule: AlertRule) -> list[tuple[int, str]]:
    """What is told of a rule, by looking at the whole past at each look."""
    told: list[tuple[int, str]] = []
    known = [(at, value) for at, value in looks if value is not None]
    fired = False
    for number, (at, _) in enumerate(known):
        run = 0
        while run <= number and known[number - run][1] > rule.above:  # type: ignore[operator]
            run += 1
        if run == 0:
            if fired:
                told.append((at, "over"))
            fired = False
        elif not fired and at - known[number - run + 1][0] >= rule.for_ms:
            told.append((at, "firing"))
            fired = True
    return told


@given(
    st.lists(
        st.tuples(st.integers(1, 90), st.sampled_from([None, 0, 10, 11, 500]), st.booleans()),
        max_size=40,
    )
)
def test_what_is_told_is_what_the_whole_past_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int | None, bool]]
) -> None:
    """A driver that takes over between any two looks changes nothing."""
    storage, clock, told = tmp_path_factory.mktemp("job"), ManualClock(), list[str]()
    place = Kept()
    alerts = course(storage, clock, told, LATE, kept=place)
    looks = []
    for seconds, value, dies in steps:
        clock.advance(seconds * 1000)
        if dies:
            alerts = course(storage, clock, told, LATE, kept=place)
        looks.append((clock.now_ms(), value))
        alerts.look(partial(always, value))
    assert [(event.at_ms, event.state) for event in place.events] == model(looks, LATE)
    assert told == []
    assert len({event.id for event in place.events}) == len(place.events)


def test_what_people_are_told(tmp_path: Path) -> None:
    clock, place = ManualClock(), Kept()
    alerts = course(tmp_path, clock, [], LATE, QUIET, kept=place)
    for _ in range(2):
        alerts.look(lambda rule: 1234 if rule is LATE else 0)
        clock.advance(60_000)
    alerts.look(lambda rule: 3)
    assert [event.text for event in place.events] == [
        "job shop: lag above 10 rows for 1m; it is 1,234 now",
        "job shop: no output for 1m",
        "job shop: lag above 10 rows for 1m is over, after 2m",
        "job shop: no output for 1m is over, after 2m",
    ]


def test_a_clock_that_goes_back_only_begins_the_wait_anew() -> None:
    state, turn = evaluate_rule(LATE, RuleState(since_ms=900_000), 11, 500_000)
    assert (state.since_ms, turn) == (500_000, None)


def test_starts_are_counted_over_the_time_of_the_rule() -> None:
    state, turn = evaluate_rule(LOOP, RuleState(), 4, 1000)
    assert (state.fired_ms, turn) == (1000, "firing")
    assert evaluate_rule(LOOP, state, 3, 2000)[1] == "over"


def test_a_rule_that_is_gone_or_another_is_over(tmp_path: Path) -> None:
    clock, place = ManualClock(), Kept()
    now = AlertRule(name="late", kind="lag", above=10)
    course(tmp_path, clock, [], now, QUIET, kept=place).look(lambda _: 11)
    other = AlertRule(name="late", kind="lag", above=1000)
    course(tmp_path, clock, [], other, kept=place).look(lambda _: 11)
    assert [(event.rule, event.state) for event in place.events] == [
        ("late", "firing"),
        ("late", "over"),
    ]
    assert list(load_alerts(tmp_path, clock).rules) == ["late"]


def test_a_place_that_is_away_gets_it_later_in_order_and_holds_up_no_other(tmp_path: Path) -> None:
    clock, away, there, told = ManualClock(), Kept(), Kept(), list[str]()
    away.is_away = True
    rule = AlertRule(name="late", kind="lag", above=10)
    alerts = course(tmp_path, clock, told, rule, away=away, there=there)
    alerts.look(lambda _: 11)
    alerts.look(lambda _: 0)
    assert [event.state for event in there.events] == ["firing", "over"]
    assert told == ["alerts: the place is away; it is tried again"]
    away.is_away = False
    alerts.look(lambda _: 0)
    assert away.events == []  # not yet
    clock.advance(FIRST_PAUSE_MS)
    course(tmp_path, clock, told, rule, away=away, there=there).look(lambda _: 0)
    assert [event.state for event in away.events] == ["firing", "over"]
    assert len(there.events) == 2


def test_it_is_given_up_after_some_tries_and_that_is_told(tmp_path: Path) -> None:
    clock, away, told = ManualClock(), Kept(), list[str]()
    away.is_away = True
    alerts = course(tmp_path, clock, told, AlertRule(name="late", kind="lag", above=1), away=away)
    for _ in range(MAX_TRIES):
        alerts.look(lambda _: 2)
        clock.advance(1_000_000)
    assert told[-1] == (
        f"alerts: late (firing) is not delivered: the place is away, after {MAX_TRIES} tries"
    )
    assert alerts.book.waiting == []


def test_a_damaged_file_is_told_and_rules_begin_anew(tmp_path: Path) -> None:
    clock, told, place = ManualClock(), list[str](), Kept()
    (tmp_path / ALERTS_FILE).write_bytes(b'{"lineage":')
    alerts = course(tmp_path, clock, told, AlertRule(name="late", kind="lag", above=1), kept=place)
    alerts.look(lambda _: 2)
    assert "cannot be read" in told[0]
    assert len(place.events) == 1
    assert load_alerts(tmp_path, clock).rules["late"].is_firing


def test_a_webhook_gets_json_and_is_tried_again(server: Any, tmp_path: Path) -> None:
    clock, told = ManualClock(), list[str]()
    server.answers = [503, 200, 404]
    alerts = course(
        tmp_path,
        clock,
        told,
        AlertRule(name="late", kind="lag", above=1),
        webhook=WebhookReceiver(server.url),
    )
    alerts.look(lambda _: 2)
    assert server.got == []
    clock.advance(10_000)
    alerts.look(lambda _: 2)
    ((kind, event),) = server.got
    assert kind == "application/json"
    assert (event["job"], event["rule"], event["state"], event["value"], event["above"]) == (
        *("shop", "late", "firing", 2),
        1,
    )
    assert event["text"] == "job shop: lag above 1 rows; it is 2 now"
    alerts.look(lambda _: 0)  # refused for good
    assert alerts.book.waiting == []
    assert told == [
        "alerts: the webhook of 127.0.0.1 answers 503 Service Unavailable; it is tried again",
        "alerts: late (over) is not delivered: the webhook of 127.0.0.1 answers 404 Not Found",
    ]


def test_a_webhook_that_is_not_there_is_unavailable(server: Any) -> None:
    event = AlertEvent("i", 1, "shop", "late", "lag", "firing", "t", 1, 1, 1, 1)
    with pytest.raises(UnavailableError, match="does not answer"):
        WebhookReceiver("http://127.0.0.1:9/x").deliver(event, "")


@pytest.mark.parametrize("answer", [b"SSH-2.0-sshd\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000])
def test_a_webhook_that_is_no_web_server_is_unavailable(answer: bytes) -> None:
    class Other(StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.wfile.write(answer)

    event = AlertEvent("i", 1, "shop", "late", "lag", "firing", "t", 1, 1, 1, 1)
    with TCPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        with pytest.raises(UnavailableError, match="not answer as a web server does"):
            WebhookReceiver(f"http://127.0.0.1:{other.server_address[1]}/x").deliver(event, "")
        thread.join()


def test_a_webhook_that_sends_elsewhere_is_refused_for_the_event_would_be_left_behind(
    server: Any,
) -> None:
    server.answers = [302]
    event = AlertEvent("i", 1, "shop", "late", "lag", "firing", "t", 1, 1, 1, 1)
    with pytest.raises(RefusedError, match="answers 302 Found"):
        WebhookReceiver(server.url).deliver(event, "")


@pytest.mark.parametrize(
    "held", ["h/se cret", "h:secret", "[::1/secret", "h/s\u00e9cret", ":80/secret"]
)
def test_a_webhook_that_is_no_url_is_refused_at_the_start_and_not_shown(held: str) -> None:
    with pytest.raises(InvalidInputError, match=r"alerts\.webhook is no URL") as caught:
        WebhookReceiver("http://${HOOK}", {"HOOK": held})
    assert "cret" not in str(caught.value)


def test_a_stream_has_each_event_once_although_a_driver_died_after_it(tmp_path: Path) -> None:
    bus, clock = MemoryBus(), ManualClock()
    rule = AlertRule(name="late", kind="lag", above=1)
    first = course(tmp_path, clock, [], rule, stream=StreamReceiver("alerts", bus))
    first.look(lambda _: 2)
    event = first.book.events[0]
    StreamReceiver("alerts", bus).deliver(event, first.book.lineage)
    clock.advance(5000)
    first.look(lambda _: 0)
    rows = bus.stream("alerts").read(0, 0)
    table = pa.Table.from_batches([one.batch for one in rows])
    assert table.column("state").to_pylist() == ["firing", "over"]
    assert table.column("value").to_pylist() == [2, 0]


def test_places_are_those_of_the_settings(server: Any) -> None:
    rule = json.dumps([{"name": "late", "kind": "lag", "above": 1, "to": ["webhook"]}])
    settings = load_settings(overrides=[f"alerts.rules={rule}"], environ={})
    with pytest.raises(InvalidInputError, match=r"notifies the webhook, and alerts\.webhook"):
        alert_receivers(settings, MemoryBus(), print)
    with pytest.raises(InvalidInputError, match="'al erts' cannot name a stream"):
        alert_receivers(
            load_settings(overrides=["alerts.stream=al erts"], environ={}), MemoryBus(), print
        )
    more = [f"alerts.webhook={server.url}", "alerts.stream=alerts"]
    settings = load_settings(overrides=[f"alerts.rules={rule}", *more], environ={})
    assert list(alert_receivers(settings, MemoryBus(), print)) == ["log", "webhook", "stream"]


def test_what_is_secret_of_a_webhook_comes_from_the_environment() -> None:
    with pytest.raises(InvalidInputError, match=r"names \$\{HOOK\}, which is not in the env"):
        WebhookReceiver("https://hooks.example/${HOOK}", {})
    assert WebhookReceiver("https://hooks.example/${HOOK}", {"HOOK": "x"}).shown == (
        "webhook of hooks.example"
    )


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user")
    orders.aggregate(n=hr.agg.count()).send_to(g.output("totals"))


def settings_of(*rules: AlertRule) -> Settings:
    text = [one.given() for one in rules]
    for one in text:
        one["for"] = f"{one.get('for', 0)}ms"
    return load_settings(overrides=[f"alerts.rules={json.dumps(text)}"], environ={})


def test_a_driver_looks_at_its_own_job(tmp_path: Path) -> None:
    told: list[str] = []
    late = AlertRule(name="late", kind="lag", above=1)
    loop = AlertRule(name="loop", kind="restart_loop", above=1, for_ms=86_400_000)
    with TestDriver(shop, home=tmp_path) as driver:
        driver.create("orders", {"user": pa.string()})
        live = LiveJob("shop", settings_of(late, QUIET, loop), JobControl(), driver.clock)
        watch = AlertWatch(
            live,
            driver.bus,
            storage=driver.storage,
            files=FILES,
            notify=told.append,
        )
        driver.feed("orders", [{"user": "ann"}])
        summary = driver.advance()
        assert summary is not None
        watch.look()  # before it has begun nothing is known but that nothing left it
        live.ready(JobGroup(driver.parts))
        live.observe(summary)
        driver.feed("orders", [{"user": "bob"}] * 2)
        watch.look()
        assert told == ["alert late: job shop: lag above 1 rows; it is 2 now"]
        driver.clock.advance(60_000)
        driver.start()
        driver.start()
        moment = driver.clock.now_ms() / 1000
        for path in (driver.storage / "generations").iterdir():
            os.utime(path, (moment, moment))
        watch.look()
        assert sorted(told[1:]) == [
            "alert loop: job shop: more than 1 starts within 1d; it is 3 now",
        ]
        driver.clock.advance(60_000)
        watch.look()
        assert told[-1] == "alert quiet: job shop: no output for 1m"
        assert {one.rule: one.fired_ms is not None for one in live.alerts()} == dict.fromkeys(
            ("late", "quiet", "loop"), True
        )


def test_a_place_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """What it did not take is told by the next driver."""
    with TestDriver(shop, home=tmp_path) as driver:
        driver.create("orders", {"user": pa.string()})
        late = settings_of(AlertRule(name="late", kind="lag", above=0)).alerts
        watch = driver_watch(driver, replace(driver.settings, alerts=late), [])
        driver.feed("orders", [{"user": "ann"}])
        let_go, began = threading.Event(), threading.Event()

        class Hanging(Kept):
            def deliver(self, event: AlertEvent, lineage: str) -> None:
                began.set()
                let_go.wait(60)

        watch._alerts._places = {"log": Hanging()}
        show_watched(watch, driver)
        assert began.wait(60)
        (waiting,) = load_alerts(driver.storage, driver.clock).waiting
        assert waiting.event.state == "firing"
        (hanging,) = (one for one in threading.enumerate() if one.name == "headrace-alerts")
        watch.close()
        let_go.set()
        hanging.join()


def test_a_look_that_fails_is_told_and_the_next_one_comes(tmp_path: Path) -> None:
    told: list[str] = []
    live = LiveJob("shop", settings_of(LATE), JobControl(), ManualClock())
    watch = AlertWatch(
        live,
        MemoryBus(),
        storage=tmp_path / "none",
        files=FILES,
        notify=told.append,
    )
    (tmp_path / "none").write_text("no folder")
    watch._try()
    watch._try()
    (line,) = told
    assert line.startswith("alerts: rules could not be looked at: NotADirectoryError")


def test_a_watch_without_rules_keeps_nothing(tmp_path: Path) -> None:
    live = LiveJob("shop", Settings(), JobControl(), ManualClock())
    watch = AlertWatch(live, MemoryBus(), storage=tmp_path, files=FILES, notify=print)
    watch.look(is_last=True)
    assert not (tmp_path / ALERTS_FILE).exists()
