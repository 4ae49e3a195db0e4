"""State for PySpark pipelines: a DataFrame in, a DataFrame out, a job of Headrace between.

A batch DataFrame is run through a bounded job at once. A streaming one feeds a job that runs in
this process beside the caller's queries; what it sends is a stream, and that is the DataFrame which
the caller gets. The job's manifests and Spark's checkpoint make each row count once in the state,
the checkpoint of the caller's own query each result once in what that writes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.bus.address import open_bus
from headrace.clock import Deadline, SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.builder import Graph
from headrace.graph.durations import Duration
from headrace.graph.frames import frame_stream
from headrace.graph.jobs import Job
from headrace.graph.types import to_schema
from headrace.graph.window_makers import global_window
from headrace.graph.windows import Window
from headrace.spark.frames.following import FAILED, answer_name, asked
from headrace.spark.frames.source import NAME
from headrace.spark.notebook import register_source
from headrace.spark.run import run_job

ROWS = "rows"
FOLDER = "stateful"
START_S = 120.0
_BY_CLOCK, _WAITS = "Rate", "Waiting for data to arrive"
POLL_S = 0.05

_running: dict[str, _Running] = {}


def stateful(  # noqa: PLR0913 - each is a knob of its own, by name
    df: DataFrame,
    key: str | Sequence[str],
    process: Callable[[], Any] | None = None,
    *,
    aggregate: Mapping[str, Any] | None = None,
    window: Window | None = None,
    stores: Any = (),
    returns: Any = None,
    time: str | None = None,
    lateness: Duration = "0s",
    name: str | None = None,
    home: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
) -> DataFrame:
    """Run a class of yours, or aggregates, over the rows of each key of a DataFrame.

    Takes the place of ``applyInPandasWithState`` and ``transformWithState``. Of a batch DataFrame
    it returns the results when they are there. Of a streaming one it starts a job in this
    process, and returns a streaming DataFrame of its results, for a ``writeStream`` of yours. The
    job runs until ``stop(name)`` or the end of the process; called again with the same ``name`` and
    ``home``, it goes on where it was.

    Args:
        df: batch or streaming.
        key: columns; the state is by their values.
        process: a class as ``Stream.process`` takes it, or a function that makes one.
        aggregate: aggregates by the name of their column, instead of ``process``; in the end of a
            batch DataFrame, after each row of a streaming one, or for each ``window``.
        window: of the aggregates, such as ``hr.tumbling("1h")``.
        stores: of the class, as for ``Stream.process``.
        returns: columns of what the class emits.
        time: the event-time column, for windows and timers.
        lateness: how far out of order rows are.
        name: of the job; a streaming DataFrame needs one, for its state is kept by it.
        home: folder of state and results; by default that of the settings, or of a batch
            DataFrame a new one, removed at the end of the process.
        settings: more settings of the job, such as ``["job.tasks=8"]``.

    Raises:
        InvalidInputError: neither or both of ``process`` and ``aggregate``, or what goes with the
            other; no name; the job is at fault.
        HeadraceError: what the job failed with.
    """
    if (process is None) == (aggregate is None):
        raise InvalidInputError("stateful takes one of process= and aggregate=; give the other up")
    if process is not None and window is not None:
        raise InvalidInputError("window= goes with aggregate=; found process=")
    if aggregate is not None and (returns is not None or stores):
        raise InvalidInputError("returns= and stores= go with process=; found aggregate=")
    if df.isStreaming and name is None:
        raise InvalidInputError(
            "stateful of a streaming DataFrame keeps its state by name; give name="
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    chosen = name or f"stateful-{SystemClock().new_id()}"
    folder = _temporary() if home is None and not df.isStreaming else home

    def graph(g: Graph) -> None:
        rows = g.input_dataframe(ROWS, lambda spark: df, time=time, lateness=lateness)
        keyed = rows.partition_by(*keys)
        if process is not None:
            found = keyed.process(process, stores=stores, returns=returns, name="process")
        elif window is not None:
            found = keyed.window(window, name="window", **aggregate or {})
        elif df.isStreaming:
            found = keyed.aggregate(name="totals", **aggregate or {})
        else:
            found = keyed.window(global_window(), name="totals", **aggregate or {})
            found = found.map(*keys, *(aggregate or {}), name="shown")
        found.send_to(g.output(f"{chosen}.results"))

    if process is not None:
        to_schema(returns)
        graph.__module__ = getattr(process, "__module__", graph.__module__)
    sets = [*([] if folder is None else [f"home={Path(folder).absolute()}"]), *settings]
    session = df.sparkSession
    register_source(session)
    if df.isStreaming:
        found = load_settings(None, sets, dict(os.environ))
        return _started(session, Job(chosen, graph), found)
    found = load_settings(None, [*sets, "job.bounded=true"], dict(os.environ))
    run_job(Job(chosen, graph), found)
    return _results(session.read, chosen, found)


def stop(name: str | None = None) -> None:
    """Stop the job of a streaming ``stateful``, or all; each ends its epoch, and can go on later.

    Args:
        name: of the job; all when left out.

    Raises:
        InvalidInputError: none of that name runs.
    """
    if name is not None and name not in _running:
        raise InvalidInputError(f"no job {name!r} is running here; found {sorted(_running)}")
    for one in [name] if name is not None else list(_running):
        _running.pop(one).stop()


def _results(reader: Any, job: str, settings: Settings, **options: str) -> DataFrame:
    stream = f"{job}.results"
    with open_bus(settings.bus_dir) as bus:
        columns = ",".join(bus.stream(stream).spec.schema.names)
    reader = reader.format(NAME).option("home", str(settings.home)).option("columns", columns)
    found: DataFrame = reader.options(**options).load(stream)
    return found


@dataclass
class _Running:
    """A job that runs beside the caller's queries, in a thread."""

    session: SparkSession
    job: Job
    settings: Settings
    control: Control = field(default_factory=Control)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.folder = self.settings.home / "spark" / FOLDER / self.job.name
        self._parts: JoinedParts | None = None
        self._seen: Any = None
        self._has_begun, self._over = threading.Event(), threading.Event()
        self._files, self._clock = Files(sync=False), SystemClock()
        name = f"headrace {self.job.name}"
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True),
            threading.Thread(target=self._answer, name=f"{name} answers", daemon=True),
        ]

    def start(self) -> None:
        """Start the job; return once its results can be read.

        Raises:
            HeadraceError: what it failed with before that.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for thread in self._threads:
            thread.start()
        deadline = Deadline(self._clock, START_S)
        while not self._has_begun.wait(POLL_S):
            if self.failure is not None:
                raise self.failure
            if deadline.expired:
                raise UnavailableError(f"job {self.job.name!r} has not begun in {START_S:.0f} s")

    def stop(self) -> None:
        """Stop the job after its epoch."""
        self.control.stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        def on_parts(parts: JoinedParts) -> None:
            self._parts, self._seen = parts, parts.state
            self._has_begun.set()

        def on_epoch(summary: Any) -> None:
            del summary
            assert self._parts is not None
            self._seen = self._parts.state

        try:
            run_job(
                self.job,
                self.settings,
                control=self.control,
                on_parts=on_parts,
                on_epoch=on_epoch,
            )
        except BaseException as error:  # noqa: BLE001 - told to who waits, and to the query
            self.failure = error
            text = f"job {self.job.name!r} failed: {error}"
            self._files.replace(self.folder / FAILED, text.encode(), self._clock.new_id())
        finally:
            self._over.set()

    def _answer(self) -> None:
        """Tell queries that ask when what there was for the job by then has been taken in."""
        while not self._over.wait(POLL_S):
            for question in asked(self._files, self.folder):
                with suppress(PySparkException):  # the job ends by it, and says so
                    if self._has_taken_in():
                        path = self.folder / answer_name(question)
                        self._files.replace(path, b"", self._clock.new_id())

    def _has_taken_in(self) -> bool:
        stream = frame_stream(self.job.name, ROWS)
        for query in self.session.streams.active:
            if query.name == f"headrace {stream}":
                self._drain(query)
        assert self._parts is not None
        ends = self._parts.bus.stream(stream).ends()
        while not self._over.wait(POLL_S):
            held = self._seen.inputs.get(ROWS, {})
            if all(p in held and held[p].next_offset >= end for p, end in enumerate(ends)):
                return True
        return False

    def _drain(self, query: StreamingQuery) -> None:
        """Return when the query has handed over the rows that there are now.

        Spark's own way waits until there are no more, which of a source that makes rows by the
        clock is never. Of that one the batch that begins after the one under way is enough.
        """
        first: int | None = None
        while query.isActive and not self._over.is_set():
            progress = query.lastProgress
            if progress is None:
                if query.status["message"] != _WAITS:
                    self._over.wait(POLL_S)
                    continue
            elif any(str(one["description"]).startswith(_BY_CLOCK) for one in progress["sources"]):
                first = progress["batchId"] if first is None else first
                if progress["batchId"] >= first + 2:
                    return
                self._over.wait(POLL_S)
                continue
            query.processAllAvailable()
            return


def _started(session: SparkSession, job: Job, settings: Settings) -> DataFrame:
    if job.name in _running:
        stop(job.name)
    if not _running:
        atexit.register(_stop_all)
    running = _Running(session, job, settings)
    _running[job.name] = running
    try:
        running.start()
    except BaseException:
        _running.pop(job.name, None)
        raise
    return _results(session.readStream, job.name, settings, follows=str(running.folder))


def _stop_all() -> None:
    atexit.unregister(_stop_all)
    with suppress(HeadraceError):
        stop()


def _temporary() -> str:
    """Return a folder that goes with the process."""
    folder = tempfile.mkdtemp(prefix="headrace-stateful-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
