"""Folders of files as epoch sinks."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import headrace as hr
from headrace.sinks import Sink
from headrace.testing.sink_contract import EpochSinkContract, SinkRow


class TestFolder(EpochSinkContract):
    fences = False

    def make_sink(self, folder: Path) -> Sink:
        self.folder_of_rows = folder
        return hr.sinks.parquet(folder)

    def rows(self, sink: Sink) -> list[SinkRow]:
        files = hr.sinks.committed_files(self.folder_of_rows)
        return [row for path in files for row in pl.read_parquet(path).rows()]
