"""Compressed text is read as what is in it, in any range, and told when it is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.cli.main import app
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.sources import file_streams
from headrace.sources.file_streams import BoundedFileStream, text_splits
from headrace.sources.files import CODECS, codec_of, form_of, found_files, open_text, split_options
from headrace.sources.listing import BoundedSource, SourceFile, stream_of
from headrace.testing import TestDriver

ROWS = 500
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def text_of(form: str) -> bytes:
    rows = [{"n": n, "text": f"row {n}"} for n in range(ROWS)]
    if form == "csv":
        return "\n".join(["n,text", *(f"{row['n']},{row['text']}" for row in rows)]).encode()
    return "\n".join(map(json.dumps, rows)).encode()


def packed(folder: Path, form: str, suffix: str) -> Path:
    path = folder / f"rows.{form}{suffix}"
    with pa.CompressedOutputStream(str(path), CODECS[suffix]) as file:
        file.write(text_of(form))
    return path


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("suffix", CODECS)
def test_any_range_of_a_compressed_file_is_the_rows_of_it(
    form: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_streams, "SPLIT_BYTES", 700)
    path = packed(tmp_path, form, suffix)
    assert form_of(str(path), None) == form
    assert found_files(str(tmp_path), None) == [(str(path), path.stat().st_size)]
    cut, header = text_splits(0, str(path), is_csv=form == "csv")
    assert len(cut) > 5
    files = (SourceFile(str(path), path.stat().st_size, header),)
    said = stream_of(StreamSpec("in", 1, SCHEMA))
    stream = BoundedFileStream(
        "in", BoundedSource("x", **said, form=form, files=files, partitions=(tuple(cut),))
    )
    for start, stop in ((0, ROWS), (400, 410), (20, 300), (0, 3), (499, 500)):
        found = [row for part in stream.read(0, start, stop) for row in part.batch.to_pylist()]
        assert [row["n"] for row in found] == list(range(start, stop))


def test_a_job_over_compressed_files_gives_what_the_stream_gives(tmp_path: Path) -> None:
    @hr.job("sums")
    def sums(g: hr.Graph) -> None:
        rows = g.input("in", schema={"n": int, "text": str}).partition_by("text")
        rows.aggregate(count=hr.agg.count(), total=hr.agg.sum("n")).send_to(g.output("out"))

    packed(tmp_path, "csv", ".gz")
    given = {"in": {"files": str(tmp_path), "partitions": 1}}
    with TestDriver(sums, inputs=given, max_rows=70) as driver:
        for point in ("epoch.before_commit", "commit.published"):
            driver.advance_with_crash(point)
        driver.finish()
        found = {row["text"]: (row["count"], row["total"]) for row in driver.output("out")}
    assert found == {f"row {n}": (1, n) for n in range(ROWS)}


def test_a_file_that_is_cut_off_or_of_another_kind_is_told(tmp_path: Path) -> None:
    path = packed(tmp_path, "jsonl", ".gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptDataError, match=r"rows\.jsonl\.gz cannot be unpacked"):
        text_splits(0, str(path), is_csv=False)
    path.write_bytes(text_of("jsonl"))
    with pytest.raises(CorruptDataError, match="its name says another compression"):
        text_splits(0, str(path), is_csv=False)
    other = path.rename(tmp_path / "rows.parquet.gz")
    with pytest.raises(InvalidInputError, match=r"format of .*parquet\.gz is unknown"):
        form_of(str(other), None)


def test_going_back_begins_anew(tmp_path: Path) -> None:
    path = packed(tmp_path, "csv", ".zst")
    text = text_of("csv")
    with open_text(str(path)) as source:
        for place in (100, 40, 4000, len(text) - 5, 0):
            source.seek(place)
            assert source.read(10) == text[place : place + 10]


def test_compressed_files_are_appended_to_a_stream(tmp_path: Path) -> None:
    path = packed(tmp_path, "csv", ".gz")
    words: list[Any] = ["--home", str(tmp_path / "home")]
    said = CliRunner().invoke(app, ["bus", "append", "rows", str(path), "--infer", *words])
    assert said.exit_code == 0, said.output
    with FileBus(tmp_path / "home" / "bus") as bus:
        rows = [row for part in bus.stream("rows").read(0, 0) for row in part.batch.to_pylist()]
    assert [row["n"] for row in rows] == list(range(ROWS))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("s3://b/f.csv.gz", "?endpoint_override=http://minio:9000"),
        ("s3://b/f?.csv.gz", "?region=x&endpoint_override=http://minio:9000/"),
        ("abfs://c@a/f.csv.gz", "?blob_storage_authority=localhost:10000"),
        ("s3://b/d?y=1.csv.gz", ""),
        ("s3://b/y=?x=1/f.csv.gz", ""),
    ],
)
def test_options_of_an_address_are_those_of_file_systems(name: str, options: str) -> None:
    assert split_options(name + options) == (name, options)
    assert codec_of(name + options) == "gzip"
