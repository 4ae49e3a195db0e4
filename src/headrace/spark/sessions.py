"""The Spark session that Headrace starts, and where the JVM's noise goes.

Settings here are the ones that ``docs/guide/spark.md`` explains; ``spark.conf`` of the
user's settings overrides each. A session of the user's own is used as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import write_private
from headrace.redaction import KEY_PATTERN, is_secret, secrets_of
from headrace.spark.class_archive import java_option

SINGLE_THREAD = {
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""One thread each in workers: a slot is a core."""

SETTINGS = {
    "spark.ui.port": "0",
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedQueries": "5",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.cleaner.periodicGC.interval": "2min",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "headrace.spark.daemon",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.redaction.regex": f"(?i){KEY_PATTERN}",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.locality.wait": "5s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.task.maxFailures": "4",
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "30s",
    "spark.excludeOnFailure.enabled": "false",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "30s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.shuffle.io.retryWait": "1s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}

JAVA_OPTIONS = "-XX:+UseSerialGC"

SLOTS_ONLY_OPTIONS = f"{JAVA_OPTIONS} -XX:TieredStopAtLevel=1"
"""For JVMs that only run slots: what Java's second compiler makes of them never earns what it
costs, and without it a lost executor is back in two thirds of the time."""

_SELECT_LIMIT = 1024
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"

_MASTER = re.compile(
    r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|(spark|k8s|sc)://.+"
)

_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


def build_session(
    master: str, app: str, log_file: Path, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark for queries, or return the session that is already there.

    Args:
        master: as of ``build_context``, like the others.
        app: the same.
        log_file: the same.
        extra: the same.
    """
    build_context(master, app, log_file, extra)
    return SparkSession.builder.getOrCreate()


def build_context(
    master: str,
    app: str,
    log_file: Path,
    extra: Mapping[str, str] | None = None,
    *,
    slots_only: bool = False,
) -> SparkContext:
    """Start Spark, or return the context that is already there.

    A session is on top of it, and takes Java two seconds more. The JVM and the Python workers write
    to ``log_file``, never to the screen, and PySpark does not print what it raises. Call from the
    main thread, before handlers for SIGINT are installed.

    Args:
        master: as Spark names it; ``local[N]`` is given retries of failed tasks.
        app: name of the application.
        log_file: its folder is made.
        extra: further Spark settings.
        slots_only: Spark runs the slots of a job, and no queries.

    Raises:
        InvalidInputError: Spark Connect is configured, which has no ``SparkContext``, or the
            master is none.
        UnavailableError: Java does not start.
    """
    if not _MASTER.fullmatch(master):
        raise InvalidInputError(
            f"spark.master is {master!r}, which Spark does not know; expected local[2], local[*], "
            "local-cluster[2,1,1024], spark://host:7077, yarn or k8s://https://host:port"
        )
    if os.environ.get("SPARK_REMOTE") or master.startswith("sc://"):
        raise InvalidInputError(
            "Headrace places its slots through SparkContext, which Spark Connect does not have; "
            "unset SPARK_REMOTE and name a master such as local[2] or spark://host:7077"
        )
    _quiet_pyspark()
    if has_session():
        return SparkContext.getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in SINGLE_THREAD.items():
        os.environ.setdefault(name, value)
    log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Java also reads what it is to be called with, in a process of its own that ends at once.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SLOTS_ONLY_OPTIONS)
    java = SLOTS_ONLY_OPTIONS if slots_only else JAVA_OPTIONS
    settings = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": java_options(log_file, f"{java} {java_option()}".strip()),
        "spark.executor.extraJavaOptions": java,
        **{f"spark.executorEnv.{name}": value for name, value in SINGLE_THREAD.items()},
        **(extra or {}),
    }
    if _SUBMITTED in os.environ:  # spark-submit has them, and the user's over them
        settings = dict(extra or {})
    is_new = SparkContext._gateway is None  # noqa: SLF001 - else the JVM is there, and asked by py4j
    private = {n: v for n, v in settings.items() if is_new and (is_secret(n) or secrets_of(n, v))}
    conf = SparkConf().setMaster(_with_retries(master)).setAppName(app)
    conf.setAll([(name, value) for name, value in settings.items() if name not in private])
    try:
        with _output_to(log_file), _held_interrupts(), _off_the_command(private, log_file.parent):
            context = SparkContext.getOrCreate(conf)
    except PySparkRuntimeError as error:  # the JVM ended before it could be talked to
        raise UnavailableError(
            f"Spark did not start with master {master!r}; {log_file} has what Java said, and "
            "headrace doctor looks whether Java is as it must be"
        ) from error
    if not slots_only:
        with suppress(UnavailableError):  # few queries need it, and those that do are refused
            open_callbacks(context)
    return context


def open_callbacks(context: SparkContext) -> None:
    """Let Java call this process, as each batch of ``foreachBatch`` does.

    Py4J waits for these calls with ``select()``, which fails for file descriptors from 1,024 on,
    and Java then waits without end. So Headrace's sessions do this first, when few files are open.

    Args:
        context: of the session; one that can be called already is left as it is.

    Raises:
        UnavailableError: the process has too many files open for that.
    """
    gateway: Any = context._gateway  # noqa: SLF001 - as PySpark does for foreachBatch
    server = vars(gateway).get("_callback_server")
    if server is None:
        with socket.socket() as probe:  # the server's own will have the same descriptor
            descriptor = probe.fileno()
    else:
        descriptor = server.server_socket.fileno()
    if descriptor >= _SELECT_LIMIT:
        raise UnavailableError(
            f"Spark cannot call this process: the socket for it has file descriptor {descriptor}, "
            f"and Py4J can wait for those below {_SELECT_LIMIT:,} only; close some files, or begin "
            "with headrace.spark.session() before they are open"
        )
    untyped: Any = java_gateway
    untyped.ensure_callback_server_started(gateway)


def has_session() -> bool:
    """Say whether this process has a Spark application already."""
    return SparkContext._active_spark_context is not None  # noqa: SLF001 - of any thread


def ui_address() -> str | None:
    """Return where Spark's UI shows the application of this process; ``None``: nowhere."""
    return SparkContext.getOrCreate().uiWebUrl if has_session() else None


def properties_text(conf: Mapping[str, str]) -> str:
    """Return settings of Spark as its properties files have them."""
    lines = (
        name + " " + value.replace("\\", "\\\\").replace("\n", "\\n")
        for name, value in sorted(conf.items())
    )
    return "\n".join(lines) + "\n"


@contextmanager
def _off_the_command(private: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Give the JVM that starts meanwhile settings by a file: any user of the host sees its call."""
    if not private:
        yield
        return
    path = folder / f"spark-{os.getpid()}.properties"
    before = os.environ.get(_SUBMIT_ARGS)
    write_private(path, properties_text(private).encode())
    rest = "pyspark-shell" if before is None else before
    os.environ[_SUBMIT_ARGS] = f"--extra-properties-file {shlex.quote(str(path))} {rest}"
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        if before is None:
            del os.environ[_SUBMIT_ARGS]
        else:
            os.environ[_SUBMIT_ARGS] = before


def end_session() -> None:
    """End the Spark application of this process, if there is one; another can begin after it."""
    _quiet_pyspark()
    if has_session():
        session = SparkSession._instantiatedSession  # noqa: SLF001 - asking for it would make one
        (session or SparkContext.getOrCreate()).stop()


def java_options(log_file: Path, options: str = JAVA_OPTIONS) -> str:
    """Return what has a driver's JVM write to a file; its folder exists from then on."""
    log4j = log_file.with_suffix(".log4j2.properties")
    log4j.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log4j.write_text(_LOG4J.format(path=log_file))
    return f"-Dlog4j2.configurationFile={log4j.as_uri()} {options}"


def _with_retries(master: str) -> str:
    """In local mode a task is tried once unless the master itself says otherwise."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and "," not in master:
        return master.removesuffix("]") + ",4]"
    return master


@contextmanager
def _held_interrupts() -> Iterator[None]:
    """Hold the first SIGINT or SIGTERM back until Spark is up; the second ends the process at once.

    An interrupt while the JVM starts removes the folder in which it writes its port, and
    such a JVM stays forever. Later Spark's own handler is in place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if came:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        came.append(number)

    before = {n: signal.signal(n, hold) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is hold:
                signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Let processes started meanwhile write to a file instead of the screen."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    kept = [os.dup(1), os.dup(2)]
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, target):
            os.close(descriptor)


def _quiet_pyspark() -> None:
    """Keep PySpark from printing refused queries with all of Java's frames; Headrace says why."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
