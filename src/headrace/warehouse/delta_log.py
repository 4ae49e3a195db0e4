"""What a Delta table holds, in the words of the other tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.graph.daily import PARTITION
from headrace.records.schema import schema_to_text
from headrace.warehouse.delta_marks import Mark, marks_of
from headrace.warehouse.snapshot import FORMAT, DataFile, Day, Snapshot

DELTA_LOG = "_delta_log"
WATERMARK = "headrace.watermark"
LATE = "headrace.late"
"""What the commit of an epoch says beside its files: late rows of each day so far, as JSON."""

_FEW = 32


def library() -> Any:
    """Return the library for Delta tables.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        import deltalake  # noqa: PLC0415 - an extra
        import deltalake.exceptions  # noqa: PLC0415
        import deltalake.transaction  # noqa: PLC0415
    except ImportError as error:
        raise InvalidInputError(
            'format="delta" needs the library deltalake; install headrace[delta]'
        ) from error
    return deltalake


def columns_of(found: Any) -> pa.Schema:
    """Return the columns of an opened Delta table, without that of the partition."""
    plain = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    plain |= {pa.binary_view(): pa.binary(), pa.large_binary(): pa.binary()}
    fields = pa.schema(found.schema().to_arrow())
    kinds = [pa.field(one.name, plain.get(one.type, one.type)) for one in fields]
    return pa.schema([one for one in kinds if one.name != PARTITION])


def snapshot_of(folder: Path) -> Snapshot:
    """Return the newest version of a Delta table.

    Raises:
        InvalidInputError: the library for it is not installed, or no job has made it.
        CorruptDataError: its log cannot be read.
    """
    delta = library()
    try:
        found = delta.DeltaTable(str(folder))
    except (delta.exceptions.DeltaError, OSError, ValueError) as error:
        raise CorruptDataError(
            f"the log of Delta table {folder} cannot be read: {str(error).splitlines()[0]}",
            file=str(folder / DELTA_LOG),
        ) from error
    writer = _writer_of(found.metadata().description)
    if found.metadata().partition_columns != [PARTITION] or "job" not in writer:
        raise InvalidInputError(
            f"Delta table {folder} was made by no job, of which tables have a partition "
            f"{PARTITION!r}; move it out of the warehouse"
        )
    days, marks = _files_by_day(found), marks_of(folder)
    complete = {day: mark.completed_ms for day, mark in marks.items()}
    late = late_by_day(found, marks)
    return Snapshot(
        FORMAT,
        writer["job"],
        writer.get("operator", ""),
        schema_to_text(columns_of(found)),
        writer.get("time", ""),
        version=found.version(),
        days={
            day: Day(tuple(files), complete.get(day), late.get(day, 0))
            for day, files in days.items()
        },
    )


def late_by_day(found: Any, marks: Mapping[str, Mark]) -> dict[str, int]:
    """Return how many late rows have come to each day of an opened Delta table.

    Args:
        found: the table.
        marks: of its complete days, which say so as well, if its log does not go back so far.
    """
    for most in (1, _FEW, None):  # others commit as well: compactions, and what drops old days
        commits = found.history(most)
        own = next((one for one in commits if WATERMARK in one), None)
        if own is not None:
            return {str(day): int(rows) for day, rows in json.loads(own.get(LATE, "{}")).items()}
        if most is None or len(commits) < most:
            break
    return {day: mark.late_rows for day, mark in marks.items()}


def rows_by_day(found: Any) -> dict[str, int]:
    """Return how many rows an opened Delta table has, by day."""
    return {day: sum(f.rows for f in files) for day, files in _files_by_day(found).items()}


def _files_by_day(found: Any) -> dict[str, list[DataFile]]:
    days: dict[str, list[DataFile]] = {}
    for action in pa.table(found.get_add_actions(flatten=True)).to_pylist():
        day = str(action[f"partition.{PARTITION}"])
        name = Path(action["path"]).name
        file = DataFile(name, action["num_records"] or 0, action["size_bytes"])
        days.setdefault(day, []).append(file)
    return days


def _writer_of(description: str | None) -> dict[str, str]:
    """Return what the receiver says of itself; nothing, where others have written."""
    try:
        found = json.loads(description or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
