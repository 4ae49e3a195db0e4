import subprocess
import sys
import zipfile
from pathlib import Path

import py4j
import pyspark

from headrace.spark.daemon import without_zips

ZIPS = Path(pyspark.__file__).parent / "python" / "lib"
SITE = str(Path(pyspark.__file__).parents[1])


def zips() -> list[str]:
    return sorted(str(path) for path in ZIPS.glob("*.zip"))


def test_zips_of_the_installed_versions_are_left_out():
    assert len(zips()) == 2
    assert Path(py4j.__file__).parents[1] == Path(SITE)

    assert without_zips([*zips(), "/somewhere", SITE]) == ["/somewhere", SITE]


def test_a_zip_of_which_nothing_is_installed_stays(tmp_path: Path):
    assert without_zips([*zips(), str(tmp_path)]) == [*zips(), str(tmp_path)]


def test_a_zip_of_another_version_stays(tmp_path: Path):
    other = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("pyspark/version.py", '__version__ = "3.5.0"\n')

    assert without_zips([str(other), SITE]) == [str(other), SITE]


def test_what_is_no_zip_stays(tmp_path: Path):
    broken = tmp_path / "pyspark.zip"
    broken.write_bytes(b"no zip")

    assert without_zips([str(broken), "/gone/pyspark.zip", SITE]) == [
        str(broken),
        "/gone/pyspark.zip",
        SITE,
    ]


def test_workers_take_pyspark_from_where_it_is_installed():
    program = """
import importlib, sys
from headrace.spark import daemon
sys.path[:] = daemon.without_zips(sys.path)
print(importlib.import_module("pyspark.daemon").__file__)
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join([*zips(), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )

    assert Path(told.stdout.strip()) == Path(pyspark.__file__).parent / "daemon.py"
