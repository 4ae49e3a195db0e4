"""The process of ``headrace ui``: the tailer, and the server in front of it."""

from __future__ import annotations

import socket

import uvicorn

from headrace.bus.bus import Bus
from headrace.clock import Clock, SystemClock
from headrace.config import Settings
from headrace.control.server import listening, place_at
from headrace.errors import InvalidInputError
from headrace.explore.service import ExploreService
from headrace.ui.access import LOOPBACK, Access
from headrace.ui.app import make_app
from headrace.ui.live import LiveHub

ENDING_S = 2


class UiServer:
    """Serves the web application of a home until the process is to end.

    Args:
        bus: of the home.
        settings: of the home.
        clock: for what is relative to now.

    Raises:
        InvalidInputError: the address cannot be listened on, or is for others and nobody has said
            by which token they sign in.
    """

    def __init__(self, bus: Bus, settings: Settings, clock: Clock | None = None) -> None:
        wanted = settings.ui
        if wanted.host not in LOOPBACK and wanted.token_file is None:
            raise InvalidInputError(
                f"ui.host={wanted.host} can be reached from other hosts, and ui.token_file is not "
                "set; write a token into a file and name it, and put a proxy with TLS in front"
            )
        clock = clock or SystemClock()
        self._access = Access(wanted, clock, wanted.host)
        self._listener = listening(wanted.host, wanted.port, "ui")
        self.url = place_at(self._listener, "").url
        self.service = ExploreService(bus, settings, clock)
        self.app = make_app(self.service, self._access, clock)
        self._server = self._new_server()

    @property
    def sign_in_url(self) -> str:
        """The address that begins a session."""
        return f"{self.url}/?token={self._access.token}"

    def stop(self) -> None:
        """Have ``serve`` end, from another thread."""
        self._server.should_exit = True

    def serve(self) -> None:
        """Keep streams and answer until ``stop``, or until the process gets a signal to end."""
        self.service.tailer.start()
        try:
            self._server.run([self._listener])
        finally:
            self.service.close()
            self._listener.close()

    def _new_server(self) -> _Server:
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=ENDING_S,
        )
        return _Server(config, self.app.state.hub)


class _Server(uvicorn.Server):
    """Ends the answers that have no end, before it waits for the others."""

    def __init__(self, config: uvicorn.Config, hub: LiveHub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all answers, then the server."""
        self._hub.is_over = True
        await super().shutdown(sockets)
