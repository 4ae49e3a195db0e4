"""The same count by PySpark's own ways, over the same messages in Parquet files.

Each way is a streaming query with the RocksDB state store, a checkpoint, and one file a
batch; the first batch warms it up and is left out. The rate is that of the triggers, as
the query's own progress reports them, from listing the file to committing the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.spark.sessions import build_session

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
RESULT = "id bigint, n bigint"
NATIVE = "groupBy.count"


def count_in_pandas(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count one key's rows for ``applyInPandasWithState``."""
    before = state.get[0] if state.exists else 0
    n = before + sum(len(frame) for frame in frames)
    state.update((n,))
    yield pd.DataFrame({"id": [key[0]], "n": [n]})


class RowCounter(StatefulProcessor):
    """Counts one key's rows for ``transformWithState``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._n = handle.getValueState("n", "n bigint")

    def _add(self, rows: int) -> int:
        held = self._n.get()
        n = rows + (0 if held is None else int(held[0]))
        self._n.update((n,))
        return n

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows and return the count."""
        yield Row(id=key[0], n=self._add(sum(1 for _ in rows)))

    def close(self) -> None:
        """Release nothing."""


class PandasCounter(RowCounter):
    """The same for ``transformWithStateInPandas``."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Add the rows and return the count."""
        yield pd.DataFrame({"id": [key[0]], "n": [self._add(sum(len(frame) for frame in rows))]})


def _apply_in_pandas(by_id: Any) -> DataFrame:
    found: DataFrame = by_id.applyInPandasWithState(
        count_in_pandas, RESULT, "n bigint", "update", "NoTimeout"
    )
    return found


def _transform_rows(by_id: Any) -> DataFrame:
    found: DataFrame = by_id.transformWithState(RowCounter(), RESULT, "Update", "None")
    return found


def _transform_pandas(by_id: Any) -> DataFrame:
    found: DataFrame = by_id.transformWithStateInPandas(PandasCounter(), RESULT, "Update", "None")
    return found


def _native(by_id: Any) -> DataFrame:
    found: DataFrame = by_id.count()
    return found


NATIVE_QUERIES: dict[str, Callable[[Any], DataFrame]] = {
    "applyInPandasWithState": _apply_in_pandas,
    "transformWithState": _transform_rows,
    "transformWithStateInPandas": _transform_pandas,
    NATIVE: _native,
}
"""Each takes what is grouped by ``id``, by Spark or by ``headrace.spark.stateful``."""


def rate(master: str, way: str, files: Path, folder: Path) -> float:
    """Return the rows a second of one way.

    Args:
        master: of the session, where there is none yet.
        way: one of ``NATIVE_QUERIES``.
        files: folder of Parquet files with columns ``id`` and ``padding``, at least two.
        folder: a new one, for the checkpoint and Spark's log.
    """
    session = build_session(master, "headrace bench", folder / "spark.log")
    session.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    stream = (
        session.readStream.schema("id bigint, padding binary")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(files))
    )
    running: StreamingQuery = (
        NATIVE_QUERIES[way](stream.groupBy("id"))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    batches = [p for p in running.recentProgress if p.numInputRows > 0][1:]
    took_ms = sum(batch.durationMs["triggerExecution"] for batch in batches)
    return sum(batch.numInputRows for batch in batches) * 1000 / took_ms
