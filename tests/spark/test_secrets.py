"""A run on Spark with secrets in its settings: none is in files, on the screen or in a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.canaries import CANARY, calls_below, canary, leaks, readable_by_others
from tests.support.processes import WITH_FRAMES, end_group

from headrace.bus import open_bus

pytestmark = pytest.mark.spark

JOB = """
import headrace as hr

class Near:
    def process(self, m, context):
        if "far" in str(m.word):
            raise RuntimeError("no answer of " + FAR)
        context.emit({"word": m.word})

@hr.job("words")
def words(g):
    far = hr.store("far", int, kind="remote", remote=hr.Remote(url=FAR, access="blocking"))
    words = g.input("words", schema={"word": str}).partition_by("word")
    words.process(Near, returns={"word": str}, stores=[far]).send_to(g.output("out"))
"""


def test_a_run_on_spark_has_no_secret_in_what_others_see(tmp_path: Path) -> None:
    """Its first epoch goes well, and the second one fails with an error that has a secret."""
    home = tmp_path / "home"
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"word": word}) for word in ("near", "far")]
    (tmp_path / "in" / "words.json").write_text("\n".join(rows))
    far = f"redis://me:{canary('store')}@127.0.0.1:9/0"
    (tmp_path / "job.py").write_text(f"FAR = {far!r}\n{JOB}")
    sets = [
        "inputs.words.dataframe.format=json",
        f"inputs.words.dataframe.load={tmp_path / 'in'}",
        "inputs.words.dataframe.schema=word string",
        f"inputs.words.dataframe.options.password={canary('frame')}",
        f"spark.conf.spark.hadoop.fs.s3a.secret.key={canary('hadoop')}",
        f"spark.conf.spark.my.url=jdbc:x://db?password={canary('jdbc')}",
        f"remote.url=redis://:{canary('remote')}@127.0.0.1:9/0",
        "epoch.max_rows=1",
        "inputs.words.partitions=1",
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment |= {"HEADRACE_HOME": str(home), **WITH_FRAMES}
    given = [part for one in sets for part in ("--set", one)]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headrace.cli.main", "run", "job.py"),
            *("--bounded", "--master", "local[2]", *given),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    )
    try:
        with calls_below(process.pid) as calls:
            shown, _ = process.communicate(timeout=240)
    finally:
        end_group(process)
    assert any("java" in call and "SparkSubmit" in call for call in calls.values())
    with open_bus(home / "bus") as bus:
        assert sum(bus.stream("out").ends()) == 1, shown
    assert "redis://me:***@127.0.0.1:9/0" in shown, shown
    assert CANARY not in shown + "".join(calls.values())
    assert leaks(home) == []
    assert readable_by_others(home) <= {"collected"}
    assert not list(home.rglob("*.properties.tmp"))
    assert not list(home.rglob(f"spark-{process.pid}.properties"))
    assert not list(home.rglob("secrets.json"))
