"""What every suite shares: Hypothesis profiles, quick JVMs and a home of the test's own."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import soak
from tests.support.memory import use_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.sharing"]
YOUNG = 20_000
"""Objects that are made before the collector of cycles looks at them, in place of 700."""

WITHOUT_FRAMES = tuple(Path(__file__).parent / name for name in ("unit", "servers", "standalone"))
"""Folders of tests whose processes need no pandas."""
LEAN = str(Path(__file__).with_name("support") / "without_pandas")
"""As of ``tests.support.processes``, which loads Headrace: who only shares tests out needs none."""
sys.path.append(LEAN)  # some give processes the path of this one

soak.load_profile()


def pytest_configure() -> None:
    """Have Java compile once and plainly: JVMs of tests end before more would pay.

    With the archive of ``tools/spark_classes.sh`` they need not look into Spark's jars either.
    """
    use_memory()
    plain = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", plain)
    archive = Path(sys.prefix) / "spark.jsa"
    if archive.exists():
        plain += f' "-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, plain)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the collector of cycles leave alone what is imported: it is there to the end.

    There is little else, which costs less to keep than to look for.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG)
        gc.enable()
        atexit.register(gc.unfreeze)  # some libraries complain of what is left at the end


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the soak suite out, or but a tenth of it."""
    if out := soak.select(items):
        config.hook.pytest_deselected(items=out)


def pytest_report_header() -> list[str]:
    """Say which tests of the soak suite are run."""
    return list(soak.header())


@pytest.fixture(autouse=True)
def _own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password of one test, such as ``wrong``, is a word of messages in the next one."""
    from tests.support.homes import forget_secrets

    forget_secrets(monkeypatch)


@pytest.fixture(autouse=True)
def _lean_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What most tests start does without pandas, which takes half a second each time."""
    if any(map(request.path.is_relative_to, WITHOUT_FRAMES)):
        monkeypatch.setenv("PYTHONPATH", LEAN, prepend=os.pathsep)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HEADRACE_HOME that no other test shares; no other setting leaks in from outside."""
    for name in [name for name in os.environ if name.startswith("HEADRACE__")]:
        monkeypatch.delenv(name)
    path = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(path))
    return path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two slots, for all tests that need no process of their own."""
    from tests.support.runs import spark_session

    with pytest.MonkeyPatch.context() as patch:  # which its JVM and their processes keep
        patch.setenv("PYTHONPATH", LEAN, prepend=os.pathsep)
        patch.setenv("TESTS_WITH_FRAMES", "yes")
        session = spark_session("local[2]", tmp_path_factory.mktemp("spark") / "spark.log")
    yield session
    session.stop()
