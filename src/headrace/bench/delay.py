"""A way to a server that takes longer: a TCP proxy that holds what it passes on, each way.

Only the time is added: what is under way at the same time stays under way at the same time,
so pipelining is worth what it is worth on a real network. It runs as a process of its own, so
that its work is not counted as that of either side.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import socket
import subprocess
import sys

from headrace.closeable import Closeable
from headrace.errors import UnavailableError

PIECE_BYTES = 1 << 16


class DelayProxy(Closeable):
    """A proxy in a process of its own; ``close`` ends it.

    Args:
        port: of the server, on the loopback address.
        delay_ms: added each way.

    Raises:
        UnavailableError: it does not start.
    """

    def __init__(self, port: int, delay_ms: float) -> None:
        command = [sys.executable, "-m", __name__, str(port), str(delay_ms)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise UnavailableError(f"the proxy to port {port} did not start")
        self.port = int(line)

    @property
    def url(self) -> str:
        """Where to reach the server behind it, if that is Redis."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def close(self) -> None:
        """End it, and with it the connections through it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Write each piece ``delay_s`` after it came, in order."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

    async def read() -> None:
        data = b"-"
        while data:
            data = await reader.read(PIECE_BYTES)
            await pieces.put((loop.time() + delay_s, data))

    reading = loop.create_task(read())
    try:
        while True:
            due, data = await pieces.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        reading.cancel()
        writer.close()


async def _serve(port: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        for end in (writer, back):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(_pass_on(reader, back, delay_s), _pass_on(there, writer, delay_s))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until killed: ``python -m headrace.bench.delay PORT MS``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("delay_ms", type=float)
    chosen = parser.parse_args()
    # epoll waits whole milliseconds, select does not.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve(chosen.port, chosen.delay_ms / 1000))


if __name__ == "__main__":
    main()
