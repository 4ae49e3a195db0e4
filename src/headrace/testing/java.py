"""How Java is started for servers of tests: plainly, for they end before more would pay.

With an archive of the classes that a server loads, which ``tools/server_classes.sh`` makes once,
Java maps them from a file instead of reading, parsing and verifying them. One belongs to a program,
its jars and a version of Java; without one, or with one that does not fit, it starts without.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from headrace.errors import InvalidInputError

_PLAIN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def java_command(
    name: str, memory_mb: int, *words: str, archive_in: Path | None = None
) -> list[str]:
    """Return the command that starts a server.

    Args:
        name: of the server, and of the archive of its classes.
        memory_mb: of its heap at most.
        words: options of Java, the program, and what it gets.
        archive_in: a folder where Java writes the archive when it is asked to end.
    """
    file = archive_file(name)
    if archive_in is not None:
        classes: tuple[str, ...] = (f"-XX:ArchiveClassesAtExit={archive_in / file.name}",)
    else:
        classes = (f"-XX:SharedArchiveFile={file}", *_QUIET) if file.is_file() else ()
    return [find_java(), f"-Xmx{memory_mb}m", *_PLAIN, *classes, *words]


def archive_file(name: str) -> Path:
    """Return where the archive of a server's classes is, or would be."""
    return Path(sys.prefix, "jars", f"{name}.jsa")


def find_java() -> str:
    """Return the program ``java``.

    Raises:
        InvalidInputError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise InvalidInputError("no Java is installed; servers of tests need Java 17")
    return found
