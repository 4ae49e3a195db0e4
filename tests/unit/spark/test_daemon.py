import json
import subprocess
import sys
import zipfile
from pathlib import Path

import py4j
import pyspark
import pytest

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


@pytest.fixture(autouse=True)
def _with_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon loads it, too."""
    monkeypatch.delenv("PYTHONPATH")


FORKED = """
import json, os, sys
import headrace.spark.daemon as daemon

daemon.preload()
loaded = [name for name in daemon.PRELOADED if name not in sys.modules]
assert not loaded, loaded
for _ in range(2):
    if not os.fork():
        import numpy, polars, pyarrow.compute
        keys = polars.DataFrame({"k": range(50_000)}).group_by(polars.col("k") % 7).len()
        total = pyarrow.compute.sum(pyarrow.chunked_array([range(9)] * 9)).as_py()
        print(json.dumps([numpy.random.rand(), keys.height, total]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_what_is_forked_computes_with_what_was_loaded_and_draws_numbers_of_its_own():
    """With all threads of the libraries, none of which was there before the fork."""
    said = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    (first, *one), (second, *two) = map(json.loads, said.splitlines())
    assert one == two == [7, 9 * 36]
    assert first != second


REPLACED = """
import json, os, sys, time
import headrace.spark.daemon as daemon

delay_s, deadline = float(sys.argv[1]), time.monotonic() + 60
daemon.PRELOAD_AFTER_S = delay_s
daemon.preload_after_first_fork()
for number in range(3):
    while number and not delay_s and daemon.PRELOADED[-1] not in sys.modules:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if not os.fork():
        print(json.dumps([name in sys.modules for name in daemon.PRELOADED]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("delay_s", ["0", "3600"])
def test_the_first_process_of_a_slot_is_forked_at_once_and_others_with_what_is_loaded(
    delay_s: str,
) -> None:
    """By the daemon in the meantime, or by the fork that needs it."""
    said = subprocess.run(
        [sys.executable, "-c", REPLACED, delay_s],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    first, *others = map(json.loads, said.splitlines())
    assert not any(first)
    assert [all(one) for one in others] == [True, True]
