"""Run tests on each PySpark that is supported, each in an environment of its own below .matrix.

    make test-matrix                       # all versions
    make test-matrix SPARKS="4.0 4.1"      # some

An environment has the versions of requirements.lock, and another PySpark. Where Delta and Iceberg
have packages for that version, tests read and write their tables, with jars from Maven.

Spark waits ten seconds for a Python process, and nothing changes that: on a busy machine it may
give up. So the few tests that fail run again, alone, as in CI: a fault fails again.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".matrix"
PACKAGES = {
    "4.0": (
        "io.delta:delta-spark_4.0_2.13:4.4.0",
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    ),
    "4.1": (
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    ),
}
"""Of Delta and Iceberg; there are none of Iceberg for later versions."""

TESTS = (
    "streams stateful stream_frames input_dataframe operators located worker_killed timers "
    "shipped_types results dead_letters warehouse frame_sources rescale idle replay state_functions"
)
CONNECT = {"4.3": ("grpcio-status==1.85.*", "zstandard==0.25.*")}
"""What a client of Spark Connect needs beside the lock, where it is tested."""

_MOST_AGAIN = 5
_REPLAY = "not test_a_query_that_replays_a_batch"
MISSING = {
    "4.0": f"{_REPLAY} and not as_in_spark and not test_keys_rows_and_states",
    "4.1": _REPLAY,
}
"""What a version cannot do; docs/guide/spark.md says it. The functions of 4.0 are compared where it
has them: it has no ``transformWithState`` of rows, and its lists of states have no arrays."""


def locked() -> list[str]:
    """Return what requirements.lock names, without PySpark."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    found = (re.match(r"([\w.\[\]-]+==[^ ;\\]+)( ;[^\\]*)?", line) for line in lines)
    every = (one[1] + (one[2] or "") for one in found if one)
    return [one for one in every if not one.startswith(("pyspark==", "py4j=="))]


def environment(version: str) -> Path:
    """Make sure that the environment of a version is there; return its Python."""
    folder = CACHE / f"spark-{version}"
    python, stamp = folder / "bin" / "python", folder / "made-of"
    wanted = [*locked(), f"pyspark=={version}.*", *CONNECT.get(version, ())]
    digest = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"matrix: making an environment with PySpark {version}", flush=True)
        uv = (sys.executable, "-m", "uv", "--quiet")
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([*uv, "pip", "install", "--python", python, *wanted], check=True)
        own = ("--no-deps", "--no-build-isolation", "--editable", ROOT)
        subprocess.run([*uv, "pip", "install", "--python", python, *own], check=True)
        stamp.write_text(digest)
    return python


def run(version: str, arguments: list[str]) -> tuple[str, str]:
    """Run the tests on a version; return its full number, and pytest's last line."""
    python = environment(version)
    variables = {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONDONTWRITEBYTECODE": ""}
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", *arguments]
    command += [f"tests/spark/test_{name}.py" for name in TESTS.split()]
    command.append("tests/matrix/test_limits.py")
    if version in CONNECT:
        command.append("tests/matrix/test_connect.py")
    if version in MISSING:
        command += ["-k", MISSING[version]]
    if version in PACKAGES:
        variables |= {
            "HEADRACE_TEST_PACKAGES": ",".join(PACKAGES[version]),
            "HEADRACE_TEST_IVY": str(CACHE / "ivy"),
        }
    print(f"matrix: PySpark {version}", flush=True)
    last, failed = last_line(command, variables)
    if last.startswith("failed") and 0 < len(failed) <= _MOST_AGAIN:
        print(f"matrix: these run again, alone: {' '.join(failed)}", flush=True)
        again, _ = last_line([*command[: 6 + len(arguments)], *failed], variables)
        last = again if again.startswith("failed") else f"{last[8:]}; when run again: {again}"
    ended = [last]
    if version in PACKAGES:  # with jars of its own, and so with a JVM of its own
        lakes = [*command[: 6 + len(arguments)], "tests/matrix/test_lakes.py"]
        ended.append(f"Delta, Iceberg: {last_line(lakes, variables)[0]}")
    told = "import importlib.metadata as m; print(m.version('pyspark'))"
    full = subprocess.run([python, "-c", told], capture_output=True, text=True, check=True)
    return full.stdout.strip(), "; ".join(ended)


def last_line(command: list[str | Path], variables: dict[str, str]) -> tuple[str, list[str]]:
    """Run a command, show what it prints; return the last line, and the tests that failed."""
    last, failed = "", []
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
            if found := re.match(r"(?:FAILED|ERROR) (tests/.+?)(?: - |$)", line):
                failed.append(found[1])
    return (last if running.returncode == 0 else f"failed: {last}"), failed


def main() -> None:
    """Run all versions, then show a line for each."""
    versions = [word for word in sys.argv[1:] if re.fullmatch(r"\d\.\d", word)]
    arguments = [word for word in sys.argv[1:] if word not in versions]
    found = [run(version, arguments) for version in versions]
    for full, told in found:
        print(f"PySpark {full}: {told}")
    sys.exit(any("failed: " in told for _, told in found))


if __name__ == "__main__":
    main()
