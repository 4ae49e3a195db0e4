"""Write a home of every golden job, as the code of this checkout leaves it, to one archive.

    python -m tests.compat.make_golden tests/compat/golden/COMMIT.tar.xz

Run it in a checkout of the commit whose files are to be kept; an archive is never written anew
by later code. It holds HOME/<job>/ for each job of ``golden_jobs`` after ``STEPS`` steps, half of
them before a restart, a savepoint of the job ``windows``, and what the jobs had sent and held.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.golden_jobs import JOBS, create, feed, open_job
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.testing import TestDriver

STEPS = 14


def committed(driver: TestDriver) -> dict[str, Any]:
    """What readers see of a job: the rows of its streams, its counts, and its stores."""
    streams = {
        name: [[repr(row) for row in rows] for rows in driver.partitions(name)]
        for name in sorted(driver.bus.names())
    }
    stores = {name: sorted(map(repr, driver.rows(name))) for name in _stores(driver)}
    return {"streams": streams, "counts": dict(driver.counts), "stores": stores}


def _stores(driver: TestDriver) -> list[str]:
    lines = headrace(driver.home, "state", "ls", driver.state.job, "--json").splitlines()
    return sorted(json.loads(line)["store"] for line in lines)


def headrace(home: Path, *words: str) -> str:
    """Run a command on a home; returns what it prints."""
    done = CliRunner().invoke(app, words, env={"HEADRACE_HOME": str(home)})
    if done.exit_code:
        raise RuntimeError(f"{words} ended with {done.exit_code}: {done.output}")
    return done.stdout


def main(archive: Path) -> None:
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "golden"
        for name, job in JOBS.items():
            with open_job(job, root / name) as driver:
                create(driver)
                for step in range(STEPS):
                    if step == STEPS // 2:
                        driver.crash()
                    feed(driver, step)
                expected[name] = committed(driver)
        headrace(root / "windows", "jobs", "savepoint", "windows", "--name", "golden")
        (root / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(root, "golden")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
