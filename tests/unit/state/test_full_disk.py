"""RocksDB on a disk without room: an error that says so, and all is well when there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PRIVATE = ["--mount"] if os.getuid() == 0 else ["--mount", "--user", "--map-root-user"]
CAN_MOUNT = subprocess.run(["unshare", *PRIVATE, "true"], check=False).returncode == 0

SCRIPT = """
import os, sys
from pathlib import Path
from headrace.files import DiskFullError
from headrace.state.backend import Position
from headrace.state.rocksdb import RocksDBBackend

folder, noise = Path(sys.argv[1]), os.urandom(1 << 20)
keys = [number.to_bytes(4, "big") for number in range(1024)]

def changes(epoch):
    return {"a": (keys, [noise[n:n + 1000] + bytes([epoch]) for n in range(1024)])}

def refused(step):
    try:
        step()
    except DiskFullError as error:
        assert "No space left" in str(error), error
        return True
    return False

backend = RocksDBBackend(folder / "task", ["a"])
backend.apply(changes(0), Position("l", 0, "d"))
backend.flush()
with open(folder / "ballast", "wb", buffering=0) as file:
    try:
        while True:
            file.write(noise)
    except OSError:
        pass
backend.apply(changes(1), Position("l", 1, "d"))
assert refused(backend.flush)
assert refused(backend.close)
os.unlink(folder / "ballast")
again = RocksDBBackend(folder / "task", ["a"])
position = again.position
assert position in (None, Position("l", 0, "d"), Position("l", 1, "d")), position
again.apply(changes(2), Position("l", 2, "d"))
again.flush()
assert [value[-1] for value in again.get_many("a", keys)] == [2] * len(keys)
again.close()
print("done")
"""

if CAN_MOUNT:  # where nobody may mount, the tests on Spark that limit a file's size stand alone

    def test_a_database_on_a_full_disk_comes_back(tmp_path: Path) -> None:
        """Real RocksDB on a tmpfs of 16 MiB; what was not flushed is caught up by its caller."""
        mounted = 'mount -t tmpfs -o size=16m small "$1" && shift && exec "$@"'
        command = ["unshare", *PRIVATE, "sh", "-c", mounted, "sh", str(tmp_path)]
        done = subprocess.run(
            [*command, sys.executable, "-c", SCRIPT, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
        )
        assert done.stdout == "done\n", done.stderr
