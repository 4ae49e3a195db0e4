"""What PySpark 4.0 to 4.3 name differently, or have only later.

Other modules of ``headrace.spark`` take these names from here, and know no versions.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas import types
from pyspark.sql.types import DataType, StructType

VERSION = pyspark.__version__

if hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter: Any = datasource.DataSourceStreamArrowWriter
else:

    class _StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):  # type: ignore[misc, unused-ignore]
        """What PySpark 4.0 gives Arrow batches to, of a streaming query, too."""

    StreamArrowWriter = _StreamArrowWriter

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS_BATCHES = True
    """Whether Spark says where a batch begins and how far it may go, from 4.2 on."""
except ImportError:
    LIMITS_BATCHES = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands where Spark has no limits."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Stands where Spark has no limits."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Stands where Spark has no limits."""

        max_rows = 0

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands where Spark reports its trigger to no source."""


_SCHEMA: Any = types.to_arrow_schema
_AT_UTC = "timezone" in signature(_SCHEMA).parameters  # before 4.2 it is the default
_TO_PANDAS: Any = types._create_converter_to_pandas  # noqa: SLF001 - what Spark's own workers call
_NULLS = {n: True for n in ("integer_object_nulls",) if n in signature(_TO_PANDAS).parameters}
"""Keeps integers beside nulls from becoming floats; PySpark 4.0 cannot."""
_FROM_PANDAS: Any = types._create_converter_from_pandas  # noqa: SLF001 - the same
_NTZ: Any = {"prefer_timestamp_ntz": True}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form that Spark expects rows of a schema in."""
    made: pa.Schema = _SCHEMA(schema, timezone="UTC") if _AT_UTC else _SCHEMA(schema)
    return made


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for one of Arrow; times without a zone stay without one."""
    return types.from_arrow_type(kind, **_NTZ)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's columns for those of Arrow."""
    return types.from_arrow_schema(schema, **_NTZ)


def frame_of_nested(column: pa.Array, kind: DataType, zone: str) -> Any:
    """Return a column of arrays or structs as Spark hands it to functions of pandas.

    Args:
        column: as Arrow has it.
        kind: its type of Spark.
        zone: the session's, in which the times in it are.
    """
    made = column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True, **_NULLS)
    return _TO_PANDAS(kind, timezone=zone, struct_in_pandas="dict", **_NULLS)(made)


def nested_of_frame(column: Any, kind: DataType, zone: str) -> Any:
    """Return a column of arrays or structs that a function of pandas has made, for Arrow.

    Args:
        column: a series.
        kind: its type of Spark.
        zone: the session's, in which times without a zone are.
    """
    return _FROM_PANDAS(kind, timezone=zone)(column)


__all__ = [
    "LIMITS_BATCHES",
    "VERSION",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "frame_of_nested",
    "nested_of_frame",
    "spark_schema",
    "spark_type",
]
