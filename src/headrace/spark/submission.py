"""``headrace submit``: a job with its code and environment, packed for ``spark-submit``, and run.

The environment is an archive with ``bin/python``, a link to the interpreter that hosts must have at
the path given, and the installed packages, without Spark's own jars. Archives are named by what is
in them, so what has not changed is not packed again. Settings, which may hold secrets, go by files
that only their owner reads, never on the command line. A driver on this host ends its epoch when it
is to stop.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

import xxhash

from headrace import extras
from headrace.config import Settings
from headrace.coordinator.worker_host import PACKED
from headrace.errors import InvalidInputError
from headrace.files import write_private
from headrace.spark.sessions import SETTINGS, SINGLE_THREAD, java_options, properties_text

IMAGE, UPLOADS = "spark.kubernetes.container.image", "spark.kubernetes.file.upload.path"
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_URLS = re.compile(r"spark://[^/:]+:\d+(,[^/:]+:\d+)*|k8s://(https?://)?[^/]+(/.*)?|yarn")


class Kind(Enum):
    """A cluster manager of Spark."""

    STANDALONE = "spark"
    YARN = "yarn"
    KUBERNETES = "k8s"


@dataclass(frozen=True)
class Master:
    """Where a job is submitted to, and where its driver runs: ``client``, here, or ``cluster``."""

    url: str
    kind: Kind
    deploy_mode: str

    @property
    def is_here(self) -> bool:
        """Say whether the driver runs on this host."""
        return self.deploy_mode == "client"


def checked_master(
    url: str, deploy_mode: str, conf: Mapping[str, str], environ: Mapping[str, str]
) -> Master:
    """Return the master that a URL names.

    Args:
        url: as Spark names it.
        deploy_mode: ``client`` or ``cluster``.
        conf: settings of Spark.
        environ: of this process, in which ``spark-submit`` is going to run.

    Raises:
        InvalidInputError: it is none, or something is missing that it has to know.
    """
    if url.startswith("local"):
        raise InvalidInputError(
            f"--master is {url!r}, which is this process; run the job with headrace run, or name a "
            "cluster: spark://host:7077, yarn or k8s://https://host:port"
        )
    if url.startswith("sc://"):
        raise InvalidInputError(
            f"--master is {url!r}: Headrace places its slots through SparkContext, which Spark "
            "Connect does not have; name the cluster behind it: spark://host:7077, yarn or k8s://"
        )
    if not _URLS.fullmatch(url):
        raise InvalidInputError(
            f"--master is {url!r}, which Spark does not know; expected spark://host:7077, yarn or "
            "k8s://https://host:port"
        )
    master = Master(url, Kind(url.partition(":")[0]), deploy_mode)
    if master.kind is Kind.STANDALONE and not master.is_here:
        raise InvalidInputError(
            "--deploy-mode cluster: a standalone master runs no Python drivers (Spark refuses it); "
            "leave it out, so that the driver runs here, or use YARN or Kubernetes"
        )
    if master.kind is Kind.YARN and not any(environ.get(name) for name in _HADOOP):
        raise InvalidInputError(
            "--master is 'yarn', and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set; name the "
            "folder with the configuration of the cluster in one of them"
        )
    if master.kind is Kind.KUBERNETES:
        _check_kubernetes(master, conf)
    return master


def _check_kubernetes(master: Master, conf: Mapping[str, str]) -> None:
    if IMAGE not in conf:
        raise InvalidInputError(
            f"--master is {master.url!r}, and the image of its containers is not known; give "
            f"--conf {IMAGE}=registry/image:tag, of an image with Spark and Python"
        )
    if not master.is_here and UPLOADS not in conf:
        raise InvalidInputError(
            f"--deploy-mode cluster on Kubernetes: the packed files have to be where the driver "
            f"finds them; give --conf {UPLOADS}=s3a://bucket/folder"
        )


MOST_PROJECT_BYTES = 256 << 20
_SKIPPED = {"__pycache__", "node_modules", "build", "dist"}
_LEFT_OUT = {"pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack"}
_SPARKS_OWN = ("jars", "bin", "sbin", "examples", "data", "licenses", "R", "kubernetes", "yarn")
_EPOCH_1980 = (1980, 1, 1, 0, 0, 0)


def project_of(module: str) -> Path | None:
    """Return the folder that a loaded module is imported from; ``None``: it is installed."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        raise InvalidInputError(
            f"{module} has no file that could go along; write the job in a file of its own"
        )
    path = Path(file).resolve()
    parts = module.split(".")
    is_package = path.name == "__init__.py"
    root = path.parents[len(parts) - 1 + is_package]
    return None if str(root) in {os.path.realpath(place) for place in _roots()} else root


def pack_project(root: Path, folder: Path) -> Path:
    """Zip the Python files of a folder and of the packages in it; returns the file.

    Files of other kinds go along where they are in a package. Hidden folders, virtual environments
    and what is built are left out.

    Args:
        root: the folder from which the job's module is imported.
        folder: where the zip goes.

    Raises:
        InvalidInputError: it is so large that the folder is hardly a project.
    """
    found = dict(_project_files(root))
    size = sum(path.stat().st_size for path in found.values())
    if size > MOST_PROJECT_BYTES:
        raise InvalidInputError(
            f"the code in {root} has {size >> 20} MiB, more than {MOST_PROJECT_BYTES >> 20}; keep "
            "data out of its packages, or the job in a folder of its own"
        )
    target = folder / f"project-{_digest(found)}.zip"
    if not target.exists():
        unfinished = target.with_suffix(".tmp")
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in sorted(found.items()):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH_1980), path.read_bytes())
        os.replace(unfinished, target)
    return target


def _project_files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.iterdir()):
        if path.is_file() and path.suffix == ".py":
            yield path.name, path
        elif path.is_dir() and (path / "__init__.py").exists() and path.name not in _SKIPPED:
            yield from _below(path, path.name)


def _below(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()):
        inner = f"{name}/{path.name}"
        if path.name in _SKIPPED or path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _below(path, inner)
        elif path.is_file():
            yield inner, path


def pack_environment(
    folder: Path, python: str | None = None, without: Collection[str] = ()
) -> Path:
    """Pack the packages that this interpreter has; returns the archive.

    Args:
        folder: where the archive goes.
        python: path of the interpreter on the hosts; that of this one when left out.
        without: names of top-level packages or files to leave out.

    Raises:
        InvalidInputError: nothing of a name in ``without`` is installed.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = python or os.path.realpath(sys.executable)
    packages = dict(_installed(without))
    unknown = {name for name in without if not _has(name)}
    if unknown:
        raise InvalidInputError(
            f"--exclude {sorted(unknown)[0]}: no such package in {sysconfig.get_path('purelib')}; "
            "name it as it is imported"
        )
    target = folder / f"environment-{_digest(packages, interpreter, version)}.tar.gz"
    if target.exists():
        return target
    unfinished = target.with_suffix(".tmp")
    with tarfile.open(unfinished, "w:gz", compresslevel=1) as archive:
        link = tarfile.TarInfo("bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, interpreter
        archive.addfile(link)
        made = f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n"
        _add_text(archive, "pyvenv.cfg", made)
        for name, path in sorted(packages.items()):
            archive.add(path, f"lib/{version}/site-packages/{name}", recursive=False)
    os.replace(unfinished, target)
    return target


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    archive.addfile(info, io.BytesIO(text.encode()))


def _has(name: str) -> bool:
    return any((Path(root) / name).exists() for root in _roots())


def _roots() -> tuple[str, ...]:
    return tuple(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))


def _installed(without: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of all packages by their names, of those too that are installed in place."""
    for root in _roots():
        for path in sorted(Path(root).iterdir()):
            name = path.name
            if name in without or name in _LEFT_OUT or name == "__pycache__":
                continue
            if path.suffix == ".pth":
                yield from _in_place(path)
            elif path.is_dir():
                yield from _package(path, name)
            else:
                yield name, path
    for name in ("headrace",):  # may run from a source tree
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            yield from _package(Path(found.origin).parent, name)


def _package(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for inner, path in _files(folder):
        if name == "pyspark" and inner.split("/")[0] in _SPARKS_OWN:
            continue
        yield f"{name}/{inner}", path


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            path = Path(place) / name
            yield path.relative_to(folder).as_posix(), path


def _in_place(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the packages of a folder that is only pointed to: an editable installation."""
    for line in path.read_text(errors="replace").splitlines():
        root = Path(line.strip())
        if line.strip() and not line.startswith("import") and root.is_dir():
            yield from _project_files(root)


def _digest(files: Mapping[str, Path], *words: str) -> str:
    described = [
        (name, (stat := path.stat()).st_size, stat.st_mtime_ns)
        for name, path in sorted(files.items())
    ]
    return xxhash.xxh3_64_hexdigest(json.dumps([described, *words]).encode())


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
            own["spark.ui.enabled"] = "false"  # it would listen on all addresses of that host
        own_python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        python = own_python if self.packed.environment is None else PYTHON
        own["spark.pyspark.python"] = python
        own["spark.pyspark.driver.python"] = sys.executable if self.master.is_here else python
        if self.master.is_here:
            own["spark.driver.extraJavaOptions"] = java_options(self.log_file)
        own[f"spark.executorEnv.{PACKED}"] = "1"
        if self.master.kind is Kind.KUBERNETES:
            del own["spark.ui.port"]  # a pod declares it, and must not declare 0
        if self.master.kind is Kind.YARN:
            # Names of sockets have 107 bytes at most; a container's own folder takes more.
            own["spark.python.unix.domain.socket.enabled"] = "false"
            own[f"spark.yarn.appMasterEnv.{PACKED}"] = "1"
        return {**own, **self.settings.spark.conf, **self.conf}

    def write(self) -> None:
        """Write the files that the command names."""
        texts = {
            self._properties: properties_text(self.spark_conf()),
            self._settings: settings_toml(self.settings, self.master.url),
            self._entry: _ENTRY.format(packed=PACKED),
        }
        for path, text in texts.items():
            write_private(path, text.encode())

    def remove(self) -> None:
        """Remove the files that may hold secrets, once ``spark-submit`` has ended."""
        for path in (self._properties, self._settings):
            path.unlink(missing_ok=True)

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
                extras.lacking("pyspark", "headrace submit", "name a Spark by SPARK_HOME")
                or "PySpark has no bin/spark-submit; name the folder of Spark in SPARK_HOME"
            )
        found = inside if inside is not None and inside.exists() else Path(str(path))
    java = environ.get("JAVA_HOME")
    if java is None and shutil.which("java", path=environ.get("PATH")) is None:
        raise InvalidInputError("found no java, which spark-submit needs; install Java 17")
    return str(found)


def settings_toml(settings: Settings, master: str) -> str:
    """Return settings as TOML: those that are not defaults, but for Spark's, which it gets."""
    tree = settings.given()
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


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def launch(command: Sequence[str], storage: Path | None) -> int:
    """Run ``spark-submit`` to its end; return its exit code.

    Call from the main thread. Ctrl-C and SIGTERM would end Spark under the driver. So the first is
    handed to the driver alone, which ends its epoch; the second ends all at once.

    Args:
        command: the call.
        storage: of the job, if its driver runs on this host.
    """
    process = subprocess.Popen(command, start_new_session=True)
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        driver = None if storage is None or asked else _driver(storage)
        asked.append(number)
        with suppress(ProcessLookupError):
            if driver is None:
                os.killpg(process.pid, signal.SIGTERM)
            else:
                os.kill(driver, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def _driver(storage: Path) -> int | None:
    """Return the process that drives a job."""
    with suppress(OSError, ValueError):
        return int((storage / "driver.lock").read_text())
    return None
