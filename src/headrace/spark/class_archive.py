"""An archive of the classes that Spark loads, with which the JVM of a driver starts sooner.

Java itself keeps such archives: classes are mapped from a file instead of being read from Spark's
jars, parsed and verified. One belongs to a version of Spark and of Java. It is made once for a user
of a host, by a process that does a little of all that runs do, and appears whole: Java crashes
where its archive is cut off. Without one, or with one that does not fit, Java starts without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from xxhash import xxh3_64_hexdigest

from headrace.clock import SystemClock
from headrace.errors import UnavailableError
from headrace.files import Files

OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
WITHIN_S = 600.0
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is no concern of a run."""


def archive_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the archive of this Spark and this Java is, or would be.

    Args:
        environ: the environment; ``None`` takes the process's own.
    """
    environ = os.environ if environ is None else environ
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    spark = environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    java = environ.get("JAVA_HOME") or shutil.which("java", path=environ.get("PATH")) or ""
    real = os.path.realpath(java)
    release = Path(real if environ.get("JAVA_HOME") else Path(real).parents[1]) / "release"
    try:
        version = release.read_text()
    except OSError:
        version = ""
    digest = xxh3_64_hexdigest(f"{spark}\0{real}\0{version}".encode())
    return cache / "headrace" / f"spark-{pyspark.__version__}-{digest}.jsa"


def java_option(environ: Mapping[str, str] | None = None) -> str:
    """Return what has Java use the archive; empty where there is none.

    Args:
        environ: the environment; ``None`` takes the process's own.
    """
    environ = os.environ if environ is None else environ
    file = archive_file(environ)
    if "SharedArchiveFile" in environ.get("SPARK_SUBMIT_OPTS", "") or not file.is_file():
        return ""
    return f'"-XX:SharedArchiveFile={file}" {_QUIET}'


def make_archive(environ: Mapping[str, str] | None = None) -> Path:
    """Make the archive, in the place of one that is there; return it.

    Takes half a minute of a core and about 200 MB of memory.

    Args:
        environ: the environment of the processes; ``None`` takes the process's own.

    Raises:
        UnavailableError: Java does not start, or makes no archive.
    """
    environ = os.environ if environ is None else environ
    file = archive_file(environ)
    folder = file.parent / f".{file.stem}-{SystemClock().new_id()}"
    Files().make_folder(folder, 0o700)
    made = folder / file.name
    try:
        ran = subprocess.run(
            [sys.executable, "-m", __name__, folder],
            env={
                **environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": f'{OPTIONS} "-XX:ArchiveClassesAtExit={made}"',
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=WITHIN_S,
        )
        if ran.returncode or not made.is_file():
            lines = [line for line in ran.stdout.splitlines() if line.strip()]
            raise UnavailableError(
                f"Java made no archive of Spark's classes: {(lines or ['it said nothing'])[-1]}; "
                "runs start without it; headrace doctor looks whether Java is as it must be"
            )
        made.replace(file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return file


def _passed_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _collected(frame: DataFrame, number: int) -> None:
    frame.collect()


def _use_spark(folder: Path) -> None:
    """Do a little of all that runs and queries do; return when Java has ended."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    builder = builder.config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "id % 3 kind")
    rows.write.parquet(str(folder / "parquet"))
    rows.write.json(str(folder / "json"))
    spark.read.parquet(str(folder / "parquet")).groupBy("kind").count().orderBy("kind").collect()
    rows.mapInArrow(_passed_on, "id bigint, kind bigint").collect()
    source = spark.readStream.schema("id bigint, kind bigint").json(str(folder / "json"))
    query = source.writeStream.foreachBatch(_collected).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to see Java end
    assert gateway is not None
    spark.stop()
    java = gateway.proc
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    _use_spark(Path(sys.argv[1]))
