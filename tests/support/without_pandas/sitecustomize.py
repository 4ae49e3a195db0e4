"""Read by Python as a process of tests starts: what it does without, so that it starts sooner.

- pandas: Arrow loads it wherever it is installed, half a second of a core, and few jobs of the
  tests need it. With ``TESTS_WITH_FRAMES`` only those processes of Spark have none that plan and
  copy rows of a data source.
- the zip with PySpark that Spark puts first on the path: what is compiled of a zip is not kept.
- most looks of the collector of cycles, a tenth of the time: what a process imports stays.
"""

import gc
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder

ZIPS = re.compile(r".*/(pyspark|py4j-.*-src)\.zip")
WITHOUT_FRAMES = ("pyspark.sql.worker.", "pyspark.sql.streaming.python_streaming_")


class WithoutPandas:
    """Finds pandas, and fails to load it."""

    def find_spec(self, name: str, *where: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "pandas" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: object) -> None:
        raise ImportError("processes of tests do without pandas")


def has_frames() -> bool:
    """Say whether this process may get frames of pandas."""
    of_source = any(word.startswith(WITHOUT_FRAMES) for word in sys.orig_argv)
    return "TESTS_WITH_FRAMES" in os.environ and not of_source


if not has_frames():
    sys.meta_path.insert(0, WithoutPandas())
installed = [place for place in sys.path if not ZIPS.fullmatch(place)]
if installed != sys.path and PathFinder.find_spec("pyspark", installed) is not None:
    sys.path[:] = installed
gc.set_threshold(50_000, 20, 50)
