"""The catalog ``headrace`` of a Spark session, which lists what is there when it is asked.

Only a class of the JVM can be a catalog, or take the columns and conditions of a query: a thin one,
in ``java/``, hands them to the Python source. Its jar is loaded into the driver's JVM alone, for
what tasks run are Spark's own classes; so a session need not have been started with it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

CATALOG = "headrace"
JAR = Path(__file__).parent / "java" / "catalog.jar"
_CLASS = "headrace.spark.HeadraceCatalog"


def register_catalog(spark: SparkSession, home: Path) -> None:
    """Make the catalog known to a session, over a home; called again, over another one.

    Where Spark cannot load it, as versions that its jar was not built for may not, there is a
    warning, and everything else works.

    Args:
        spark: the session, which knows the data source.
        home: folder of streams and jobs.
    """
    session: Any = spark
    spark.conf.set(f"spark.sql.catalog.{CATALOG}", _CLASS)
    spark.conf.set(f"spark.sql.catalog.{CATALOG}.home", str(home.absolute()))
    jvm, gateway = session._jvm, session.sparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(JAR)).toURI().toURL()
    thread = jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(jvm.java.net.URLClassLoader(urls, before))
    try:  # Spark loads it now, and keeps it
        session._jsparkSession.sessionState().catalogManager().catalog(CATALOG)
    except Py4JError as error:
        spark.conf.unset(f"spark.sql.catalog.{CATALOG}")
        spark.conf.unset(f"spark.sql.catalog.{CATALOG}.home")
        why = str(error).splitlines()[0]
        text = f"Spark {spark.version} cannot load the catalog {CATALOG!r} ({why}); use the option"
        warnings.warn(f"{text} format('headrace') instead of tables headrace.*", stacklevel=3)
    finally:
        thread.setContextClassLoader(before)
