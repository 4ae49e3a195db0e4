"""Where files are that live in an object storage: a local folder that stands for a bucket.

A job's storage at ``s3://bucket/prefix`` has the path ``<state_dir>/_remote/s3/bucket/prefix`` on
each host. ``headrace.files`` sends what is done to paths below ``_remote`` here, so that code
which writes a segment or publishes a manifest does not know where these go. The object counts. What
is on disk is a cache of objects that never change, bounded in bytes, which any host can lose; and
what belongs to one host alone: locks, temporary files with names that begin with a dot.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from headrace.objects import Address, ObjectInfo, ObjectStorage, open_storage

FOLDER = "_remote"
PART = f"/{FOLDER}/"
"""What a path has in it that stands for something in an object storage."""
CACHED = frozenset(
    {"segment", "snapshot", "exchange", "output", "plans", "tables", "rows", "parts"}
)
"""Folders of jobs and streams whose files never change once they have their name."""
DEFAULT_CACHE_BYTES = 4 << 30
CACHED_DAYS = "ds="
"""So begin the names of the folders of days of tables, whose files never change either."""
UNFINISHED_S = 86_400.0
_SLACK = 8  # the cache is looked at when an eighth of its bytes has come


def local_path(address: Address, state_dir: Path) -> Path:
    """Return the folder of a host that stands for an address."""
    return state_dir / FOLDER / address.scheme / address.bucket / address.prefix


def on_host(path: Path, state_dir: Path) -> Path:
    """Return what stands on a host for what a path of another stands for; others are the same."""
    _, part, rest = str(path).partition(PART)
    return state_dir / FOLDER / rest if part else path


def address_of(path: Path) -> str:
    """Return a path as people write it: the address that it stands for, where it does."""
    _, part, rest = str(path).partition(PART)
    return "://".join(rest.split("/", 1)) if part else str(path)


def is_remote(path: Path | str) -> bool:
    """Say whether a path stands for something in an object storage."""
    return PART in str(path)


class RemoteFile:
    """A path that stands for an object, or for a folder of objects.

    Args:
        path: below a folder ``_remote``.
    """

    def __init__(self, path: Path | str) -> None:
        text = str(path)
        before, _, rest = text.partition(PART)
        scheme, bucket, *names = rest.split("/")
        self.path, self.name = Path(path), "/".join(names)
        self._root = f"{before}{PART}{scheme}/{bucket}"
        self._scheme, self._bucket = scheme, bucket

    @property
    def is_own(self) -> bool:
        """Say whether it is a temporary file of this host, which no object is made of."""
        return self.path.name.startswith(".")

    @property
    def storage(self) -> ObjectStorage:
        """The bucket."""
        return open_storage(self._scheme, self._bucket)

    @property
    def cache(self) -> LocalCache:
        """The files of this host that were read or written before."""
        return _cache(self._root)

    @property
    def is_cached_kind(self) -> bool:
        """Say whether it never changes, so that a copy on disk is as good."""
        return _is_cached(self.path.parent.name)

    def upload(self, source: Path, *, new: bool) -> bool:
        """Make the object of a local file, which becomes its cached copy.

        Args:
            source: on this host; it is renamed.
            new: refuse a name that is taken.

        Returns:
            False when the name was taken; the file is as it was.
        """
        if not new:
            self.storage.put_file(self.name, source)
        elif not self.storage.put_new(self.name, source.read_bytes()):
            return False
        if self.is_cached_kind:
            self.cache.keep(source, self.path)
        return True

    def local(self) -> Path:
        """Return a local file with the content, which is fetched unless it is there.

        Raises:
            FileNotFoundError: there is no such object.
        """
        if self.cache.touch(self.path):
            return self.path
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.path.with_name(f".{self.path.name}.{os.urandom(8).hex()}.tmp")
        self.storage.get_file(self.name, temporary)
        self.cache.keep(temporary, self.path)
        return self.path

    def names(self) -> list[str]:
        """Return the sorted names in the folder, without hidden ones."""
        found = self.storage.entries(self.name)
        return [name for name in found if not name.startswith(".")]

    def info(self) -> ObjectInfo | None:
        """Return what is known of the object; ``None``: there is none."""
        return self.storage.info(self.name)

    def exists(self) -> bool:
        """Say whether there is such an object, or a folder with any."""
        return self.info() is not None or bool(self.storage.entries(self.name))

    def remove(self) -> None:
        """Remove the object, and what is cached of it."""
        self.storage.delete(self.name)
        self.path.unlink(missing_ok=True)

    def remove_tree(self) -> None:
        """Remove all objects of the folder; those that commit an epoch go first, the newest first.

        So a removal that is broken off leaves nothing that names what is gone.
        """
        found = sorted((one.name for one in self.storage.objects(self.name)), key=_removal_order)
        for name in found:
            self.storage.delete(name)
        shutil.rmtree(self.path, ignore_errors=True)


def _removal_order(name: str) -> tuple[bool, list[int]]:
    return "/manifests/" not in f"/{name}", [-ord(letter) for letter in name]


class LocalCache:
    """Copies of objects on this host's disk, of which the longest unused go.

    Copies are not synced, so those of before the last boot may be torn and are thrown away.

    Args:
        root: the folder that stands for the bucket.
        most_bytes: how much may be kept; a file that is mapped stays readable when it goes.
    """

    def __init__(self, root: Path, most_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.root, self.most_bytes = root, most_bytes
        self._lock = threading.Lock()
        self._new_bytes = most_bytes  # what processes before this one kept is counted at once
        self._begin()

    def _begin(self) -> None:
        note, boot = self.root / ".boot", boot_id() or "unknown"
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            if note.read_text() == boot:
                return
        for path, _ in self._files():
            if not path.name.startswith("."):  # those of processes that begin just now
                path.unlink(missing_ok=True)
        temporary = note.with_name(f".boot-{os.urandom(8).hex()}")
        temporary.write_text(boot)
        temporary.rename(note)

    def touch(self, path: Path) -> bool:
        """Say whether a file is here; it then counts as used now."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def keep(self, temporary: Path, path: Path) -> None:
        """Give a local file the name of the object that it is a copy of."""
        size = temporary.stat().st_size
        temporary.rename(path)
        with self._lock:
            self._new_bytes += size
            if self._new_bytes * _SLACK < self.most_bytes:
                return
            self._new_bytes = 0
        self.shrink(path)

    def shrink(self, kept: Path | None = None) -> None:
        """Remove the files longest unused until the rest fits; one may be kept in any case.

        What processes that died were fetching goes, too, a day after.
        """
        found = [(stat.st_mtime, stat.st_size, path) for path, stat in self._files()]
        now = max((used for used, _, _ in found), default=0.0)
        for used, _, path in found:
            if path.name.startswith(".") and used < now - UNFINISHED_S:
                path.unlink(missing_ok=True)
        found = [one for one in found if not one[2].name.startswith(".")]
        size = sum(one for _, one, _ in found)
        for _, own, path in sorted(found):
            if size <= self.most_bytes:
                return
            if path != kept:
                path.unlink(missing_ok=True)
                size -= own

    def _files(self) -> Iterable[tuple[Path, os.stat_result]]:
        for folder, _, names in os.walk(self.root):
            if _is_cached(os.path.basename(folder)):
                for name in names:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):
                        yield path, path.stat()


def _is_cached(folder: str) -> bool:
    return folder in CACHED or folder.startswith(CACHED_DAYS)


@cache
def boot_id() -> str | None:
    """Return the kernel's name of this boot of the machine; ``None``: it gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


_caches: dict[str, LocalCache] = {}


def _cache(root: str) -> LocalCache:
    if root not in _caches:
        _caches[root] = LocalCache(Path(root), _most_bytes)
    return _caches[root]


_most_bytes = DEFAULT_CACHE_BYTES


def cache_bytes() -> int:
    """Return how many bytes of objects this process keeps on disk for each bucket."""
    return _most_bytes


def bound_caches(most_bytes: int) -> None:
    """Set how many bytes of objects this process keeps on disk for each bucket."""
    global _most_bytes  # noqa: PLW0603 - the disk is one for all jobs of a process
    _most_bytes = most_bytes
    for held in _caches.values():
        held.most_bytes = most_bytes
