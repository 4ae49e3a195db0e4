"""The checks of ``headrace doctor``: each looks at one thing and says what to do about it."""

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
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.bus.bus import Bus
from headrace.cli.words import count_text, size_text
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.inspection.job_list import job_names, view_job
from headrace.errors import HeadraceError

Verdict = Literal["ok", "warn", "fail"]
_GIB = 1 << 30
_JAVA_S = 20
_FILES = 1024
_PYTHON = (3, 11)
_PACKAGES = ("pyspark", "pyarrow", "polars", "numpy", "rocksdict", "msgspec", "pydantic", "typer")


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
    if shutil.which(program) is None:
        where = f"JAVA_HOME is {home}, without bin/java" if home else "no java on PATH"
        return Finding("java", "fail", where, advice)
    try:
        ran = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "fail", f"{program}: {error}", advice)
    told = (ran.stderr or ran.stdout).strip()
    matched = re.search(r'version "(\d+)', told)
    if matched is None:
        return Finding("java", "fail", f"{program} says: {told[:80] or 'nothing'}", advice)
    found = f"{told.splitlines()[0]}, {shutil.which(program)}"
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


def check_disk(name: str, folder: Path, clock: Clock) -> Finding:
    """A folder has room, can be written, and its file system knows hard links and locks."""
    there = folder
    while not there.exists():
        there = there.parent
    probe = there / f".headrace-doctor-{clock.new_id()}"
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
    found = f"{settings.bus_dir}: {count_text(len(names), 'stream')}"
    return Finding("bus", "fail" if bad else "ok", "; ".join([found, *bad]), advice)


def check_jobs(settings: Settings, bus: Bus, clock: Clock) -> Finding:
    """The manifests of all jobs can be read."""
    views = [view_job(settings, name, bus, clock) for name in job_names(settings)]
    running = [view.job for view in views if view.driver is not None]
    bad = [f"{view.job}: {view.problem}" for view in views if view.problem]
    parts = [f"{settings.jobs_dir}: {count_text(len(views), 'job')}"]
    parts += [f"running: {', '.join(running)}"] if running else []
    advice = "bring the job's folder back from a copy, or remove it: headrace jobs delete JOB"
    return Finding("jobs", "fail" if bad else "ok", "; ".join([*parts, *bad]), advice)


def look_around(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """Yield what does not depend on what is in a home, one check after the other."""
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_packages,
        check_java,
        check_ports,
        check_memory,
        check_files,
    ]
    yield from (check() for check in checks)
    yield check_disk("home", settings.home, clock)
    if settings.state_dir.parent != settings.home:
        yield check_disk("state.dir", settings.state_dir, clock)
