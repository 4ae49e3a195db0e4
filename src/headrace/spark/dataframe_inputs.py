"""Appends what Spark DataFrames have to the internal streams of a job's inputs.

The rows of a batch DataFrame in a bounded run go to files instead (``dataframe_files``).
Of a batch DataFrame all rows are one write, done once in a run of the job. Of a streaming one each
batch is a write under the query's identity and the batch's number, so that Spark's checkpoint, in
the job's storage, decides what was read, and a batch that Spark replays is appended once. What
belongs to which run of the job is noted beside the checkpoint, under a generation of the job of its
own: it fences what feeds the job, apart from what drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.bus import Bus, Fence, StreamSpec
from headrace.clock import SystemClock
from headrace.closeable import running_beside
from headrace.config import Settings
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.deployment import Deployment
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import take_fence
from headrace.coordinator.slot_reports import slot_error
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.fencing import FencedFiles
from headrace.files import Files
from headrace.graph.operators import FRAME_FOLDER, FRAME_NOTE, FrameSource, Input, JobGraph
from headrace.remote import is_remote
from headrace.runtime.orders import SlotFailure, SlotReport
from headrace.runtime.slot import describe_failure
from headrace.sources.bounded_bus import input_changed
from headrace.sources.listing import BoundedSource
from headrace.spark.configured_dataframes import configured_dataframe
from headrace.spark.data_source import QUERY, query_write
from headrace.spark.dataframe_files import RowFiles, read_columns
from headrace.spark.sessions import open_callbacks
from headrace.spark.slot_rdd import first_line
from headrace.spark.source_options import StreamLocation
from headrace.spark.staging import BatchWriterId, Checkpoint, Committer, StagedPart, Stager
from headrace.spark.versions import arrow_schema

POLL_S = 0.2
TRIM_S = 10.0
FEEDS = "~frames"
"""Behind the name of a job: for whom the bus takes what feeds it."""

_OF_SPARK = (PySparkException, Py4JJavaError)


def dataframe_inputs(graph: JobGraph) -> list[Input]:
    """Return the inputs of a graph that are DataFrames."""
    return [one for one in graph.operators if isinstance(one, Input) and one.frame is not None]


@dataclass
class DataFrameFeeds:
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
    fence: Fence | None = None
    fenced: FencedFiles | None = None
    _made: list[DataFrameFeed] = field(default_factory=list)
    _streaming: list[DataFrameFeed] = field(default_factory=list)

    def make(self) -> None:
        """Let functions and settings make the DataFrames, before anything of the last run goes.

        Raises:
            InvalidInputError: a function that returns no DataFrame; or settings that cannot be.
            UnavailableError: what one is read from does not answer, or lacks a package.
        """
        self._made = [DataFrameFeed.of(self, operator) for operator in dataframe_inputs(self.graph)]

    @property
    def specs(self) -> dict[str, StreamSpec]:
        """The internal streams of what was made, by the names of the inputs."""
        return {feed.operator.name: feed.spec for feed in self._made}

    def fill(self) -> dict[str, BoundedSource]:
        """Make the internal streams, and append what batch DataFrames have; all, when bounded.

        Call under the driver's lock, once the DataFrames are made and the run of the job has begun,
        before it is planned.

        Returns:
            The files of a bounded run that have the rows of batch DataFrames, by the internal
            streams that they stand for.

        Raises:
            InvalidInputError: a DataFrame of other columns than before, or another one.
            UnavailableError: Spark could not read a DataFrame.
            NotOwnerError: a newer driver has begun meanwhile.
        """
        log, job = FileCommitLog(self.root, self.files), self.graph.name
        if self._made:
            taken = take_fence(log, job, self.bus, self.clock)
            self.fence, self.fenced = Fence(f"{job}{FEEDS}", taken.generation), log.files
            self.bus.fence(self.fence)
        state = load_state(log)
        is_ending = state is not None and state.until is not None
        found: dict[str, BoundedSource] = {}
        reads: dict[str, tuple[str, ...]] = {}
        if any(feed.goes_to_files for feed in self._made):
            reads = read_columns(self.graph, self.bus, self.settings, self.specs)
        for feed in self._made:
            feed.reads = reads.get(feed.operator.name, ())
            feed.prepare(state)
            if feed.is_filed:
                found[feed.operator.stream] = feed.filed()
                continue
            if is_ending:  # where the inputs end is known, and all of it is there
                continue
            if not feed.frame.isStreaming:
                feed.append_once()
            elif self.settings.job.bounded:
                with suppress(PySparkException):  # which check reports
                    feed.start(is_bounded=True).awaitTermination()
                feed.check()
            else:
                self._streaming.append(feed)
        return found

    @contextmanager
    def running(self, control: JobControl, deployed: Sequence[Deployment]) -> Iterator[None]:
        """Let streaming DataFrames feed the job meanwhile; one that fails stops it.

        Raises:
            HeadraceError: what a query failed with.
        """
        if not self._streaming:
            yield
            return
        for feed in self._streaming:
            feed.start(is_bounded=False)
        try:
            with running_beside("headrace-frames", partial(self._watch, control, deployed)):
                yield
        finally:
            for feed in self._streaming:
                feed.stop()
        for feed in self._streaming:
            feed.check()

    def _watch(
        self, control: JobControl, deployed: Sequence[Deployment], over: threading.Event
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
class DataFrameFeed:
    """One DataFrame and the internal stream that it goes to."""

    feeds: DataFrameFeeds
    operator: Input
    source: FrameSource
    frame: DataFrame
    query: StreamingQuery | None = None
    failure: Exception | None = None
    birth: str = ""
    reads: tuple[str, ...] = ()
    is_filed: bool = False

    @classmethod
    def of(cls, feeds: DataFrameFeeds, operator: Input) -> DataFrameFeed:
        """Let the user's function, or the settings, make the DataFrame.

        Raises:
            InvalidInputError: it returns another thing, or columns that no stream can have; or as
                of ``configured_dataframe``.
            UnavailableError: the same.
        """
        source = operator.frame
        assert source is not None
        if source.instead is not None:
            frame = configured_dataframe(feeds.session, source.instead, operator.time, feeds.clock)
        else:
            assert source.make is not None
            frame = source.make(feeds.session)
        if not isinstance(frame, DataFrame):
            raise InvalidInputError(
                f"input_dataframe {operator.name!r}: its function returned a "
                f"{type(frame).__name__}; expected a Spark DataFrame"
            )
        feed = cls(feeds, operator, source, frame)
        feed.spec  # noqa: B018 - what it refuses is refused while the rows of the last run are there
        return feed

    @property
    def folder(self) -> Path:
        """Where the checkpoint and the note of the run are."""
        return self.feeds.root / FRAME_FOLDER / self.operator.name

    @property
    def place(self) -> StreamLocation:
        """The internal stream."""
        return StreamLocation(str(self.feeds.settings.home), self.operator.stream)

    def prepare(self, state: JobState | None) -> None:
        """Make the stream, empty at the first start of a run; or find out that files stand for it.

        1. Remove the checkpoint, files, the stream and what was staged for it. 2. Create the
        stream. 3. Note the run. After a death in between all is done again. After a
        reset, whose positions are in the stream or the files, it stays.

        Raises:
            InvalidInputError: the DataFrame has other columns than before.
        """
        fence, fenced, clock = self.feeds.fence, self.feeds.fenced, self.feeds.clock
        assert fenced is not None
        run = 1 if state is None else state.run
        noted, self.birth, said = self._noted()
        if said != self.said:
            self._check_same(state, said)
        bus, has_stream = self.feeds.bus, self.operator.stream in self.feeds.bus.names()
        listed = self._files.listed()
        is_there = has_stream or listed is not None
        is_same = noted == run and said == self.said
        has_positions = state is not None and self.operator.name in state.inputs
        if listed is not None and self._lacks(listed, state):
            is_same = has_positions = False
        if not is_same and not (noted and is_there and has_positions and said == self.said):
            fenced.remove_tree(self.folder)
            self.birth, listed = "", None
            if has_stream:
                bus.remove(self.operator.stream, fence=fence)
                has_stream = False
        self.is_filed = listed is not None or (not has_stream and self.goes_to_files)
        if has_stream:
            self._check_columns(self.spec)
        elif not self.is_filed:
            bus.create(self.spec, fence=fence)
        if not is_same:
            self.birth = self.birth or clock.new_id()
            text = f"{run} {self.birth} {self.said}".encode()
            fenced.replace(self.folder / FRAME_NOTE, text)

    @property
    def _files(self) -> RowFiles:
        assert self.feeds.fenced is not None
        return RowFiles(self.folder, self.feeds.fenced, self.feeds.clock)

    @property
    def goes_to_files(self) -> bool:
        """Say whether a run that begins has its rows in files: they end, and all hosts see them."""
        is_bounded = self.feeds.settings.job.bounded and not is_remote(self.feeds.root)
        return is_bounded and not self.frame.isStreaming

    def _lacks(self, listed: BoundedSource, state: JobState | None) -> bool:
        """Say whether files of the run lack columns that the job reads now.

        Raises:
            InvalidInputError: they do, and rows of them count.
        """
        held = listed.held_columns
        lacking = [] if held is None else [name for name in self.reads if name not in held]
        begins = {} if state is None else state.inputs.get(self.operator.name, {})
        has_begun = state is not None and bool(state.fingerprint)
        if lacking and (has_begun or any(one.next_offset for one in begins.values())):
            job = self.feeds.graph.name
            raise InvalidInputError(
                f"job {job!r} is in a run that took columns {list(held or ())} of input "
                f"{self.operator.name!r}, a Spark DataFrame, and its code reads {lacking} now: end "
                f"that run with the code that it began with, or start over with headrace jobs "
                f"reset {job}",
                job=job,
            )
        return bool(lacking)

    @property
    def said(self) -> str:
        """What the settings say that it is; nothing where the code makes it."""
        return "" if self.source.instead is None else self.source.instead.given.text

    @property
    def spec(self) -> StreamSpec:
        """Return the internal stream that it is to have."""
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
            raise input_changed(job, name, held, asked)
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
        stream.evolve(wanted.schema, fence=self.feeds.fence)

    def append_once(self) -> None:
        """Append the rows of a batch DataFrame, unless this run of the job has them."""
        write = BatchWriterId(self.place, f"frame {self.birth}", fence=self.feeds.fence)
        committer = Committer(write, self.feeds.files)
        if not committer.needs_rows(0):
            committer.commit(0, None)
            return
        try:
            committer.commit(0, _stage(self._ordered(), write, 0))
        except _OF_SPARK as error:
            failure = self._described(error)
            raise failure from failure.__cause__

    def filed(self) -> BoundedSource:
        """Return the files that have the rows of a batch DataFrame, written once in this run."""
        listed = self._files.listed()
        if listed is not None:
            return listed
        said = self.said or f"the Spark DataFrame of input {self.operator.name!r}"
        try:
            return self._files.write(self._ordered(), self.spec, self.reads, said)
        except _OF_SPARK as error:
            failure = self._described(error)
            raise failure from failure.__cause__

    def _ordered(self) -> DataFrame:
        """Return a batch DataFrame by its event time, so that no row is late."""
        frame, time = self.frame, self.operator.time
        if time is None:
            return frame
        if self.source.key:
            return frame.orderBy(time)  # tasks have ranges of time, and are read in order
        return frame.repartition(self.spec.partitions).sortWithinPartitions(time)

    def start(self, *, is_bounded: bool) -> StreamingQuery:
        """Start the query that appends a streaming DataFrame, batch by batch.

        Raises:
            UnavailableError: Spark cannot start it, or cannot call this process.
        """
        open_callbacks(self.frame.sparkSession.sparkContext)
        writer = self.frame.writeStream.foreachBatch(self._append_batch).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        if is_bounded:
            writer = writer.trigger(availableNow=True)
        try:
            self.query = writer.queryName(f"headrace {self.operator.stream}").start()
        except _OF_SPARK as error:
            failure = self._described(error)
            raise failure from failure.__cause__
        return self.query

    def _append_batch(self, frame: DataFrame, number: int) -> None:
        """Append one batch; called by Spark, in a thread of its own."""
        try:
            query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
            write = replace(query_write(self.place, str(query)), fence=self.feeds.fence)
            checkpoint = Checkpoint(self.folder / "checkpoint", self.feeds.files)
            committer = Committer(write, self.feeds.files, checkpoint=checkpoint)
            if not committer.needs_rows(number):
                committer.commit(number, None)
                return
            if self.operator.time is not None:
                frame = frame.sortWithinPartitions(self.operator.time)
            committer.commit(number, _stage(frame, write, number))
        except Exception as error:  # raised where it is waited for; Spark would show it in Java
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
        failure = self._described(self.failure if isinstance(self.failure, _OF_SPARK) else error)
        raise failure from failure.__cause__

    def _described(self, error: Exception) -> UnavailableError:
        name = self.operator.name
        what = f"input {name!r}, {self.said}" if self.said else f"input_dataframe {name!r}"
        given = None if self.source.instead is None else self.source.instead.given.dataframe
        cause = error if given is None else given.redacted(error)
        failure = UnavailableError(
            f"Spark could not read {what}: {first_line(cause)}; Spark's log has the details"
        )
        failure.__cause__ = cause
        return failure

    def trim(self, deployed: Sequence[Deployment]) -> None:
        """Release rows that the job has taken in, but for epochs that it may be taken back to."""
        for one in deployed:
            if self.operator.name not in {binding.operator for binding in one.plan.reads}:
                continue
            log = FileCommitLog(one.storage.root, Files(sync=False))
            state = load_state(log)
            kept = None if state is None else load_state(log, state.kept_from)
            positions = {} if kept is None else kept.inputs.get(self.operator.name, {})
            stream = self.feeds.bus.stream(self.operator.stream)
            for partition, position in positions.items():
                try:
                    stream.trim(partition, position.next_offset, fence=self.feeds.fence)
                except UnavailableError:  # somebody appends; another time will do
                    continue


class _Answer(msgspec.Struct, frozen=True):
    """What a task has staged, or why it could not."""

    task: int
    parts: list[StagedPart] = []
    error: SlotFailure | None = None


def _stage(frame: DataFrame, write: BatchWriterId, number: int) -> list[StagedPart]:
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
