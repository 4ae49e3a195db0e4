"""Install the wheel into empty environments of several Pythons, outside the repository, and use it.

    make test-wheels                            # Python 3.11, 3.12 and 3.13
    make test-wheels PYTHONS="3.12"

Each has the core first: a first job by ``dev`` and ``run --standalone``. Then come the extras
``demo`` and ``spark``: the demo without Spark and on it, and the same job on Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.wheels import Environment, install, made  # noqa: E402 - of the path above

FLIGHTS = 336_776


def interpreter(version: str) -> str:
    """Return a Python of a version: on PATH, of pyenv, or of uv, which may fetch it."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for name in (f"python{version}", *map(str, own)):
        told = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            ran = subprocess.run([name, "-c", told], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if ran.stdout.strip() == version:
            return name
    return version


def first_job(environment: Environment, *where: str) -> None:
    """Make a project, and run its job: on its sample data, and on a stream."""
    name = f"shop{len(list(environment.work.iterdir()))}"
    environment.done("headrace", "init", name)
    here = Environment(environment.folder, environment.work / name)
    assert "cents=" in here.done("headrace", "dev", f"{name}_job.py", "--once")
    columns = ("--schema", "customer:string,at:timestamp,cents:int64", "--time", "at")
    here.done("headrace", "bus", "create", "orders", *columns, "--key", "customer")
    here.done("headrace", "bus", "append", "orders", "data/orders.jsonl")
    here.done("headrace", "run", f"{name}_job.py", "--bounded", *where, within_s=300)
    assert "cents=" in here.done("headrace", "bus", "tail", "spending", "-n", "1")


def demo(environment: Environment) -> str:
    """Run the demo as a batch; return what it took."""
    told = environment.done("headrace", "demo", "--mode", "bounded", "--json", within_s=600)
    result = json.loads(told)
    assert result["rows"] == FLIGHTS
    assert [one["is_equal"] for one in result["comparisons"]] == [True] * 3
    return f"{result['wall_s']:.0f} s"


def check(wheel: Path, version: str, folder: Path) -> str:
    """Return what was seen with a version."""
    began = time.monotonic()
    environment = install(made(folder, interpreter(version)), wheel)
    full = environment.done("python", "--version").split()[1]
    core = f"{environment.megabytes:.0f} MB"
    first_job(environment, "--standalone")
    refused = environment.run("headrace", "demo")
    assert refused.returncode == 1, refused.stderr
    assert 'pip install "headrace[demo]"' in " ".join(refused.stderr.split())
    install(environment, f"{wheel}[demo]")
    alone = demo(environment)
    install(environment, f"{wheel}[demo,spark]")
    first_job(environment)
    on_spark = demo(environment)
    took = f"all of it {time.monotonic() - began:.0f} s"
    return f"{full}: core {core}; demo {alone} without Spark, {on_spark} on Spark; {took}"


def main() -> None:
    """Check each version, then show a line for each."""
    [wheel] = (ROOT / "dist").glob("headrace-*.whl")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    seen = []
    for version in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            seen.append(check(wheel, version, Path(folder)))
            print(f"Python {seen[-1]}", flush=True)


if __name__ == "__main__":
    main()
