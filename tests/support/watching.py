"""What others see of the job of a test driver: views, descriptions, metrics, its live, its API."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headrace.cli.jobs.inspect import show_job
from headrace.clock import Clock, SteadyClock, SystemClock
from headrace.config import ControlSettings
from headrace.control.alert_rules import ALERTS_FILE
from headrace.control.alerts import AlertWatch
from headrace.control.client import API_FILE, ApiAddress, Client, UnreachableError, asked
from headrace.control.driver_watch import DriverObservers
from headrace.control.history import FOLDER, JobHistory
from headrace.control.http_api import make_app
from headrace.control.job_handle import DriverHandle
from headrace.control.job_status import JobStatus, job_status
from headrace.control.live_job import LiveJob
from headrace.control.metrics import TABLE, metrics_text
from headrace.control.server import ControlServer
from headrace.control.status_schema import status_json
from headrace.coordinator.commands import Rescale
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.inspection.diagnosis import JobDiagnosis
from headrace.coordinator.job_events import MERGING, RESUMED, JobEventFile
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_parts import job_names
from headrace.coordinator.job_run import RunListeners
from headrace.coordinator.leader_lease import DriverProcess
from headrace.files import Files
from headrace.runtime.dead_letters import from_record
from headrace.testing import TestDriver

__all__ = [
    "ALERTS_FILE",
    "API_FILE",
    "FILES",
    "FOLDER",
    "MERGING",
    "RESUMED",
    "TABLE",
    "ApiAddress",
    "Client",
    "ControlServer",
    "DriverHandle",
    "JobDiagnosis",
    "JobEventFile",
    "JobHistory",
    "JobStatus",
    "LiveJob",
    "Rescale",
    "UnreachableError",
    "alert_watch",
    "alerts",
    "api",
    "api_server",
    "asked",
    "asking",
    "described",
    "described_json",
    "described_text",
    "driver_watch",
    "events",
    "from_record",
    "job_list",
    "letter_rows",
    "live_job",
    "make_app",
    "metrics",
    "metrics_text",
    "new_live_job",
    "samples",
    "serving",
    "show_parts",
    "show_watched",
    "steady",
]

FILES = Files(sync=False)


def described(driver: TestDriver, *, is_driven: bool = False) -> JobStatus:
    """Return the status of the job by its files; as of one that this process drives, if it is."""
    own = DriverProcess(os.getpid(), os.uname().nodename, is_here=True) if is_driven else None
    return job_status(driver.settings, driver.job.name, driver.bus, driver.clock, own)


def described_json(status: JobStatus) -> dict[str, Any]:
    """Return it as ``--json`` prints it."""
    return status_json(status)


def described_text(status: JobStatus) -> str:
    """Return it as the command prints it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show_job(status)
    return out.getvalue()


def job_list(driver: TestDriver) -> list[str]:
    """Return the names of the jobs of the home."""
    return list(job_names(driver.settings))


def events(driver: TestDriver) -> list[str]:
    """Return what the log of the job's events says, the oldest first."""
    return [event.text for event in JobEventFile(driver.storage).read()]


def letter_rows(letter: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a row of a stream of dead letters has set aside."""
    return from_record(letter["record"]).to_pylist()


def new_live_job(job: str, settings: Any, clock: Clock | None = None) -> LiveJob:
    """Return what a driver that has not begun lets others see."""
    return LiveJob(job, settings, JobControl(), clock or SystemClock())


def steady(clock: Clock) -> SteadyClock:
    """Return a clock that believes another only as far as time has passed."""
    return SteadyClock(clock)


def show_parts(live: LiveJob, driver: TestDriver) -> None:
    """Let a live show what the parts of a driver have come to."""
    live.ready(JobGroup(driver.parts))


def live_job(driver: TestDriver, settings: Any = None, clock: Clock | None = None) -> LiveJob:
    """Return what the driver lets others see now."""
    made = new_live_job(driver.job.name, settings or driver.settings, clock or driver.clock)
    show_parts(made, driver)
    return made


def samples(driver: TestDriver) -> Iterator[Sample]:
    """Yield the samples that a scrape of the driver gets."""
    for family in text_string_to_metric_families(metrics_text(live_job(driver)).decode()):
        yield from family.samples


def metrics(driver: TestDriver) -> dict[str, float]:
    """Return the values of a job without other labels, and the sums of those with more."""
    found: dict[str, float] = {}
    for sample in samples(driver):
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def driver_watch(driver: TestDriver, settings: Any, told: list[str]) -> DriverObservers:
    """Return what watches over a driver as the commands run it: its API, samples and alerts."""
    clock = SystemClock()
    return DriverObservers(
        driver.job.name,
        settings,
        JobControl(),
        driver.bus,
        clock,
        RunListeners(on_notice=told.append),
    )


def show_watched(watch: DriverObservers, driver: TestDriver) -> None:
    """Let it show what the parts of a driver have come to."""
    watch.ready(JobGroup(driver.parts))


def alert_watch(driver: TestDriver, live: LiveJob, told: list[str]) -> AlertWatch:
    """Return what looks at the alert rules of a live's settings, and tells a list."""
    given: dict[str, Any] = {"storage": driver.storage, "files": FILES}
    return AlertWatch(live, driver.bus, notify=told.append, **given)


def alerts(driver: TestDriver, live: LiveJob) -> list[str]:
    """Look once at the alert rules of a live's settings; returns what is told."""
    told: list[str] = []
    alert_watch(driver, live, told).look()
    return told


def asking(storage: Path, live: LiveJob) -> DriverHandle:
    """Return what the API of a driver asks of its parts by."""
    return DriverHandle(storage, live, FILES)


def api_server(
    live: LiveJob, storage: Path, port: int = 0, token_file: Path | None = None
) -> ControlServer:
    """Return the API of a driver, to be started: on a free port, unless one is named."""
    wanted = ControlSettings(port=port, token_file=token_file)
    return ControlServer(live, storage, wanted, FILES)


@contextmanager
def api(driver: TestDriver, live: LiveJob) -> Iterator[Client]:
    """Serve the control API of a driver on a free port; gives a client of it."""
    server = api_server(live, driver.storage)
    server.start()
    try:
        yield Client(driver.storage, driver.job.name)
    finally:
        server.stop()
    assert not (driver.storage / API_FILE).exists()


@contextmanager
def serving(driver: TestDriver) -> Iterator[None]:
    """Let the driver of each part do what it is asked, in another thread."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            for part in driver.parts:
                part.serve_requests()
            over.wait(0.005)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
