"""Headrace's own Java classes, for what Spark offers to classes of the JVM alone.

Their jar is loaded into the JVM of the driver when they are needed, so a session need not have been
started with it. Executors are given it only for what counts in their tasks.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

JAR = Path(__file__).parent / "java" / "headrace.jar"
CATALOG = "headrace"
_CATALOG_CLASS = "headrace.spark.HeadraceCatalog"
JAVA_ERRORS = (Py4JError, PySparkException)
"""What a call of Java raises."""


def class_loader(context: SparkContext) -> Any:
    """Return the loader of the classes of the jar, over those that the JVM has.

    Args:
        context: of the JVM.
    """
    return _loader(context._gateway, str(JAR))


@cache
def _loader(gateway: Any, jar: str) -> Any:
    """Only one, because py4j keeps the methods of a class by its name, and calls no other's."""
    jvm = gateway.jvm
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(jar).toURI().toURL()
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.java.net.URLClassLoader(urls, parent)


def new_object(context: SparkContext, name: str, *values: object) -> Any:
    """Return a new object of a class of the jar, which has one constructor.

    Args:
        context: of the JVM.
        name: of the class.
        values: for the constructor.

    Raises:
        Py4JError: the class cannot be loaded or made; see ``java_cause``.
    """
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    given = gateway.new_array(jvm.java.lang.Object, len(values))
    for at, value in enumerate(values):
        given[at] = value
    made = class_loader(context).loadClass(f"headrace.spark.{name}")
    return made.getConstructors()[0].newInstance(given)


def java_context(context: SparkContext) -> Any:
    """Return the context as classes of Scala take it."""
    return context._jsc.sc()


def java_session(spark: SparkSession) -> Any:
    """Return a session as classes of Java take it."""
    session: Any = spark
    return session._jsparkSession


def java_frame(frame: DataFrame) -> Any:
    """Return a DataFrame as classes of Java take it."""
    rows: Any = frame
    return rows._jdf


@contextmanager
def while_active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one for a block: Spark looks there for settings and sources.

    Args:
        spark: the session; what was active before is so again afterwards.
    """
    jvm: Any = spark.sparkContext._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(java_session(spark))
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def ship_classes(context: SparkContext) -> None:
    """Give the executors of an application the jar."""
    java: Any = context
    java._jsc.addJar(str(JAR))


def scratch_folder(context: SparkContext) -> Path:
    """Return a new folder on this host that ends with the application."""
    scratch: Any = context
    return Path(tempfile.mkdtemp(prefix="headrace-", dir=scratch._temp_dir))


def java_cause(error: Exception) -> str:
    """Return what Java said was wrong in the first place, on one line.

    Args:
        error: of a call, one of ``JAVA_ERRORS``.
    """
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    for _ in range(20):
        deeper = java.getCause()
        if deeper is None:
            break
        java = deeper
    return str(java.toString()).strip().splitlines()[0][:300]


def register_catalog(spark: SparkSession, home: Path) -> None:
    """Make the catalog ``headrace`` known to a session, over a home; once more: over another one.

    It lists what is there when it is asked. Only a class of the JVM can be a catalog, or take the
    columns and conditions of a query: a thin one hands them to the Python source. What its tasks
    run are Spark's own classes.

    Where Spark cannot load it, as versions that its jar was not built for may not, there is a
    warning, and everything else works.

    Args:
        spark: the session, which knows the data source.
        home: folder of streams and jobs.
    """
    spark.conf.set(f"spark.sql.catalog.{CATALOG}", _CATALOG_CLASS)
    spark.conf.set(f"spark.sql.catalog.{CATALOG}.home", str(home.absolute()))
    jvm: Any = spark.sparkContext._jvm
    thread = jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(class_loader(spark.sparkContext))
    try:  # Spark loads it now, and keeps it
        with while_active(spark):
            java_session(spark).sessionState().catalogManager().catalog(CATALOG)
    except JAVA_ERRORS as error:
        spark.conf.unset(f"spark.sql.catalog.{CATALOG}")
        spark.conf.unset(f"spark.sql.catalog.{CATALOG}.home")
        text = f"Spark {spark.version} cannot load the catalog {CATALOG!r} ({java_cause(error)})"
        more = "use the option format('headrace') instead of tables headrace.*"
        warnings.warn(f"{text}; {more}", stacklevel=3)
    finally:
        thread.setContextClassLoader(before)
