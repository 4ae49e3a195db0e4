"""The catalog ``headrace`` of a Spark session, which lists what is there when it is asked.

Only a class of the JVM can be a catalog, or take the columns and conditions of a query: a thin one,
in ``java/``, hands them to the Python source. What its tasks run are Spark's own classes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.spark.java_classes import (
    JAVA_ERRORS,
    class_loader,
    java_cause,
    java_session,
    while_active,
)

CATALOG = "headrace"
_CLASS = "headrace.spark.HeadraceCatalog"


def register_catalog(spark: SparkSession, home: Path) -> None:
    """Make the catalog known to a session, over a home; called again, over another one.

    Where Spark cannot load it, as versions that its jar was not built for may not, there is a
    warning, and everything else works.

    Args:
        spark: the session, which knows the data source.
        home: folder of streams and jobs.
    """
    spark.conf.set(f"spark.sql.catalog.{CATALOG}", _CLASS)
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
