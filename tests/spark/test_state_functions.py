"""Functions and processors of PySpark's state API: Headrace's results are Spark's own."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.support.soak import more

from headrace import spark as headrace_spark
from headrace.errors import InvalidInputError

pytestmark = pytest.mark.spark

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
SHUFFLES = "spark.sql.shuffle.partitions"
ZONE = "spark.sql.session.timeZone"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "k string, v bigint, at timestamp"
ROUNDS = [
    [[("a", 1, 0), ("b", 2, 1), ("a", 3, 2), ("c", 4, 40)], [("c", 0, 42)]],
    [[("a", 9, 3), ("c", 5, 43), ("d", 6, 100), ("d", 7, 101), ("e", 8, 300)]],
]
"""Files of rows: key, value, seconds. Spark knows in the third batch that its first row is late."""


@pytest.fixture(autouse=True)
def stopped(spark: SparkSession) -> Iterator[None]:
    """Give Spark's queries the store that transformWithState needs, and one task for a batch."""
    sets = {"spark.sql.streaming.stateStore.providerClass": PROVIDER, SHUFFLES: "1"}
    before = {name: spark.conf.get(name) for name in sets}
    for name, value in sets.items():
        spark.conf.set(name, value)
    yield
    headrace_spark.stop()
    for name, held in before.items():
        spark.conf.set(name, str(held))


Results = Counter[tuple[Any, ...]]


class Feed:
    """A folder of files, each of which is a batch of a query."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        folder.mkdir()

    def put(self, rows: list[tuple[str, int, int]]) -> None:
        text = [
            json.dumps({"k": k, "v": v, "at": f"2013-01-01T00:{s // 60:02}:{s % 60:02}Z"})
            for k, v, s in rows
        ]
        self._files += 1
        path = self._folder / f"{self._files}.json"
        path.with_suffix(".new").write_text("\n".join(text))
        os.utime(path.with_suffix(".new"), (self._files, self._files))  # Spark reads by age
        path.with_suffix(".new").rename(path)  # Spark never sees half of it

    def frame(self) -> DataFrame:
        read = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = read.option("pathGlobFilter", "*.json").json(str(self._folder))
        return rows.withWatermark("at", "10 seconds")


def written(frame: DataFrame, folder: Path) -> list[Results]:
    """Return the rows of each batch that a streaming DataFrame has until its input ends."""
    found: list[Results] = []

    def take(batch: DataFrame, number: int) -> None:
        del number
        found.append(Counter(tuple(row) for row in batch.collect()))

    query = (
        frame.writeStream.foreachBatch(take).outputMode("update").trigger(availableNow=True)
        .option("checkpointLocation", str(folder)).start()
    )  # fmt: skip
    query.awaitTermination()
    return found


def add_up(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Send the sum of a key when nothing of it came for 20 s."""
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "total": [state.get[0]], "n": [state.get[1]]})
        state.remove()
        return
    total, n = state.get if state.exists else (0, 0)
    last = 0
    for frame in frames:
        total, n = total + int(frame.v.sum()), n + len(frame)
        last = max(last, int(frame["at"].max().timestamp() * 1000))
    state.update((total, n))
    state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs()) + 20_000)


class Kept(StatefulProcessor):
    """Keeps a total, the values, and a count by parity; sends them by a timer, 20 s later."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total bigint")
        self._values = handle.getListState("vs", "v bigint")
        self._parity = handle.getMapState("parity", "odd int", "n bigint")

    def _add(self, v: int, at_ms: int) -> None:
        held = self._total.get()
        self._total.update(((held[0] if held else 0) + v,))
        self._values.appendValue((v,))
        odd = (v % 2,)
        before = self._parity.getValue(odd) if self._parity.containsKey(odd) else None
        self._parity.updateValue(odd, ((before[0] if before else 0) + 1,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(at_ms + 20_000)

    def _take(self) -> tuple[int, str, str]:
        values = ",".join(str(v) for (v,) in sorted(self._values.get()))
        parity = ",".join(f"{odd}:{n}" for (odd,), (n,) in sorted(self._parity.iterator()))
        [total] = self._total.get() or ()
        for state in (self._total, self._values, self._parity):
            state.clear()
        assert not self._total.exists()
        assert not self._values.exists()
        assert not self._parity.exists()
        return total, values, parity

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._add(row.v, int(row["at"].timestamp() * 1000))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        total, values, parity = self._take()
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], total=total, vs=values, parity=parity, at=at)

    def close(self) -> None:
        pass


class KeptInPandas(Kept):
    """The same over frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for frame in rows:
            for v, at in zip(frame.v, frame["at"], strict=True):
                self._add(int(v), int(at.timestamp() * 1000))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


KEPT = "k string, total bigint, vs string, parity string, at bigint"

CALLS: dict[str, Callable[[Any], DataFrame]] = {
    "applyInPandasWithState": lambda grouped: grouped.applyInPandasWithState(
        add_up, "k string, total bigint, n bigint", "total bigint, n bigint", "update",
        "EventTimeTimeout",
    ),
    "transformWithStateInPandas": lambda grouped: grouped.transformWithStateInPandas(
        KeptInPandas(), KEPT, "Update", "EventTime"
    ),
}  # fmt: skip


def both(
    call: Callable[[Any], DataFrame], spark: SparkSession, folder: Path, rounds: Any = ROUNDS
) -> tuple[list[Results], list[Results]]:
    """Return what Spark writes in each batch, and what Headrace writes in each round of files."""
    feed, home, found = Feed(spark, folder / "rows"), folder / "home", []
    for files in rounds:
        for rows in files:
            feed.put(rows)
        grouped = headrace_spark.stateful(feed.frame().groupBy("k"), name="ours", home=home)
        ours = written(call(grouped), folder / "ours")  # of the second round by another run
        found.append(sum(ours, Counter()))
    headrace_spark.stop("ours")
    return written(call(feed.frame().groupBy("k")), folder / "own"), found


@pytest.mark.parametrize("call", more([*CALLS][:1], [*CALLS]))
def test_a_streaming_frame_has_the_results_of_spark(
    call: str, spark: SparkSession, tmp_path: Path
) -> None:
    own, found = both(CALLS[call], spark, tmp_path)
    totals = [sorted(row[:2] for row in one) for one in found]
    assert totals == [[("a", 4), ("b", 2)], [("c", 9), ("d", 13)]]
    assert sum(found, Counter()) == sum(own, Counter())
    store = "state" if call == "applyInPandasWithState" else "total"
    read = spark.read.format("headrace").options(home=str(tmp_path / "home"), job="ours")
    [kept] = read.option("store", store).load().collect()
    assert kept[:2] == ("e", 8)


class Brief(StatefulProcessor):
    """Counts calls in states that live for a moment or an hour; sends them by a timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._brief = handle.getValueState("brief", "n int", 1)
        self._items = handle.getListState("items", "n int", 1)
        self._long = handle.getMapState("long", "k string", "n int", 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen = self._long.getValue(("n",))
        yield Row(k=key[0], brief=self._brief.exists(), items=self._items.exists(), n=len([*rows]))
        self._brief.update((1,))
        self._items.put([(1,), (2,)])
        self._long.updateValue(("n",), (1 if seen is None else seen[0] + 1,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        held = self._brief.exists(), self._items.exists()
        [(n,)] = self._long.values()
        yield Row(k=key[0], brief=held[0], items=held[1], n=-n)

    def close(self) -> None:
        pass


def test_states_expire_and_timers_fire_by_the_clock_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    def call(grouped: Any) -> DataFrame:
        returns = "k string, brief boolean, items boolean, n int"
        return grouped.transformWithState(Brief(), returns, "Update", "ProcessingTime")

    rounds = [[("a", 1, 0), ("b", 2, 1), ("a", 3, 2)]], [[("a", 4, 3), ("c", 5, 4)]]
    spark.conf.set(NO_DATA, "false")  # else Spark's query makes batches without end
    try:
        own, found = both(call, spark, tmp_path, rounds)
    finally:
        spark.conf.unset(NO_DATA)
    assert found == own
    assert found[0]["a", True, True, -1] == 1
    assert found[1]["a", False, False, 1] == 1


class Sums(StatefulProcessor):
    """Adds the values of a key up, and makes each call of list and map states."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total double, at timestamp")
        self._list = handle.getListState("vs", "v bigint")
        self._map = handle.getMapState("by", "k string, even boolean", "tags array<string>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        found = list(rows)
        last = max(row["at"] for row in found)
        self._total.update((float(sum(row.v for row in found)), last))
        total, at = self._total.get() or (None, None)
        self._list.put([(row.v,) for row in found])
        self._list.appendValue((-1,))
        self._list.appendList([(-2,), (-3,)])
        for row in found:
            self._map.updateValue((row.k, row.v % 2 == 0), ([str(row.v), None],))
        self._map.updateValue(("gone", True), ([],))
        self._map.removeKey(("gone", True))
        kept = [*self._map.keys()], [*self._map.values()], self._map.containsKey(("gone", True))
        said = f"{sum(v for (v,) in self._list.get())} {kept} {self._map.exists()}"
        yield Row(k=key[0], d=key[1], total=total, at=at, said=said)

    def close(self) -> None:
        pass


def test_a_batch_frame_has_one_call_for_each_key_as_in_spark(spark: SparkSession) -> None:
    rows = spark.range(100).selectExpr(
        "concat('k', id % 3) k", "date'2013-01-01' + cast(id % 2 as int) d", "id v",
        "timestamp_seconds(id) at",
    )  # fmt: skip

    def summed(grouped: Any) -> DataFrame:
        returns = "k string, d date, total double, at timestamp, said string"
        return grouped.transformWithState(Sums(), returns, "Update", "None")

    grouped = rows.groupBy("k", "d")
    found = summed(headrace_spark.stateful(grouped))
    own = summed(grouped)
    assert found.dtypes == own.dtypes
    rows_found = found.collect()
    assert sorted(rows_found) == sorted(own.collect())
    assert len(rows_found) == 6


@pytest.fixture
def in_tokyo(spark: SparkSession) -> Iterator[None]:
    """Times of a session are in its zone, wherever the process is."""
    before = str(spark.conf.get(ZONE))
    spark.conf.set(ZONE, "Asia/Tokyo")
    yield
    spark.conf.set(ZONE, before)


class Shown(StatefulProcessor):
    """Shows what it gets, and returns what its states are when they are read again."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        columns = "at timestamp, own timestamp_ntz, both struct<n bigint, at timestamp>"
        self._value = handle.getValueState("value", columns)
        self._list = handle.getListState("list", "many array<struct<at: timestamp>>")
        self._map = handle.getMapState("map", "at timestamp", "by map<string, timestamp>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._value.update((row["at"], row.own, (1, row["at"])))
            self._list.put([([(row["at"],), None],)])
            self._map.updateValue((row["at"],), ({"a": row["at"], "b": None},))
            held = self._value.get() or ()
            states = [held, *self._list.get(), *self._map.iterator()]
            said = f"{key!r} {row!r} {states!r} {self._map.containsKey((row['at'],))}"
            many = [Row(at=row["at"]), Row(at=held[0]), None]
            yield Row(said=said, at=row["at"], held=held[0], both=row.both, many=many)

    def close(self) -> None:
        pass


class ShownInPandas(Shown):
    """The same of frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for frame in rows:
            for made in super().handleInputRows(key, (row for _, row in frame.iterrows()), None):
                one = made.asDict(recursive=True)
                one["said"] = f"{key!r} {list(frame.iloc[0])!r} {one['said'].rpartition('] ')[2]}"
                yield pd.DataFrame([one])


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize("processor", [Shown(), ShownInPandas()])
def test_keys_rows_and_states_have_the_times_and_structs_that_spark_gives_them(
    spark: SparkSession, processor: StatefulProcessor
) -> None:
    rows = spark.range(2).selectExpr(
        "timestamp_seconds(id) at", "timestamp_ntz'2013-01-01 05:00:00' own", "id % 2 = 0 even",
        "named_struct('n', id, 'at', timestamp_seconds(id)) both",
        "array(named_struct('at', timestamp_seconds(id))) many",
    )  # fmt: skip
    returns = (
        "said string, at timestamp, held timestamp, both struct<n: bigint, at: timestamp>, "
        "many array<struct<at: timestamp>>"
    )

    def shown(grouped: Any) -> DataFrame:
        made: DataFrame = (
            grouped.transformWithStateInPandas(processor, returns, "Update", "None")
            if isinstance(processor, ShownInPandas)
            else grouped.transformWithState(processor, returns, "Update", "None")
        )
        return made

    grouped = rows.groupBy("at", "own", "even")
    found, own = shown(headrace_spark.stateful(grouped)), shown(grouped)
    assert found.dtypes == own.dtypes
    assert sorted(found.collect(), key=str) == sorted(own.collect(), key=str)


class Types(StatefulProcessor):
    """Returns what it gets, and columns of pandas' types, with and without nulls."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for frame in rows:
            self._n.update((len(frame),))
            assert list(frame.index) == list(range(len(frame)))
            made = frame.drop(columns=["g"])
            made["key"] = [f"{type(one).__name__} {one}" for one in key * len(frame)]
            kinds = frame.drop(columns=["small"]).dtypes.items()  # Spark makes it one of 64 bits
            made["kinds"] = ", ".join(f"{name} {kind}" for name, kind in kinds)
            made["maybe"] = pd.array([None, *range(1, len(frame))], dtype="Int64")
            yield made
            yield pd.DataFrame({"id": [-1], "part": 0.5, "text": "b", "at": [None]})[["id"]].assign(
                **{name: None for name in made.columns if name != "id"}
            )

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("in_tokyo")
def test_columns_of_frames_have_the_types_that_spark_gives_them(spark: SparkSession) -> None:
    rows = spark.range(6).selectExpr(
        "id % 2 = 0 g", "id", "cast(id as int) small", "id / 4 part",
        "if(id < 3, null, id / 2) gap", "if(id < 3, null, 'a') text",
        "timestamp_seconds(id) at", "date'2013-01-01' day",
        "cast(id as decimal(10, 2)) price", "id > 2 large", "cast('x' as binary) raw",
        "array(id, null) many", "if(id < 3, null, id) gaps",
        "named_struct('n', nullif(id, 3), 'at', timestamp_seconds(id)) both",
        "array(timestamp_seconds(id)) times",
    )  # fmt: skip
    returns = [f"{name} {kind}" for name, kind in rows.dtypes if name != "g"]
    schema = ", ".join([*returns, "key string", "kinds string", "maybe bigint"])

    def typed(grouped: Any) -> DataFrame:
        made: DataFrame = grouped.transformWithStateInPandas(Types(), schema, "Update", "None")
        return made

    grouped = rows.groupBy("g")
    found, own = typed(headrace_spark.stateful(grouped)), typed(grouped)
    assert found.dtypes == own.dtypes
    assert sorted(found.collect(), key=str) == sorted(own.collect(), key=str)


def test_a_function_with_a_timeout_runs_over_a_batch_frame(spark: SparkSession) -> None:
    """Spark refuses this; at the end of the rows each timeout by event time has passed."""
    rows = spark.range(10).selectExpr("concat('k', id % 2) k", "id v", "timestamp_seconds(id) at")
    grouped = headrace_spark.stateful(rows.withWatermark("at", "1 second").groupBy("k"))
    found = CALLS["applyInPandasWithState"](grouped)
    assert sorted(found.collect()) == [("k0", 20, 5), ("k1", 25, 5)]


def test_calls_that_differ_from_spark_are_refused(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("id k", "id v")

    def grouped(*by: Any) -> Any:
        return headrace_spark.stateful(rows.groupBy(*by))

    with pytest.raises(InvalidInputError, match=r"grouped by \['\(k \+ 1\)'\]; expected some of"):
        grouped(rows.k + 1)
    with pytest.raises(InvalidInputError, match="takes name=, home= and settings= alone"):
        headrace_spark.stateful(rows.groupBy("k"), key="k")  # type: ignore[call-overload]
    with pytest.raises(InvalidInputError, match="outputMode is 'complete'; expected update or"):
        grouped("k").applyInPandasWithState(add_up, "k long", "n long", "complete", "NoTimeout")
    ticks = spark.readStream.format("rate").load().groupBy("value")
    ours = headrace_spark.stateful(ticks, name="ours")
    with pytest.raises(InvalidInputError, match="call withWatermark before groupBy"):
        ours.transformWithState(Kept(), KEPT, "Update", "EventTime")
    with pytest.raises(InvalidInputError, match="initialState and eventTimeColumnName have no"):
        grouped("k").transformWithState(Kept(), KEPT, "Update", "None", rows.groupBy("k"))
    with pytest.raises(InvalidInputError, match="a state has the type interval"):
        grouped("k").applyInPandasWithState(add_up, "k long", "n interval", "update", "NoTimeout")
