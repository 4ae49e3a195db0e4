"""A disk of which a loss of power leaves only what was synced: contents, and names."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from headrace import files
from headrace.bus.address import open_bus
from headrace.bus.options import BusOptions
from headrace.files import Files
from headrace.testing import TestDriver

Tree: TypeAlias = "dict[str, bytes | Tree]"
Names: TypeAlias = dict[str, int]


class Disk:
    """Remembers what is synced below a folder, by inode, as a file system that promises no more.

    To sync a file keeps its content but no name of it; to sync a folder keeps its names but no
    content. What is removed or renamed comes back under its old name until the folder is synced.

    Args:
        root: of what is on the disk; what is there already is durable.
        rng: chooses, for each file and folder, whether more is left than was synced; ``None``:
            nothing is.
    """

    def __init__(self, root: Path, rng: random.Random | None = None) -> None:
        self._root, self._rng = root.resolve(), rng
        self._aside = self._root.with_name(f"{root.name}.inodes")
        self._contents: dict[int, bytes] = {}
        self._folders: dict[int, Names] = {}
        self._open: dict[int, int] = {}
        self._left: Tree | None = None
        self._aside.mkdir()
        self.sync_all()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take notice of each sync of this process, none of which reaches the real disk."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._sync)
            patch.setattr(files, "_syncfs", lambda descriptor: self.sync_all())
            try:
                yield
            finally:
                for descriptor in self._open.values():
                    os.close(descriptor)
                shutil.rmtree(self._aside)

    def sync_all(self) -> int:
        """Make all durable that there is."""
        for folder, _, names in os.walk(self._root):
            self._keep_names(Path(folder))
            for name in names:
                with suppress(FileNotFoundError):
                    self._keep_content(Path(folder, name))
        return 0

    def cut(self) -> None:
        """Let the power go now: what happens from here on is nowhere."""
        if self._left is None:
            self._left = self._folder(self._root.stat().st_ino, *self._present())

    def restore(self) -> None:
        """Let the power come back: there is what the loss has left."""
        assert self._left is not None
        for path in self._root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _write(self._root, self._left)
        self._left = None
        self._contents.clear()
        self._folders.clear()
        self.sync_all()

    def _sync(self, file: int | object) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined]
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if self._left is not None or self._root not in (path, *path.parents):
            return
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._keep_names(path)
        else:
            self._keep_content(path)

    def _keep_names(self, folder: Path) -> None:
        found = self._names(folder)
        self._folders[self._held(folder)] = found
        for name in found:
            with suppress(FileNotFoundError):
                self._held(folder / name)

    def _keep_content(self, path: Path) -> None:
        self._contents[self._held(path)] = path.read_bytes()

    def _held(self, path: Path) -> int:
        """Return an inode, which nothing else becomes that is made later."""
        inode = path.stat().st_ino
        if path.is_dir():
            if inode not in self._open:
                self._open[inode] = os.open(path, os.O_RDONLY)
        elif not (link := self._aside / str(inode)).exists():
            os.link(path, link)
        return inode

    def _names(self, folder: Path) -> Names:
        entries = os.scandir(folder)
        return {
            one.name: one.inode()
            for one in entries
            if one.is_dir(follow_symlinks=False) or one.is_file(follow_symlinks=False)
        }

    def _present(self) -> tuple[dict[int, Names], dict[int, bytes]]:
        folders, contents = dict[int, Names](), dict[int, bytes]()
        for folder, _, names in os.walk(self._root):
            found = folders[os.stat(folder).st_ino] = self._names(Path(folder))
            for name in names:
                with suppress(FileNotFoundError, KeyError):  # threads of RocksDB still run
                    contents[found[name]] = Path(folder, name).read_bytes()
        return folders, contents

    def _folder(self, inode: int, folders: dict[int, Names], contents: dict[int, bytes]) -> Tree:
        names = self._folders.get(inode, {})
        if self._has_luck():
            names = folders.get(inode, names)
        known = folders.keys() | self._folders.keys()
        return {
            name: self._folder(one, folders, contents)
            if one in known
            else self._content(one, contents)
            for name, one in names.items()
        }

    def _content(self, inode: int, contents: dict[int, bytes]) -> bytes:
        synced, now = self._contents.get(inode, b""), contents.get(inode, b"")
        if self._has_luck() and now.startswith(synced):
            assert self._rng is not None
            return now[: self._rng.choice([len(now), self._rng.randint(len(synced), len(now))])]
        return synced

    def _has_luck(self) -> bool:
        return self._rng is not None and self._rng.random() < 0.5


def _write(folder: Path, tree: Tree) -> None:
    for name, held in tree.items():
        if isinstance(held, bytes):
            (folder / name).write_bytes(held)
        else:
            (folder / name).mkdir(mode=0o700)
            _write(folder / name, held)


def use_disk(driver: TestDriver) -> None:
    """Let a driver that is not started sync what it writes, which it does not by itself."""
    driver._files = Files()
    driver.bus.close()
    driver.bus = open_bus(str(driver.settings.bus_dir), BusOptions(), clock=driver.clock)
