"""The call of ``spark-submit`` for a packed job, and the files that it reads.

Settings, which may hold secrets, go by files that only their owner reads: nothing of them is on
the command line, which any user of the host sees.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import Settings
from headrace.coordinator.running.workers import PACKED
from headrace.errors import InvalidInputError
from headrace.spark.sessions import SETTINGS, SINGLE_THREAD, java_options
from headrace.spark.submission.masters import Kind, Master

ENVIRONMENT = "environment"
PYTHON = f"./{ENVIRONMENT}/bin/python"
_OF_THIS_HOST = ("spark.driver.bindAddress", "spark.driver.host")
_ENTRY = '''"""Runs a job that headrace submit has packed."""

import os
import sys

os.environ["{packed}"] = "1"
sys.argv[0] = "headrace"

from headrace.cli.main import app

app(prog_name="headrace")
'''


@dataclass(frozen=True)
class Packed:
    """What goes along: the user's code, unless it is installed, and the environment, if wanted."""

    project: Path | None
    environment: Path | None


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be submitted.

    Args:
        job: its name.
        target: ``MODULE:JOB``, by the module's name in the packed project.
        master: where to.
        settings: of the run.
        conf: settings of Spark, beside those of ``settings``.
        packed: what goes along.
        folder: where files are written that ``spark-submit`` reads.
        log_file: of a driver on this host; what Spark says goes there.
        options: further ones of ``headrace run``.
    """

    job: str
    target: str
    master: Master
    settings: Settings
    conf: Mapping[str, str]
    packed: Packed
    folder: Path
    log_file: Path
    options: Sequence[str] = ()

    @property
    def _properties(self) -> Path:
        return self.folder / f"{self.job}.properties"

    @property
    def _settings(self) -> Path:
        return self.folder / f"{self.job}.toml"

    @property
    def _entry(self) -> Path:
        return self.folder / "headrace_job.py"

    def spark_conf(self) -> dict[str, str]:
        """Return the settings of Spark: ours, those of the run, and where Python is."""
        own = {**SETTINGS, **{f"spark.executorEnv.{n}": v for n, v in SINGLE_THREAD.items()}}
        if not (self.master.is_here and "://127.0.0.1" in self.master.url):
            for name in _OF_THIS_HOST:  # executors elsewhere have to reach the driver
                own.pop(name)
        if self.packed.environment is not None:
            own["spark.pyspark.python"] = PYTHON
            own["spark.pyspark.driver.python"] = sys.executable if self.master.is_here else PYTHON
        if self.master.is_here:
            own["spark.driver.extraJavaOptions"] = java_options(self.log_file)
        own[f"spark.executorEnv.{PACKED}"] = "1"
        if self.master.kind is Kind.YARN:
            own[f"spark.yarn.appMasterEnv.{PACKED}"] = "1"
        return {**own, **self.settings.spark.conf, **self.conf}

    def write(self) -> None:
        """Write the files that the command names."""
        lines = [f"{name} {_property(value)}" for name, value in sorted(self.spark_conf().items())]
        _write_private(self._properties, "\n".join(lines) + "\n")
        _write_private(self._settings, settings_toml(self.settings, self.master.url))
        _write_private(self._entry, _ENTRY.format(packed=PACKED))

    def command(self, spark_submit: str) -> list[str]:
        """Return the call."""
        settings = str(self._settings) if self.master.is_here else self._settings.name
        files = [] if self.master.is_here else ["--files", str(self._settings)]
        project, archives = self.packed.project, self.packed.environment
        return [
            spark_submit,
            *("--master", self.master.url, "--deploy-mode", self.master.deploy_mode),
            *("--name", f"headrace {self.job}"),
            *("--properties-file", str(self._properties)),
            *(["--py-files", str(project)] if project else []),
            *(["--archives", f"{archives}#{ENVIRONMENT}"] if archives else []),
            *files,
            str(self._entry),
            *("run", self.target, "--config", settings, *self.options),
        ]


def find_spark_submit(environ: Mapping[str, str]) -> str:
    """Return the path of ``spark-submit``: of ``SPARK_HOME``, of PySpark, or on ``PATH``.

    Raises:
        InvalidInputError: there is none, or no Java for it.
    """
    if home := environ.get("SPARK_HOME"):
        found = Path(home) / "bin" / "spark-submit"
        if not found.exists():
            raise InvalidInputError(
                f"SPARK_HOME is {home}, where there is no bin/spark-submit; name the folder of "
                "Spark, or unset it to use the one of PySpark"
            )
    else:
        spec = importlib.util.find_spec("pyspark")
        inside = Path(spec.origin).parent / "bin" / "spark-submit" if spec and spec.origin else None
        path = shutil.which("spark-submit", path=environ.get("PATH"))
        if not (inside is not None and inside.exists()) and path is None:
            raise InvalidInputError(
                "found no spark-submit; install PySpark, or name the folder of Spark in SPARK_HOME"
            )
        found = inside if inside is not None and inside.exists() else Path(str(path))
    java = environ.get("JAVA_HOME")
    if java is None and shutil.which("java", path=environ.get("PATH")) is None:
        raise InvalidInputError("found no java, which spark-submit needs; install Java 17")
    return str(found)


def settings_toml(settings: Settings, master: str) -> str:
    """Return settings as TOML: those that are not defaults, but for Spark's, which it gets."""
    tree = settings.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    tree["spark"] = {**tree.get("spark", {}), "master": master}
    tree["spark"].pop("conf", None)
    tree["home"] = str(settings.home)
    lines = [f"{name} = {_toml(v)}" for name, v in tree.items() if not isinstance(v, dict)]
    for name, section in tree.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{_key(k)} = {_toml(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _property(value: str) -> str:
    """Return a value as a properties file has it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
