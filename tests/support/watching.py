"""What others see of the job of a test driver: views, descriptions, metrics, its board, its API."""

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

from headrace.cli.jobs.inspect import job_json, show_job
from headrace.clock import Clock, SteadyClock, SystemClock
from headrace.control.alert_rules import ALERTS_FILE
from headrace.control.alerts import AlertWatch
from headrace.control.api_models import setting_infos, stage_infos, task_infos
from headrace.control.client import API_FILE, ApiAddress, Client, UnreachableError, asked
from headrace.control.description import JobDescription
from headrace.control.description import describe_job as _described
from headrace.control.driver_watch import DriverObservers
from headrace.control.history import FOLDER, JobHistory
from headrace.control.http_api import make_app
from headrace.control.job_handle import DriverHandle
from headrace.control.job_status import JobStatus
from headrace.control.metrics import TABLE, metrics_text
from headrace.control.server import ControlServer
from headrace.coordinator.commands import Rescale
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.inspection.diagnosis import JobDiagnosis
from headrace.coordinator.inspection.job_view import JobView, job_names, view_job
from headrace.coordinator.job_events import MERGING, RESUMED, JobEventFile
from headrace.coordinator.job_group import JobGroup
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
    "JobDescription",
    "JobDiagnosis",
    "JobEventFile",
    "JobHistory",
    "JobStatus",
    "JobView",
    "Rescale",
    "UnreachableError",
    "alert_watch",
    "alerts",
    "api",
    "api_server",
    "asked",
    "asking",
    "board_of",
    "described",
    "described_json",
    "described_text",
    "driver_watch",
    "events",
    "from_record",
    "job_list",
    "letter_rows",
    "make_app",
    "metrics",
    "metrics_text",
    "new_board",
    "samples",
    "serving",
    "setting_infos",
    "show_parts",
    "show_watched",
    "stage_infos",
    "steady",
    "task_infos",
    "view",
]

FILES = Files(sync=False)


def view(driver: TestDriver, own: DriverProcess | None = None) -> JobView:
    """Return the job as ``headrace jobs`` sees it, by what is committed."""
    return view_job(driver.settings, driver.job.name, driver.bus, driver.clock, own)


def described(driver: TestDriver, *, is_driven: bool = False) -> JobDescription:
    """Return what ``headrace jobs describe`` has to say, as of a job that this process drives."""
    own = DriverProcess(os.getpid(), os.uname().nodename, is_here=True) if is_driven else None
    return _described(view(driver, own))


def described_json(description: JobDescription) -> dict[str, Any]:
    """Return it as ``--json`` prints it."""
    found: dict[str, Any] = job_json(description)
    return found


def described_text(description: JobDescription) -> str:
    """Return it as the command prints it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show_job(description)
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


def new_board(job: str, settings: Any, clock: Clock | None = None) -> JobStatus:
    """Return what a driver that has not begun lets others see."""
    return JobStatus(job, settings, JobControl(), clock or SystemClock())


def steady(clock: Clock) -> SteadyClock:
    """Return a clock that believes another only as far as time has passed."""
    return SteadyClock(clock)


def show_parts(board: JobStatus, driver: TestDriver) -> None:
    """Let a board show what the parts of a driver have come to."""
    board.ready(JobGroup(driver.parts))


def board_of(driver: TestDriver, settings: Any = None, clock: Clock | None = None) -> JobStatus:
    """Return what the driver lets others see now."""
    made = new_board(driver.job.name, settings or driver.settings, clock or driver.clock)
    show_parts(made, driver)
    return made


def samples(driver: TestDriver) -> Iterator[Sample]:
    """Yield the samples that a scrape of the driver gets."""
    for family in text_string_to_metric_families(metrics_text(board_of(driver)).decode()):
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
    return DriverObservers(driver.job.name, settings, JobControl(), driver.bus, clock, told.append)


def show_watched(watch: DriverObservers, driver: TestDriver) -> None:
    """Let it show what the parts of a driver have come to."""
    watch.ready(JobGroup(driver.parts))


def alert_watch(driver: TestDriver, board: JobStatus, told: list[str]) -> AlertWatch:
    """Return what looks at the alert rules of a board's settings, and tells a list."""
    given: dict[str, Any] = {"storage": driver.storage, "files": FILES}
    return AlertWatch(board, driver.bus, clock=driver.clock, tell=told.append, **given)


def alerts(driver: TestDriver, board: JobStatus) -> list[str]:
    """Look once at the alert rules of a board's settings; returns what is told."""
    told: list[str] = []
    alert_watch(driver, board, told).look()
    return told


def asking(storage: Path, board: JobStatus) -> DriverHandle:
    """Return what the API of a driver asks of its parts by."""
    return DriverHandle(storage, board, FILES, SystemClock())


def api_server(board: JobStatus, storage: Path, port: int = 0) -> ControlServer:
    """Return the API of a driver, to be started: on a free port, unless one is named."""
    return ControlServer(board, storage, "127.0.0.1", port, FILES, SystemClock())


@contextmanager
def api(driver: TestDriver, board: JobStatus) -> Iterator[Client]:
    """Serve the control API of a driver on a free port; gives a client of it."""
    server = api_server(board, driver.storage)
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
