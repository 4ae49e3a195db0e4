"""Streams that the settings replace by DataFrames, as far as that goes without Spark."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

import headrace as hr
from headrace.bus.bus import Bus
from headrace.bus.file import FileBus
from headrace.bus.memory import MemoryBus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.config import Settings, load_settings
from headrace.config.inputs import FrameSettings
from headrace.coordinator.dataframe_inputs import with_dataframes
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_run import JobRun
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.fencing import FencedFiles
from headrace.files import Files
from headrace.graph.operators import Input
from headrace.plan import explain, plan
from headrace.spark.configured_dataframes import redacted_errors
from headrace.spark.dataframe_inputs import DataFrameFeed, DataFrameFeeds
from headrace.testing import TestDriver

CSV = {"format": "csv", "load": "/lake", "options": {"key": "hunter2"}}
SETS = ["inputs.clicks.dataframe.format=csv", "inputs.clicks.dataframe.load=/lake"]


@hr.job("visits")
def visits(g: hr.Graph) -> None:
    clicks = g.input("clicks", schema={"user": str, "n": int}, name="seen", start="latest")
    clicks.partition_by("user").aggregate(n=hr.agg.sum("n")).send_to(g.output("totals"))


@hr.job("bare")
def bare(g: hr.Graph) -> None:
    g.input("clicks").send_to(g.output("copies"))


def framed(job: hr.Job, bus: Bus, *sets: str) -> Input:
    settings = load_settings(None, [*SETS, *sets], {})
    [found] = [
        o for o in with_dataframes(job.build(), bus, settings).operators if isinstance(o, Input)
    ]
    return found


def columns(operator: Input) -> pa.Schema | None:
    assert operator.frame is not None
    assert operator.frame.instead is not None
    return operator.frame.instead.columns


def test_an_input_becomes_one_over_an_internal_stream_and_keeps_its_name() -> None:
    found = framed(visits, MemoryBus(), "inputs.clicks.partitions=3")
    assert (found.name, found.stream, found.named) == ("seen", "visits.seen.dataframe", "clicks")
    assert found.start == "earliest"
    assert found.frame is not None
    assert found.frame.partitions == 3


def test_nothing_of_the_settings_travels_to_workers() -> None:
    found = framed(visits, MemoryBus(), "inputs.clicks.dataframe.options.password=hunter2")
    assert b"hunter2" not in pickle.dumps(found.frame)


def test_columns_are_those_of_the_graph_then_of_the_stream_then_of_the_frame() -> None:
    bus = MemoryBus()
    assert columns(framed(bare, bus)) is None
    held = pa.schema([("user", pa.string()), ("n", pa.int64()), ("at", pa.int64())])
    bus.create(StreamSpec("clicks", 1, held, "at"))
    assert columns(framed(bare, bus)) == held
    narrow = pa.schema([("user", pa.string()), ("n", pa.int64())])
    of_graph = framed(visits, bus)
    assert columns(of_graph) == narrow.append(held.field("at")), "the event time is needed"
    assert of_graph.time == "at"
    assert framed(bare, bus, "inputs.clicks.time=n").time == "n"


def test_explain_says_what_stands_for_the_stream_and_no_secret() -> None:
    settings = load_settings(None, [*SETS, "inputs.clicks.dataframe.options.password=hunter2"], {})
    text = explain(plan(with_dataframes(visits.build(), MemoryBus(), settings), {}))
    assert "internal stream of a Spark DataFrame" in text
    assert "by the settings: Spark DataFrame of csv /lake" in text
    assert "hunter2" not in text


def test_a_test_without_spark_says_so() -> None:
    inputs: dict[str, Any] = {"clicks": {"dataframe": CSV}}
    with (
        pytest.raises(InvalidInputError) as refused,
        TestDriver(visits, inputs=inputs) as driver,
    ):
        driver.start()
    assert refused.value.message == (
        "input 'clicks' is a Spark DataFrame of csv /lake, by the settings, and here is no Spark; "
        "run the job with headrace run, and a master such as local[2], or give a test its rows as "
        "a stream or files"
    )


def test_a_run_without_spark_says_so(tmp_path: Path) -> None:
    settings = load_settings(None, [f"home={tmp_path}", *SETS], {})
    with FileBus(settings.bus_dir) as bus:
        context = JobContext(settings, visits.name, bus, Files(sync=False), SystemClock())
        course = JobRun(context, JobControl())
        with pytest.raises(InvalidInputError, match="'seen' of job 'visits' is a Spark DataFrame"):
            course.deployed(visits)


def test_an_input_that_the_job_has_not_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"did you mean 'clicks'\?"):
        framed(visits, MemoryBus(), "inputs.click.dataframe.format=csv")


def test_what_is_a_frame_by_its_code_is_not_made_another() -> None:
    @hr.job("coded")
    def coded(g: hr.Graph) -> None:
        g.input_dataframe("rows", lambda spark: spark.range(3)).send_to(g.output("out"))

    settings = load_settings(None, ["inputs.coded.rows.dataframe.dataframe.format=csv"], {})
    with pytest.raises(InvalidInputError, match=r"is a Spark DataFrame by its code; dataframe goe"):
        with_dataframes(coded.build(), MemoryBus(), settings)


class World:
    """A job whose driver prepares the internal stream, before Spark is asked for rows."""

    def __init__(self, home: Path, bus: Bus) -> None:
        self.home, self.bus = home, bus

    def settings(self, load: str) -> Settings:
        sets = [f"home={self.home}", SETS[0], f"inputs.clicks.dataframe.load={load}"]
        return load_settings(None, sets, {})

    def prepare(self, load: str, state: JobState | None) -> str:
        """Return the name that only this stream has."""
        feed = self.feed(self.settings(load))
        feed.prepare(state)
        return feed.birth

    def feed(self, settings: Settings) -> DataFrameFeed:
        graph = with_dataframes(visits.build(), self.bus, settings)
        spark: Any = None
        files = Files(sync=False)
        root = self.home / "visits"
        feeds = DataFrameFeeds(spark, graph, self.bus, settings, root, files)
        feeds.fenced = FencedFiles(files, root)
        operator = graph.operator("seen")
        assert isinstance(operator, Input)
        assert operator.frame is not None
        return DataFrameFeed(feeds, operator, operator.frame, spark)

    def state(
        self, run: int, offset: int | None = None, fingerprint: dict[str, str] | None = None
    ) -> JobState:
        inputs = {} if offset is None else {"seen": {0: InputPosition(offset)}}
        marks = fingerprint or {}
        return JobState("visits", "lineage", 1, 1, 0, "", 8, marks, inputs=inputs, run=run)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with FileBus(tmp_path / "bus") as bus:
        yield World(tmp_path, bus)


def test_in_the_middle_of_a_run_an_input_cannot_become_another(world: World) -> None:
    born = world.prepare("/lake", None)
    begun = world.state(1, 5, fingerprint={"seen": "{}"})
    assert world.prepare("/lake", begun) == born
    with pytest.raises(InvalidInputError) as refused:
        world.prepare("/sea", begun)
    assert refused.value.message.startswith(
        "job 'visits' is in the middle of a run in which input 'seen' is Spark DataFrame of csv "
        "/lake; found Spark DataFrame of csv /sea in the settings: end that run first, start over "
    )


def test_the_next_run_may_read_another_and_begins_with_an_empty_stream(world: World) -> None:
    born = world.prepare("/lake", None)
    stream = world.bus.stream("visits.seen.dataframe")
    stream.append_rows(pa.table({"user": ["ann"], "n": [1]}))
    assert world.prepare("/sea", world.state(2)) != born
    assert sum(world.bus.stream("visits.seen.dataframe").ends()) == 0


def test_a_reset_job_may_read_another_from_its_first_row_only(world: World) -> None:
    born = world.prepare("/lake", None)
    assert world.prepare("/lake", world.state(2, 7)) == born, "what it was reset to is there"
    assert world.prepare("/sea", world.state(3, 0)) != born
    with pytest.raises(InvalidInputError, match="headrace jobs delete visits"):
        world.prepare("/lake", world.state(4, 7))


@pytest.mark.parametrize("says", ["", "DATA_SOURCE_NOT_FOUND ", "FAILED_JDBC "])
def test_what_spark_says_of_a_mistake_is_logged_without_its_options(says: str) -> None:
    url = "jdbc:x://db/" + "a" * 300 + "?password=hunter2"
    given = FrameSettings(format="jdbc", options={"url": url})
    with pytest.raises(HeadraceError) as caught, redacted_errors("setting x", given):
        raise AnalysisException(f"{says}Error: {url} is wrong\nat line 3: {url}")
    story = "".join(traceback.format_exception(caught.value))
    assert "Error: ... is wrong" in str(caught.value)
    assert "at line 3: ..." in story
    assert "aaaa" not in story
    assert "hunter2" not in story


class FailedQuery:
    """A query that has ended with what Spark says of its source."""

    def exception(self) -> Exception:
        return AnalysisException("Error: no rows from jdbc:x?password=hunter2")


def test_what_spark_says_of_a_query_is_logged_without_its_options(world: World) -> None:
    word = "inputs.clicks.dataframe.options.url=jdbc:x?password=hunter2"
    feed = world.feed(load_settings(None, [f"home={world.home}", *SETS, word], {}))
    query: Any = FailedQuery()
    feed.query = query
    with pytest.raises(
        UnavailableError, match=r"input 'seen', .*: Error: no rows from \.\.\.;"
    ) as caught:
        feed.check()
    story = "".join(traceback.format_exception(caught.value))
    assert "RuntimeError: Error: no rows from ..." in story
    assert "hunter2" not in story
