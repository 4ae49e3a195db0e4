"""Secrets that are easy to find again, and the search for them in all that a run leaves behind."""

from __future__ import annotations

import base64
import gzip
import stat
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.testing.servers import command, parents

CANARY = "c4n4ry"
"""What every secret of these tests begins with."""

_BARE = CANARY.encode()
_FORMS = {
    _BARE,
    _BARE.hex().encode(),
    CANARY.encode("utf-16-le"),
    # of the three places that a byte may have in a group of base64, without what its edges share
    *(base64.b64encode(b"." * at + _BARE)[4 if at else 0 : -4] for at in range(3)),
}


def canary(name: str) -> str:
    """A secret that says where it was put."""
    return f"{CANARY}{name.title().replace('-', '')}"


def leaks(folder: Path) -> list[str]:
    """Every file below a folder that has a canary, as it is, encoded or compressed."""
    return sorted(
        f"{path.relative_to(folder)}: {content[max(0, at - 60) : at + 40]!r}"
        for path in folder.rglob("*")
        if path.is_file()
        for content in _contents(path)
        for form in _FORMS
        if (at := content.find(form)) >= 0
    )


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


def readable_by_others(folder: Path) -> set[str]:
    """The files below a folder that another user of the host can read, by their first folders."""
    found = set()
    for path in folder.rglob("*"):
        if not path.is_file() or not path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            continue
        inner = [one for one in path.parents if one.is_relative_to(folder) and one != folder]
        if all(one.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for one in inner):
            found.add(path.relative_to(folder).as_posix())
    return found


@contextmanager
def calls_below(process: int) -> Iterator[dict[int, str]]:
    """Collect how all processes below one were called, as any user of the host can see it."""
    calls, over = dict[int, str](), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for path in Path("/proc").glob("[0-9]*"):
                pid = int(path.name)
                try:
                    if process in parents(pid):
                        # one that has just begun has its parent's, one that has ended none
                        calls[pid] = max(calls.get(pid, ""), command(pid), key=len)
                except (OSError, ValueError, IndexError):
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield calls
    finally:
        over.set()
        watcher.join()
