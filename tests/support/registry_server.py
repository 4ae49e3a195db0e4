"""A schema registry of its own for tests: Apicurio, which speaks as Confluent's does.

Its programs are those of ``tools/registry.sh``; it keeps schemas in memory. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from headrace.clock import Clock, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.kafka_server import KAFKA_START_S, QUICK_JVM, find_java
from headrace.testing.servers import ServerProcess, free_port

_JVM = ("-Xmx384m", *QUICK_JVM)
_ASK_S = 5.0


class RegistryServer(ServerProcess):
    """Started when it is made; ``close`` ends it, and its schemas are gone.

    Args:
        folder: of its log; made when missing.
        clock: for waiting.

    Raises:
        InvalidInputError: it is not installed, or no Java is.
        UnavailableError: it does not start; has the end of its log.
    """

    _what = "the schema registry"

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        [program] = registry_folder().glob("*-runner.jar")
        given = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}")
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_java(), *_JVM, *given, "-jar", str(program)],
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        try:
            self._await(KAFKA_START_S)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """As clients of Confluent's registry take it."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def _answers(self) -> bool:
        with suppress(URLError, OSError), urlopen(f"{self.url}/subjects", timeout=_ASK_S) as found:
            return bool(found.status == 200)
        return False


def registry_folder() -> Path:
    """Return the folder of the registry's programs.

    Raises:
        InvalidInputError: there is none; says how to get it.
    """
    found = sorted(Path(sys.prefix, "jars").glob("registry-*"))
    if not found:
        raise InvalidInputError(
            f"there is no schema registry in {Path(sys.prefix, 'jars')}; in a clone of Headrace, "
            "fetch it with: tools/registry.sh"
        )
    return found[-1]
