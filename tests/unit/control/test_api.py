"""The HTTP API of a driver: what it tells, what it does, and whom it refuses."""

from __future__ import annotations

import os
import stat
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.homes import Settings
from tests.support.processes import SystemClock
from tests.support.runs import drive_part
from tests.support.watching import (
    API_FILE,
    ApiAddress,
    Client,
    JobDiagnosis,
    JobHistory,
    JobStatus,
    LiveJob,
    Rescale,
    api_server,
    asked,
    asking,
    described,
    new_live_job,
    serving,
    show_parts,
    steady,
)

import headrace as hr
from headrace.errors import InvalidInputError, UnavailableError
from headrace.testing import ManualClock, TestDriver


def test_it_tells_of_job_stages_tasks_inputs_and_epochs(client: Client) -> None:
    info = client.get("/v1/job")
    assert (info["job"], info["status"], info["epoch"], info["lag"]) == ("shop", "running", 2, 0)
    assert info["counts"]["in"] == 2
    (stage,) = client.get("/v1/stages")
    assert (stage["stage"], stage["tasks"], stage["standbys"]) == ("orders.by_user", 4, 0)
    assert [one["task"] for one in client.get("/v1/tasks")][:1] == ["orders.by_user/0"]
    (read,) = client.get("/v1/inputs")
    place = {"input": "orders", "partition": 0}
    assert read == {**place, "next_offset": 2, "lag": 0, "max_time_ms": None}
    source = client.get("/v1/tasks")[-1]
    assert (source["task"], source["next_offset"], source["lag"]) == ("orders/0", 2, 0)
    first, second = client.get("/v1/epochs")
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert {"plan", "commit", "publish"} <= set(second["steps_ms"])
    assert [one["epoch"] for one in client.get("/v1/epochs?last=1")] == [2]
    (event,) = client.get("/v1/events")
    assert (event["kind"], event["epoch"]) == ("driver", 0)


def test_it_tells_bytes_of_stores_and_the_heaviest_keys(client: Client) -> None:
    (own,) = [one for one in client.get("/v1/tasks") if any(one["stores"].values())]
    assert sum(own["stores"].values()) == own["state_bytes"] > 0
    assert (own["waiting"], own["watermark_ms"]) == (0, None)
    (found,) = client.get("/v1/hot-keys?most=1")
    assert (found["operator"], found["columns"], found["tasks"]) == ("orders.by_user", ["user"], 1)
    assert found["keys"] == [{"key": ["ann"], "rows": 2.0, "share": 1.0}]
    assert client.get("/v1/alerts") == []


def test_it_answers_in_a_process_with_many_open_files(driver: TestDriver, live: LiveJob) -> None:
    """Whose descriptors are numbers that ``select`` does not know."""
    taken = [os.dup(0) for _ in range(1100)]
    try:
        server = api_server(live, driver.storage)
        server.start()
        assert Client(driver.storage, "shop").get("/v1/job")["job"] == "shop"
        server.stop()
    finally:
        for descriptor in taken:
            os.close(descriptor)


def test_word_of_it_is_for_its_owner_alone(client: Client, driver: TestDriver) -> None:
    assert stat.S_IMODE((driver.storage / API_FILE).stat().st_mode) == 0o600
    assert client.place.url.startswith("http://127.0.0.1:")


def test_a_token_of_a_file_stays_when_another_driver_starts(
    driver: TestDriver, live: LiveJob, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{'0123456789abcdef' * 2}\n")
    for _ in range(2):
        server = api_server(live, driver.storage, token_file=file)
        server.start()
        client = Client(driver.storage, "shop")
        assert client.place.token == file.read_text().strip()
        assert client.get("/v1/job")["job"] == "shop"
        server.stop()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"short\n", "found 5 characters, expected one word of at least 16"),
        (b"two words of a sentence", "expected one word"),
        ("\u00e9".encode() * 20, "not ASCII"),
    ],
)
def test_a_file_without_a_token_is_refused(
    driver: TestDriver, live: LiveJob, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(hr.errors.InvalidInputError, match=message) as refused:
        api_server(live, driver.storage, token_file=file).start()
    assert f"file {file} of control.token_file" in str(refused.value)


def test_who_has_no_token_is_refused(client: Client, live: LiveJob) -> None:
    for verb, path in (("GET", "/v1/job"), ("POST", "/v1/stop"), ("GET", "/metrics")):
        for header in (None, "Bearer wrong", "Basic x", "Bearer \u00e9"):
            request = urllib.request.Request(f"{client.place.url}{path}", method=verb)
            if header is not None:
                request.add_header("Authorization", header.encode().decode("latin-1"))
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=20)
            assert refused.value.code == 401, (verb, path, header)
            assert b"Bearer TOKEN" in refused.value.read()
            refused.value.close()
    assert not live.control.stop.is_set()


def test_pause_resume_finish_and_stop_reach_the_driver(client: Client, live: LiveJob) -> None:
    assert client.post("/v1/pause") == {"status": "paused"}
    assert live.control.paused.is_set()
    assert client.post("/v1/resume") == {"status": "running"}
    assert not live.control.paused.is_set()
    client.post("/v1/pause")
    client.post("/v1/finish")
    assert live.control.finish.is_set()
    assert not live.control.paused.is_set()
    assert client.post("/v1/stop") == {"status": "stopping", "was": "running"}
    assert client.post("/v1/stop") == {"status": "stopping", "was": "stopping"}
    assert live.control.stop.is_set()


def test_a_rescale_is_done_between_two_epochs(client: Client, driver: TestDriver) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(client.post("/v1/rescale", tasks=2)))
    asking.start()
    while asking.is_alive():
        driver.parts[0].serve_requests()
        asking.join(0.01)
    assert answers == [{"epoch": 3, "tasks": {"orders.by_user": 2}}]


def test_commands_tell_what_only_the_driver_knows(
    client: Client, driver: TestDriver, live: LiveJob
) -> None:
    def status() -> str | None:
        found = asked(driver.settings, "shop", "/v1/description", JobStatus)
        return None if found is None else found.status

    assert status() == "running"
    client.post("/v1/pause")
    assert status() == "paused"
    live.control.stop.set()
    assert status() == "stopping"


def test_the_driver_describes_a_job_as_its_files_do(client: Client, driver: TestDriver) -> None:
    told = client.get_as("/v1/description", JobStatus)
    assert told == replace(
        described(driver),
        status="running",
        live=True,
        process=os.getpid(),
        host=os.uname().nodename,
        deployed=True,
        hot_keys=told.hot_keys,
    )
    assert [key.key for one in told.hot_keys for key in one.keys] == [("ann",)]
    assert (told.epoch, told.rows, told.lag) == (2, 2, 0)


def test_the_driver_tells_why_and_its_history_as_files_do(
    client: Client, driver: TestDriver
) -> None:
    assert client.get_as("/v1/why", list[JobDiagnosis]) == driver.why()
    now = SystemClock().now_ms()
    past = client.get_as(f"/v1/history?begin_ms=0&end_ms={now}&lines=3", JobHistory)
    assert (past.live, len(past.stretches), [one.name for one in past.inputs]) == (
        True,
        1,
        ["orders"],
    )
    assert client.get("/v1/events?since_ms=0") == client.get("/v1/events")
    later = SystemClock().now_ms() + 60_000
    assert client.get(f"/v1/events?since_ms={later}") == []


def test_a_savepoint_is_made_between_two_epochs(client: Client, driver: TestDriver) -> None:
    with serving(driver):
        made = client.post("/v1/savepoint", name="first")
        unnamed = client.post("/v1/savepoint")
    assert (made["name"], made["epoch"]) == ("first", 2)
    assert (Path(made["path"]) / "savepoint.json").is_file()
    assert client.get("/v1/savepoints") == sorted((made, unnamed), key=lambda one: one["name"])
    with serving(driver), pytest.raises(InvalidInputError, match="first exists already"):
        client.post("/v1/savepoint", name="first")
    with pytest.raises(InvalidInputError, match=r"body\.name"):
        client.post("/v1/savepoint", name="../first")


def test_a_mistake_is_told_with_its_reason(client: Client, driver: TestDriver) -> None:
    with pytest.raises(InvalidInputError, match=r"body\.tasks: .* greater than or equal to 1"):
        client.post("/v1/rescale", tasks=0)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client.post("/v1/rescale", tasks=2, stage="none")
        except InvalidInputError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        driver.parts[0].serve_requests()
        asking.join(0.01)
    assert "'none'" in str(errors[0])


def test_metrics_are_what_the_manifest_says(client: Client) -> None:
    request = urllib.request.Request(
        f"{client.place.url}/metrics", headers={"Authorization": f"Bearer {client.place.token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    job = ("job", "shop")
    assert found["headrace_rows_total", job, ("what", "in")] == 2
    assert found["headrace_rows_total", job, ("what", "dead_letters")] == 0
    assert found["headrace_epoch", job] == 2
    assert found["headrace_lag_rows", job] == 0
    assert found["headrace_job_status", job, ("status", "running")] == 1
    assert found["headrace_driver_epochs_total", job] == 2
    offset = ("headrace_input_next_offset", ("input", "orders"), job, ("partition", "0"))
    assert found[offset] == 2


def test_a_driver_that_is_not_there_is_told(tmp_path: Path, client: Client) -> None:
    with pytest.raises(InvalidInputError, match="no driver of job 'shop' answers"):
        Client(tmp_path, "shop")
    client.place = ApiAddress("http://127.0.0.1:9", "x", 1)
    with pytest.raises(UnavailableError, match="does not answer"):
        client.get("/v1/job")


def test_the_loopback_of_another_host_is_not_asked(tmp_path: Path) -> None:
    """A storage on a shared disk is seen by hosts whose own port may be anybody's."""
    for url, is_refused in (("http://127.0.0.1:9", True), ("http://10.0.0.7:9", False)):
        place = ApiAddress(url, "x", 1, "elsewhere")
        (tmp_path / API_FILE).write_bytes(msgspec.json.encode(place))
        if is_refused:
            with pytest.raises(InvalidInputError, match="runs on host elsewhere"):
                Client(tmp_path, "shop")
        else:
            assert Client(tmp_path, "shop").place == place


def test_a_port_that_is_taken_is_told(client: Client, live: LiveJob, tmp_path: Path) -> None:
    port = int(client.place.url.rpartition(":")[2])
    other = api_server(live, tmp_path, port)
    with pytest.raises(InvalidInputError, match="cannot be listened on"):
        other.start()
    other.stop()
    assert not (tmp_path / API_FILE).exists()


def test_a_driver_that_was_taken_over_leaves_the_word_of_the_next(
    client: Client, live: LiveJob, driver: TestDriver
) -> None:
    other = api_server(live, driver.storage)
    other.start()
    mine = Client(driver.storage, "shop")
    last = api_server(live, driver.storage)
    last.start()
    other.stop()
    assert Client(driver.storage, "shop").place == last.place != mine.place
    last.stop()
    with pytest.raises(InvalidInputError, match="no driver of job 'shop' answers"):
        Client(driver.storage, "shop")


def test_the_token_goes_past_proxies(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert client.get("/v1/job")["job"] == "shop"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net", "hunter2"),
        ("spark.hadoop.fs.azure.sas.shop.acct.blob.core.windows.net", "?sv=1&sp=hunter2"),
        ("spark.hadoop.store", "https://acct.blob.core.windows.net/c?sv=1&sig=hunter2"),
        ("spark.hadoop.fs.s3a.access.key", "hunter2"),
        ("spark.hadoop.google.cloud.auth.service.account.private.key", "hunter2"),
        ("spark.hadoop.store", "Endpoint=x;AccountKey=hunter2"),
        ("spark.driver.extraJavaOptions", "-Djavax.net.ssl.keyStorePwd=hunter2"),
        ("spark.executorEnv.SHOP_DB_PASS", "hunter2"),
        ("spark.executorEnv.KEY_PASSPHRASE", "hunter2"),
        ("spark.executorEnv.OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer hunter2"),
    ],
)
def test_keys_of_clouds_are_hidden(key: str, value: str) -> None:
    settings = Settings.of({"spark": {"conf": {key: value}}})
    told = settings.explain_all()
    assert "hunter2" not in str(told)


def test_secrets_are_hidden(live: LiveJob) -> None:
    settings = Settings.of(
        {
            "remote": {"url": "redis://user:hunter2@cache:6379/0"},
            "spark": {"conf": {"spark.ssl.keyPassword": "hunter2", "spark.x": "1"}},
        }
    )
    told = {one.key: one.value for one in settings.explain_all()}
    assert told["remote.url"] == told["spark.conf.spark.ssl.keyPassword"] == "***"
    assert told["spark.conf.spark.x"] == "1"
    assert (told["job.tasks"], told["job.key_groups"]) == ("4", "512")
    assert "hunter2" not in str(told)


def test_a_paused_driver_begins_no_epoch(driver: TestDriver, live: LiveJob) -> None:
    control = live.control
    seen: list[Any] = []
    driver.feed("orders", [{"user": "bob", "n": 1, "at": 2_000}])
    control.paused.set()
    part = driver.parts[0]
    running = threading.Thread(
        target=drive_part,
        args=(part, driver.bus, control, seen.append),
        kwargs={"tick_ms": 1},
    )
    running.start()
    running.join(0.2)
    assert not seen
    control.paused.clear()
    while not seen:
        running.join(0.01)
    control.stop.set()
    driver.feed("orders", [{"user": "bob", "n": 1, "at": 3_000}])  # wakes it, for its clock stands
    running.join()
    assert seen[0].rows == 1


def test_rows_that_come_while_a_driver_looks_are_read_at_once(
    driver: TestDriver, live: LiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come after the turn has seen that there are none; the clock of the streams stands."""
    control, part, seen = live.control, driver.parts[0], list[Any]()
    driver.run()
    advance = part.advance

    def feed_behind() -> Any:
        summary = advance()
        if summary is None and not seen:
            driver.feed("orders", [{"user": "bob", "n": 1, "at": 2_000}])
        return summary

    def on_epoch(summary: Any) -> None:
        seen.append(summary.rows)
        control.stop.set()

    monkeypatch.setattr(part, "advance", feed_behind)
    running = threading.Thread(target=drive_part, args=(part, driver.bus, control, on_epoch))
    running.start()
    running.join(10)
    control.stop.set()
    driver.feed("orders", [{"user": "bob", "n": 1, "at": 3_000}])
    running.join()
    assert seen == [1]


def test_a_driver_that_is_paused_in_its_last_epoch_ends(driver: TestDriver, live: LiveJob) -> None:
    control = live.control
    driver.feed("orders", [{"user": "bob", "n": 1, "at": 2_000}])
    control.finish.set()
    part = driver.parts[0]

    def on_epoch(summary: Any) -> None:
        if part.state.ended:
            control.paused.set()

    running = threading.Thread(
        target=drive_part, args=(part, driver.bus, control, on_epoch), daemon=True
    )
    running.start()
    running.join(20)
    assert not running.is_alive()
    assert control.paused.is_set()


def test_a_host_is_drained_and_used_again(client: Client, driver: TestDriver) -> None:
    [only] = client.get("/v1/placement")["hosts"]
    assert (only["address"], only["status"], only["tasks"]) == ("host-0", "up", 4)
    with serving(driver), pytest.raises(InvalidInputError, match="is the only one that job"):
        client.post("/v1/drain", host="host-0")
    with pytest.raises(InvalidInputError, match="no host called 'nowhere'"):
        client.post("/v1/drain", host="nowhere")
    with serving(driver):
        assert client.post("/v1/undrain", host="host-0") == only
        assert client.post("/v1/restart", rolling=True) == {"hosts": [only["host"]]}
    placement = client.get("/v1/placement")
    assert placement["moves_pending"] == 0
    assert placement["story"][0]["what"] == "driver"


@hr.job("parted")
def parted(g: hr.Graph) -> None:
    """The first part has no keyed stage; the others have one each."""
    orders = g.input("orders").partition_by("user", via="bus", name="by_user")
    spent = orders.aggregate(spent=hr.agg.sum("n"), name="spent")
    spent.partition_by("spent", via="bus", name="by_sum").aggregate(n=hr.agg.count(), name="users")


def test_a_rescale_reaches_the_parts_that_it_concerns(tmp_path: Path) -> None:
    with TestDriver(parted, home=tmp_path) as driver:
        driver.create("orders", {"user": pa.string(), "n": pa.int64()})
        first, second, third = driver.parts
        live = new_live_job("parted", driver.settings)
        handle = asking(driver.storage, live)
        with pytest.raises(UnavailableError, match="about to start"):
            handle.ask(Rescale(2), 10.0)
        show_parts(live, driver)
        (last,) = third.state.task_counts
        with serving(driver):
            answers = handle.ask(Rescale(2, last), 10.0)
            assert [one.counts for one in answers.values()] == [{last: 2}]
            assert set(second.state.task_counts.values()) == {4}
            answers = handle.ask(Rescale(1), 10.0)
            assert len(answers) == 2
            assert all(set(one.counts.values()) == {1} for one in answers.values())
        assert not first.state.task_counts
        assert {**second.state.task_counts, **third.state.task_counts} == {
            **dict.fromkeys(second.state.task_counts, 1),
            last: 1,
        }
        with pytest.raises(InvalidInputError, match="no keyed stage 'none'"):
            handle.ask(Rescale(2, "none"), 10.0)


@pytest.mark.parametrize(
    ("path", "body", "status"), [("/v1/nope", None, 404), ("/v1/rescale", b"\xff", 422)]
)
def test_what_is_not_understood_is_told_as_a_problem(
    driver: TestDriver, client: Client, path: str, body: bytes | None, status: int
) -> None:
    token = {"Authorization": f"Bearer {client.place.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{client.place.url}{path}", body, token)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    told = msgspec.json.decode(refused.value.read())
    refused.value.close()
    assert (refused.value.code, told["code"]) == (status, "HR100")
    assert path in told["message"]


def test_a_clock_that_jumped_is_accepted(client: Client, live: LiveJob) -> None:
    assert client.post("/v1/accept-clock") == {"was_off_ms": 0}
    clock = ManualClock()
    live.clock = steady(clock)
    live.clock.now_ms()
    clock.jump(-86_400_000)
    assert client.post("/v1/accept-clock") == {"was_off_ms": -86_400_000}
    assert live.clock_doubt is None
