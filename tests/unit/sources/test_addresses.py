"""Files that are not on this machine: addresses of S3, with options, and of other systems."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyarrow import fs
from tests.unit.sources.s3 import served

import headrace as hr
from headrace.errors import InvalidInputError, UnavailableError
from headrace.sources import files
from headrace.sources.files import form_of, found_files, open_text
from headrace.testing import TestDriver

ROWS = [{"user": f"u{n % 3}", "n": n} for n in range(60)]
LINES = [json.dumps(row) + "\n" for row in ROWS]


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    rows = g.input("in", schema={"user": str, "n": int}).partition_by("user")
    rows.aggregate(rows=hr.agg.count(), total=hr.agg.sum("n")).send_to(g.output("out"))


def results(driver: TestDriver) -> dict[str, tuple[int, int]]:
    return {row["user"]: (row["rows"], row["total"]) for row in driver.output("out")}


EXPECTED = {f"u{user}": (20, sum(range(user, 60, 3))) for user in range(3)}


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A bucket whose folders hold the same rows in three formats."""
    for name in ("parquet", "lines", "csv"):
        (tmp_path / "lake" / name).mkdir(parents=True)
    frame = pl.DataFrame(ROWS)
    for number, part in enumerate((frame[:25], frame[25:])):
        part.write_parquet(tmp_path / f"lake/parquet/{number}.parquet", row_group_size=7)
        part.write_csv(tmp_path / f"lake/csv/{number}.csv")
    (tmp_path / "lake/lines/a b+c.jsonl").write_text("".join(LINES[:25]))
    (tmp_path / "lake/lines/d.jsonl.gz").write_bytes(gzip.compress("".join(LINES[25:]).encode()))
    (tmp_path / "lake/lines/_log.jsonl").write_text("no row")
    return tmp_path / "lake"


@pytest.fixture
def options(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "known")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with served(bucket.parent) as found:
        yield found


@pytest.mark.parametrize("path", ["parquet", "lines/", "csv/*.csv"])
def test_a_job_over_objects_of_s3_gives_what_the_stream_gives(path: str, options: str) -> None:
    """And goes on in the middle of them, whoever dies."""
    said: dict[str, Any] = {"files": [f"s3://lake/{path}{options}"]}
    settings = {"bounded": True}
    with TestDriver(sums, inputs={"in": said}, job_settings=settings, max_rows=9) as driver:
        for point in ("slot.ran", "epoch.before_commit", "commit.published"):
            assert driver.advance_with_crash(point)
        driver.run()
        assert results(driver) == EXPECTED


def test_objects_are_found_as_files_are(options: str) -> None:
    start = "s3://lake/lines"
    every = [f"{start}/a b+c.jsonl{options}", f"{start}/d.jsonl.gz{options}"]
    for address in (start, f"{start}/*", "s3://lake/l*/*.jsonl*"):
        found = [name for name, _ in found_files(address + options, None)]
        assert found == every
    assert {form_of(address, None) for address in every} == {"jsonl"}
    with open_text(every[1]) as source:
        assert source.read(len(LINES[25])) == LINES[25].encode()
    with pytest.raises(InvalidInputError, match="no files at s3://lake/none"):
        found_files(f"s3://lake/none/*.csv{options}", None)


def test_an_object_that_goes_or_changes_in_a_run_is_told(options: str, bucket: Path) -> None:
    said = {"files": f"s3://lake/csv{options}", "partitions": 1}
    with TestDriver(sums, inputs={"in": said}, max_rows=9) as driver:
        driver.advance()
        path = bucket / "csv" / "1.csv"
        path.write_text("user,n\n")
        with pytest.raises(InvalidInputError, match=r"csv/1\.csv.* has changed since the run"):
            driver.run()
        path.unlink()
        driver.crash()
        with pytest.raises(UnavailableError, match=r"csv/1\.csv.* cannot be read.*put it back"):
            driver.run()


def test_paths_that_begin_otherwise_than_addresses_lead_back(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Azure: of ``abfs://container@account/path`` the path is ``container/path``."""
    below = fs.SubTreeFileSystem(str(bucket.parent), fs.LocalFileSystem())
    asked: list[str] = []

    def opened(start: str) -> tuple[Any, str]:
        asked.append(start)
        return below, "lake"

    monkeypatch.setattr(files, "_system", opened)
    start = "abfs://lake@someone.dfs.core.windows.net"
    [(first, size), _] = found_files(f"{start}/csv/*.csv", None)
    assert (first, asked[0]) == (f"{start}/csv/0.csv", f"{start}/")
    with open_text(first) as source:
        assert source.read(size) == (bucket / "csv" / "0.csv").read_bytes()


def test_an_address_that_no_system_takes_is_told() -> None:
    with pytest.raises(InvalidInputError, match=r"address 's3://lake/\?nonsense=1' cannot be used"):
        found_files("s3://lake/a.csv?nonsense=1", None)
