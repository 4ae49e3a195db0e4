"""Packs what hosts need that have nothing but Spark: the user's code, and this environment.

The environment is an archive with ``bin/python``, a link to the interpreter that hosts must have
at the path given, and the installed packages, without Spark's own jars. Archives are named by
what is in them, so what has not changed is not packed again.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import xxhash

from headrace.errors import InvalidInputError

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
            f"--without {sorted(unknown)[0]}: no such package in {sysconfig.get_path('purelib')}; "
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
    told = [
        (name, (stat := path.stat()).st_size, stat.st_mtime_ns)
        for name, path in sorted(files.items())
    ]
    return xxhash.xxh3_64_hexdigest(json.dumps([told, *words]).encode())
