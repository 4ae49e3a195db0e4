"""Start the servers of tests that are Java, and have Java archive their classes as it ends.

Called by ``tools/server_classes.sh``: python tools/server_classes.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from headrace.clock import Deadline, SystemClock
from headrace.testing.hdfs_server import HdfsServer
from headrace.testing.kafka_server import KafkaServer
from headrace.testing.registry_server import RegistryServer
from headrace.testing.servers import is_alive, wait_until

END_S = 120.0
SERVERS: tuple[type[KafkaServer | RegistryServer | HdfsServer], ...] = (
    KafkaServer,
    RegistryServer,
    HdfsServer,
)


def main(folder: Path) -> None:
    """Write the archives to a folder ``archives``."""
    archives = folder / "archives"
    archives.mkdir()
    for kind in SERVERS:
        with kind(folder / kind.__name__, archive_in=archives):
            own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            started = [int(process) for process in own]
            for process in started:
                os.kill(process, signal.SIGTERM)
            wait_until(
                lambda pids=started: not any(map(is_alive, pids)),  # type: ignore[misc]
                Deadline(SystemClock(), END_S),
                f"the end of {kind.__name__}",
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
