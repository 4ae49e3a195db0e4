"""Forms of files that sinks write: what each keeps, and what a merged file is."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa

from headrace.files import Files
from headrace.sinks.files import Csv, JsonLines, Parquet


def test_text_forms_keep_what_they_have_a_form_for(tmp_path: Path) -> None:
    at = datetime(2020, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    table = pa.table(
        {
            "at": pa.array([at, None], pa.timestamp("us", tz="UTC")),
            "text": ['a,"b"\nc', ""],
            "yes": [True, None],
        }
    )
    [lines] = JsonLines().encode(table)
    assert bytes(lines).decode().splitlines() == [
        '{"at":"2020-01-02T03:04:05.000600Z","text":"a,\\"b\\"\\nc","yes":true}',
        '{"at":null,"text":"","yes":null}',
    ]
    paths = []
    for number in (1, 2):
        paths.append(tmp_path / f"{number}.csv")
        Files(sync=False).write_new(paths[-1], Csv().encode(table))
    Csv().merge(paths, tmp_path / "both.csv")
    read = pl.read_csv(tmp_path / "both.csv")
    assert read["text"].to_list() == ['a,"b"\nc', ""] * 2
    assert read["yes"].to_list() == [True, None] * 2
    assert read["at"].to_list()[0] == "2020-01-02T03:04:05.000600Z"


def test_a_merged_parquet_file_keeps_types_and_order(tmp_path: Path) -> None:
    table = pa.table(
        {
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "l": pa.array([[1, 2], None], pa.list_(pa.int32())),
            "b": pa.array([b"\x00", None]),
        }
    )
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path in paths:
        Files(sync=False).write_new(path, Parquet().encode(table))
    Parquet().merge(paths, tmp_path / "all.parquet")
    assert pl.read_parquet(tmp_path / "all.parquet").to_arrow().num_rows == 6
    assert pd.read_parquet(tmp_path / "all.parquet")["d"].tolist() == [Decimal("1.50"), None] * 3
