"""The status of a job: its fields by name on every route and in ``--json``, live and by files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.homes import load_settings
from tests.support.hosts import drain, lose_home
from tests.support.watching import (
    JobStatus,
    LiveJob,
    alert_watch,
    api,
    described,
    described_json,
    live_job,
    new_live_job,
    show_parts,
)

import headrace as hr
from headrace.errors import UnavailableError
from headrace.testing import TestDriver

FIELDS = {
    "/v1/job": "job status process host began_ms epoch epoch_ms generation lineage durability lag "
    "eta_s counts watermarks",
    "/v1/stages": "stage tasks state_bytes hosts standbys standbys_wanted standbys_filled "
    "standby_epochs_behind standby_bytes_behind",
    "/v1/tasks": "task host next_offset lag epoch state_bytes changelog_bytes stores watermark_ms "
    "waiting event_deadline_ms wall_deadline_ms standbys",
    "/v1/inputs": "input partition next_offset lag max_time_ms",
    "/v1/epochs": "part epoch rows output_rows took_ms steps_ms slots_ms lag state_bytes "
    "changelog_bytes",
    "/v1/hot-keys": "operator columns rows too_low tasks told_ms keys",
    "/v1/alerts": "rule kind text value since_ms fired_ms",
    "/v1/events": "at_ms kind text epoch",
    "/v1/config": "key value source",
    "/v1/placement": "hosts moves_pending story",
    "/v1/description": "job status live process host storage problem members standby_drivers "
    "epoch oldest_epoch epoch_ms rows late dropped dead_letters counts lag state_bytes durability "
    "lineage run bounded generation rescaled_in parts inputs stages failures deployed "
    "standbys_to_fill standbys_followed placement outputs sinks alerts hot_keys events",
}
HOST = "host address status slots tasks standbys state_bytes everywhere"
INNER = {
    "inputs": "operator stream read lag watermark_ms offsets",
    "stages": "stage tasks state_bytes hosts standby",
    "alerts": "rule kind text since_ms fired_ms",
    "hot_keys": "operator columns rows too_low tasks at_ms keys",
    "events": "at_ms kind text epoch",
    "sinks": "operator identity promise rows epoch waiting",
    "parts": "part epoch oldest_epoch ended",
}


class Count:
    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    g.input("events").partition_by("id").process(Count, stores={"n": int})


@hr.job("apart")
def apart(g: hr.Graph) -> None:
    by_id = g.input("events").partition_by("id", via="bus")
    by_id.aggregate(n=hr.agg.count()).send_to(g.output("counts"))


def names(found: Any) -> str:
    return " ".join(found[0] if isinstance(found, list) else found)


def ran(driver: TestDriver) -> LiveJob:
    """A job with alerts, a lost and a drained host, standbys, and rows that are not read yet."""
    rules = json.dumps([{"name": "late", "kind": "lag", "above": 1}])
    settings = load_settings(
        overrides=[f"alerts.rules={rules}", f"home={driver.settings.home}"], environ={}
    )
    live = new_live_job(driver.job.name, settings, driver.clock)
    for step in (lambda: None, lambda: lose_home(driver), lambda: drain(driver, "host-3")):
        step()
        driver.feed("events", [{"id": n} for n in range(60)])
        while (summary := driver.advance()) is not None:
            show_parts(live, driver)
            live.observe(summary)
    driver.feed("events", [{"id": n} for n in range(7)])
    alert_watch(driver, live, []).look()
    return live


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    options: dict[str, Any] = {"tasks": 6, "slots": 4, "hosts": 4, "standby_copies": 1}
    with TestDriver(sums, home=tmp_path, **options) as driver:
        driver.create("events", {"id": pa.int64()}, partitions=2)
        yield driver


def test_every_route_has_the_fields_that_programs_know(cluster: TestDriver) -> None:
    live = ran(cluster)
    with api(cluster, live) as client:
        found = {path: client.get(path) for path in FIELDS}
        status = client.get_as("/v1/description", JobStatus)
    assert {path: names(answer) for path, answer in found.items()} == FIELDS
    told = found["/v1/description"]
    assert {name: names(told[name]) for name in INNER if told[name]} == {
        name: fields for name, fields in INNER.items() if name not in ("sinks", "parts")
    }
    assert names(told["stages"][0]["standby"]) == "standbys filled epochs size wanted"
    assert names(told["placement"]) == "hosts moves story"
    assert names(told["placement"]["hosts"]) == names(found["/v1/placement"]["hosts"]) == HOST
    assert names(told["placement"]["story"]) == "time_ms what host text"
    assert names(told["placement"]["moves"]) == "done lost pending"
    assert names(told["standbys_followed"]["events.by_id"]) == "bytes ms"
    assert described_json(status) == told


def test_routes_agree_on_what_is_there(cluster: TestDriver) -> None:
    live = ran(cluster)
    with api(cluster, live) as client:
        found = {path: client.get(path) for path in FIELDS}
    told, (stage,) = found["/v1/description"], found["/v1/stages"]
    inner = told["stages"][0]["standby"]
    assert inner == {
        "standbys": stage["standbys"],
        "filled": stage["standbys_filled"],
        "epochs": stage["standby_epochs_behind"],
        "size": stage["standby_bytes_behind"],
        "wanted": stage["standbys_wanted"],
    }
    assert (stage["standbys"], stage["standbys_wanted"]) == (6, 6)
    assert [one["lag"] for one in told["inputs"]] == [sum(r["lag"] for r in found["/v1/inputs"])]
    assert (told["lag"], found["/v1/job"]["lag"]) == (7, 0)  # now, and what the last epoch left
    assert [{**one, "value": 7} for one in told["alerts"]] == found["/v1/alerts"]
    assert told["placement"]["hosts"] == found["/v1/placement"]["hosts"]
    assert sorted(one["status"] for one in told["placement"]["hosts"]) == [
        "drained",
        "lost",
        "up",
        "up",
    ]
    assert told["events"] == found["/v1/events"][-6:]
    tasks = [one for one in found["/v1/tasks"] if one["standbys"]]
    assert sum(one["state_bytes"] for one in tasks) == told["state_bytes"] > 0


def test_files_give_the_status_that_the_driver_gives(cluster: TestDriver) -> None:
    live = ran(cluster)
    by_driver = live.status()
    by_files = described(cluster, is_driven=True)
    assert replace(by_driver, began_ms=None, unread=None, eta_s=None, watermarks={}) == replace(
        by_files, live=True, alerts=by_driver.alerts, hot_keys=by_driver.hot_keys
    )
    assert {one.rule for one in by_driver.alerts} <= {one.rule for one in by_files.alerts}


def test_parts_are_shown_one_by_one(tmp_path: Path) -> None:
    with TestDriver(apart, home=tmp_path) as driver:
        driver.create("events", {"id": pa.int64()})
        driver.feed("events", [{"id": 1}])
        driver.run()
        told = described_json(live_job(driver).status())
        assert names(told["parts"]) == INNER["parts"]
        assert [one["part"] for one in told["parts"]] == ["apart", "apart@events.by_id"]
        assert (told["rows"], told["status"]) == (1, "running")


def test_before_its_first_epoch_a_summary_is_all_there_is(cluster: TestDriver) -> None:
    live = new_live_job("sums", cluster.settings)
    summary = live.summary()
    assert (summary.status, summary.epoch, summary.counts) == ("starting", None, {})
    with pytest.raises(UnavailableError, match="is about to start"):
        live.status()
