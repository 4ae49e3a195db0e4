"""What is done to the job of a test driver beside its epochs: set back, rescaled, saved, removed.

Each call is made as by a command on a job that nobody drives, unless it says otherwise; the driver
of the test finds out when it goes on, as any older driver does.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from tests.support.homes import Home

import headrace as hr
from headrace.bus import Bus, Stream
from headrace.cli.jobs.versions import MergeOutcome, merge_into, sink_line
from headrace.cli.run.commands import start_from_savepoint as _begin_by_word
from headrace.cli.run.commands import with_own_outputs as _with_own_outputs
from headrace.clock import SystemClock
from headrace.config.inputs import read_inputs
from headrace.control.job_handle import RunningHandle, stopped_job
from headrace.coordinator.bounded_runs import begin_bounded_run, conclude_bounded_run
from headrace.coordinator.commands import Rescale
from headrace.coordinator.commit_log import newest_base as _newest_base
from headrace.coordinator.inputs import create_outputs
from headrace.coordinator.inspection.job_reader import JobReader, part_readers
from headrace.coordinator.internal_streams import create_internal_streams
from headrace.coordinator.job_storage import DriverLock, JobContext
from headrace.coordinator.manifest import JobState
from headrace.coordinator.operations.compare import compare_streams, part_count
from headrace.coordinator.operations.merge import (
    MergeFunction,
    MergeResult,
    SinkBackfill,
    SinkBackfillResult,
    choose_rows,
    live_wins,
)
from headrace.coordinator.operations.paired_jobs import check_unused as _check_unused
from headrace.coordinator.operations.paired_jobs import is_half_merged as _is_half_merged
from headrace.coordinator.operations.paired_jobs import partition_alike
from headrace.coordinator.operations.recorder import Recorder
from headrace.coordinator.operations.reset import (
    check_one_part,
    own_inputs,
    remove_job,
    reset_parts,
    storages_of,
)
from headrace.coordinator.operations.rewind import (
    StartOffsets,
    check_not_half,
    check_readable,
    current_identities,
    rewind_job,
    state_at_epoch,
    without_state,
)
from headrace.coordinator.operations.rewind import accept_streams as _accept_streams
from headrace.coordinator.operations.rewind import epoch_at as _epoch_at
from headrace.coordinator.operations.savepoint_format import (
    MANIFEST,
    Savepoint,
    list_savepoints,
    read_savepoint,
    savepoints_dir,
)
from headrace.coordinator.operations.savepoint_format import (
    delete_savepoint as _delete_savepoint,
)
from headrace.coordinator.operations.savepoint_writer import (
    AskPart,
    save_job,
)
from headrace.coordinator.outputs import CONFIRMED_FILE, check_sinks_confirmed
from headrace.coordinator.plan_files import SECRETS
from headrace.coordinator.plan_files import forget_secrets as _forget_secrets
from headrace.coordinator.rescale import setting_notice
from headrace.coordinator.savepoint_restore import SavepointRestore
from headrace.errors import NotOwnerError
from headrace.files import TRASH, Files
from headrace.plan.stages import SinkBinding, job_of
from headrace.records.keys import decode_key
from headrace.testing import TestDriver

__all__ = [
    "CONFIRMED_FILE",
    "FILES",
    "HOLD",
    "MANIFEST",
    "JobReader",
    "JobState",
    "MergeFunction",
    "MergeOutcome",
    "MergeResult",
    "Savepoint",
    "SinkBackfillResult",
    "StartOffsets",
    "accept_streams",
    "backfilled",
    "begin_beside",
    "begin_by_word",
    "begin_from",
    "begin_next_run",
    "check_unused",
    "choose_rows",
    "compare_streams",
    "conclude_run",
    "delete_savepoint",
    "entries_at",
    "epoch_at",
    "forget_secrets",
    "forget_streams",
    "given",
    "is_half_merged",
    "leave_secrets",
    "lock_holder",
    "locked",
    "make_streams",
    "merge_run",
    "merged",
    "newest_base",
    "part_count",
    "part_reader",
    "read_savepoint",
    "readers",
    "record",
    "remove",
    "rescale",
    "rescale_notice",
    "reset",
    "rewind",
    "save",
    "save_running",
    "savepoint_names",
    "savepoints",
    "seize",
    "sends_keys_alike",
    "sink_line",
    "state_at",
    "storages",
    "trash",
    "unconfirmed",
    "with_inputs",
    "with_own_outputs",
    "with_settings",
]

FILES = Files(sync=False)


def with_settings(driver: TestDriver, section: str, **values: Any) -> None:
    """Change settings of a section, such as ``job``, from the next start of the driver on."""
    part = replace(getattr(driver.settings, section), **values)
    driver.settings = replace(driver.settings, **{section: part})


def with_inputs(driver: TestDriver, **inputs: Mapping[str, Any]) -> None:
    """Say what stands for the streams that are read, as the tables ``[inputs.NAME]`` do."""
    driver.settings = replace(driver.settings, inputs=read_inputs(inputs))


def context_of(driver: TestDriver, bus: Bus | None = None) -> JobContext:
    """Return what is needed to do something to the job.

    Args:
        driver: of the job.
        bus: as another process opened it; the driver's own when left out.
    """
    return JobContext(driver.settings, driver.job.name, bus or driver.bus, FILES, driver.clock)


def readers(driver: TestDriver) -> list[JobReader]:
    """Return what reads the committed epochs of each part, the first part's first."""
    return part_readers(driver.settings, driver.job.name)


def part_reader(driver: TestDriver, job: str) -> JobReader:
    """Return what reads the committed epochs of one part by its name, also of a replay."""
    return JobReader(driver.settings.jobs_dir / job, job, FILES)


def state_at(driver: TestDriver, epoch: int | None = None) -> JobState:
    """Return the state of the first part after an epoch that is kept; the newest by default."""
    return readers(driver)[0].state(epoch)


def entries_at(driver: TestDriver, store: str, epoch: int | None = None) -> dict[Any, Any]:
    """Return a processor's store after an epoch that is kept, by the first column of its key."""
    view = readers(driver)[0].view(store, epoch)
    return {decode_key(k[2:])[0]: msgspec.msgpack.decode(v) for _, k, v in view.stream()}


def newest_base(driver: TestDriver, epoch: int) -> int | None:
    """Return the newest epoch up to another whose manifest is whole by itself."""
    return _newest_base(readers(driver)[0].log, epoch)


def epoch_at(driver: TestDriver, time_ms: int) -> int:
    """Return the last kept epoch of the first part that was committed at or before a time."""
    return _epoch_at(readers(driver)[0], time_ms)


def unconfirmed(driver: TestDriver) -> None:
    """Refuse a job of which a sink has not confirmed the newest epoch, as commands do.

    Raises:
        InvalidInputError: one has not.
    """
    check_sinks_confirmed(state_at(driver), driver.storage)


def _set_back(
    driver: TestDriver,
    choose: Callable[[JobState, JobReader], JobState],
    bus: Bus | None = None,
) -> JobState:
    parts, context = {reader.root: reader for reader in readers(driver)}, context_of(driver, bus)
    return reset_parts(context, parts, choose)


def reset(
    driver: TestDriver,
    offsets: Mapping[str, Sequence[int]] | None = None,
    bus: Bus | None = None,
) -> JobState:
    """Drop the state, and read from the begin of all inputs or from these offsets of some.

    Args:
        driver: of the job.
        offsets: by input operator.
        bus: as another process opened it; the driver's own when left out.
    """

    def choose(state: JobState, reader: JobReader) -> JobState:
        begins = {name: [0] * len(held) for name, held in own_inputs(state, reader).inputs.items()}
        begins |= {name: list(given) for name, given in (offsets or {}).items() if name in begins}
        streams = reader.catalog(state).inputs
        identities = current_identities(own_inputs(state, reader), streams, bus or driver.bus)
        return without_state(state, begins, driver.clock.new_id(), identities)

    return _set_back(driver, choose, bus)


def forget_streams(driver: TestDriver) -> None:
    """Let the state be as one of a version that did not know which streams it has read."""
    rewind_job(
        context_of(driver),
        readers(driver)[0].root,
        lambda state: msgspec.structs.replace(state, identities={}),
    )


def accept_streams(driver: TestDriver, start: StartOffsets) -> dict[str, list[int]]:
    """Go on in streams that were created again, as ``headrace jobs accept-streams``."""
    found = {reader.root: reader for reader in readers(driver)}
    return _accept_streams(context_of(driver), found, start)


def rewind(driver: TestDriver, epoch: int) -> JobState:
    """Go back to an epoch that is kept."""
    parts = readers(driver)
    check_one_part(parts)
    reader, target = parts[0], parts[0].state(epoch)
    check_not_half(reader, epoch)
    catalog = reader.catalog(target)
    check_readable(target, catalog.inputs, driver.bus)
    context = context_of(driver)
    return rewind_job(
        context,
        reader.root,
        lambda state: state_at_epoch(state, target, driver.clock.new_id()),
    )


def rescale(driver: TestDriver, tasks: int, stage: str | None = None) -> JobState:
    """Give a job of one part that nobody drives another number of tasks."""
    parts = {driver.storage: readers(driver)[0].state()}
    stopped_job(context_of(driver), parts).ask(Rescale(tasks, stage or ""), 0)
    return readers(driver)[0].state()


def rescale_notice(driver: TestDriver, tasks: int) -> str | None:
    """Return what a driver says at its start of a setting of so many tasks, if anything."""
    return setting_notice(driver.start().state, tasks)


def remove(driver: TestDriver) -> list[Path]:
    """Delete the job; returns the folders that are gone."""
    return remove_job(context_of(driver))


def storages(driver: TestDriver) -> list[Path]:
    """Return the folders that hold epochs of the job."""
    return storages_of(driver.settings, driver.job.name)


def make_streams(part: Any, bus: Bus | None = None) -> None:
    """Make the output and internal streams of a part, as its driver does when it begins."""
    create_internal_streams(part._plan, bus or part.bus)
    create_outputs(part._plan, bus or part.bus)


def trash(driver: TestDriver) -> list[Path]:
    """Return what a deletion that died has left in the home."""
    return list(driver.home.glob(f"**/{TRASH}*"))


def begin_next_run(driver: TestDriver) -> JobState | None:
    """Begin the next run of a bounded job, as ``headrace run --bounded``; ``None``: one goes on."""
    driver.crash()
    return begin_bounded_run(context_of(driver))


def conclude_run(driver: TestDriver) -> None:
    """Note that the run is over, as ``headrace run --bounded`` does at its end."""
    driving = driver.coordinator
    conclude_bounded_run(driver.storage, driving.state, driving.files)


def leave_secrets(driver: TestDriver) -> Path:
    """Put a file where the passwords of a job are, as the driver of this process writes it."""
    path = driver.storage / SECRETS
    who = f"{os.uname().nodename}/{os.getpid()}"
    path.write_bytes(msgspec.json.encode({"by": who, "key": "00", "values": {}}))
    return path


def forget_secrets(driver: TestDriver) -> None:
    """Remove the passwords of the job, as a driver that ends."""
    _forget_secrets(driver.storage, driver.coordinator.files)


def record(
    driver: TestDriver,
    path: Path,
    epoch: int | None = None,
    tasks: tuple[str, ...] = (),
    job: str | None = None,
) -> Any:
    """Record an epoch for ``TestDriver.replay``, as ``headrace jobs replay``; of a part by name."""
    found = part_readers(driver.settings, job_of(job or driver.job.name))
    parts = sorted(found, key=lambda one: one.job != (job or driver.job.name))
    recorder = Recorder(parts[0], driver.bus, driver.settings, driver.clock, parts)
    return recorder.record(path, epoch, tasks)[0]


def savepoints(driver: TestDriver) -> Path:
    """Return the folder that ``save`` writes to; the job's own where its storage is a bucket."""
    if driver.settings.storage.address:
        return savepoints_dir(driver.settings, "world")
    return driver.home / "saved"


def savepoint_names(driver: TestDriver) -> list[str]:
    """Return the names of the savepoints that are there and whole."""
    return [one.path.name for one in list_savepoints(savepoints(driver))]


def delete_savepoint(driver: TestDriver, name: str) -> None:
    """Delete a savepoint, as ``headrace jobs savepoints JOB --delete NAME``."""
    _delete_savepoint(savepoints(driver), name, FILES)


def _write(driver: TestDriver, name: str, ask: AskPart, folder: Path | None = None) -> Savepoint:
    return save_job(context_of(driver), ask, name, 30.0, folder or savepoints(driver))[1]


def save(driver: TestDriver, name: str = "s", folder: Path | None = None) -> Savepoint:
    """Make a savepoint of a job that nobody drives: whoever did has crashed."""
    driver.crash()
    parts = {reader.root: reader.state() for reader in readers(driver)}
    return _write(driver, name, stopped_job(context_of(driver), parts).ask_part, folder)


def save_running(driver: TestDriver, name: str = "s", step: Callable[[], object] = int) -> None:
    """Make a savepoint of a job while its driver goes on, which does a step after each look."""
    parts, made = driver.parts, list[Savepoint]()

    def ask() -> None:
        states = {reader.root: reader.state() for reader in readers(driver)}
        job = driver.job.name
        handle = RunningHandle(driver.settings, job, states, FILES, SystemClock())
        made.append(_write(driver, name, handle.ask_part))

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        for part in parts:
            with suppress(NotOwnerError):  # then whoever took over answers, in a step
                part.serve_requests()
        step()
        asking.join(0.001)
    assert made


def begin_from(
    driver: TestDriver,
    name: str = "s",
    job: str = "other",
    folder: Path | None = None,
    **changes: object,
) -> None:
    """Let the driver go on with a job of another name from a savepoint, with other job settings."""
    driver.crash()
    driver.job = dataclasses.replace(driver.job, name=job)
    with_settings(driver, "job", **changes)
    beginning = SavepointRestore(driver.job.build(), context_of(driver))
    beginning.begin((folder or savepoints(driver)) / name)


def begin_beside(world: Home, job: hr.Job, word: str, *sets: str) -> str:
    """Begin a job from a savepoint, under the name ``other``; return the line about that."""
    other = dataclasses.replace(job, name="other")
    return _begin_by_word(word, job.name, other, world.settings(*sets), world.bus, SystemClock())


def begin_by_word(driver: TestDriver, word: str, job: str) -> str:
    """Begin the job of a driver from a savepoint of another, as ``run --from-savepoint``."""
    return _begin_by_word(word, job, driver.job, driver.settings, driver.bus, driver.clock)


def backfilled(
    driver: TestDriver, inputs: Mapping[str, Mapping[str, Any]] | None = None, **options: Any
) -> str:
    """Run the job over old data beside itself, as ``headrace backfill``, to its end.

    Args:
        driver: of the live job, which is stopped; its streams are files.
        inputs: which range of them is old.
        options: of the driver of the run.

    Returns:
        The name of the run, for ``merged``.
    """
    driver.crash()
    beside = dataclasses.replace(driver.job, name=f"{driver.job.name}-backfill", apart="backfill")
    options = {"tasks": 2, "memory_bus": False, "inputs": inputs, **options}
    with TestDriver(beside, home=driver.home, **options) as run:
        run.finish()
        return run.coordinator.state.lineage


def merged(driver: TestDriver, run: str, output: str, by: MergeFunction = live_wins) -> MergeResult:
    """Merge the results of a run over old data into an output of the live job."""
    with choose_rows(driver.bus, output, (output, f"{output}.backfill"), run, by) as chosen:
        return chosen.append()


def sends_keys_alike(driver: TestDriver, other: str) -> bool:
    """Say whether another job of the home sends each key to the partition that this one does."""
    return partition_alike(context_of(driver), other)


def is_half_merged(driver: TestDriver, run: str) -> bool:
    """Say whether a merge of a run over old data was begun and is not complete."""
    return _is_half_merged(driver.settings, run)


def check_unused(driver: TestDriver, job: str, outputs: Sequence[str]) -> None:
    """Refuse to begin a job beside another whose outputs hold rows that are not its own.

    Raises:
        InvalidInputError: one does.
    """
    _check_unused(driver.settings, job, outputs, driver.bus)


def given(
    stream: Stream, sink: Any, schema: pa.Schema, by: MergeFunction | None = None
) -> SinkBackfillResult:
    """Give a sink what a run over old data has kept for it in a stream."""
    parts = part_count(stream)
    binding = SinkBinding("out", sink, schema)
    with SinkBackfill(stream, binding, "shop", "run", parts, SystemClock(), by) as giving:
        return giving.give()


def merge_run(
    code: hr.Job | None,
    home: Path,
    job: str | None = None,
    key: Sequence[str] = (),
    wait_s: float = 10.0,
    **more: Any,
) -> MergeOutcome:
    """Merge what a run over old data has sent into a live job, as ``headrace jobs merge``.

    Args:
        code: the live job, whose merge function chooses, and whose sinks take rows; may be left
            out where the job is named.
        home: of both.
        job: the name of the live job, where it is not that of ``code``; that of the run ends with
            ``-backfill``.
        key: columns that tell rows apart; the streams' own when left out.
        wait_s: for the epoch under way of a live driver.
        more: ``config`` and ``overrides``, as of the command.
    """
    name = job or (code.name if code is not None else "")
    words = (name, f"{name}-backfill", code, key, wait_s, home, SystemClock())
    return merge_into(*words, **more)


def with_own_outputs(driver: TestDriver, job: hr.Job, apart: str | None) -> hr.Job:
    """Return a job that sends to outputs of its own beside those of a live one, as a version."""
    return _with_own_outputs(job, apart, driver.settings)


HOLD = """
import signal, sys

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before libraries begin threads
from pathlib import Path
from headrace.coordinator.job_storage import DriverLock

with DriverLock(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    signal.sigwait([signal.SIGTERM])
"""


@contextmanager
def lock_holder(driver: TestDriver) -> Iterator[subprocess.Popen[str]]:
    """Start a process that stands for a driver: it has the lock, and drops it on SIGTERM."""
    words = [sys.executable, "-c", HOLD, str(driver.storage), driver.job.name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


@contextmanager
def locked(driver: TestDriver, *, real_clock: bool = False) -> Iterator[None]:
    """Hold the lock of the job's driver, as one that runs on this host does."""
    clock = SystemClock() if real_clock else driver.clock
    with DriverLock(driver.storage, driver.job.name, clock):
        yield


def seize(driver: TestDriver) -> None:
    """Take the lock of the job from a command of this host that is frozen, as a takeover does."""
    DriverLock(driver.storage, driver.job.name, driver.clock, seize=True).release()
