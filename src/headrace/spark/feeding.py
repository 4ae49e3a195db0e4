"""Appends what Spark DataFrames have to the internal streams of a job's inputs.

Of a batch DataFrame all rows are one write, which is done once in a run of the job. Of a streaming
one each batch is a write under the query's identity and the number of the batch, so that Spark's
checkpoint, which is in the job's storage, decides what was read, and a batch that Spark replays is
appended once.

What belongs to which run of the job is noted beside the checkpoint: the first start of a run begins
with an empty stream and without a checkpoint.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.deploy import Deployment
from headrace.coordinator.failures import slot_error
from headrace.coordinator.history import load_state
from headrace.coordinator.loop import Control
from headrace.coordinator.manifest import JobState
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.frames import FRAME_FOLDER, FRAME_NOTE, FrameSource
from headrace.graph.operators import Input, JobGraph
from headrace.sources.sourced import not_the_same
from headrace.spark.frames.columns import arrow_schema
from headrace.spark.frames.options import Place
from headrace.spark.frames.settled import settled_frame
from headrace.spark.frames.staging import Committer, Part, Stager, Write
from headrace.spark.frames.writing import QUERY, query_write
from headrace.spark.runner import first_line
from headrace.task.failures import describe_failure
from headrace.task.orders import SlotFailure, SlotReport

POLL_S = 0.2
TRIM_S = 10.0
_OF_SPARK = (PySparkException, Py4JJavaError)


def frame_inputs(graph: JobGraph) -> list[Input]:
    """Return the inputs of a graph that are DataFrames."""
    return [one for one in graph.operators if isinstance(one, Input) and one.frame is not None]


@dataclass
class FrameFeeds:
    """The DataFrames that feed a job, as long as its driver runs.

    Args:
        session: of Spark.
        graph: of the job.
        bus: the streams.
        settings: of the run.
        root: of the job's storage.
    """

    session: SparkSession
    graph: JobGraph
    bus: Bus
    settings: Settings
    root: Path
    files: Files = field(default_factory=Files)
    clock: SystemClock = field(default_factory=SystemClock)
    _made: list[Feed] = field(default_factory=list)
    _streaming: list[Feed] = field(default_factory=list)

    def make(self) -> None:
        """Let functions and settings make the DataFrames, before anything of the last run goes.

        Raises:
            InvalidInputError: a function that returns no DataFrame; or settings that cannot be.
            UnavailableError: what one is read from does not answer, or lacks a package.
        """
        self._made = [Feed.of(self, operator) for operator in frame_inputs(self.graph)]

    def fill(self) -> None:
        """Make the internal streams, and append what batch DataFrames have; all, when bounded.

        Call under the driver's lock, once the DataFrames are made and the run of the job has begun,
        before it is planned.

        Raises:
            InvalidInputError: a DataFrame of other columns than before, or another one.
            UnavailableError: Spark could not read a DataFrame.
        """
        state = load_state(FileCommitLog(self.root, Files(sync=False), self.clock))
        is_ending = state is not None and state.until is not None
        for feed in self._made:
            feed.prepare(state)
            if is_ending:  # where the inputs end is known, and all of it is there
                continue
            if not feed.frame.isStreaming:
                feed.append_once()
            elif self.settings.job.bounded:
                with suppress(PySparkException):  # which check tells of
                    feed.start(is_bounded=True).awaitTermination()
                feed.check()
            else:
                self._streaming.append(feed)

    @contextmanager
    def running(self, control: Control, deployed: Sequence[Deployment]) -> Iterator[None]:
        """Let streaming DataFrames feed the job meanwhile; one that fails stops it.

        Raises:
            HeadraceError: what a query failed with.
        """
        if not self._streaming:
            yield
            return
        for feed in self._streaming:
            feed.start(is_bounded=False)
        over = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(control, deployed, over), name="headrace-frames", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            for feed in self._streaming:
                feed.stop()
        for feed in self._streaming:
            feed.check()

    def _watch(
        self, control: Control, deployed: Sequence[Deployment], over: threading.Event
    ) -> None:
        trimmed = self.clock.monotonic()
        while not over.wait(POLL_S):
            if not all(feed.is_running for feed in self._streaming):
                control.stop.set()
                return
            if self.clock.monotonic() - trimmed >= TRIM_S:
                for feed in self._streaming:
                    feed.trim(deployed)
                trimmed = self.clock.monotonic()


@dataclass
class Feed:
    """One DataFrame and the internal stream that it goes to."""

    feeds: FrameFeeds
    operator: Input
    source: FrameSource
    frame: DataFrame
    query: StreamingQuery | None = None
    failure: Exception | None = None
    birth: str = ""

    @classmethod
    def of(cls, feeds: FrameFeeds, operator: Input) -> Feed:
        """Let the user's function, or the settings, make the DataFrame.

        Raises:
            InvalidInputError: it returns another thing, or columns that no stream can have; or as
                of ``settled_frame``.
            UnavailableError: the same.
        """
        source = operator.frame
        assert source is not None
        if source.instead is not None:
            frame = settled_frame(feeds.session, source.instead, operator.time, feeds.clock)
        else:
            assert source.make is not None
            frame = source.make(feeds.session)
        if not isinstance(frame, DataFrame):
            raise InvalidInputError(
                f"input_dataframe {operator.name!r}: its function returned a "
                f"{type(frame).__name__}; expected a Spark DataFrame"
            )
        feed = cls(feeds, operator, source, frame)
        feed._spec()  # what it refuses is refused while the stream of the last run is there
        return feed

    @property
    def folder(self) -> Path:
        """Where the checkpoint and the note of the run are."""
        return self.feeds.root / FRAME_FOLDER / self.operator.name

    @property
    def place(self) -> Place:
        """The internal stream."""
        return Place(str(self.feeds.settings.home), self.operator.stream)

    def prepare(self, state: JobState | None) -> None:
        """Make the stream, empty at the first start of a run.

        1. Remove the checkpoint, the stream and what was staged for it. 2. Create the stream.
        3. Note the run. Whoever dies in between is followed by one that does it all again. After a
        reset, whose positions are in the stream, it stays.

        Raises:
            InvalidInputError: the DataFrame has other columns than before.
        """
        run = 1 if state is None else state.run
        noted, self.birth, said = self._noted()
        if said != self.said:
            self._check_same(state, said)
        bus, is_there = self.feeds.bus, self.operator.stream in self.feeds.bus.names()
        is_same = noted == run and said == self.said
        has_positions = state is not None and self.operator.name in state.inputs
        if not is_same and not (noted and is_there and has_positions and said == self.said):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.birth = ""
            if is_there:
                bus.remove(self.operator.stream)
        spec = self._spec()
        if self.operator.stream in bus.names():
            self._check_columns(spec)
        else:
            bus.create(spec)
        if not is_same:
            self.birth = self.birth or self.feeds.clock.new_id()
            self.folder.mkdir(parents=True, exist_ok=True)
            text = f"{run} {self.birth} {self.said}".encode()
            self.feeds.files.replace(self.folder / FRAME_NOTE, text, self.feeds.clock.new_id())

    @property
    def said(self) -> str:
        """What the settings say that it is; nothing where the code makes it."""
        return "" if self.source.instead is None else self.source.instead.given.text

    def _spec(self) -> StreamSpec:
        instead, partitions = self.source.instead, self.source.partitions
        wanted = None if instead is None else instead.columns
        return StreamSpec(
            self.operator.stream,
            partitions or self.feeds.settings.job.tasks,
            arrow_schema(self.frame.schema) if wanted is None else wanted,
            self.operator.time,
            self.source.key,
        )

    def _noted(self) -> tuple[int, str, str]:
        """Return the run that the stream is of, a name that only it has, and what was said."""
        if not (self.folder / FRAME_NOTE).exists():
            return 0, "", ""
        run, birth, *said = self.feeds.files.read(self.folder / FRAME_NOTE).decode().split(" ", 2)
        return int(run), birth, "".join(said)

    def _check_same(self, state: JobState | None, said: str) -> None:
        """Refuse another DataFrame where rows, or offsets, of the one before count.

        Raises:
            InvalidInputError: the job is in the middle of a run, or was reset to such offsets.
        """
        job, name = self.feeds.graph.name, self.operator.name
        if state is not None and state.fingerprint:
            held, asked = (one or "no Spark DataFrame of them" for one in (said, self.said))
            raise not_the_same(job, name, held, asked)
        begins = {} if state is None else state.inputs.get(name, {})
        if any(one.next_offset for one in begins.values()):
            raise InvalidInputError(
                f"job {job!r} was reset to offsets of input {name!r} as it was, and now it is "
                f"another: {self.said or 'a DataFrame of its code'}; begin without them: headrace "
                f"jobs delete {job}",
                job=job,
            )

    def _check_columns(self, wanted: StreamSpec) -> None:
        stream = self.feeds.bus.stream(self.operator.stream)
        if stream.spec.schema.equals(wanted.schema):
            return
        missing = [name for name in stream.spec.schema.names if name not in wanted.schema.names]
        if missing:
            raise InvalidInputError(
                f"input_dataframe {self.operator.name!r} has no columns {missing} any more, which "
                "the rows before it have; select them, as null where there is nothing",
                stream=self.operator.stream,
            )
        stream.evolve(wanted.schema)

    def append_once(self) -> None:
        """Append the rows of a batch DataFrame, unless this run of the job has them."""
        write = Write(self.place, f"frame {self.birth}")
        committer = Committer(write, self.feeds.files)
        if committer.is_recorded(0):
            committer.commit(0, [])
            return
        frame, time = self.frame, self.operator.time
        if time is not None and self.source.key:
            frame = frame.orderBy(time)  # tasks have ranges of time, and are appended in order
        elif time is not None:
            partitions = self.feeds.bus.stream(self.operator.stream).spec.partitions
            frame = frame.repartition(partitions).sortWithinPartitions(time)
        try:
            committer.commit(0, _stage(frame, write, 0))
        except _OF_SPARK as error:
            failure = self._told(error)
            raise failure from failure.__cause__

    def start(self, *, is_bounded: bool) -> StreamingQuery:
        """Start the query that appends a streaming DataFrame, batch by batch."""
        writer = self.frame.writeStream.foreachBatch(self._append_batch).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        if is_bounded:
            writer = writer.trigger(availableNow=True)
        try:
            self.query = writer.queryName(f"headrace {self.operator.stream}").start()
        except _OF_SPARK as error:
            failure = self._told(error)
            raise failure from failure.__cause__
        return self.query

    def _append_batch(self, frame: DataFrame, number: int) -> None:
        """Append one batch; called by Spark, in a thread of its own."""
        try:
            query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
            write = query_write(self.place, str(query))
            committer = Committer(write, self.feeds.files)
            if committer.is_recorded(number):
                committer.commit(number, [])
                return
            if self.operator.time is not None:
                frame = frame.sortWithinPartitions(self.operator.time)
            committer.commit(number, _stage(frame, write, number))
        except Exception as error:  # told by who waits; Spark would tell it in Java
            self.failure = error
            raise

    @property
    def is_running(self) -> bool:
        """Whether its query has not ended."""
        return self.query is not None and self.query.isActive

    def stop(self) -> None:
        """Stop the query; a batch under way is done again by the next start."""
        if self.query is not None:
            self.query.stop()

    def check(self) -> None:
        """Raise what the query failed with, if it did.

        Raises:
            HeadraceError: of the rows, or of the stream.
            UnavailableError: of Spark.
        """
        if self.query is None or self.query.exception() is None:
            return
        if isinstance(self.failure, HeadraceError):
            raise self.failure
        error = self.query.exception()
        assert error is not None
        failure = self._told(self.failure if isinstance(self.failure, _OF_SPARK) else error)
        raise failure from failure.__cause__

    def _told(self, error: Exception) -> UnavailableError:
        name = self.operator.name
        what = f"input {name!r}, {self.said}" if self.said else f"input_dataframe {name!r}"
        given = None if self.source.instead is None else self.source.instead.given.dataframe
        story = error if given is None else given.told(error)
        failure = UnavailableError(
            f"Spark could not read {what}: {first_line(story)}; Spark's log has the whole story"
        )
        failure.__cause__ = story
        return failure

    def trim(self, deployed: Sequence[Deployment]) -> None:
        """Let go of rows that the job has taken in, but for epochs that it may be taken back to."""
        for one in deployed:
            if self.operator.name not in {binding.operator for binding in one.plan.reads}:
                continue
            log = FileCommitLog(one.storage.root, Files(sync=False), self.feeds.clock)
            state = load_state(log)
            kept = None if state is None else load_state(log, state.kept_from)
            positions = {} if kept is None else kept.inputs.get(self.operator.name, {})
            stream = self.feeds.bus.stream(self.operator.stream)
            for partition, position in positions.items():
                try:
                    stream.trim(partition, position.next_offset)
                except UnavailableError:  # somebody appends; another time will do
                    continue


class _Answer(msgspec.Struct, frozen=True):
    """What a task has staged, or why it could not."""

    task: int
    parts: list[Part] = []
    error: SlotFailure | None = None


def _stage(frame: DataFrame, write: Write, number: int) -> list[Part]:
    """Let Spark's tasks stage the rows of a DataFrame; answer what those that count have."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        try:
            answer = _Answer(task, Stager(write, number, task).stage(batches))
        except (HeadraceError, OSError) as error:
            answer = _Answer(task, error=describe_failure(error))
        yield pa.RecordBatch.from_pydict({"answer": [msgspec.json.encode(answer)]})

    rows = frame.mapInArrow(stage, "answer binary").collect()
    answers = [msgspec.json.decode(row["answer"], type=_Answer) for row in rows]
    for answer in answers:
        if answer.error is not None:
            raise slot_error(SlotReport(answer.task, "", "", 0, error=answer.error))
    return [part for answer in answers for part in answer.parts]
