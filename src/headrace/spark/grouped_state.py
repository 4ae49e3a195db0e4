"""``stateful(df.groupBy(...))``: PySpark's calls for functions with state, run as Headrace jobs.

The arguments are checked here, in the driver; ``state_functions`` runs the functions in workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import ArrayType, DataType, StructType

from headrace.errors import InvalidInputError
from headrace.graph.builder import Stream
from headrace.graph.types import to_schema
from headrace.spark.state_functions import GroupRows, GroupStates, StateVariables
from headrace.spark.versions import arrow_schema

_DELAY = "spark.watermarkDelayMs"
"""Spark's own name for the delay of a watermark, in the metadata of its column."""

_ONE_EPOCH = [f"epoch.max_rows={10**12}", f"epoch.max_bytes={10**12}"]
"""So that each key of a batch DataFrame has one call, as in Spark; what users set comes later."""


class UnsupportedCallError(InvalidInputError):
    """A call of PySpark's state API asks for something that Headrace does not run.

    The message says what, and what to do instead.
    """

    code = "HR220"
    move = "see the table of differences in the guide to Spark"


@dataclass(frozen=True)
class GroupedState:
    """A grouped DataFrame whose functions with state Headrace runs.

    The methods have the signatures of PySpark's ``GroupedData``, and return DataFrames as
    ``stateful`` does. What differs is listed in the guide to Spark.

    Args:
        frame: the DataFrame.
        keys: the columns that it is grouped by.
        run: runs what is put behind the keyed rows.
    """

    frame: DataFrame
    keys: tuple[str, ...]
    run: Callable[..., DataFrame]

    @classmethod
    def of(cls, grouped: GroupedData, run: Callable[..., DataFrame]) -> GroupedState:
        """Return that of a grouped DataFrame.

        Raises:
            UnsupportedCallError: it is grouped by something that is no column of the DataFrame.
        """
        frame: DataFrame = grouped._df  # noqa: SLF001 - Spark shows it nowhere else
        keys = tuple(grouped.count().columns[:-1])
        unknown = [name for name in keys if name not in frame.columns]
        if unknown or not keys:
            raise UnsupportedCallError(
                f"the DataFrame is grouped by {unknown or 'nothing'}; expected some of its columns "
                f"{frame.columns}: add it with withColumn first, and group by its name"
            )
        return cls(frame, keys, run)

    def applyInPandasWithState(
        self,
        func: Callable[..., Any],
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
    ) -> DataFrame:
        """Call a function with the rows and the state of each key, once in an epoch.

        Args:
            func: takes the key, an iterator of pandas DataFrames and Spark's ``GroupState``, and
                returns an iterable of DataFrames.
            outputStructType: columns of the result.
            stateStructType: columns of the state.
            outputMode: ``update`` or ``append``.
            timeoutConf: one of ``GroupStateTimeout``.

        Raises:
            UnsupportedCallError: another mode or timeout; event time without ``withWatermark``.
            InvalidInputError: as of ``stateful``.
        """
        _check_mode(outputMode)
        if timeoutConf not in {"NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"}:
            raise UnsupportedCallError(
                f"timeoutConf is {timeoutConf!r}; expected one of GroupStateTimeout"
            )
        rows, delay = self._rows(outputStructType, is_timed=timeoutConf == "EventTimeTimeout")
        state = self._columns(stateStructType)
        program: bytes = cloudpickle.dumps(func)  # type: ignore[no-untyped-call]
        factory = partial(GroupStates, program, rows, state, timeoutConf)
        return self._started(factory, GroupStates.stores(state, timeoutConf), rows, delay, func)

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Run a ``StatefulProcessor`` of PySpark that takes and returns rows.

        Args:
            statefulProcessor: an instance. A copy of it is asked in the driver, by ``init`` and
                ``close``, which states it has.
            outputStructType: columns of the result.
            outputMode: ``update`` or ``append``.
            timeMode: ``None``, ``ProcessingTime`` or ``EventTime``.
            initialState: must be left out.
            eventTimeColumnName: must be left out: only a following operator of Spark needs it.

        Raises:
            UnsupportedCallError: another mode; an argument that must be left out; event time
                without ``withWatermark``.
            StateTypeError: a state has a type that cannot be kept.
            InvalidInputError: as of ``stateful``.
        """
        return self._transformed(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
            in_pandas=False,
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: Any,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> DataFrame:
        """Run a ``StatefulProcessor`` of PySpark that takes and returns pandas DataFrames.

        Arguments and errors are those of ``transformWithState``.
        """
        return self._transformed(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            initialState,
            eventTimeColumnName,
            in_pandas=True,
        )

    def _transformed(
        self,
        processor: Any,
        returns: StructType | str,
        mode: str,
        time_mode: str,
        initial: GroupedData | None,
        time_column: str,
        *,
        in_pandas: bool,
    ) -> DataFrame:
        _check_mode(mode)
        if str(time_mode).lower() not in {"none", "processingtime", "eventtime"}:
            raise UnsupportedCallError(
                f"timeMode is {time_mode!r}; expected None, ProcessingTime or EventTime"
            )
        if initial is not None or time_column:
            raise UnsupportedCallError(
                "initialState and eventTimeColumnName have no equivalent here: put the initial "
                "rows into the DataFrame, before the others, and leave the arguments out"
            )
        rows, delay = self._rows(returns, is_timed=str(time_mode).lower() == "eventtime")
        program: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        schemas: dict[str, StructType] = {}

        def parse(text: str) -> StructType:
            return schemas.setdefault(text, self._columns(text))

        stores = StateVariables.stores(program, time_mode, parse)
        factory = partial(StateVariables, program, rows, time_mode, schemas, in_pandas=in_pandas)
        return self._started(factory, stores, rows, delay, type(processor))

    def _rows(self, returns: StructType | str, *, is_timed: bool) -> tuple[GroupRows, int]:
        """Return what functions see of rows, and the delay of the watermark, ms."""
        frame = self.frame
        delays = {
            field.name: int(field.metadata[_DELAY])
            for field in frame.schema.fields
            if _DELAY in field.metadata
        }
        time = next(iter(delays), None)
        if is_timed and time is None and frame.isStreaming:  # Spark drops that of a batch
            raise UnsupportedCallError(
                "timers by event time need a watermark; call withWatermark before groupBy"
            )
        zone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))
        sent, seen = self._columns(returns), frame.schema
        rows = GroupRows(
            arrow_schema(seen),
            self.keys,
            to_schema(arrow_schema(sent)),
            time,
            is_timed,
            zone,
            *map(_nested, (seen, sent)),
        )
        return rows, delays.get(str(time), 0)

    def _columns(self, schema: StructType | str) -> StructType:
        if isinstance(schema, StructType):
            return schema
        return self.frame.sparkSession.createDataFrame([], schema).schema

    def _started(
        self, factory: Any, stores: Sequence[Any], rows: GroupRows, delay: int, code: Any
    ) -> DataFrame:
        def add(keyed: Stream) -> Stream:
            return keyed.process(factory, stores=stores, returns=rows.returns, name="process")

        run = self.run
        if not self.frame.isStreaming:
            settings = [*_ONE_EPOCH, *run.keywords["settings"]]  # type: ignore[attr-defined]
            run = partial(run, settings=settings)
        timed: dict[str, Any] = {}
        if rows.time is not None:  # one partition, so that the watermark is that of all rows
            timed = {"time": rows.time, "out_of_orderness": f"{delay}ms", "partitions": 1}
        return run(self.frame, self.keys, add, module=getattr(code, "__module__", None), **timed)


def _nested(schema: StructType) -> dict[str, DataType]:
    kinds = (ArrayType, StructType)
    return {one.name: one.dataType for one in schema.fields if isinstance(one.dataType, kinds)}


def _check_mode(mode: str) -> None:
    if str(mode).lower() not in {"update", "append"}:
        raise UnsupportedCallError(
            f"outputMode is {mode!r}; expected update or append, which give the same results here"
        )
