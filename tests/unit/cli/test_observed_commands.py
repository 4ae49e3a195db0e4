"""``alerts``, ``jobs hot-keys`` and ``jobs history``: what they show of what a driver keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace
from tests.support.homes import load_settings
from tests.support.watching import ALERTS_FILE, FOLDER, driver_watch, show_watched

import headrace as hr
from headrace.testing import TestDriver

RULES = '[{"name": "late", "kind": "lag", "above": 1}]'


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders", time="at").partition_by("user", name="by_user")
    orders.window(hr.tumbling("1s"), n=hr.agg.count()).send_to(g.output("totals"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A job whose driver has just ended, two rows behind."""
    told: list[str] = []
    with TestDriver(shop, home=tmp_path, memory_bus=False) as driver:
        driver.create("orders", {"user": pa.string(), "at": pa.int64()}, time="at")
        changed = [f"home={tmp_path}", f"alerts.rules={RULES}", "control.enabled=false"]
        settings = load_settings(overrides=changed, environ={})
        watch = driver_watch(driver, settings, told)
        rows = [{"user": "ann" if n % 4 else "bob", "at": 1_000_000 + n} for n in range(8)]
        driver.feed("orders", rows)
        summary = driver.advance()
        assert summary is not None
        show_watched(watch, driver)
        watch.observe(summary)
        driver.feed("orders", [{"user": "cat", "at": 1_000_100}] * 2)
        watch.close()
    assert told == ["alert late: job shop: lag above 1 rows; it is 2 now"]
    return tmp_path


def asked(home: Path, *words: object) -> Any:
    return json.loads(done(*words, "--json", "--home", home))


def test_the_heaviest_keys_are_named(home: Path) -> None:
    (found,) = asked(home, "jobs", "hot-keys", "shop", "--limit", "1")["hot_keys"]
    assert (found["operator"], found["columns"]) == ("by_user", ["user"])
    assert found["keys"] == [{"key": ["ann"], "rows": 6.0, "share": 0.75}]
    text = done("jobs", "hot-keys", "shop", "--home", home)
    assert text.splitlines()[0].startswith("by_user, about 8 rows until ")
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["ann", "6", "75.0%"],
        ["bob", "2", "25.0%"],
    ]


def test_a_job_without_known_keys_says_why(home: Path) -> None:
    (home / "jobs" / "shop" / FOLDER / "hot-keys.json").unlink()
    assert "no keys of shop are known" in done("jobs", "hot-keys", "shop", "--home", home)


def test_rules_and_what_they_told_are_shown(home: Path) -> None:
    found = asked(home, "alerts", "ls", "shop")
    rules = {rule["rule"]: rule for rule in found["rules"]}
    assert set(rules) == {"clock", "late"}, "that of the clock is there for every job"
    rule = rules["late"]
    assert (rule["kind"], rule["value"]) == ("lag", 2)
    assert rule["fired_ms"] is not None
    assert [event["state"] for event in found["events"]] == ["firing"]
    assert found["waiting"] == []
    text = done("alerts", "ls", "shop", "--home", home)
    assert "lag above 1 rows" in text
    assert "firing since" in text


def test_a_job_without_rules_says_how_to_have_some(home: Path) -> None:
    (home / "jobs" / "shop" / ALERTS_FILE).unlink()
    assert "set alerts.rules, and run it" in done("alerts", "ls", "shop", "--home", home)


def test_a_damaged_file_of_alerts_is_told(home: Path) -> None:
    (home / "jobs" / "shop" / ALERTS_FILE).write_text("{")
    ran = headrace("alerts", "ls", "shop", "--home", home)
    assert (ran.code > 1, ran.out) == (True, "")
    assert "remove it, and its rules start over" in ran.err
    assert "shop" in done("jobs", "describe", "shop", "--home", home)


def test_describe_tells_what_fires_and_which_keys_are_heavy(home: Path) -> None:
    text = done("jobs", "describe", "shop", "--home", home)
    assert "late fires since" in text
    assert "by_user: user=ann 75.0%, user=bob 25.0%" in text
    found = asked(home, "jobs", "describe", "shop")
    firing = {rule["rule"]: rule["fired_ms"] is not None for rule in found["alerts"]}
    assert firing == {"clock": False, "late": True}
    assert [key["key"] for key in found["hot_keys"][0]["keys"]] == [["ann"], ["bob"]]


def test_history_has_inputs_and_stages(home: Path) -> None:
    found = asked(home, "jobs", "history", "shop", "--last", "1h")
    assert found["left_out"] == 0
    (whole,) = found["stretches"]
    assert whole["lag"] == 2
    (read,) = found["inputs"]["orders"]
    assert read["lag"] == 2
    assert set(found["stages"]) >= {"by_user"}
    text = done("jobs", "history", "shop", "--home", home)
    assert "lag at most" in text
    assert "behind now" in text


def test_history_since_a_time(home: Path) -> None:
    assert asked(home, "jobs", "history", "shop", "--since", "2013-01-31T05:15")["stretches"]
    assert not asked(home, "jobs", "history", "shop", "--since", "2100-01-31")["stretches"]


def test_history_has_the_story_of_the_job(home: Path) -> None:
    words = ["jobs", "history", "shop", "--events", "--since", "2013-01-31T05:15"]
    (event,) = asked(home, *words)["events"]
    assert (event["kind"], event["text"].split(",")[0]) == (
        "driver",
        "a driver began: generation 1",
    )
    assert event["text"] in done(*words, "--home", home)
    assert asked(home, "jobs", "describe", "shop")["events"] == [event]
    none = done("jobs", "history", "shop", "--events", "--since", "2100-01-31", "--home", home)
    assert none == "nothing happened to shop in that time; --last 7d looks further back\n"


def test_samples_that_are_damaged_are_counted(home: Path) -> None:
    (file,) = (home / "jobs" / "shop" / FOLDER).glob("0*.jsonl")
    file.write_bytes(file.read_bytes() + b"[1,\n")
    ran = headrace("jobs", "history", "shop", "--home", home)
    assert (ran.code, ran.err) == (0, "1 sample could not be read: left out\n")


def test_a_test_reaches_the_places_that_are_set(home: Path) -> None:
    words = ["--home", home, "--set", "alerts.stream=alerts"]
    assert done("alerts", "test", *words).splitlines() == [
        "alert (test) test: a test of headrace alerts: nothing is wrong",
        "log: took it",
        "stream alerts: took it",
    ]
    (row,) = map(json.loads, done("bus", "tail", "alerts", "--home", home, "--json").splitlines())
    assert (row["row"]["state"], row["row"]["rule"]) == ("test", "test")


def test_a_place_that_does_not_take_a_test_is_told(home: Path) -> None:
    ran = headrace("alerts", "test", "--home", home, "--set", "alerts.webhook=http://127.0.0.1:9")
    assert ran.code != 0
    assert "not every place took the test: webhook: the webhook of 127.0.0.1 does not" in ran.err
