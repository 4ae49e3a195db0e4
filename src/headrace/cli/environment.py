"""``headrace config``, ``doctor`` and ``version``: the settings, and the health of this machine.

``config`` says where the value of each setting comes from.
Each check of ``doctor`` looks at one thing and returns a finding with what to do about it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from headrace import extras
from headrace.cli.options import Config, Home, Json, Set, open_home_bus, setting_names, settings_of
from headrace.cli.output import count_text, show_json, show_table, show_wrapped, size_text
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.bus import Bus
    from headrace.config import Explanation, Settings


app = typer.Typer(name="config", help="Show settings.", no_args_is_help=True)


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Name of a setting, or Samza's name for it.",
            show_default=False,
            autocompletion=setting_names,
        ),
    ],
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show one setting: meaning, type, default, value, and where the value comes from.

    The source includes file and line. An unknown name is refused, with the nearest existing one.

    Guide: settings, samza.

    For example:

        headrace config explain job.tasks --config job.toml
    """
    found = settings_of(home, config, overrides).explain(key)
    if as_json:
        show_json(asdict(found))
    else:
        typer.echo(str(found))


@app.command()
def ls(
    config: Config = None,
    overrides: Set = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from the default.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List all settings with value, source and default.

    Shows the values that a command with the same `--config` and `--set` would use.

    Guide: settings.

    For example:

        headrace config ls --changed
    """
    found = settings_of(home, config, overrides).explain_all()
    if changed:
        found = [one for one in found if one.source != "default"]
    if as_json:
        show_json(*map(asdict, found))
    elif found:
        titles = ("setting", "value", "from", "default")
        show_table(titles, [_row(one) for one in found], spare=("default", "from"))
    else:
        typer.echo("all settings are as by default")


def _row(found: Explanation) -> list[str]:
    return [found.key, found.value, found.source, found.default]


Verdict = Literal["ok", "warn", "fail"]
_GIB = 1 << 30
_JAVA_S = 20
_FILES = 1024
_PYTHON = (3, 11)
_PACKAGES = ("pyarrow", "polars", "numpy", "rocksdict", "msgspec", "pydantic", "typer")


class Finding(NamedTuple):
    """One check: its name, how it went, what was found, and what to do unless all is well."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def check_python() -> Finding:
    """Python is new enough."""
    is_enough = tuple(sys.version_info[:2]) >= _PYTHON
    found = f"{platform.python_version()}, {sys.executable}"
    advice = "install Python 3.11 or later"
    return Finding("python", "ok" if is_enough else "fail", found, advice)


def check_packages() -> Finding:
    """The libraries are there."""
    found, missing = [f"headrace {_version('headrace') or 'from source'}"], []
    for name in _PACKAGES:
        version = _version(name)
        if version is None:
            missing.append(name)
        else:
            found.append(f"{name} {version}")
    if missing:
        names = " ".join(missing)
        return Finding("packages", "fail", f"missing: {names}", "pip install headrace again")
    return Finding("packages", "ok", ", ".join(found))


def check_spark() -> Finding:
    """PySpark is there; standalone runs and dev need none."""
    text = extras.lacking("pyspark", "a run on Spark", "run without Spark: --standalone")
    if text is not None:
        return Finding("spark", "warn", "PySpark is not installed", text)
    return Finding("spark", "ok", f"pyspark {_version('pyspark') or 'of this host'}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_java() -> Finding:
    """Spark needs Java 17 or later, by JAVA_HOME or on PATH."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    advice = "install Java 17, such as openjdk-17-jre-headless, and set JAVA_HOME to it"
    if extras.lacking("pyspark", "a run on Spark") is not None:
        return Finding("java", "ok", "not looked for: only Spark needs it")
    if shutil.which(program) is None:
        where = f"JAVA_HOME is {home}, without bin/java" if home else "no java on PATH"
        return Finding("java", "fail", where, advice)
    try:
        finished = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "fail", f"{program}: {error}", advice)
    output = (finished.stderr or finished.stdout).strip()
    matched = re.search(r'version "(\d+)', output)
    if matched is None:
        return Finding("java", "fail", f"{program} says: {output[:80] or 'nothing'}", advice)
    found = f"{output.splitlines()[0]}, {shutil.which(program)}"
    return Finding("java", "ok" if int(matched[1]) >= 17 else "fail", found, advice)


def check_ports() -> Finding:
    """Spark's driver and its workers talk over sockets of this host."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        advice = f"add {name} to /etc/hosts, or set SPARK_LOCAL_IP=127.0.0.1"
        return Finding("ports", "fail", f"host name {name} has no address: {error}", advice)
    for host in ("127.0.0.1", address):
        try:
            with socket.socket() as listener, socket.socket() as caller:
                listener.bind((host, 0))
                listener.listen(1)
                caller.settimeout(2)
                caller.connect(listener.getsockname())
        except OSError as error:
            advice = "allow connections of this host to itself, or set SPARK_LOCAL_IP=127.0.0.1"
            return Finding("ports", "fail", f"no connection to {host}: {error}", advice)
    return Finding("ports", "ok", f"connections to 127.0.0.1 and {name} ({address})")


def check_disk(name: str, folder: Path) -> Finding:
    """A folder has room, can be written, and its file system knows hard links and locks."""
    from headrace.clock import SystemClock

    there = folder
    while not there.exists():
        there = there.parent
    probe = there / f".headrace-doctor-{SystemClock().new_id()}"
    link = probe.with_suffix(".link")
    try:
        with open(probe, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.link(probe, link)
    except OSError as error:
        what = f"{there}: {error.strerror}"
        advice = "use a folder that you may write, on a file system with hard links and flock"
        return Finding(name, "fail", what, advice)
    finally:
        link.unlink(missing_ok=True)
        probe.unlink(missing_ok=True)
    free = shutil.disk_usage(there).free
    found = f"{folder}: {size_text(free)} free"
    if free >= _GIB:
        return Finding(name, "ok", found)
    verdict: Verdict = "warn" if free >= _GIB // 8 else "fail"
    return Finding(name, verdict, found, "make room, or move it with home or state.dir")


def check_memory() -> Finding:
    """There is room for the JVM and for the workers."""
    advice = "close something, or set spark.conf.spark.driver.memory lower"
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return Finding("memory", "warn", "not known on this system", advice)
    matched = re.search(r"MemAvailable:\s+(\d+) kB", text)
    free = int(matched[1]) * 1024 if matched else 0
    found = f"{size_text(free)} available, {count_text(os.cpu_count() or 1, 'core')}"
    return Finding("memory", "ok" if free >= 2 * _GIB else "warn", found, advice)


def check_files() -> Finding:
    """A process may open enough files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} open files" if soft != resource.RLIM_INFINITY else "no limit"
    enough = soft == resource.RLIM_INFINITY or soft >= _FILES
    return Finding("limits", "ok" if enough else "warn", found, f"ulimit -n {_FILES * 16}")


def check_bus(settings: Settings, bus: Bus) -> Finding:
    """The streams can be opened."""
    bad, advice = [], ""
    names = bus.names()
    for name in names:
        try:
            bus.stream(name).ends()
        except (HeadraceError, OSError) as error:
            bad.append(f"{name}: {error}")
            advice = "the page on errors says what to do about the code"
    found = f"{settings.bus.address or settings.bus_dir}: {count_text(len(names), 'stream')}"
    return Finding("bus", "fail" if bad else "ok", "; ".join([found, *bad]), advice)


def check_jobs(settings: Settings, bus: Bus) -> Finding:
    """The manifests of all jobs can be read."""
    from headrace.clock import SystemClock
    from headrace.control.job_status import job_status
    from headrace.coordinator.job_parts import job_names

    clock = SystemClock()
    jobs = [job_status(settings, name, bus, clock) for name in job_names(settings)]
    running = [one.job for one in jobs if one.process is not None]
    bad = [f"{one.job}: {one.problem}" for one in jobs if one.problem]
    parts = [f"{settings.jobs_dir}: {count_text(len(jobs), 'job')}"]
    parts += [f"running: {', '.join(running)}"] if running else []
    advice = "bring the job's folder back from a copy, or remove it: headrace jobs delete JOB"
    return Finding("jobs", "fail" if bad else "ok", "; ".join([*parts, *bad]), advice)


def run_checks(settings: Settings) -> Iterator[Finding]:
    """Yield what does not depend on what is in a home, one check after the other."""
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_packages,
        check_spark,
        check_java,
        check_ports,
        check_memory,
        check_files,
    ]
    yield from (check() for check in checks)
    yield check_disk("home", settings.home)
    if settings.state_dir.parent != settings.home:
        yield check_disk("state.dir", settings.state_dir)


_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    config: Config = None,
    overrides: Set = None,
    archive_classes: Annotated[
        bool,
        typer.Option(
            "--archive-classes",
            help="First archive the classes that Spark loads, so that runs on Spark start sooner.",
        ),
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Check that this machine can run jobs.

    Checks Python, libraries, Java, connections of the host to itself, memory, the limit of open
    files, space and abilities of the disks of `home` and `state.dir`, settings, streams and jobs.
    Each line is `ok`, `warn` or `fail`, the latter two with what to do. Exits with 1 if a check
    fails.

    `--archive-classes` takes about half a minute, once for each version of Spark and Java. The file
    is in `~/.cache/headrace`, or below `XDG_CACHE_HOME`, and can be removed.

    Guide: spark.

    For example:

        headrace doctor --config job.toml
    """
    settings = settings_of(home, config, overrides)
    if archive_classes:
        _archive_classes(as_json=as_json)
    verdicts = Counter[str]()
    for finding in _findings(settings):
        verdicts[finding.verdict] += 1
        _show(finding, as_json=as_json)
    if not as_json:
        typer.echo(_sum(verdicts))
    if verdicts["fail"]:
        raise typer.Exit(1)


def _archive_classes(*, as_json: bool) -> None:
    archive = extras.load("headrace.spark.class_archive", "--archive-classes")
    if not as_json:
        typer.echo("archiving the classes that Spark loads, about half a minute")
    file = archive.make_archive()
    found = f"{file}: {size_text(file.stat().st_size)}"
    _show(Finding("archive", "ok", found, ""), as_json=as_json)


def _sum(verdicts: Counter[str]) -> str:
    if verdicts["fail"]:
        return f"\n{verdicts['fail']} of {verdicts.total()} fail: a run needs them"
    worth = f"; {verdicts['warn']} worth a look" if verdicts["warn"] else ""
    return f"\nall is there that a run needs{worth}"


def _findings(settings: Settings) -> Iterator[Finding]:
    yield from run_checks(settings)
    changed = [key for key, source in settings.sources.items() if source != "default"]
    text = f"{', '.join(changed)} differ from the defaults" if changed else "all as by default"
    yield Finding("settings", "ok", text)
    if not settings.home.exists():
        yield Finding("streams", "ok", "none yet; the first one makes the home")
        return
    with open_home_bus(settings) as bus:
        yield check_bus(settings, bus)
        yield check_jobs(settings, bus)


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        advice = finding.advice if finding.verdict != "ok" else ""
        show_json({**finding._asdict(), "advice": advice})
        return
    style = _STYLES[finding.verdict]
    show_wrapped(f"{finding.verdict:<5}{finding.check:<10}", finding.found, style)
    if finding.verdict != "ok":
        show_wrapped("     → ", finding.advice, "yellow")


def version(as_json: Json = False) -> None:
    """Print the versions of Headrace and its dependencies.

    For example:

        headrace version --json
    """
    names = ("headrace", "pyspark", "pyarrow", "polars", "rocksdict")
    found = {name: _version(name) for name in names} | {"python": platform.python_version()}
    if as_json:
        show_json(found)
    else:
        typer.echo(
            ", ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
        )
