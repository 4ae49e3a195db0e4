"""``headrace.run`` and ``headrace.start``: a job in this process, alone or shared with others."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from headrace.bus import Bus, BusOptions, open_bus
from headrace.config import Settings, load_settings, project_file
from headrace.coordinator.backup import check_shared_storage
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.driver_loop import JobControl, stop_on_signals
from headrace.coordinator.epoch_clock import driver_clock
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_run import RunListeners, RunResult, disk_errors_named
from headrace.coordinator.job_storage import (
    DriverLock,
    JobContext,
    check_job_name,
    job_storages,
    newest_storage,
)
from headrace.coordinator.manifest import JobState
from headrace.coordinator.worker_host import host_identity
from headrace.errors import HeadraceError, InvalidInputError
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.standalone.engine import DriverContext, GroupEngine
from headrace.standalone.group import Membership, ProcessGroup, StateDirLock
from headrace.standalone.shared_job import SharedJobProcess
from headrace.standalone.slots import Kind, LocalSlots

Status = Literal[
    "starting", "following", "running", "paused", "stopping", "stopped", "ended", "failed"
]


class Running:
    """A job that runs in this process, in its own threads; ``headrace.start`` returns it.

    As a context manager, it stops the job at the end of the block. You can call its methods from
    any thread.

    Args:
        job: made by ``headrace.job``.
        settings: of the run.
        join: share the job with other processes.
        bus: by default the one at ``settings.bus_dir``; closed by its opener.
        control: stops and finishes it.
        listeners: called about epochs and notices.
        on_role: called from a thread of the run whenever this process starts or stops driving the
            shared job.
    """

    def __init__(
        self,
        job: Job,
        settings: Settings,
        *,
        join: bool = False,
        bus: Bus | None = None,
        control: JobControl | None = None,
        listeners: RunListeners | None = None,
        on_role: Callable[[bool], None] | None = None,
    ) -> None:
        self.job, self.settings = check_job_name(job.name), settings
        self._job, self._join, self._on_role, self._bus = job, join, on_role, bus
        self._clock, self._files = driver_clock(settings), Files()
        self._control, self._listeners = control or JobControl(), listeners or RunListeners()
        self._parts: JobGroup | None = None
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._is_following = False
        self._over = threading.Event()
        threading.Thread(target=self._live, name=f"headrace {job.name}", daemon=True).start()

    def _live(self) -> None:
        try:
            with disk_errors_named():
                self._result = self._shared() if self._join else self._alone()
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
            self._error = error
        finally:
            self._over.set()

    def _alone(self) -> RunResult:
        settings = self.settings
        root = job_storages(settings, self.job).storage
        with ExitStack() as held:
            held.enter_context(DriverLock(root, self.job))
            local, count = self._slots(settings, held)
            host = host_identity(settings.state_dir, self._clock, self._files)
            members = Membership(float("inf"))
            group = ProcessGroup(local, count, host, self.job, members, self._clock)
            driving = self._driving(settings, held)
            return driving.run(driving.job_run(self._control), GroupEngine(group), is_alone=True)

    def _shared(self) -> RunResult:
        check_shared_storage(self.settings, self.job)
        with ExitStack() as held:
            own = StateDirLock(self.settings, self.job)
            held.callback(own.release)
            local, count = self._slots(own.settings, held)
            driving = self._driving(own.settings, held)
            return SharedJobProcess(driving, local, count, self._take_role).live()

    def _slots(self, settings: Settings, held: ExitStack) -> tuple[LocalSlots, int]:
        count = settings.job.slots or 1
        wanted = settings.standalone.workers
        kind: Kind = "threads" if wanted == "auto" and count == 1 else "processes"
        local = LocalSlots(settings, kind if wanted == "auto" else wanted)
        held.callback(local.close)
        return local, count

    def _driving(self, settings: Settings, held: ExitStack) -> DriverContext:
        bus = self._bus
        if bus is None:
            opened = open_bus(settings.bus_dir, BusOptions.of(settings.bus), clock=self._clock)
            bus = held.enter_context(opened)
        listeners = replace(self._listeners, on_parts=self._begun)
        context = JobContext(settings, self.job, bus, self._files, self._clock)
        return DriverContext(self._job, context, self._control, listeners)

    def _begun(self, parts: JobGroup) -> None:
        self._parts, self._is_following = parts, False
        if self._listeners.on_parts is not None:
            self._listeners.on_parts(parts)

    def _take_role(self, drives: bool) -> None:
        self._is_following = not drives
        if not drives:
            self._parts = None
        if self._on_role is not None:
            self._on_role(drives)

    def __repr__(self) -> str:
        """Return the name of the job, and what it does."""
        state = self.state
        epoch = "" if state is None else f", epoch {state.epoch:,}"
        return f"<job {self.job!r}: {self.status}{epoch}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def status(self) -> Status:
        """What the job does in this process; ``following``: it runs slots for another process."""
        if self._over.is_set():
            if self._result is None:
                return "failed"
            return "ended" if self._result.state.ended else "stopped"
        if self._control.stop.is_set():
            return "stopping"
        if self._is_following:
            return "following"
        if self._parts is None:
            return "starting"
        return "paused" if self._control.is_paused else "running"

    @property
    def state(self) -> JobState | None:
        """The job's state after its last epoch; ``None``: there is none yet."""
        if self._result is not None:
            return self._result.state
        if self._parts is not None:
            return self._parts.state
        root = newest_storage(self.settings, self.job)
        if not self._files.exists(root / "manifests"):
            return None
        with suppress(HeadraceError):  # the driver has just begun, or prunes
            return load_state(FileCommitLog(root, Files(sync=False)))
        return None

    def pause(self) -> None:
        """Begin no more epochs until ``resume``; pauses only what this process drives."""
        self._control.paused.set()

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._control.paused.clear()

    def finish(self) -> None:
        """Read the inputs to their current ends, close all windows, and end."""
        self._control.paused.clear()
        self._control.finish.set()

    def stop(self, timeout: float | None = None) -> RunResult:
        """End the current epoch and the run; nothing is lost. You can call it twice.

        Raises:
            HeadraceError: as of ``wait``.
            TimeoutError: it takes longer.
        """
        self._control.stop.set()
        return self.wait(timeout)

    def wait(self, timeout: float | None = None) -> RunResult:
        """Return once the run is over.

        Args:
            timeout: seconds; ``None``: no limit.

        Raises:
            HeadraceError: what the run failed with.
            TimeoutError: it is not over by then; it continues.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"job {self.job!r} is not over after {timeout} s; it continues")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def __enter__(self) -> Running:
        """Run the job for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the job; an error of its own is raised unless the block has one."""
        if error is None:
            self.stop()
            return
        self._control.stop.set()
        self._over.wait()


def start(
    job: Job,
    settings: Settings | Mapping[str, object] | None = None,
    *,
    home: Path | str | None = None,
    join: bool = False,
    on_epoch: Callable[[EpochSummary], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Running:
    """Start to run a job in this process, without Spark, and return at once.

    Args:
        job: made by ``headrace.job``.
        settings: by key, such as ``{"job.bounded": True}``, which override the environment and
            the nearest ``headrace.toml``; or a ``Settings`` object.
        home: folder of bus, jobs and state; as the setting.
        join: share the job with other processes: one drives, all run its tasks.
        on_epoch: called after each epoch that this process drives, from a thread of the run.
        on_notice: called from any thread with a line when something is wrong although the job
            continues, or when processes join and leave.

    Raises:
        InvalidInputError: a setting or the job's name is invalid. Errors of the job itself are
            raised by ``wait`` and ``stop``.
    """
    listeners = RunListeners(on_epoch=on_epoch, on_notice=on_notice)
    return Running(_checked(job), _read(settings, home), join=join, listeners=listeners)


def run(
    job: Job,
    settings: Settings | Mapping[str, object] | None = None,
    *,
    home: Path | str | None = None,
    join: bool = False,
    on_epoch: Callable[[EpochSummary], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> RunResult:
    """Run a job in this process, without Spark, until it ends, is stopped, or fails.

    In the main thread, the first SIGINT or SIGTERM ends the current epoch and returns, with
    ``interrupted``; nothing is lost.

    Args:
        job: made by ``headrace.job``.
        settings: as for ``start``.
        home: as for ``start``.
        join: as for ``start``.
        on_epoch: called after each epoch that this process drives.
        on_notice: as for ``start``.

    Raises:
        NotOwnerError: another driver runs the job.
        InvalidInputError: the job, its settings or its data are invalid.
        HeadraceError: errors of other kinds.
    """
    control = JobControl()
    listeners = RunListeners(on_epoch=on_epoch, on_notice=on_notice)
    with stop_on_signals(control):
        return Running(
            _checked(job), _read(settings, home), join=join, control=control, listeners=listeners
        ).wait()


def _checked(job: object) -> Job:
    if not isinstance(job, Job):
        raise InvalidInputError(
            f"expected a job, a function under @headrace.job(name); found {job!r:.80}"
        )
    return job


def _read(settings: Settings | Mapping[str, object] | None, home: Path | str | None) -> Settings:
    own = {} if home is None else {"home": home}
    if isinstance(settings, Settings):
        return settings if home is None else replace(settings, home=Path(home).absolute())
    if not isinstance(settings, Mapping | None):
        raise InvalidInputError(
            f"expected settings by key, as {{'job.slots': 2}}; found {settings!r:.80}"
        )
    given = {**(settings or {}), **own}
    overrides = [f"{key}={_text(value)}" for key, value in given.items()]
    return load_settings(None, overrides, project=project_file())


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else value
