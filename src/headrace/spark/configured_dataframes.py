"""DataFrames that the settings put in the place of streams: read, cut, checked, secrets hidden."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkException,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.clock import Clock
from headrace.config.inputs import INPUT_KEY, FrameSettings
from headrace.errors import InvalidInputError, UnavailableError
from headrace.graph.operators import SettingsFrame
from headrace.records.schema import normalise_schema
from headrace.spark.slot_rdd import first_line
from headrace.spark.versions import arrow_schema

_MISTAKES = (AnalysisException, IllegalArgumentException, ParseException)
_AWAY = "FAILED_JDBC"  # which Spark counts among mistakes of the query
_NO_SOURCE = ("DATA_SOURCE_NOT_FOUND", "ClassNotFoundException", "NoClassDefFoundError")


def configured_dataframe(
    session: SparkSession, instead: SettingsFrame, time: str | None, clock: Clock
) -> DataFrame:
    """Return the DataFrame that the settings put in the place of a stream.

    Args:
        session: of Spark.
        instead: what they say, and the columns that it has to have.
        time: its event-time column.
        clock: for names.

    Raises:
        InvalidInputError: Spark cannot make it of what the settings say, or its columns are not
            those that the job reads.
        UnavailableError: what it is read from does not answer, or lacks a package.
    """
    given = instead.given.dataframe
    assert given is not None
    key = f"setting {INPUT_KEY}{instead.stream}.dataframe"
    with redacted_errors(key, given):
        frame = _chosen(session, _read(session, given), given, clock)
        frame = _with_columns(frame, instead.columns, key)
        return _between(frame, time, instead.given.begin_ms, instead.given.end_ms, key)


@contextmanager
def redacted_errors(key: str, given: FrameSettings) -> Iterator[None]:
    """Report what Spark says while it makes a DataFrame, without what may be secret."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        # What a mistake shows of options may be a password: the log has the error without them.
        cause = given.redacted(error)
        said = first_line(cause)
        if any(word in str(error) for word in _NO_SOURCE):
            raise UnavailableError(
                f"{key}: Spark has no {given.format or given.table}: {said}; name the package that "
                "has it, such as spark.conf.spark.jars.packages=GROUP:NAME:VERSION"
            ) from cause
        if isinstance(error, _MISTAKES) and _AWAY not in said:
            raise InvalidInputError(f"{key}: {said}") from cause
        raise UnavailableError(
            f"{key}: Spark could not reach {given.text}: {said}; Spark's log has the details"
        ) from cause


def _read(session: SparkSession, given: FrameSettings) -> DataFrame:
    reader = session.readStream if given.streaming else session.read
    if given.options:
        reader = reader.options(**given.options)
    if given.columns is not None:
        reader = reader.schema(given.columns)
    if given.table is not None:
        return reader.table(given.table)
    assert given.format is not None
    return reader.format(given.format).load(given.load)


def _chosen(
    session: SparkSession, frame: DataFrame, given: FrameSettings, clock: Clock
) -> DataFrame:
    """Do to a DataFrame what the settings say in SQL."""
    if given.select is None and given.where is None:
        return frame
    view = f"headrace_{clock.new_id()}".replace("-", "_")
    frame.createOrReplaceTempView(view)
    try:
        where = "" if given.where is None else f" WHERE {given.where}"
        return session.sql(f"SELECT {given.select or '*'} FROM `{view}`{where}")
    finally:
        session.catalog.dropTempView(view)


def _with_columns(frame: DataFrame, wanted: pa.Schema | None, key: str) -> DataFrame:
    """Return the wanted columns, in their order; Spark takes names of either case as equal.

    Raises:
        InvalidInputError: names all that are missing or of another type.
    """
    try:
        found = normalise_schema(arrow_schema(frame.schema))
    except InvalidInputError as error:
        raise InvalidInputError(f"{key}: {error.message}, with dataframe.select") from error
    if wanted is None:
        return frame
    names = {name.lower(): name for name in reversed(found.names)}
    chosen: list[Column] = []
    wrong: list[str] = []
    for column in wanted:
        name = column.name if column.name in found.names else names.get(column.name.lower())
        if name is None:
            wrong.append(f"no column {column.name!r}")
        elif not _fits(found.field(name).type, column.type):
            wrong.append(f"column {column.name!r} is {found.field(name).type}, not {column.type}")
        else:
            chosen.append(F.col(f"`{name.replace('`', '``')}`").alias(column.name))
    if wrong:
        raise InvalidInputError(
            f"{key}: found {'; '.join(wrong)}; it has {', '.join(found.names)}: say what the job's "
            "columns are made of with dataframe.select, such as 'cast(price as double) price'"
        )
    return frame.select(*chosen)


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values can be had without loss; which of them are too large is seen later."""
    is_int, is_float, types = pa.types.is_integer, pa.types.is_floating, pa.types
    if is_int(found):
        return bool(is_int(wanted) or is_float(wanted))
    if types.is_decimal(found) and types.is_decimal(wanted):
        return bool(found.scale <= wanted.scale)
    return bool(found.equals(wanted) or (is_float(found) and is_float(wanted)))


def _between(
    frame: DataFrame, time: str | None, begin_ms: int | None, end_ms: int | None, key: str
) -> DataFrame:
    """Leave out rows whose event time is outside of a range; what has none is refused later on."""
    if begin_ms is None and end_ms is None:
        return frame
    if time is None or time not in frame.columns:
        raise InvalidInputError(
            f"{key}: from and to are event times, which it has none of; give time, or "
            "dataframe.where"
        )
    at = F.col(f"`{time}`")
    is_timestamp = frame.schema[time].dataType.typeName().startswith("timestamp")
    fits = F.lit(True)
    for bound, is_end in ((begin_ms, False), (end_ms, True)):
        if bound is not None:
            edge = F.timestamp_millis(F.lit(bound)) if is_timestamp else F.lit(bound)
            fits &= (at < edge) if is_end else (at >= edge)
    return frame.where(at.isNull() | fits)
