"""The fence of a job's storage in an object storage; see ``headrace.fencing`` for what one is.

The right to change a folder is an object in it, ``fence/<generation>-<unique>``, and who takes it
removes those of older ones. There are no steps of a file system that would fail with it, so
each change looks at the right first. What that leaves open, a process that freezes between the
look and its request, decides nothing: names of epochs and generations are taken by conditional
puts, and files of an attempt have names of their own, with the generation. Decision 0049 lists what
remains.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.fencing import FencedFiles, read_holder
from headrace.files import Files, new_name
from headrace.remote import is_remote


def fenced_files(files: Files, root: Path) -> FencedFiles:
    """Return the files of a folder that its newest holder alone changes, wherever it is."""
    return FencedObjects(files, root) if is_remote(root) else FencedFiles(files, root)


class FencedObjects(FencedFiles):
    """Objects below a path that stands for a part of a bucket, changed by their newest holder.

    Until ``take`` or ``join`` was called, and for paths elsewhere, it does as the files beneath.

    Args:
        files: the file system.
        root: the path; the right to change what is below is kept there.
    """

    def take(self, generation: int, origin: str = "") -> None:
        """Become the holder, and end the rights of all older ones; see ``FencedFiles.take``."""
        if self._own is not None and self._held == (generation, origin):
            return self.check()
        own = self._place / f"{generation:08d}-{origin}-{new_name()}"
        self._inner.publish(own, b"")
        self._own, self._held, self._leads = own, (generation, origin), True
        for name in self._inner.names(self._place):
            number, its_origin = read_holder(name)
            if its_origin == origin and number > generation:
                self._inner.remove(own)
                raise self._refused()
            if name != own.name and (its_origin != origin or number < generation):
                self._inner.remove(self._place / name)
        return None

    def join(self) -> None:
        """Change the folder beside its holder, as long as that holds it."""
        found = map(read_holder, self._inner.names(self._place))
        newest, origin = max(found, default=(0, ""))
        self.take(newest, origin)
        self._leads = False

    def alone(self, lock: Path, clock: Clock, wait_s: float) -> NoReturn:
        """Refuse: sinks, which ask for this, are in folders of a file system.

        Tables of the warehouse do without it here.
        """
        raise InvalidInputError(
            f"{lock} cannot be locked in an object storage; use a folder of a file system"
        )

    def leave(self) -> None:
        """Hold the folder no more."""
        if self._own is not None:
            self._inner.remove(self._own)

    def check(self) -> None:
        """Make sure that no newer holder has taken the folder; a fence only for this moment."""
        if self._own is None:
            return
        with suppress(FileNotFoundError):
            self._inner.status(self._own)
            return
        if self._inner.names(self._place):
            raise self._refused()
        raise FileNotFoundError(2, "the folder is gone", str(self.root))

    def _check_of(self, path: Path) -> None:
        """Look at the right before a change, unless the path is elsewhere."""
        if self._own_of(path) is not None:
            self.check()

    def publish(
        self, path: Path, data: bytes, on_written: Callable[[], None] | None = None
    ) -> bool:
        """Create an object if it is absent; see ``FencedFiles.publish``."""
        if on_written is not None:
            on_written()
        self._check_of(path)
        return self._inner.publish(path, data)

    def replace(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Set the content of an object; see ``FencedFiles.replace``."""
        self._check_of(path)
        self._inner.replace(path, data, durable=durable)

    def link(self, temporary: Path, path: Path, *, durable: bool = True) -> None:
        """Make an object of a file; see ``FencedFiles.link``."""
        self._check_of(path)
        self._inner.link(temporary, path, durable=durable)

    def remove(self, path: Path) -> None:
        """Remove an object; see ``FencedFiles.remove``."""
        self._check_of(path)
        self._inner.remove(path)

    def remove_tree(self, folder: Path) -> None:
        """Remove all objects below a path; see ``FencedFiles.remove_tree``."""
        self._check_of(folder)
        self._inner.remove_tree(folder)

    def rename(self, path: Path, name: Path) -> None:
        """Give a file another name; see ``Files.rename``."""
        self._check_of(name)
        self._inner.rename(path, name)

    def make_missing(self, folder: Path, mode: int = 0o777, *, durable: bool = True) -> None:
        """Make a folder of this host, for its own files: a bucket has none."""
        self._inner.make_missing(folder, mode, durable=False)
