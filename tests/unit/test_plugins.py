"""What other packages add by entry points: sinks, remote stores and verbs of the command line."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace, refused
from tests.support.homes import rows_in

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

ROOT = Path(__file__).parents[2]

Install = Callable[..., None]

SINK = """
from dataclasses import dataclass
from pathlib import Path

from headrace.sinks import Receiver, Sink


class Appender(Receiver):
    def __init__(self, path):
        self.path = path

    def commit(self, epoch):
        with self.path.open("ab") as out:
            for file in epoch.files:
                out.write(file.path.read_bytes())


@dataclass(frozen=True)
class Lines(Sink):
    path: str
    label, promise, suffix = "lines", "at least once", "txt"

    @property
    def identity(self):
        return f"lines {self.path}"

    def deployed(self, settings):
        return Lines(str(settings.home / self.path))

    def prepare(self, batches, schema):
        return ["".join(f"{n}\\n" for b in batches for n in b.column("n").to_pylist()).encode()]

    def open(self, site):
        return Appender(Path(self.path))
"""

STORE = """
from headrace.stores import RemoteClient, resolved_url

SERVERS = {}


class Client(RemoteClient):
    def __init__(self, store, remote, clock):
        self._entries = SERVERS.setdefault(resolved_url(remote, store), {})

    def get_many(self, keys):
        self.round_trips += 1
        return [self._entries.get(key) for key in keys]

    def set_many(self, keys, values, ttl_ms, stamp):
        self.round_trips += 1
        self._entries.update(zip(keys, values, strict=True))
"""

VERBS = """
import typer

group = typer.Typer(help="Look after orchards.")


@group.callback()
def orchard():
    ...


@group.command()
def count(trees: int = 3):
    print(f"{trees} trees")


def greet(name: str):
    '''Greet somebody.'''
    print(f"hello {name}")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package of one module, as pip would."""

    def installed(name: str, code: str, **groups: str) -> None:
        site, module = tmp_path / name, name.replace("-", "_")
        info = site / f"{module}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        entries = [f"[headrace.{group}]\n{lines}\n" for group, lines in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(entries))
        monkeypatch.syspath_prepend(site)

    return installed


def test_a_package_adds_a_sink(install: Install, tmp_path: Path) -> None:
    install("headrace-lines", SINK, sinks="lines = headrace_lines:Lines")

    @hr.job("numbers")
    def numbers(g: hr.Graph) -> None:
        g.input("in", schema={"n": int}).send_to(g.output_sink(hr.sinks.lines("out.txt")))

    with TestDriver(numbers, home=tmp_path / "home") as driver:
        driver.create("in", {"n": pa.int64()})
        driver.feed("in", [{"n": n} for n in range(5)])
        driver.run()
        written = (driver.settings.home / "out.txt").read_text()

    assert written.splitlines() == ["0", "1", "2", "3", "4"]


class Counting:
    def process(self, message: Any, context: hr.Context) -> None:
        counts: Any = context.store("counts")
        counts.put(message.n, counts.get(message.n, 0) + 1)
        context.emit({"n": message.n, "count": counts.get(message.n)})


def counting(url: str) -> hr.Job:
    @hr.job("counting")
    def job(g: hr.Graph) -> None:
        store = hr.store("counts", int, kind="remote", url=url)
        numbers = g.input("in", schema={"n": int}).partition_by("n")
        made = numbers.process(Counting, [store], returns={"n": int, "count": int})
        made.send_to(g.output("out"))

    return job


def test_a_package_adds_a_remote_store_by_its_scheme(install: Install, tmp_path: Path) -> None:
    install("headrace-orchard", STORE, stores="orchard = headrace_orchard:Client")

    with TestDriver(counting("orchard://garden"), home=tmp_path / "home") as driver:
        driver.create("in", {"n": pa.int64()})
        for _ in range(2):
            driver.feed("in", [{"n": 7}, {"n": 8}])
            driver.run()
        sent = [(row["n"], row["count"]) for row in rows_in(driver.bus, "out")]

    assert sorted(sent) == [(7, 1), (7, 2), (8, 1), (8, 2)]
    [entries] = sys.modules["headrace_orchard"].SERVERS.values()
    assert len(entries) == 2


def test_a_package_adds_verbs(install: Install) -> None:
    verbs = "greet = headrace_verbs:greet\norchard = headrace_verbs:group"
    install("headrace-verbs", VERBS, commands=verbs)

    assert done("greet", "you") == "hello you\n"
    assert done("orchard", "count", "--trees", 5) == "5 trees\n"
    shown = done("--help")
    assert "Greet somebody." in shown
    assert "Look after orchards." in shown
    assert "Did you mean 'orchard'?" in headrace("orchrd").err


def test_a_package_cannot_replace_a_verb_of_the_core(install: Install) -> None:
    install("headrace-verbs", VERBS, commands="version = headrace_verbs:greet")

    assert "headrace" in done("version")


def test_a_package_that_cannot_be_imported_is_named(install: Install) -> None:
    groups = dict.fromkeys(("sinks", "stores", "commands"), "torn = headrace_torn:Torn")
    install("headrace-torn", "import no_such_library", **groups)
    told = "of package headrace-torn 1.2 cannot be loaded from headrace_torn:Torn"

    with pytest.raises(InvalidInputError, match=told) as failure:
        hr.sinks.torn("x")
    assert "No module named 'no_such_library'" in str(failure.value)
    assert f"command 'torn' {told}" in " ".join(refused("torn").split())
    assert "Cannot be used" in done("--help")
    assert "Measure Headrace" in done("bench", "--help")


def test_a_name_that_several_packages_give_is_refused(install: Install) -> None:
    for name in ("first-lines", "second-lines"):
        install(name, SINK, sinks=f"lines = {name.replace('-', '_')}:Lines")

    with pytest.raises(InvalidInputError, match=r"packages: first-lines 1\.2, second-lines 1\.2"):
        hr.sinks.lines("x")


def test_a_name_that_no_package_gives_is_told_with_the_nearest(install: Install) -> None:
    install("headrace-lines", SINK, sinks="lines = headrace_lines:Lines")

    with pytest.raises(AttributeError, match="no sink 'parqet'; did you mean 'parquet'"):
        _ = hr.sinks.parqet
    with pytest.raises(AttributeError, match="no sink 'lined'; did you mean 'lines'"):
        _ = hr.sinks.lined
    assert not hasattr(hr.sinks, "__wrapped__")
    with pytest.raises(GraphError, match="no remote store 'redi'; did you mean 'redis'"):
        counting("redi://here").build()


def test_what_an_installation_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is on the path, and no metadata is: as in a copy that nobody installed."""
    here = [str(ROOT / "src")]
    monkeypatch.setattr(sys, "path", here)

    with pytest.raises(GraphError, match="install it again, with pip install"):
        counting("redis://here").build()
    assert "install it again" in headrace("bench").err
    assert callable(hr.sinks.parquet)


def test_nothing_of_plugins_is_loaded_before_it_is_used() -> None:
    code = """
        import sys
        import headrace.cli.main, headrace.standalone.running, headrace.testing, headrace.spark.run
        from headrace.graph.builder import Graph
        kinds = ("sinks", "stores", "warehouse", "bench", "demo")
        print([m for m in sys.modules if m.startswith(tuple(f"headrace.{k}" for k in kinds))])
        """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


def test_the_installed_entry_points_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {(g, *one) for g, each in project["entry-points"].items() for one in each.items()}
    found = metadata.distribution("headrace").entry_points

    groups = project["entry-points"]
    assert {(one.group, one.name, one.value) for one in found if one.group in groups} == wanted
    for one in found:
        assert one.load() is not None
