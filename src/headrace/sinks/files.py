"""File sinks: each epoch is a folder of files, which appears in one step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.files import Bytes
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.sinks import Sink, SinkSite
from headrace.sinks.folder import FolderReceiver, Merging
from headrace.sinks.formats import Csv, Format, JsonLines, Parquet

_FORMATS: dict[str, Format] = {"parquet": Parquet(), "jsonl": JsonLines(), "csv": Csv()}


@dataclass(frozen=True)
class FileSink(Sink):
    """A folder that takes each committed epoch; made by ``parquet``, ``json_lines``, ``csv``.

    Args:
        folder: absolute, and of this sink alone; the driver's host must reach it.
        form: ``parquet``, ``jsonl`` or ``csv``.
        merge_bytes: files of epochs are merged into one once they have so many bytes together.
        merge_epochs: or once they are of so many epochs; counts only with ``merge_bytes``.
        keep: how long files that were merged stay for readers that have begun with them.
    """

    folder: str
    form: str = "parquet"
    merge_bytes: int | None = None
    merge_epochs: int = 100
    keep: Duration = "1h"

    @property
    def label(self) -> str:
        """The folder's own name."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", Path(self.folder).name)

    @property
    def identity(self) -> str:
        """Form and folder."""
        return f"{self.format.name} files in {self.folder}"

    @property
    def promise(self) -> str:
        """What readers can rely on."""
        readers = f"read {self.folder}/*/*.{self.suffix}"
        if self.merge_bytes is not None:
            readers = "small files are merged, so readers go by hr.sinks.committed_files(folder)"
        return f"exactly-once: an epoch is there whole or not at all, and once; {readers}"

    @property
    def format(self) -> Format:
        """How rows are written."""
        return _FORMATS[self.form]

    @property
    def suffix(self) -> str:
        """What names of files end with."""
        return self.format.suffix

    def mistakes(self) -> list[str]:
        """Return what cannot be."""
        wrong = []
        folder = Path(self.folder)
        if not folder.is_absolute() or not folder.name:
            wrong.append(f"folder is {self.folder!r}; expected an absolute path below /")
        for name in ("merge_bytes", "merge_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                wrong.append(f"{name} is {value}; expected at least 1")
        try:
            duration_ms(self.keep, "keep", least=0)
        except InvalidInputError as error:
            wrong.append(error.message)
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the columns that the form has nothing for."""
        return [
            f"column {field.name!r} is {field.type}, for which {self.format.name} has no form "
            "here; cast it with map, or send to hr.sinks.parquet"
            for field in schema
            if self.format.refuses(field.type)
        ]

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return one file."""
        return self.format.encode(pa.Table.from_batches(batches, schema))

    def open(self, site: SinkSite) -> FolderReceiver:
        """Take the folder, which is made when it is missing."""
        merging = None
        if self.merge_bytes is not None:
            keep_ms = duration_ms(self.keep, "keep", least=0)
            merging = Merging(self.merge_bytes, self.merge_epochs, keep_ms)
        return FolderReceiver(Path(self.folder), self.format, merging, site)


def parquet(
    folder: str | PathLike[str],
    *,
    merge_bytes: int | None = None,
    merge_epochs: int = 100,
    keep: Duration = "1h",
) -> FileSink:
    """Send to Parquet files in a folder, committed by epoch, exactly-once.

    Plain readers take ``folder/*/*.parquet`` and see each epoch whole or not at all. With
    ``merge_bytes`` they go by ``committed_files(folder)``.

    Args:
        folder: absolute, and of this sink alone; the driver's host must reach it.
        merge_bytes: merge files of epochs once they have so many bytes; default: they stay.
        merge_epochs: or once they are of so many epochs.
        keep: how long files that were merged stay for readers that have begun with them.
    """
    return FileSink(fspath(folder), "parquet", merge_bytes, merge_epochs, keep)


def json_lines(
    folder: str | PathLike[str],
    *,
    merge_bytes: int | None = None,
    merge_epochs: int = 100,
    keep: Duration = "1h",
) -> FileSink:
    """Send to files of JSON lines in a folder; see ``parquet`` for what is promised.

    Instants are ISO 8601 text in UTC; NaN and infinity, which JSON has not, are null.

    Args:
        folder: absolute, and of this sink alone; the driver's host must reach it.
        merge_bytes: merge files of epochs once they have so many bytes; default: they stay.
        merge_epochs: or once they are of so many epochs.
        keep: how long files that were merged stay for readers that have begun with them.
    """
    return FileSink(fspath(folder), "jsonl", merge_bytes, merge_epochs, keep)


def csv(
    folder: str | PathLike[str],
    *,
    merge_bytes: int | None = None,
    merge_epochs: int = 100,
    keep: Duration = "1h",
) -> FileSink:
    """Send to CSV files in a folder, each with a line of names; see ``parquet``.

    Instants are ISO 8601 text in UTC; null is nothing between commas, empty text is ``""``.

    Args:
        folder: absolute, and of this sink alone; the driver's host must reach it.
        merge_bytes: merge files of epochs once they have so many bytes; default: they stay.
        merge_epochs: or once they are of so many epochs.
        keep: how long files that were merged stay for readers that have begun with them.
    """
    return FileSink(fspath(folder), "csv", merge_bytes, merge_epochs, keep)
