"""A network of hosts on one machine, each with addresses and a loopback of its own.

A bridge has the first address, which the machine itself has in this network. A host is a process
in a network namespace of its own, with all that it starts; it is joined to the bridge by a pair of
virtual cards, which ends with its last process. Linux only, and for root only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from headrace.clock import Deadline, SystemClock
from headrace.closeable import Closeable
from headrace.errors import InvalidInputError
from headrace.testing.servers import wait_until

START_S = 10.0
_BEGIN = """read -r go || exit 1
ip link set lo up && ip addr add "$1/24" dev card && ip link set card up || exit 1
shift
exec "$@" </dev/null
"""


class HostNetwork(Closeable):
    """There when it is made; ``close`` removes the bridge.

    Raises:
        InvalidInputError: this process may not make one.
    """

    def __init__(self) -> None:
        if not can_make_networks():
            raise InvalidInputError(
                "networks of hosts need root, and the commands ip and unshare; run as root"
            )
        drawn = os.urandom(4)
        self._name = f"hr{drawn.hex()}"
        self._prefix = f"10.{64 + drawn[0] % 128}.{drawn[1]}"
        _ip("link", "add", self._name, "type", "bridge")
        try:
            _ip("addr", "add", f"{self.gateway}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
        except BaseException:
            self.close()
            raise

    @property
    def gateway(self) -> str:
        """The address of this machine itself."""
        return f"{self._prefix}.1"

    def address(self, number: int) -> str:
        """Return the address of a host, numbered from 0."""
        return f"{self._prefix}.{number + 2}"

    def command(self, number: int, inner: list[str]) -> list[str]:
        """Return what runs a command as a host: it begins once ``join`` was called.

        Args:
            number: of the host.
            inner: the command. Its standard input has to be a pipe, by which it is let begin.
        """
        return ["unshare", "--net", "sh", "-c", _BEGIN, "sh", self.address(number), *inner]

    def join(self, number: int, process: subprocess.Popen[bytes]) -> None:
        """Connect a process that was started with ``command``, and let it begin."""
        own = os.readlink("/proc/self/ns/net")
        there = Path(f"/proc/{process.pid}/ns/net")
        deadline = Deadline(SystemClock(), START_S)
        wait_until(lambda: os.readlink(there) != own, deadline, "a network namespace")
        card = f"{self._name}-{number}"
        _ip("link", "add", card, "type", "veth", "peer", "name", "card", "netns", str(process.pid))
        _ip("link", "set", card, "master", self._name, "up")
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()

    def close(self) -> None:
        """Remove it; closing twice is fine."""
        subprocess.run(["ip", "link", "del", self._name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@cache
def can_make_networks() -> bool:
    """Say whether this process may make networks and namespaces."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    tried = "ip link add hr0 type veth peer name hr1 && ip link add hr2 type bridge"
    command = ["unshare", "--net", "--mount", "sh", "-c", tried]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
