"""Streams as Spark DataFrames: read, written and queried by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.bus import FileBus, StreamSpec
from headrace.spark import register

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("id", pa.int64()), ("kind", pa.string()), ("tags", pa.list_(pa.int64())), ("at", pa.int64())]
)
ROWS = 100


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with FileBus(tmp_path / "bus") as bus:
        stream = bus.create(StreamSpec("my-events", 2, SCHEMA, time="at", key=("id",)))
        stream.append_rows(batch(range(ROWS)))
    return tmp_path


def batch(ids: range) -> pa.RecordBatch:
    columns = {
        "id": list(ids),
        "kind": ["abc"[i % 3] for i in ids],
        "tags": [[i, 1] for i in ids],
        "at": [i * 1000 for i in ids],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


@pytest.fixture
def read(spark: SparkSession, home: Path) -> Callable[..., DataFrame]:
    register(spark, home)

    def load(stream: str = "my-events", **options: Any) -> DataFrame:
        return spark.read.format("headrace").options(home=str(home), **options).load(stream)

    return load


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_a_stream_is_read_with_where_and_when_each_row_is_from(
    read: Callable[..., DataFrame], home: Path
) -> None:
    rows = read().orderBy("id").collect()
    assert [row["id"] for row in rows] == list(range(ROWS))
    assert rows[7].asDict() | {"time": None} == {
        "id": 7, "kind": "b", "tags": [7, 1], "at": 7000,
        "partition": rows[7]["partition"], "offset": rows[7]["offset"], "time": None,
    }  # fmt: skip
    assert rows[7]["time"].timestamp() % 3600 == 7
    with FileBus(home / "bus") as bus:
        there = next(bus.stream("my-events").read(rows[7]["partition"], rows[7]["offset"]))
    assert there.batch.column("id")[0].as_py() == 7


def test_a_home_is_that_of_whoever_registers(
    spark: SparkSession, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)  # not the folder that Spark was started in
    register(spark)
    load = spark.read.format("headrace")
    assert ids(load.option("home", home.name).load("my-events")) == list(range(ROWS))
    monkeypatch.setenv("HEADRACE_HOME", home.name)
    register(spark)
    monkeypatch.chdir("/")
    assert ids(spark.read.format("headrace").load("my-events")) == list(range(ROWS))


def test_a_reader_takes_ranges_columns_and_conditions(read: Callable[..., DataFrame]) -> None:
    assert read(columns="offset,id").columns == ["offset", "id"]
    assert ids(read(start="1970-01-01T00:00:10", end="1970-01-01T00:00:12")) == [10, 11]
    assert ids(read(start="latest")) == []
    first = read(start='{"0": 3, "1": 4}', end='{"0": 5, "1": 4}', splitRows=1)
    assert [(r["partition"], r["offset"]) for r in first.orderBy("offset").collect()] == [
        (0, 3),
        (0, 4),
    ]
    found = read(columns="id,offset", where="kind = 'a' and id < 10")
    assert ids(found) == [0, 3, 6, 9]
    everything = {(r["id"], r["offset"]) for r in read().collect()}
    assert {(r["id"], r["offset"]) for r in found.collect()} < everything


def test_conditions_of_one_query_are_not_those_of_the_next(
    read: Callable[..., DataFrame],
) -> None:
    frame = read()
    assert frame.where("kind = 'a'").count() == 34
    assert frame.count() == ROWS
    both = frame.where("kind = 'a'").select("id").union(frame.where("kind = 'b'").select("id"))
    assert both.distinct().count() == 67


def test_streams_of_any_name_are_tables_and_a_damaged_table_is_passed_over(
    spark: SparkSession, home: Path
) -> None:
    with FileBus(home / "bus") as bus:
        for name in ("123", "1e5", "select", "a.b-c"):
            bus.create(StreamSpec(name, 1, SCHEMA)).append(0, batch(range(3)))
    control = home / "warehouse" / ".torn.headrace"
    control.mkdir(parents=True)
    (home / "warehouse" / "torn").mkdir()
    (control / "snapshot.json").write_text("{")
    with pytest.warns(UserWarning, match=r"passed over: .*snapshot\.json cannot be read"):
        register(spark, home)
    names = ("123", "1e5", "select", "a_b_c")
    each = (f"select '{name}' name, id from streams.`{name}`" for name in names)
    found = Counter(row["name"] for row in spark.sql(" union all ".join(each)).collect())
    assert found == dict.fromkeys(names, 3)


def test_streams_are_tables_in_sql_with_the_columns_that_they_have_by_now(
    spark: SparkSession, home: Path
) -> None:
    register(spark, home)
    assert spark.sql("select id from streams.my_events where kind = 'a'").count() == 34
    with FileBus(home / "bus") as bus:
        bus.stream("my-events").evolve(SCHEMA.append(pa.field("n", pa.int32())), {"n": 5})
    register(spark, home)
    assert spark.sql("select id from streams.my_events where n = 5").count() == ROWS


def test_a_frame_is_appended_once_for_each_id_of_a_write(
    spark: SparkSession, home: Path, read: Callable[..., DataFrame]
) -> None:
    rows = read(columns="id,kind,at").repartition(3)

    def save(frame: DataFrame, **options: Any) -> None:
        given: dict[str, Any] = {
            "home": str(home),
            "create": True,
            "partitions": 2,
            "key": "id",
            "time": "at",
        }
        frame.write.format("headrace").mode("append").options(**given | options).save("copy")

    save(rows)
    assert ids(read("copy")) == list(range(ROWS))
    for _ in range(2):
        save(rows.where("id = 1"), writeId="fix 1")
    assert ids(read("copy")) == sorted([*range(ROWS), 1])
    assert not list((home / "bus" / "spark").glob("once-*"))


def test_mistakes_are_told(spark: SparkSession, home: Path, read: Callable[..., DataFrame]) -> None:
    def refused(text: str, action: Callable[[], Any]) -> None:
        with pytest.raises(AnalysisException, match=text):
            action()

    refused("no stream 'my-event'; did you mean 'my-events'", lambda: read("my-event"))
    refused("unknown option 'begin'", lambda: read(begin="earliest"))
    refused("no column 'idd'", lambda: read(columns="idd"))
    writer = read().write.format("headrace").option("home", str(home))
    refused("cannot be overwritten", lambda: writer.mode("overwrite").save("my-events"))
    refused("no stream 'new'; create it", lambda: writer.mode("append").save("new"))
    refused(
        r"not expected \['partition', 'offset', 'time'\]; select \['id'",
        lambda: writer.mode("append").save("my-events"),
    )
    lists = read().selectExpr("tags id", "kind", "tags", "at")
    options = {"home": str(home)}
    refused(
        r"column 'id': found list<.*, expected int64",
        lambda: lists.write.format("headrace").mode("append").options(**options).save("my-events"),
    )


def test_rows_that_do_not_fit_and_empty_frames_append_nothing(
    spark: SparkSession, home: Path, read: Callable[..., DataFrame]
) -> None:
    def append(frame: DataFrame) -> None:
        frame.write.format("headrace").mode("append").option("home", str(home)).save("my-events")

    rows = read(columns="id,kind,tags,at")
    append(rows.where("id < 0"))
    append(spark.createDataFrame([], rows.schema))
    for wrong, said in (
        ("cast(null as bigint)", "event time of stream 'my-events' is null"),
        ("id - 140737488355328", "outside the years 1 to 9999"),
    ):
        with pytest.raises(PySparkException, match=said):
            append(rows.selectExpr("id", "kind", "tags", f"{wrong} at"))
    assert ids(read()) == list(range(ROWS))
    append(rows.where("id = 1").selectExpr("id", "null kind", "null tags", "at"))
    again = read().where("id = 1 and kind is null").collect()
    assert [row["tags"] for row in again] == [None]


def test_a_query_that_replays_a_batch_appends_it_once(
    spark: SparkSession, home: Path, read: Callable[..., DataFrame], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> list[int]:
        source = spark.readStream.format("headrace").options(home=str(home), maxRows=40)
        query = (
            source.load("my-events").select("id", "kind")
            .writeStream.format("headrace").options(home=str(home), create=True, stream="out")
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return [p.numInputRows for p in query.recentProgress if p.numInputRows]

    assert run() == [40, 40, 20]
    # As if the driver had died before Spark had noted the last batch.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    with FileBus(home / "bus") as bus:
        bus.stream("my-events").append_rows(batch(range(ROWS, ROWS + 5)))
    assert run() == [20, 5]
    assert ids(read("out")) == list(range(ROWS + 5))
    # As if a loss of power had taken what Spark did not sync: it plans the batch with more rows.
    for name in ("offsets/3", "offsets/.3.crc", "commits/3", "commits/.3.crc"):
        (checkpoint / name).unlink()
    with FileBus(home / "bus") as bus:
        bus.stream("my-events").append_rows(batch(range(ROWS + 5, ROWS + 12)))
    with pytest.raises(PySparkException, match=r"batch 3 .* put back: start it again"):
        run()
    assert ids(read("out")) == list(range(ROWS + 5))
    assert run() == [5, 7]
    assert ids(read("out")) == list(range(ROWS + 12))
